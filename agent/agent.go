package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

// ErrReplaced reports that another incarnation has the node's name. This one
// never acts again.
var ErrReplaced = errors.New("agent: another incarnation of the node has replaced this one")

// ReplacedError says so with the server's words. It matches ErrReplaced.
type ReplacedError struct {
	Node        string
	Incarnation string // this one
	Text        string
}

func (e *ReplacedError) Error() string {
	return fmt.Sprintf("agent: node %q: incarnation %s was replaced: %s", e.Node, e.Incarnation, e.Text)
}

// Unwrap returns ErrReplaced.
func (e *ReplacedError) Unwrap() error { return ErrReplaced }

// RefusedError reports that a server would not take the first beat of a node. It
// wraps the server's reason, which matches store.ErrPermission.
type RefusedError struct {
	Node string
	Err  error
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("agent: node %q is refused: %v", e.Node, e.Err)
}

// Unwrap returns the server's reason.
func (e *RefusedError) Unwrap() error { return e.Err }

// Agent is one run of a node. Its methods are safe for concurrent use.
type Agent struct {
	cfg         Config
	incarnation string // in memory alone
	boot        string
	state       *state
	keeper      *tenure.Keeper
	heart       *heart
	view        *view
	work        *worker
	saver       *saver
	gone        chan struct{} // closed when Run returns
	running     atomic.Bool

	term      atomic.Pointer[tenure.Term] // nil unless one is held
	won       atomic.Bool                 // a term, at any time
	duplicate atomic.Bool
	fenced    atomic.Pointer[ReplacedError]
	end       context.CancelCauseFunc // of Run

	deadlines sync.Mutex
	deadline  Deadline
}

// New checks cfg and takes the state directory, which Run gives back. It returns
// an error matching ErrConfig or ErrStateInUse, or one of the file system.
func New(cfg Config) (*Agent, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	a := &Agent{cfg: cfg, incarnation: store.NewAttempt().String(), boot: BootID(), gone: make(chan struct{})}
	a.heart, a.view, a.work, a.saver = newHeart(a), newView(a), newWorker(a), newSaver(a)
	a.keeper, err = cfg.NewKeeper(&leaseStore{cfg.Store, a}, tenure.Config{
		TTL: cfg.TTL, Interval: cfg.Interval, Margin: cfg.Margin, Logger: cfg.Logger,
		DrainTimeout: 1, // what Run did not hand off is left to its successor
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if a.state, err = openState(cfg.StateDir); err != nil {
		return nil, err
	}
	return a, nil
}

// Incarnation returns the random name of this run.
func (a *Agent) Incarnation() string { return a.incarnation }

// MayAct returns the token of the node's term, and whether the node may act now.
// It does no I/O. Programs that embed an Agent ask before each act, and send the
// token along.
func (a *Agent) MayAct() (fence.Token, bool) {
	t := a.term.Load()
	if t == nil || a.fenced.Load() != nil {
		return 0, false
	}
	return t.MayAct()
}

// Status is where an Agent stands.
type Status struct {
	Node        string
	Incarnation string
	Token       fence.Token // of the node's term; 0 if it may not act
	Duplicate   bool        // another incarnation uses the name
	Replaced    bool        // and has replaced this one for good
	// Intent is the last known, "" if none was ever received.
	Intent   fleet.IntentState
	Revision uint64 // of the orders
	// Stale says why the orders may be out of date; "" if they are confirmed.
	Stale string
	Work  []WorkStatus
}

// Status returns where the agent stands now.
func (a *Agent) Status() Status {
	orders := a.view.get()
	return Status{
		Node: a.cfg.Node, Incarnation: a.incarnation, Token: a.leaseToken(),
		Duplicate: a.duplicate.Load(), Replaced: a.fenced.Load() != nil,
		Intent: orders.Intent, Revision: orders.Revision, Stale: a.view.staleness(), Work: a.work.status(),
	}
}

// Alive is tenure.Keeper.Alive of the keeper of the node's lease.
func (a *Agent) Alive(ctx context.Context) error { return a.keeper.Alive(ctx) }

// Run is the node until ctx ends, and then leaves running work as the package
// comment says and returns nil. It returns *ReplacedError if another incarnation
// has replaced this one, *RefusedError if the server refuses it before it has taken
// any beat (a later refusal may pass, and is waited for), and errors of the state directory, of the driver, or of
// a lease that can never be acquired. It can be called once.
func (a *Agent) Run(ctx context.Context) error {
	if a.running.Swap(true) {
		return errors.New("agent: Run was called twice")
	}
	defer a.state.close()
	defer close(a.gone)
	orders, known, err := a.state.loadOrders(a.cfg.Node)
	if err != nil {
		return fmt.Errorf("agent: saved orders: %w", err) // deleted, they would let a drained node work
	}
	if known {
		a.view.restore(orders)
	}
	if err := a.work.attach(ctx); err != nil {
		return err
	}
	a.work.order()

	ctx, a.end = context.WithCancelCause(ctx)
	defer a.end(nil)
	var tasks, lasting sync.WaitGroup // lasting outlives the tasks, for the end of the lease
	last, stop := context.WithCancel(context.WithoutCancel(ctx))
	saving, stopSaving := context.WithCancel(context.WithoutCancel(ctx))
	lasting.Go(func() { a.heart.run(last) })
	lasting.Go(func() { _ = a.keeper.Run(last) }) // whose only error is that a term was left
	var saves sync.WaitGroup
	saves.Go(func() { a.saver.run(saving) })

	var failed error
	tasks.Go(func() {
		if failed = a.hold(ctx); failed != nil {
			a.end(failed)
		}
	})
	tasks.Go(func() { a.work.loop(ctx) })
	tasks.Go(func() { a.poll(ctx) })
	tasks.Go(func() { a.describe(ctx) })
	tasks.Wait()

	a.handOff(context.WithoutCancel(ctx))
	stop()
	lasting.Wait()
	stopSaving()
	saves.Wait()
	if e := a.fenced.Load(); e != nil {
		return e
	}
	if e, ok := errors.AsType[*RefusedError](context.Cause(ctx)); ok {
		return e
	}
	return failed
}

// handOff gives the lease to the next agent of this host. With work that may run
// only under the lease it is not given back: a release says that nobody acts under
// it. The next agent replaces the term, and if none comes in time, that work is
// ended by its own deadline.
func (a *Agent) handOff(ctx context.Context) {
	t := a.term.Load()
	if t == nil || a.fenced.Load() != nil || a.work.bound() {
		return
	}
	host, _, _ := strings.Cut(t.Holder(), "/")
	if err := t.Handoff(ctx, host); err != nil {
		a.cfg.Logger.Warn("the node's lease is left to its successor", "node", a.cfg.Node, "err", err)
		return
	}
	a.saver.dropTerm()
	a.cutDeadline(false)
}

// heard takes in the answer to a beat that left under lease. It runs on the
// heart's goroutine.
func (a *Agent) heard(b *api.Beat, lease fence.Token, reply *api.BeatReply) {
	switch reply.Code {
	case "":
		if a.duplicate.Swap(false) {
			a.work.wake()
		}
	case fleet.CodeReplaced:
		a.replaced(reply.Text)
		return
	case fleet.CodeDuplicateNode:
		if !a.duplicate.Swap(true) {
			a.emit(Event{Kind: EventDuplicate, Code: string(reply.Code), Text: reply.Text})
		}
		return
	default: // a beat that was not accepted confirms nothing
		return
	}
	a.work.judged(b.Work, reply.Work)
	if reply.Orders != nil {
		a.work.deliver(reply.Orders, lease, nil)
		return
	}
	a.view.confirm(b.Orders, lease)
	a.work.wake()
}

// replaced fences this incarnation for good.
func (a *Agent) replaced(text string) {
	e := &ReplacedError{Node: a.cfg.Node, Incarnation: a.incarnation, Text: text}
	if !a.fenced.CompareAndSwap(nil, e) {
		return
	}
	a.emit(Event{Kind: EventReplaced, Code: string(fleet.CodeReplaced), Text: text})
	a.cutDeadline(true)
	a.work.leaseLost()
	a.end(e)
}

// poll waits at the server for orders, so that they need not wait for a beat.
func (a *Agent) poll(ctx context.Context) {
	for ctx.Err() == nil {
		lease := a.leaseToken()
		orders, err := a.cfg.Server.Orders(ctx, a.cfg.Node, a.view.revision(), a.cfg.Poll)
		pause := time.Duration(0)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			a.view.doubt("orders: " + err.Error())
			pause = shorten(a.cfg.Interval, 0.5)
		default:
			before := a.view.revision()
			done := make(chan struct{})
			a.work.deliver(orders, lease, done)
			select {
			case <-done:
			case <-ctx.Done():
				return
			}
			if a.view.revision() == before { // nothing new: a server that does not wait must not be run down
				pause = time.Duration(rand.Int64N(int64(a.cfg.Interval/4) + 1))
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// describe asks the node for its facts, once an interval. A question that hangs
// holds up nothing but the news.
func (a *Agent) describe(ctx context.Context) {
	asking := make(chan fleet.Facts, 1)
	tick := time.NewTicker(a.cfg.Interval)
	defer tick.Stop()
	for {
		go func() { asking <- a.cfg.Facts() }()
		select {
		case f := <-asking:
			last := a.heart.facts.Load()
			switch {
			case last == nil:
				a.heart.facts.Store(&factsVersion{f, 1})
				a.heart.nudge()
			case !reflect.DeepEqual(last.facts, f):
				a.heart.facts.Store(&factsVersion{f, last.version + 1})
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
