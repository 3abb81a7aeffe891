// Package storetest checks that a store keeps the contract of package store,
// and carries the faults by which whoever stands on a store can be tested:
// [Faulty] wraps any store, [Proxy] stands between a client and a real server.
//
// # Promised
//
// [Run] has one subtest for each promise (P1 to P10 of docs/ARCHITECTURE.md),
// for each rule of the contract and for each failure from the field (C06, …)
// that a store can show, under names that stay. A store that passes every
// subtest that is not skipped can be used by tenure's keeper.
//
// # Not promised
//
// What needs a clock under control, a server that restarts or a foreign
// transaction is only tested where the [Harness] brings it; a skipped subtest
// says what was missing. Passing says nothing of what a server loses in a
// failover: that is for the store's own tests and Features to tell.
package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// Harness is a store under test and what its test can do to it. Only Store is
// needed; each other field that is missing skips the subtests that need it.
// The functions are called from the goroutine of a subtest, and may fail or
// skip it.
type Harness struct {
	// Store is one client. Its data may be shared with other tests: every
	// subtest uses names of its own. Subtests that touch all names (a floor for
	// all, cleaning, a step of the clock, a restart) run first and alone.
	Store store.Store

	// Second opens another client of the same data, as another process on
	// another host would have. A harness that can give it a host clock that is
	// wrong by minutes should do so. Nil means that Store serves for both.
	Second func(t *testing.T) store.Store

	// MinTTL is the shortest TTL that the tests may use: some let terms of that
	// length lapse. 0 means the store's Features.MinTTL.
	MinTTL time.Duration

	// Restart restarts the server and returns when it can be asked again.
	Restart func(t *testing.T)

	// Writes returns a counter that grows with each durable write, for example
	// a position in the write-ahead log. Nothing but the test may move it.
	Writes func(t *testing.T) int64

	// Guard writes something under token of name, joined to the lease's own
	// database, and returns an error matching fence.ErrStale if it is refused.
	// Nil means a high-water mark in memory, which tests the tokens alone.
	Guard func(ctx context.Context, name string, token fence.Token) error

	// GuardTx begins a transaction, writes in it as Guard does, and leaves it
	// open until commit or rollback.
	GuardTx func(ctx context.Context, name string, token fence.Token) (commit func() error, rollback func(), err error)

	// StepClock moves the store's clock forward by d, for good.
	StepClock func(t *testing.T, d time.Duration)

	// LockRow locks the record of name as a stranger would, until unlock.
	LockRow func(t *testing.T, name string) (unlock func())
}

// subtest is one promise, rule or case.
type subtest struct {
	name string
	// alone says that it touches more than its own names.
	alone bool
	run   func(*env)
}

func subtests() []subtest {
	var all []subtest
	for _, group := range [][]subtest{
		tokenTests, termTests, acquireTests, renewTests, copyTests, replyTests, batchTests, releaseTests, revokeTests, floorTests,
		cleanTests, holdTests, argumentTests, readTests, watchTests, historyTests, slotTests, guardTests,
	} {
		all = append(all, group...)
	}
	return all
}

// Run runs the suite. open is called once; what it opens must stay open until
// the clean-up functions of its t run. Subtests run in parallel where they can.
// With -short those that repeat do so a tenth as often.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	h := open(t)
	if h.Store == nil {
		t.Fatal("storetest: the harness has no store")
	}
	least := max(h.MinTTL, h.Store.Features().MinTTL)
	for _, alone := range []bool{true, false} {
		for _, sub := range subtests() {
			if sub.alone != alone {
				continue
			}
			t.Run(sub.name, func(t *testing.T) {
				if !alone {
					t.Parallel()
				}
				sub.run(newEnv(t, h, least))
			})
		}
	}
}
