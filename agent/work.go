package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
)

const (
	maxReports = 500 // in one beat
	maxStarts  = 8   // at one time
	startLimit = 30 * time.Second
)

// worker brings what runs on this host in line with the orders.
//
//	           Start              Done             verdict, and no
//	(ordered) ──────► running ──────────► ended ───── order ─────► (forgotten)
//	    ▲               │ Halted           │ reported until there
//	    ╰───────────────╯                  ╰ is a verdict
//	 under the new token that the server gives it
//
// What it starts was assigned under the present term. Of what was assigned under an
// earlier one and has left no trace, another agent may have a copy: it starts under a
// new token, too.
//
// Its state is in memory and in the driver's traces; what the heart asks of it
// needs no file.
type worker struct {
	a      *Agent
	woken  chan struct{} // has room for one
	slots  chan struct{} // of starts
	starts sync.WaitGroup

	mu     sync.Mutex
	items  map[string]*item
	inbox  []delivery
	events []Event // to be told once mu is free
	laid   uint64  // the revision of the orders that are on the items
}

// delivery is orders that arrived.
type delivery struct {
	orders *api.Orders
	lease  fence.Token   // the term under which they were asked for
	done   chan struct{} // closed when they were judged; nil if nobody waits
}

// item is one work item: what is ordered, and the local instance.
type item struct {
	id    string
	order *api.Order // nil: the orders do not have it

	of       Instance // the local instance; zero if there is none
	last     Instance // the last that was started
	policy   fleet.LossPolicy
	run      Run // nil while it starts, and if there is only a trace of it
	starting bool
	stopping bool
	ended    bool
	fenced   fleet.Code // the verdict that it is not this node's; "" if it is
	marker   string     // the last that was put into a report
	accepted string     // the last that the server has taken
	verify   bool       // ask for a verdict, whatever it does
	askAt    time.Time  // not to be asked about before, unless there is news of it

	report  *api.WorkReport // unanswered
	settled fence.Token     // the server has judged the end of this assignment
	refused fence.Token     // never to be started under this token or an older one
	fails   int
	retryAt time.Time
}

func newWorker(a *Agent) *worker {
	return &worker{a: a, woken: make(chan struct{}, 1), slots: make(chan struct{}, maxStarts), items: map[string]*item{}}
}

// wake makes the loop look around.
func (w *worker) wake() {
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

// deliver hands orders over and does not wait.
func (w *worker) deliver(o *api.Orders, lease fence.Token, done chan struct{}) {
	w.mu.Lock()
	w.inbox = append(w.inbox, delivery{o, lease, done})
	w.mu.Unlock()
	w.wake()
}

// attach takes up what former agents have left on this host.
func (w *worker) attach(ctx context.Context) error {
	if w.a.cfg.Driver == nil {
		return nil
	}
	left, err := w.a.cfg.Driver.List()
	if err != nil {
		return fmt.Errorf("agent: look for running work: %w", err)
	}
	// An older instance of an item that has a newer one is looked after first.
	slices.SortFunc(left, func(a, b Instance) int {
		if a.Work != b.Work {
			return strings.Compare(a.Work, b.Work)
		}
		return int(a.Token - b.Token)
	})
	for _, of := range left {
		run, err := w.a.cfg.Driver.Attach(ctx, of)
		switch {
		case errors.Is(err, ErrNotRunning):
			run = nil
		case err != nil:
			return fmt.Errorf("agent: attach %q: %w", of.Work, err)
		}
		w.adopt(of, run)
	}
	return nil
}

func (w *worker) adopt(of Instance, run Run) {
	w.mu.Lock()
	defer w.tell()
	defer w.mu.Unlock()
	it := w.item(of.Work)
	if it.run != nil && !it.ended { // two of one item: the older goes
		it.run.Stop("a newer assignment runs on this host")
	}
	*it = item{id: of.Work, order: it.order, of: of, run: run}
	if run == nil {
		return
	}
	it.policy, it.verify = run.Task().Spec.Filled().OnLoss, true
	w.follow(run)
	w.event(Event{Kind: EventAttached, Work: of.Work, Text: fmt.Sprintf("pid %d, token %s", run.PID(), of.Token)})
}

// follow wakes the loop when run ends.
func (w *worker) follow(run Run) {
	go func() {
		select {
		case <-run.Done():
			w.wake()
		case <-w.a.gone:
		}
	}()
}

func (w *worker) item(id string) *item {
	it := w.items[id]
	if it == nil {
		it = &item{id: id}
		w.items[id] = it
	}
	return it
}

// event queues e; tell tells what is queued, with mu free.
func (w *worker) event(e Event) { w.events = append(w.events, e) }

func (w *worker) tell() {
	w.mu.Lock()
	events := w.events
	w.events = nil
	w.mu.Unlock()
	for _, e := range events {
		w.a.emit(e)
	}
}

func (w *worker) loop(ctx context.Context) {
	tick := time.NewTicker(min(time.Second, w.a.cfg.Interval/2))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			w.starts.Wait()
			return
		case <-w.woken:
		case <-tick.C:
		}
		w.open()
		w.step(ctx)
		w.tell()
	}
}

// open judges what arrived, and lays the newest orders on the items.
func (w *worker) open() {
	w.mu.Lock()
	inbox := w.inbox
	w.inbox = nil
	w.mu.Unlock()
	for _, d := range inbox {
		w.a.view.take(d.orders, d.lease)
		w.order()
		if d.done != nil {
			close(d.done)
		}
	}
}

// order lays the orders in force on the items.
func (w *worker) order() {
	orders := w.a.view.get()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, it := range w.items {
		it.order = nil
	}
	w.laid = orders.Revision
	for i := range orders.Work {
		o := orders.Work[i]
		w.item(o.Spec.ID).order = &o
	}
}

// step lets each item take its next step. What touches files happens outside mu,
// which the heart needs.
func (w *worker) step(ctx context.Context) {
	lease := w.a.leaseToken()
	confirmed := lease != 0 && w.a.view.confirmedUnder(lease)
	may := confirmed && !w.a.duplicate.Load() && w.a.cfg.Driver != nil && ctx.Err() == nil
	w.mu.Lock()
	runs := map[string]Run{}
	for id, it := range w.items {
		if it.run != nil {
			runs[id] = it.run
		}
	}
	w.mu.Unlock()
	markers := map[string]string{}
	for id, run := range runs {
		if m := run.Progress(); fleet.CheckMarker(m) == nil {
			markers[id] = m
		}
	}
	var acts []func()
	w.mu.Lock()
	for id, it := range w.items {
		if it.run != nil && it.run == runs[id] {
			w.progress(it, markers[id])
		}
		var act func()
		switch {
		case it.starting:
		case it.run == nil:
			act = w.idle(ctx, it, lease, may, confirmed)
		case it.ended || isDone(it.run):
			act = w.over(it, confirmed)
		default:
			act = w.running(it, may, confirmed)
		}
		if act != nil {
			acts = append(acts, act)
		}
		if it.order == nil && it.of == (Instance{}) && it.report == nil {
			delete(w.items, id)
		}
	}
	w.mu.Unlock()
	for _, act := range acts {
		act()
	}
}

func isDone(r Run) bool {
	select {
	case <-r.Done():
		return true
	default:
		return false
	}
}

// progress puts a new marker into the next beat.
func (w *worker) progress(it *item, marker string) {
	if marker == "" || marker == it.marker || it.fenced != "" || it.ended {
		return
	}
	it.marker = marker
	w.say(it, it.of.Token, it.state())
}

// state is what a living instance is reported as.
func (it *item) state() fleet.WorkState {
	if it.stopping {
		return fleet.Stopping
	}
	return fleet.Running
}

// say replaces the report of an item that waits for its verdict.
func (w *worker) say(it *item, token fence.Token, state fleet.WorkState) *api.WorkReport {
	it.report = &api.WorkReport{Work: it.id, Token: token, State: state, Progress: it.marker}
	return it.report
}

// running looks at an instance that lives.
func (w *worker) running(it *item, may, confirmed bool) func() {
	o, run := it.order, it.run
	ours := o != nil && o.Token == it.of.Token
	switch {
	case it.stopping:
	case ours && o.Stop, o != nil && o.Token > it.of.Token:
		it.stopping = true
		why := "assigned to this node anew"
		if ours {
			why = o.Why
			w.say(it, it.of.Token, fleet.Stopping)
			w.a.heart.nudge()
		}
		w.event(Event{Kind: EventStopping, Work: it.id, Text: why})
		return func() { run.Stop(why) }
	case it.fenced != "":
	case !ours && confirmed && it.report == nil && !time.Now().Before(it.askAt):
		// The server does not want it here. What that means it says itself.
		it.askAt = time.Now().Add(w.a.cfg.Interval)
		w.say(it, it.of.Token, fleet.Running)
		w.a.heart.nudge()
	case it.verify && it.report == nil:
		it.verify = false
		w.say(it, it.of.Token, fleet.Running)
		w.a.heart.nudge()
	case ours && may && it.policy == fleet.Quiesce && it.report == nil && run.Quiesced():
		w.event(Event{Kind: EventResumed, Work: it.id})
		return run.Resume
	}
	return nil
}

// over looks at an instance that has ended.
func (w *worker) over(it *item, confirmed bool) func() {
	result := it.run.Result()
	if !it.ended {
		it.ended = true
		w.event(Event{Kind: EventEnded, Work: it.id, Code: string(result.Ending), Text: result.Text})
		it.report = nil
		if it.fenced == "" {
			w.sayEnd(it, result)
		}
	}
	o := it.order
	ours := o != nil && o.Token == it.of.Token
	switch {
	case it.fenced != "":
		return w.forget(it)
	case !ours && confirmed && (result.Ending == Halted || it.settled == it.of.Token):
		// Until then the trace tells the next agent what is to be reported.
		return w.forget(it)
	case ours && o.Stop && result.Ending == Halted && it.report == nil && it.settled != it.of.Token:
		w.sayEnd(it, result) // it was to run again, and is not to any more
	}
	return nil
}

// sayEnd reports how an item ended, or that it is to run again.
func (w *worker) sayEnd(it *item, result Result) {
	state := fleet.Failed
	switch {
	case result.Ending == Stopped, it.order != nil && it.order.Token == it.of.Token && it.order.Stop:
		state = fleet.Stopped
	case result.Ending == Halted:
		w.sayAgain(it, it.of.Token, result.Text)
		return
	case result.Ending == Exited && result.ExitCode == 0:
		state = fleet.Succeeded
	}
	r := w.say(it, it.of.Token, state)
	r.ExitCode, r.Text = result.ExitCode, result.Text
	w.a.heart.nudge()
}

// sayAgain asks for another token for an item that is to run, and of which an earlier
// instance was, or may be: what that still has on its way carries this one.
func (w *worker) sayAgain(it *item, token fence.Token, why string) {
	it.refused = max(it.refused, token)
	w.say(it, token, fleet.Placed).Text = why
	w.a.heart.nudge()
}

// forget drops the local instance and its traces.
func (w *worker) forget(it *item) func() {
	of := it.of
	if it.fenced != "" {
		it.refused = max(it.refused, of.Token)
	}
	it.of, it.run, it.policy, it.ended, it.stopping, it.fenced, it.marker = Instance{}, nil, "", false, false, "", ""
	return func() {
		if err := w.a.cfg.Driver.Forget(of); err != nil {
			w.a.emit(Event{Kind: EventStateFailed, Work: of.Work, Err: err})
		}
	}
}

// idle looks at an item of which nothing runs.
func (w *worker) idle(ctx context.Context, it *item, lease fence.Token, may, confirmed bool) func() {
	o := it.order
	switch {
	case it.of != (Instance{}) && confirmed && (it.fenced != "" || o == nil || o.Token != it.of.Token):
		return w.forget(it) // a trace of an earlier boot
	case o == nil || it.report != nil:
	case it.of.Token == o.Token && !o.Stop && o.Token > it.refused:
		w.sayAgain(it, o.Token, "nothing of it runs any more: the host was started anew, or its agent ended while it started")
	case o.Stop && it.settled != o.Token && confirmed:
		w.say(it, o.Token, fleet.Stopped).Text = "nothing of it runs on this node"
		w.a.heart.nudge()
	case o.Stop || !may || o.Token <= it.refused || it.settled == o.Token:
	case o.Lease != 0 && o.Lease != lease: // 0: a server of before this was told does not know
		w.sayAgain(it, o.Token, "it was assigned under another term of the node, and whether it was started then is not known here")
	case time.Now().After(it.retryAt):
		w.start(ctx, it, *o)
	}
	return nil
}

// start runs an item, in the background.
func (w *worker) start(ctx context.Context, it *item, o api.Order) {
	spec := o.Spec.Filled()
	of := Instance{o.Spec.ID, o.Token}
	if of != it.last {
		it.last, it.accepted = of, ""
	}
	it.of, it.policy, it.starting, it.marker = of, spec.OnLoss, true, ""
	task := Task{Spec: spec, Token: o.Token, Deadline: w.a.state.path(deadlineName), Env: map[string]string{
		"TENURE_WORK": of.Work, "TENURE_NODE": w.a.cfg.Node, "TENURE_TOKEN": of.Token.String(),
		"TENURE_PROGRESS": cmp.Or(it.accepted, o.Progress), "TENURE_SERVER": w.a.cfg.ServerURL,
	}}
	w.starts.Go(func() {
		run, err := w.launch(ctx, task)
		w.mu.Lock()
		w.started(it, of, run, err)
		w.mu.Unlock()
		w.tell()
		if run != nil {
			w.follow(run)
			if w.a.leaseToken() == 0 && spec.OnLoss != fleet.Keep { // lost while it started
				run.Fence()
			}
		}
		w.wake()
		w.a.heart.nudge()
	})
}

// launch has the driver start a task, a few at a time. A start that is under way
// is not cut short by the agent's end.
func (w *worker) launch(ctx context.Context, task Task) (Run, error) {
	if err := task.Spec.Check(); err != nil {
		return nil, &StartError{Work: task.Spec.ID, ExitCode: 126, Err: err}
	}
	select {
	case w.slots <- struct{}{}:
		defer func() { <-w.slots }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if w.a.leaseToken() == 0 {
		return nil, ErrLate
	}
	w.a.saver.flush() // the deadline of the present term is what it will obey
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), startLimit)
	defer cancel()
	return w.a.cfg.Driver.Start(limit, task)
}

// started takes in the outcome of a start. mu is held.
func (w *worker) started(it *item, of Instance, run Run, err error) {
	it.starting = false
	if err == nil {
		it.run, it.fails = run, 0
		w.say(it, of.Token, fleet.Running)
		w.event(Event{Kind: EventStarted, Work: of.Work, Text: fmt.Sprintf("pid %d, token %s", run.PID(), of.Token)})
		return
	}
	w.event(Event{Kind: EventNotStarted, Work: of.Work, Err: err})
	it.of = Instance{}
	if refused, ok := errors.AsType[*StartError](err); ok {
		it.refused = of.Token
		r := w.say(it, of.Token, fleet.Failed)
		r.ExitCode, r.Text = refused.ExitCode, refused.Error()
		return
	}
	it.fails++
	it.retryAt = time.Now().Add(min(w.a.cfg.TTL, 100*time.Millisecond<<min(it.fails, 16)))
}

// leaseLost follows the policy of each item that runs.
func (w *worker) leaseLost() {
	var acts []func()
	w.mu.Lock()
	for _, it := range w.items {
		if it.run == nil || it.ended {
			continue
		}
		it.verify = true
		if it.policy == fleet.Keep {
			continue
		}
		if it.policy == fleet.Quiesce {
			w.event(Event{Kind: EventQuiesced, Work: it.id})
		}
		acts = append(acts, it.run.Fence)
	}
	w.mu.Unlock()
	for _, act := range acts {
		act()
	}
	w.tell()
	w.wake()
}

// bound reports whether something runs, or starts, that may do so only while the
// node's lease is held.
func (w *worker) bound() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, it := range w.items {
		if (it.starting || it.run != nil && !isDone(it.run)) && it.policy != fleet.Keep {
			return true
		}
	}
	return false
}

// reports returns what waits for a verdict, to be sent under lease.
func (w *worker) reports(lease fence.Token) []api.WorkReport {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []api.WorkReport
	for _, it := range w.items {
		if it.report == nil || len(list) == maxReports {
			continue
		}
		r := *it.report
		r.Lease = lease
		list = append(list, r)
	}
	return list
}

// judged takes in the verdicts on reports that were sent.
func (w *worker) judged(sent []api.WorkReport, verdicts []api.WorkVerdict) {
	if len(verdicts) == 0 {
		return
	}
	answers := map[string]api.WorkVerdict{}
	for _, v := range verdicts {
		answers[v.Work] = v
	}
	var acts []func()
	w.mu.Lock()
	for _, r := range sent {
		v, answered := answers[r.Work]
		it := w.items[r.Work]
		if !answered || it == nil {
			continue
		}
		r.Lease = 0
		same := it.report != nil && *it.report == r
		if v.Code == fleet.CodeStaleToken && v.Owner == w.a.cfg.Node {
			switch {
			case v.Current == r.Token: // it is the term that is stale, and the next beat has the new one
				continue
			case r.State == fleet.Placed && v.Current > r.Token: // the reply was lost
				v.Code = ""
			}
		}
		if v.Code == fleet.CodeWrongState && !r.State.Ended() && r.State != fleet.Placed { // for good, and it lives here
			if act := w.disown(it, r, v, same); act != nil {
				acts = append(acts, act)
			}
			continue
		}
		switch v.Code {
		case "", fleet.CodeWrongState:
			if !same {
				continue
			}
			it.report = nil
			if v.Code == "" && r.Progress != "" {
				it.accepted = r.Progress
			}
			if r.State.Ended() {
				it.settled = r.Token
			}
		case fleet.CodeNotOwner, fleet.CodeStaleToken, fleet.CodeNoSuchWork:
			if act := w.disown(it, r, v, same); act != nil {
				acts = append(acts, act)
			}
		}
	}
	w.mu.Unlock()
	w.tell()
	for _, act := range acts {
		go act() // it may use files, and this is the heart's goroutine
	}
	w.wake()
}

// disown follows the verdict that an item is not this node's, or has ended. The loss
// policy is about the first; what has ended is over on this host too.
func (w *worker) disown(it *item, r api.WorkReport, v api.WorkVerdict, same bool) func() {
	if same {
		it.report = nil
		if r.State.Ended() {
			it.settled = r.Token
		}
	}
	it.refused = max(it.refused, r.Token)
	if it.of.Token != r.Token || it.fenced != "" {
		return nil
	}
	it.fenced, it.report = v.Code, nil
	w.event(Event{Kind: EventFenced, Work: it.id, Code: string(v.Code), Text: fmt.Sprintf("it is %q with token %s", v.Owner, v.Current)})
	run := it.run
	switch {
	case run == nil || it.ended:
		return nil
	case v.Code == fleet.CodeWrongState:
		it.stopping = true
		return func() { run.Stop("the item has ended") }
	case it.policy == fleet.Keep:
		return nil
	}
	return run.Fence
}

// leftovers returns what lives on this host and is not the node's, as far as the
// orders show that were read under this term, in order of id. Until some were, that
// is all that lives.
func (w *worker) leftovers(lease fence.Token) []fleet.Leftover {
	revision, under := w.a.view.read()
	w.mu.Lock()
	defer w.mu.Unlock()
	known := lease != 0 && under == lease && revision == w.laid
	var list []fleet.Leftover
	for _, it := range w.items {
		ours := known && it.fenced == "" && it.order != nil && it.order.Token == it.of.Token
		if it.run != nil && !ours && !isDone(it.run) {
			list = append(list, fleet.Leftover{Work: it.id, Token: it.of.Token, PID: it.run.PID()})
		}
	}
	slices.SortFunc(list, func(a, b fleet.Leftover) int { return strings.Compare(a.Work, b.Work) })
	return list[:min(len(list), fleet.MaxLeftovers)]
}

// WorkStatus is one work item on this host.
type WorkStatus struct {
	Work   string
	Token  fence.Token // of the local instance; 0 if there is none
	PID    int
	Policy fleet.LossPolicy
	// Ordered says that the node's orders have it, with this token.
	Ordered  bool
	Stopping bool
	Ended    bool
	// Fenced is the verdict that it is not this node's; "" if there is none.
	Fenced fleet.Code
	// Unanswered says that the server has not judged the last report yet.
	Unanswered bool
}

func (w *worker) status() []WorkStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []WorkStatus
	for _, it := range w.items {
		s := WorkStatus{
			Work: it.id, Token: it.of.Token, Policy: it.policy, Stopping: it.stopping, Ended: it.ended, Fenced: it.fenced,
			Ordered: it.order != nil && it.order.Token == it.of.Token, Unanswered: it.report != nil,
		}
		if it.run != nil && !it.ended {
			s.PID = it.run.PID()
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b WorkStatus) int { return strings.Compare(a.Work, b.Work) })
	return list
}
