package storetest

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// Op names a method of a store.
type Op string

// The methods that can have faults.
const (
	OpAcquire    Op = "acquire"
	OpRenew      Op = "renew"
	OpRelease    Op = "release"
	OpGet        Op = "get"
	OpList       Op = "list"
	OpRevoke     Op = "revoke"
	OpRaiseFloor Op = "raise_floor"
)

// Fault is what befalls one call. The zero Fault lets it pass.
//
//	Fault{DropRequest: true}            a black hole
//	Fault{DropRequest: true, Err: err}  an error before anything was applied
//	Fault{DropReply: true}              applied, and never answered
//	Fault{DropReply: true, Err: err}    applied, and the connection broke
type Fault struct {
	// Delay holds the call up before it goes on. A context that ends meanwhile
	// ends the call, and nothing is applied.
	Delay time.Duration
	// DropRequest keeps the request from the store.
	DropRequest bool
	// DropReply lets the store apply the request and loses the reply.
	DropReply bool
	// Err is what the caller gets in place of what was dropped. Nil means that
	// the call blocks until its context ends, and returns the context's error.
	Err error
}

// Faulty is a store with faults in front of another store. It passes Watch on;
// the other optional interfaces are not there. It is safe for concurrent use.
type Faulty struct {
	st store.Store

	mu     sync.Mutex
	script map[Op][]Fault
	rule   func(Op) Fault
	calls  map[Op]int
}

var (
	_ store.Store   = (*Faulty)(nil)
	_ store.Watcher = (*Faulty)(nil)
)

// NewFaulty returns a store that passes everything on to st until it is told
// otherwise.
func NewFaulty(st store.Store) *Faulty {
	return &Faulty{st: st, script: make(map[Op][]Fault), calls: make(map[Op]int)}
}

// Script adds faults for the next calls of op, one for each call.
func (f *Faulty) Script(op Op, faults ...Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.script[op] = append(f.script[op], faults...)
}

// Rule sets what chooses the fault of a call for which the script has none.
// It is called with f locked. Nil lets these calls pass.
func (f *Faulty) Rule(rule func(Op) Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rule = rule
}

// Pass drops the script and the rule. Calls that are blocked stay so.
func (f *Faulty) Pass() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.script)
	f.rule = nil
}

// Calls returns how many calls of op were made, whatever befell them.
func (f *Faulty) Calls(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

// Random returns a rule that lets the share rate of all calls, from 0 to 1,
// have one of the faults. The same seed gives the same sequence: print it.
func Random(seed uint64, rate float64, faults ...Fault) func(Op) Fault {
	random := rand.New(rand.NewPCG(seed, 0))
	return func(Op) Fault {
		if len(faults) == 0 || random.Float64() >= rate {
			return Fault{}
		}
		return faults[random.IntN(len(faults))]
	}
}

func (f *Faulty) next(op Op) Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[op]++
	if queue := f.script[op]; len(queue) > 0 {
		f.script[op] = queue[1:]
		return queue[0]
	}
	if f.rule != nil {
		return f.rule(op)
	}
	return Fault{}
}

// through makes one call, apply, through the fault that is next for op.
func (f *Faulty) through(ctx context.Context, op Op, apply func() error) error {
	fault := f.next(op)
	if fault.Delay > 0 {
		timer := time.NewTimer(fault.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: delayed: %w", op, ctx.Err())
		}
	}
	if !fault.DropRequest {
		if err := apply(); !fault.DropReply {
			return err
		}
	}
	if fault.Err != nil {
		return fault.Err
	}
	<-ctx.Done()
	return fmt.Errorf("%s: no answer: %w", op, ctx.Err())
}

// call is through for a method that has an answer, which is lost with the reply.
func call[T any](ctx context.Context, f *Faulty, op Op, apply func() (T, error)) (T, error) {
	var answer T
	applied := false
	err := f.through(ctx, op, func() (err error) {
		answer, err = apply()
		applied = err == nil
		return err
	})
	if err != nil && applied {
		var none T
		return none, err
	}
	return answer, err
}

// Acquire implements store.Store.
func (f *Faulty) Acquire(ctx context.Context, req store.Request) (store.Record, error) {
	return call(ctx, f, OpAcquire, func() (store.Record, error) { return f.st.Acquire(ctx, req) })
}

// Renew implements store.Store.
func (f *Faulty) Renew(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	return call(ctx, f, OpRenew, func() ([]store.Result, error) { return f.st.Renew(ctx, grants) })
}

// Release implements store.Store.
func (f *Faulty) Release(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	return call(ctx, f, OpRelease, func() ([]store.Result, error) { return f.st.Release(ctx, grants) })
}

// Get implements store.Store.
func (f *Faulty) Get(ctx context.Context, name string) (store.Record, error) {
	return call(ctx, f, OpGet, func() (store.Record, error) { return f.st.Get(ctx, name) })
}

// List implements store.Store. A fault befalls it before the first record.
func (f *Faulty) List(ctx context.Context, prefix string) iter.Seq2[store.Record, error] {
	return func(yield func(store.Record, error) bool) {
		if err := f.through(ctx, OpList, func() error { return nil }); err != nil {
			yield(store.Record{}, err)
			return
		}
		f.st.List(ctx, prefix)(yield)
	}
}

// Revoke implements store.Store.
func (f *Faulty) Revoke(ctx context.Context, name string, token fence.Token, rev store.Revocation) error {
	return f.through(ctx, OpRevoke, func() error { return f.st.Revoke(ctx, name, token, rev) })
}

// RaiseFloor implements store.Store.
func (f *Faulty) RaiseFloor(ctx context.Context, name string, floor fence.Token) error {
	return f.through(ctx, OpRaiseFloor, func() error { return f.st.RaiseFloor(ctx, name, floor) })
}

// Features returns those of the store behind f.
func (f *Faulty) Features() store.Features { return f.st.Features() }

// Watch implements store.Watcher where the store behind f does.
func (f *Faulty) Watch(ctx context.Context, name string) (<-chan store.Event, error) {
	if watcher, ok := f.st.(store.Watcher); ok {
		return watcher.Watch(ctx, name)
	}
	return nil, store.ErrUnsupported
}
