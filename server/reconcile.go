package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/server/registry"
)

// reconciler is what one replica does under the lease for it: it moves what may
// move, places what waits, ends drains, and writes down what changed. Its writes
// carry its token, so that one which was deposed changes nothing.
type reconciler struct {
	*Server
	fence  registry.Fence
	began  time.Duration // on the boot clock: its term, or what came after that and ended the terms of nodes that live
	clock  time.Duration // the database's clock less the boot clock; 0 until it was read
	brake  *fleet.Brake  // nil until that of the reconciler before was read
	ahead  time.Duration // of the database's clock, for the instants of the brake
	braked []fleet.Event // changes of the brake that are not in the ledger yet
	bucket fleet.Bucket

	known    map[string]fleet.Liveness // as written to the ledger
	noted    map[string]fence.Token    // lapses that were noted
	withheld map[string]fleet.Code     // takeovers that are held back, as written
	stuck    map[string]bool
	scan     time.Time // of the last look at all work
	prune    time.Time

	// Takeovers and placements begin nothing more in a step once they have had this
	// long, so that what comes after them is done however much they have to do.
	share  time.Duration
	due    string                      // the item with which the takeovers of the next step begin
	queued string                      // the item after which its placements do
	read   bool                        // the registry was read authoritatively in this step
	full   map[string]registry.Verdict // that nothing fits, by request, as found in this step
}

// newReconciler returns a reconciler under a term of the lease for it.
func newReconciler(s *Server, token fence.Token) *reconciler {
	return &reconciler{
		Server: s, fence: registry.Fence{Lease: ReconcilerLease, Token: token}, began: clock.Now().Boot,
		known: map[string]fleet.Liveness{}, noted: map[string]fence.Token{},
		prune: time.Now().Add(pruneFirst - pruneEvery), withheld: map[string]fleet.Code{}, stuck: map[string]bool{},
		share: s.cfg.ReconcilerTTL / 8, full: map[string]registry.Verdict{},
	}
}

// reconcileLoop reconciles whenever this replica holds the lease for it. It asks for
// that once it has read the registry. One that cannot do what the lease is for gives
// it back, and gives others the time of a term to take it.
func (s *Server) reconcileLoop(keeper *tenure.Keeper) func(context.Context) {
	return func(ctx context.Context) {
		for grown := s.grown(); !s.loaded.Load(); grown = s.grown() {
			select {
			case <-ctx.Done():
				return
			case <-grown:
			}
		}
		for ctx.Err() == nil {
			err := tenure.Do(ctx, keeper, ReconcilerLease, func(ctx context.Context, t *tenure.Term) error {
				s.active.Store(true)
				defer s.active.Store(false)
				defer s.heldBack.Store(&map[fleet.Code]int{})
				s.log.Info("reconciling", "token", t.Token())
				return newReconciler(s, t.Token()).run(ctx, t)
			})
			if err != nil && ctx.Err() == nil {
				s.log.Error("reconciler gave up", "err", err, "pause", s.cfg.ReconcilerTTL)
				select {
				case <-ctx.Done():
				case <-time.After(s.cfg.ReconcilerTTL):
				}
			}
		}
	}
}

// patience is how many steps in a row have to fail, at least, before a reconciler
// gives its lease back.
const patience = 3

// run looks again and again until the term or ctx ends, or this replica turns out to
// do nothing under it: steps fail, and no write succeeds, for a term longer than a new
// reconciler observes. Whoever fails at some of it goes on with the rest, since
// another would fail at the same, and would have to observe first.
func (r *reconciler) run(ctx context.Context, t *tenure.Term) error {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	var failures int
	var since time.Duration // on the boot clock: the beginning of the first of them
	var made uint64         // writes under the term before it
	every(ctx, r.cfg.Reconcile, r.hurry, func(ctx context.Context) {
		if _, may := t.MayAct(); !may {
			return
		}
		began := clock.Now().Boot
		err := r.step(ctx)
		if ctx.Err() != nil {
			return
		}
		r.noteStep(err)
		if err == nil {
			failures = 0
			return
		}
		r.log.Warn("reconcile", "err", err)
		if failures == 0 || r.reg.Fenced() != made {
			failures, since, made = 0, began, r.reg.Fenced()
		}
		failures++
		if lasted := clock.Now().Boot - since; failures >= patience && lasted > r.cfg.suspect()+r.cfg.ReconcilerTTL {
			giveUp(fmt.Errorf("no write under the term succeeded and %d steps failed in %s, the last: %w", failures, lasted.Round(time.Millisecond), err))
		}
	})
	return context.Cause(ctx)
}

// stepFailure says that a replica's last step as reconciler failed, and as what.
type stepFailure struct {
	text  string
	since time.Time // the first that failed since one went well
}

// noteStep notes how a step ended. That a later term was granted is no failure.
func (s *Server) noteStep(err error) {
	if err == nil || errors.Is(err, errDeposed) {
		s.failed.Store(nil)
		return
	}
	now := stepFailure{err.Error(), time.Now().UTC()}
	if was := s.failed.Load(); was != nil {
		now.since = was.since
	}
	s.failed.Store(&now)
}

// step looks once at everything. What one stage could not do is left to the next
// step, and keeps the stages after it from nothing; but without the brake, or under
// a term that is over, nothing is done.
func (r *reconciler) step(ctx context.Context) error {
	r.read = false
	clear(r.full)
	stage := func(f func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, r.cfg.ReconcilerTTL/2)
		defer cancel()
		return f(ctx)
	}
	var lapsed []registry.Owned
	var nodes []fleet.Node
	now := time.Now()
	if err := stage(func(ctx context.Context) (err error) {
		if lapsed, err = r.reg.Lapsed(ctx); err != nil {
			return err
		}
		for _, o := range lapsed {
			if n := r.in.find(o.Work.Owner); n != nil {
				n.mu.Lock()
				n.see(o.Lease, clock.Now().Boot)
				n.mu.Unlock()
			}
		}
		nodes = r.Nodes()
		return r.judgeBrake(ctx, nodes, now)
	}); err != nil {
		return err
	}
	var errs []error
	for _, f := range []func(context.Context) error{
		func(ctx context.Context) error { return r.tell(ctx, nodes) },
		func(ctx context.Context) error { return r.takeovers(ctx, lapsed, nodes) },
		func(ctx context.Context) error { return r.pending(ctx, nodes, now) },
		func(ctx context.Context) error { return r.drains(ctx, nodes) },
		func(ctx context.Context) error { return r.look(ctx, nodes, now) },
	} {
		err := stage(f)
		errs = append(errs, err)
		if errors.Is(err, errDeposed) || ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// health says whether this replica may trust what it sees.
func (s *Server) health() fleet.Health {
	if age := clock.Now().Boot - time.Duration(s.refreshed.Load()); age > 2*s.cfg.Refresh+s.cfg.Interval {
		return fleet.Health{Text: "the registry was last read " + age.Round(time.Second).String() + " ago"}
	}
	if watched, short := s.Observing(); short {
		return fleet.Health{Text: "it has listened for " + watched.Round(time.Second).String() + " only"}
	}
	return fleet.Health{OK: true}
}

// watchClock notes when the database's clock steps by more than an interval: less
// ends no term of a node that renews.
func (r *reconciler) watchClock(now time.Time) {
	boot := clock.Now().Boot
	ahead := time.Duration(now.UnixNano()) - boot
	if step := ahead - r.clock; r.clock != 0 && step.Abs() > r.cfg.Interval {
		r.log.Warn("clock of the database stepped", "by_ms", step.Milliseconds())
		r.began = boot
	}
	r.clock = ahead
}

// restoreBrake goes on with the brake of the reconciler before this one.
func (r *reconciler) restoreBrake(kept registry.Brake) error {
	states, err := brakeStates(kept)
	if err != nil {
		return err
	}
	brake, err := fleet.NewBrake(r.cfg.Brake)
	if err != nil {
		return err
	}
	r.ahead = time.Duration(r.skew.Load())
	shiftBrakes(states, -r.ahead)
	brake.Restore(states)
	r.brake = brake
	return nil
}

// judgeBrake brings the brake up to date with the nodes and with operators.
func (r *reconciler) judgeBrake(ctx context.Context, nodes []fleet.Node, now time.Time) error {
	kept, err := r.reg.Brake(ctx)
	if err != nil {
		return err
	}
	r.watchClock(kept.Now)
	if r.brake == nil {
		if err := r.restoreBrake(kept); err != nil {
			return err
		}
	}
	tell := func(b fleet.BrakeState) {
		kind, actor := fleet.EventBrakeOn, r.cfg.Name
		if !b.Engaged {
			kind, actor = fleet.EventBrakeOff, cmp.Or(b.By.Actor, r.cfg.Name)
		}
		r.braked = append(r.braked, fleet.Event{Kind: kind, Code: b.Code, Actor: actor, Text: b.Domain + ": " + b.Text})
		r.log.Warn("brake", "domain", b.Domain, "engaged", b.Engaged, "text", b.Text)
	}
	var seen int64
	for _, o := range kept.Orders {
		seen = max(seen, o.Seq)
		how := fleet.LetReleased
		if o.What == "confirm" {
			how = fleet.LetConfirmed
		}
		for _, b := range r.brake.Release(cmp.Or(o.Domain, fleet.DomainAll), how, fleet.Mark{Actor: o.Actor, Reason: o.Reason, At: now}) {
			tell(b)
		}
	}
	for _, b := range r.brake.Step(nodes, now, r.health()) {
		if b.Let == fleet.LetRecovery && b.Code == fleet.CodeStaleHeartbeat {
			r.began = clock.Now().Boot // they are heard again, and have yet to win their leases back
		}
		tell(b)
	}
	states := r.brake.States()
	r.brakes.Store(&states)
	saved := slices.Clone(states)
	shiftBrakes(saved, r.ahead)
	state, err := json.Marshal(saved)
	if err != nil {
		return err
	}
	if string(state) != string(kept.State) || seen > 0 {
		if v, err := r.reg.SaveBrake(ctx, r.fence, state, seen); err != nil || v.Code != "" {
			return cmp.Or(err, deposed(v))
		}
	}
	if err := r.append(ctx, r.braked); err != nil {
		return err
	}
	r.braked = nil
	return nil
}

// errDeposed says that a later term of the reconciler's lease was granted.
var errDeposed = errors.New("deposed")

// deposed is a verdict that says so, as an error that matches errDeposed.
func deposed(v registry.Verdict) error {
	if v.Deposed {
		return fmt.Errorf("%w: %s", errDeposed, v.Text)
	}
	return nil
}

func (r *reconciler) append(ctx context.Context, events []fleet.Event) error {
	if len(events) == 0 {
		return nil
	}
	v, err := r.reg.Append(ctx, r.fence, events...)
	r.tellEvents()
	return cmp.Or(err, deposed(v))
}

// suspected notes which of the nodes that were suspect when this reconciler first saw
// them are so by the ledger: the one before may have had no time for the others. It
// waits until it has observed. An outage of the store, on which it may have come to
// its term, can have made nodes suspect that live.
func (r *reconciler) suspected(ctx context.Context, nodes []fleet.Node) error {
	if r.observing() {
		return nil
	}
	var ask []string
	for i := range nodes {
		if n := &nodes[i]; n.Liveness == fleet.Suspect && r.known[n.ID] == "" {
			ask = append(ask, n.ID)
		}
	}
	if len(ask) == 0 {
		return nil
	}
	told, err := r.reg.Suspected(ctx, ask)
	if err != nil {
		return err
	}
	for _, id := range ask {
		r.known[id] = fleet.Alive
	}
	for _, id := range told {
		r.known[id] = fleet.Suspect
	}
	return nil
}

// tell writes changes of liveness and lease to the ledger. Who is heard when this
// replica becomes active is taken for written.
func (r *reconciler) tell(ctx context.Context, nodes []fleet.Node) error {
	if err := r.suspected(ctx, nodes); err != nil {
		return err
	}
	var events []fleet.Event
	known := make(map[string]fleet.Liveness, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		was, ok := r.known[n.ID]
		switch {
		case ok && n.Liveness == fleet.Suspect && was != fleet.Suspect:
			events = append(events, fleet.Event{Kind: fleet.EventSuspect, Node: n.ID, Code: fleet.CodeStaleHeartbeat, Actor: r.cfg.Name, Text: "no beat for " + n.Age.Round(time.Millisecond).String()})
		case n.Liveness == fleet.Alive && was == fleet.Suspect:
			events = append(events, fleet.Event{Kind: fleet.EventAlive, Node: n.ID, Actor: r.cfg.Name, Text: "it is heard again"})
		}
		switch {
		case n.Liveness == fleet.Alive || ok && n.Liveness == fleet.Suspect:
			known[n.ID] = n.Liveness
		case ok:
			known[n.ID] = was
		}
	}
	if err := r.append(ctx, events); err != nil {
		return err
	}
	r.known = known
	for i := range nodes {
		n := &nodes[i]
		over := n.Lease.State == fleet.LeaseLapsed || n.Lease.State == fleet.LeaseReleased
		if over && n.Lease.Token > 0 && r.noted[n.ID] != n.Lease.Token {
			v, err := r.reg.NoteLapse(ctx, r.fence, n.ID, n.Lease.Token, r.cfg.Name)
			if err := cmp.Or(err, deposed(v)); err != nil {
				return err
			}
			if v.Code == "" || v.Code == fleet.CodeWrongState {
				r.noted[n.ID] = n.Lease.Token
			}
		}
	}
	return nil
}

// observing reports whether this replica has listened, or reconciled since what ended
// the terms of nodes that live, for too short a time to conclude anything.
func (r *reconciler) observing() bool {
	_, short := r.Observing()
	return short || clock.Now().Boot-r.began <= r.cfg.suspect()
}

// takeovers moves what may be moved from nodes whose lease is over. It begins with
// what the step before had no time for, or the rate of takeovers none.
func (r *reconciler) takeovers(ctx context.Context, lapsed []registry.Owned, nodes []fleet.Node) error {
	byID := make(map[string]*fleet.Node, len(nodes))
	for i := range nodes {
		byID[nodes[i].ID] = &nodes[i]
	}
	// A new term may follow on an outage of the store, in which nobody could renew; a
	// step of the database's clock ends terms before their time; and those for whom a
	// brake let go were cut off. Agents that live get the time to win their leases back.
	observing := r.observing()
	var events []fleet.Event
	held := map[string]fleet.Code{}
	end := time.Now().Add(r.share)
	first := max(slices.IndexFunc(lapsed, func(o registry.Owned) bool { return o.Work.ID == r.due }), 0)
	lapsed = slices.Concat(lapsed[first:], lapsed[:first])
	r.due = ""
	for i, o := range lapsed {
		id, was := o.Work.ID, r.withheld[o.Work.ID]
		if i > 0 && !time.Now().Before(end) {
			r.due = cmp.Or(r.due, id)
			if was != "" {
				held[id] = was
			}
			continue
		}
		owner := fleet.Node{ID: o.Work.Owner, Liveness: fleet.Observing}
		if n := byID[o.Work.Owner]; n != nil {
			owner = *n
		}
		owner.Lease = o.Lease
		d, err := r.takeover(ctx, o, owner, observing)
		if err != nil {
			r.due = lapsed[(i+1)%len(lapsed)].Work.ID
			return err
		}
		if d.Action != fleet.Hold {
			continue
		}
		held[id] = d.Code
		if released := o.Lease.State == fleet.LeaseReleased; d.Code == fleet.CodeHostGone && (observing || released && o.Lease.Over < r.cfg.NodeTTL) {
			held[id] = fleet.CodeLeaseRecent // one that ended in order, or was not asked yet, has the time to come back
		}
		if d.Code == fleet.CodeRateLimited {
			r.due = cmp.Or(r.due, id)
			if was == fleet.CodeNoCapacity { // for all that is known it still would not fit
				held[id] = was
			}
		}
		// That a lease is over only just now is the course of things.
		if code := held[id]; code != was && code != fleet.CodeLeaseRecent {
			events = append(events, fleet.Event{Kind: fleet.EventWithheld, Work: id, Node: o.Work.Owner, Token: o.Work.Token, Code: code, Actor: r.cfg.Name, Text: d.Text})
		}
	}
	if err := r.append(ctx, events); err != nil {
		return err
	}
	byCode := map[fleet.Code]int{}
	for id, code := range held {
		byCode[code]++
		if code != r.withheld[id] {
			r.counts.add("withheld", string(code))
		}
	}
	r.withheld = held
	r.heldBack.Store(&byCode)
	return nil
}

// takeover does with an item of a node whose lease is over what is to be done with
// it, and returns what that was.
func (r *reconciler) takeover(ctx context.Context, o registry.Owned, owner fleet.Node, observing bool) (fleet.Decision, error) {
	recent, err := r.recent(ctx, o.Work)
	if err != nil {
		return fleet.Decision{}, err
	}
	d, after := fleet.JudgeTakeover(fleet.TakeoverCase{Work: o.Work, Owner: owner, Recent: recent, Brakes: r.brake.States(), Observing: observing}, r.cfg.Takeover, r.bucket, r.dbNow())
	t := registry.Takeover{
		Placement: registry.Placement{Work: o.Work.ID, Token: o.Work.Token, Actor: r.cfg.Name, Fence: r.fence},
		Evidence:  r.evidence(o, owner),
	}
	var v registry.Verdict
	switch d.Action {
	case fleet.End:
		v, err = r.reg.ReleaseToPending(ctx, t)
		r.counts.add("takeover", codeOf(v, err))
		r.taken(o, owner, v, err)
	case fleet.Move:
		v, err = r.take(ctx, t, o.Work)
		r.taken(o, owner, v, err)
		if v.Code == "" { // made, or perhaps made
			r.bucket = after
		}
		if v.Code == fleet.CodeNoCapacity {
			d = fleet.Decision{Action: fleet.Hold, Code: v.Code, Text: v.Text}
		}
	}
	return d, cmp.Or(err, deposed(v))
}

// recent returns when an item was taken over lately.
func (s *Server) recent(ctx context.Context, w fleet.Work) ([]time.Time, error) {
	if w.Takeovers == 0 {
		return nil, nil
	}
	taken, err := s.reg.Takeovers(ctx, registry.TakeoverFilter{Work: w.ID, Limit: fleet.MaxFlaps, Last: true})
	if err != nil {
		return nil, err
	}
	var at []time.Time
	for _, t := range taken {
		at = append(at, t.Recorded)
	}
	return at, nil
}

// evidence is what is known when work is taken from a node, by the database's
// clock.
func (r *reconciler) evidence(o registry.Owned, owner fleet.Node) fleet.Evidence {
	now := r.dbNow()
	e := fleet.Evidence{
		From: o.Work.Owner, FromToken: o.Work.Token, LeaseToken: o.Lease.Token, LeaseState: o.Lease.State,
		Progress: o.Work.Progress, Silence: now.Add(-owner.Age), Lapse: now.Add(-o.Lease.Over),
	}
	if owner.Liveness == fleet.Suspect {
		e.Suspect = owner.Since.Add(time.Duration(r.skew.Load()))
	}
	return e
}

// take gives an item of a lapsed node to another. The verdict's code is
// no_capacity if there is none.
func (r *reconciler) take(ctx context.Context, t registry.Takeover, w fleet.Work) (registry.Verdict, error) {
	v, err := r.place(ctx, away(w), func(p registry.Placement) (registry.Verdict, error) {
		t.Node, t.Lease = p.Node, p.Lease
		return r.reg.Takeover(ctx, t)
	})
	r.counts.add("takeover", codeOf(v, err))
	if v.Code == "" && err == nil {
		r.log.Warn("takeover", "work", w.ID, "from", w.Owner, "to", t.Node, "token", v.Current)
		r.touch(ctx, t.Node)
		r.touch(ctx, w.Owner)
	}
	return v, err
}

// taken counts a takeover by its evidence, if it was made.
func (r *reconciler) taken(o registry.Owned, owner fleet.Node, v registry.Verdict, err error) {
	if err != nil || v.Code != "" {
		return
	}
	r.hindsight.evidence.add(evidence{o.Lease.State, owner.Liveness}, 1)
	if o.Lease.State != fleet.LeaseNone {
		r.st.takeoverTime.Observe(o.Lease.Over.Seconds())
	}
}

// place is Server.place for all items of a step together: one authoritative reading
// serves them, and what fits nowhere is asked once for each request. That nothing
// fits is a verdict here.
func (r *reconciler) place(ctx context.Context, req fleet.Request, try func(registry.Placement) (registry.Verdict, error)) (registry.Verdict, error) {
	shape, err := json.Marshal(req)
	if err != nil {
		return registry.Verdict{}, err
	}
	if v, known := r.full[string(shape)]; known {
		return v, nil
	}
	v, err := r.Server.place(ctx, req, &r.read, try)
	if e, ok := errors.AsType[*api.Error](err); ok && e.Code == string(fleet.CodeNoCapacity) {
		v, err = registry.Verdict{Code: fleet.CodeNoCapacity, Text: e.Message}, nil
		r.full[string(shape)] = v
	}
	return v, err
}

// pending places what has no owner, from where the step before had to end.
func (r *reconciler) pending(ctx context.Context, nodes []fleet.Node, now time.Time) error {
	end := time.Now().Add(r.share)
	middle := r.queued != "" // of the queue: its beginning comes last
	for {
		works, err := r.reg.Works(ctx, registry.Filter{States: []fleet.WorkState{fleet.Pending}, After: r.queued})
		if err != nil {
			return err
		}
		if len(works) == 0 {
			r.queued = ""
			if !middle {
				return nil
			}
			middle = false
		}
		for _, w := range works {
			r.queued = w.ID
			req := away(w)
			if home := r.home(w, nodes, now); home != "" {
				req.Node = home
			}
			v, err := r.place(ctx, req, func(p registry.Placement) (registry.Verdict, error) {
				p.Work, p.Token, p.Actor, p.Fence = w.ID, w.Token, r.cfg.Name, r.fence
				return r.reg.Place(ctx, p)
			})
			if err := cmp.Or(err, deposed(v)); err != nil {
				return err
			}
			if v.Code == "" {
				r.touch(ctx, v.Owner)
			}
			if time.Now().After(end) {
				return nil
			}
		}
	}
}

// home is the node to which a taken-over item goes back, if that is wanted and
// it can.
func (r *reconciler) home(w fleet.Work, nodes []fleet.Node, now time.Time) string {
	if w.OnReturn != fleet.KeepOriginal || w.TakenFrom == "" || w.TakenFrom == w.Owner {
		return ""
	}
	if w.State == fleet.Pending { // on its way: judged as if it still were where it was
		w.State = fleet.Running
	}
	for i := range nodes {
		if nodes[i].ID == w.TakenFrom && fleet.JudgeReturn(w, nodes[i], now, r.conditions()).Action == fleet.Move {
			return w.TakenFrom
		}
	}
	return ""
}

// drains ends the drains of empty nodes, and moves work away where that is
// wanted.
func (r *reconciler) drains(ctx context.Context, nodes []fleet.Node) error {
	for i := range nodes {
		n := &nodes[i]
		if n.Intent.State() != fleet.Draining {
			continue
		}
		v, err := r.reg.CompleteDrain(ctx, r.fence, n.ID, r.cfg.Name)
		if err := cmp.Or(err, deposed(v)); err != nil {
			return err
		}
		if v.Code == "" {
			r.touch(ctx, n.ID)
			continue
		}
		if !n.Intent.Drain.Move {
			continue
		}
		works, err := r.reg.Works(ctx, registry.Filter{Owner: n.ID, States: []fleet.WorkState{fleet.Placed, fleet.Running}})
		if err != nil {
			return err
		}
		for _, w := range works {
			if !w.Movable {
				continue
			}
			v, err := r.reg.Move(ctx, r.fence, w.ID, registry.Order{Actor: n.Intent.Drain.Actor, Reason: "drain of " + n.ID + ": " + n.Intent.Drain.Reason})
			if err := cmp.Or(err, deposed(v)); err != nil {
				return err
			}
		}
		r.touch(ctx, n.ID)
	}
	return nil
}

// look goes through all work now and then: what is stuck, what may go home; and
// drops old history.
func (r *reconciler) look(ctx context.Context, nodes []fleet.Node, now time.Time) error {
	if now.Sub(r.scan) < 3*r.cfg.Reconcile {
		return nil
	}
	r.scan = now
	var events []fleet.Event
	stuck := map[string]bool{}
	for after := ""; ; {
		works, err := r.reg.Works(ctx, registry.Filter{States: []fleet.WorkState{fleet.Running}, After: after})
		if err != nil {
			return err
		}
		if len(works) == 0 {
			break
		}
		for _, w := range works {
			after = w.ID
			if at, is := w.StuckSince(r.dbNow()); is {
				stuck[w.ID] = true
				if !r.stuck[w.ID] {
					events = append(events, fleet.Event{Kind: fleet.EventStuck, Work: w.ID, Node: w.Owner, Token: w.Token, Code: fleet.CodeStuck, Actor: r.cfg.Name, Text: "no progress for " + (time.Duration(w.StuckAfterMS) * time.Millisecond).String() + " at " + at.UTC().Format(time.RFC3339)})
				}
			} else if r.stuck[w.ID] {
				events = append(events, fleet.Event{Kind: fleet.EventUnstuck, Work: w.ID, Node: w.Owner, Token: w.Token, Actor: r.cfg.Name})
			}
			if r.home(w, nodes, now) != "" {
				v, err := r.reg.Move(ctx, r.fence, w.ID, registry.Order{Actor: r.cfg.Name, Reason: "goes back to " + w.TakenFrom})
				if err := cmp.Or(err, deposed(v)); err != nil {
					return err
				}
				r.touch(ctx, w.Owner)
			}
		}
	}
	if err := r.append(ctx, events); err != nil {
		return err
	}
	r.stuck = stuck
	if now.Sub(r.prune) < pruneEvery {
		return nil
	}
	more, err := r.forgetOld(ctx)
	if err == nil && !more {
		r.prune = now
	}
	return err
}

const (
	// pruneEvery is the time between two prunings of history, and pruneFirst the time of
	// a term before the first: its beginning may be a time of trouble.
	pruneEvery = time.Hour
	pruneFirst = time.Minute
	// pruneBatches is how many transactions one look spends on it.
	pruneBatches = 10
)

// forgetOld drops history that is older than what is kept, and says whether there
// may be more of it.
func (r *reconciler) forgetOld(ctx context.Context) (more bool, err error) {
	more = true
	for range pruneBatches {
		var n int64
		var v registry.Verdict
		n, more, v, err = r.reg.Prune(ctx, r.fence, r.cfg.Retention)
		if err = cmp.Or(err, deposed(v)); err != nil {
			return false, err
		}
		if n > 0 {
			r.log.Debug("history pruned", "rows", n)
		}
		if !more {
			break
		}
	}
	return more, nil
}

func sortedKeys[K cmp.Ordered](keys iter.Seq[K], by func(a, b K) int) []K {
	return slices.SortedFunc(keys, func(a, b K) int { return cmp.Or(by(a, b), cmp.Compare(a, b)) })
}
