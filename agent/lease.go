package agent

import (
	"context"
	"errors"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/store"
)

// leaseStore is the store of the keeper: renewals go through the heart, and
// before one leaves, what the store may then know of the term is handed to the
// saver for the next agent.
type leaseStore struct {
	store.Store
	a *Agent
}

// Acquire notes the attempt of a term that was won.
func (s *leaseStore) Acquire(ctx context.Context, req store.Request) (store.Record, error) {
	rec, err := s.Store.Acquire(ctx, req)
	if err == nil {
		s.a.won.Store(true)
		s.a.saver.term(savedAttempts{req.Name, rec.Token, req.TTL, []store.Attempt{req.Attempt}})
	}
	return rec, err
}

// Renew sends the grant inside a beat.
func (s *leaseStore) Renew(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	results := make([]store.Result, len(grants))
	for i, g := range grants { // one: the keeper holds the node's lease alone
		if err := g.CheckRenew(1); err != nil { // Features may wait for a server
			return nil, err
		}
		known := append(append([]store.Attempt(nil), g.Known...), g.Attempt)
		s.a.saver.term(savedAttempts{g.Name, g.Token, g.TTL, known[max(0, len(known)-store.MaxKnown):]})
		res, err := s.a.heart.renew(ctx, g)
		if err != nil {
			return nil, err
		}
		results[i] = res
	}
	return results, nil
}

// hold contends for the node's lease, term after term, until ctx ends. While
// beats get no answer it does not: servers may hear what this agent cannot hear
// them grant, and the lease would be held again and again by nobody who may act.
func (a *Agent) hold(ctx context.Context) error {
	name := fleet.LeaseName(a.cfg.Node)
	for {
		opts := []tenure.AcquireOption{
			tenure.WithConfirm(a.confirmed),
			tenure.WithMeta(map[string]string{"incarnation": a.incarnation}),
		}
		listening, stop := a.heart.listening(ctx)
		if !a.won.Load() {
			if left, ok := a.state.leftTerm(name); ok {
				opts = append(opts, tenure.WithReplace(left))
			} else {
				listening = a.untilLeft(listening, name)
			}
		}
		t, err := a.keeper.Acquire(listening, name, opts...)
		deaf := listening.Err() != nil
		stop()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && deaf: // or a term can be replaced; what may have been won was given back
			continue
		case errors.Is(err, store.ErrInvalid), errors.Is(err, store.ErrUnsupported):
			return err
		case err != nil: // refused for now: permission, schema
			a.cfg.Logger.Warn("the node's lease cannot be acquired", "node", a.cfg.Node, "err", err)
			select {
			case <-time.After(a.cfg.Interval):
			case <-ctx.Done():
				return nil
			}
			continue
		}
		a.term.Store(t)
		a.emit(Event{Kind: EventLeased, Text: "token " + t.Token().String()})
		a.heart.nudge() // the orders must be confirmed under this term
		select {
		case <-t.Context().Done():
		case <-ctx.Done():
			return nil // the term stays: Run decides what becomes of it
		}
		if ctx.Err() != nil {
			return nil
		}
		a.lost(t)
	}
}

// untilLeft returns a context that ends with ctx, and once the term of a former
// agent can be replaced that could not yet: its process may end any moment.
func (a *Agent) untilLeft(ctx context.Context, name string) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		tick := time.NewTicker(min(time.Second, a.cfg.Interval/4))
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			if _, ok := a.state.leftTerm(name); a.won.Load() {
				<-ctx.Done() // what was read may be this agent's own
				return
			} else if ok {
				return
			}
		}
	}()
	return ctx
}

// confirmed is called by the keeper after each request that extended the trust.
func (a *Agent) confirmed(t *tenure.Term) {
	d := Deadline{Boot: a.boot, Token: t.Token(), Until: t.TrustedUntil(), Margin: a.cfg.Margin}
	a.deadlines.Lock()
	defer a.deadlines.Unlock()
	if a.deadline.Fenced {
		return
	}
	d.Since = a.deadline.Since
	if a.deadline.Token != d.Token {
		d.Since = clock.Boot()
	}
	a.deadline = d
	a.saver.deadline(d)
}

// lost ends the right to act for everything under t.
func (a *Agent) lost(t *tenure.Term) {
	code, _ := errors.AsType[*tenure.LostError](t.Err())
	e := Event{Kind: EventLost, Err: t.Err()}
	if code != nil {
		e.Code = string(code.Reason)
	}
	a.term.Store(nil)
	a.emit(e)
	a.cutDeadline(false)
	a.work.leaseLost()
	a.heart.nudge()
}

// cutDeadline makes the present instant the last at which the node may act, and
// returns once that was written, or after a moment: the disk may have stalled,
// and whoever obeys the file obeys the former deadline then.
func (a *Agent) cutDeadline(forGood bool) {
	a.deadlines.Lock()
	a.deadline.Boot = a.boot
	a.deadline.Until = min(a.deadline.Until, clock.Boot())
	a.deadline.Fenced = a.deadline.Fenced || forGood
	d := a.deadline
	a.saver.deadline(d)
	a.deadlines.Unlock()
	a.saver.settle()
}

// leaseToken returns the token of the node's term if it may act, else 0.
func (a *Agent) leaseToken() fence.Token {
	if token, ok := a.MayAct(); ok {
		return token
	}
	return 0
}
