package storetest_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
	"github.com/tenurehq/tenure/store/storetest"
)

func request(name string) store.Request {
	return store.Request{Name: name, Holder: "a", TTL: time.Minute, Attempt: store.NewAttempt()}
}

// Without faults it is the store behind it.
func TestFaultyConformance(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) storetest.Harness {
		return storetest.Harness{Store: storetest.NewFaulty(memory.New()), MinTTL: 20 * time.Millisecond}
	})
}

func TestFaults(t *testing.T) {
	t.Parallel()
	broken := errors.New("connection reset")
	for _, c := range []struct {
		name    string
		fault   storetest.Fault
		applied bool
		want    error
		after   time.Duration // of the reply
	}{
		{"none", storetest.Fault{}, true, nil, 0},
		{"delay", storetest.Fault{Delay: time.Second}, true, nil, time.Second},
		{"delay beyond the context", storetest.Fault{Delay: time.Hour}, false, context.DeadlineExceeded, 10 * time.Second},
		{"error before apply", storetest.Fault{DropRequest: true, Err: broken}, false, broken, 0},
		{"delayed error", storetest.Fault{Delay: time.Second, DropRequest: true, Err: broken}, false, broken, time.Second},
		{"black hole", storetest.Fault{DropRequest: true}, false, context.DeadlineExceeded, 10 * time.Second},
		{"lost reply", storetest.Fault{DropReply: true}, true, context.DeadlineExceeded, 10 * time.Second},
		{"lost reply, told at once", storetest.Fault{DropReply: true, Err: broken}, true, broken, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := memory.New()
				faulty := storetest.NewFaulty(st)
				faulty.Script(storetest.OpAcquire, c.fault)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				start := time.Now()
				rec, err := faulty.Acquire(ctx, request("job"))
				if !errors.Is(err, c.want) || time.Since(start) != c.after {
					t.Errorf("got error %v after %s, want %v after %s", err, time.Since(start), c.want, c.after)
				}
				if (rec.Token == 1) != (c.want == nil) {
					t.Errorf("got token %s beside error %v", rec.Token, err)
				}
				_, err = st.Get(t.Context(), "job")
				if applied := err == nil; applied != c.applied {
					t.Errorf("applied: got %t, want %t", applied, c.applied)
				}
				if _, err := faulty.Acquire(t.Context(), request("other")); err != nil {
					t.Errorf("call after the script: got error %v", err)
				}
			})
		})
	}
}

// Each method has its faults, and its own script.
func TestFaultyMethods(t *testing.T) {
	t.Parallel()
	st := memory.New()
	faulty := storetest.NewFaulty(st)
	ctx := t.Context()
	req := request("job")
	rec, err := faulty.Acquire(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	grants := []store.Grant{{Name: "job", Token: rec.Token, TTL: time.Minute, Attempt: store.NewAttempt(), Known: []store.Attempt{req.Attempt}}}
	type method struct {
		op   storetest.Op
		call func() error
	}
	methods := []method{
		{storetest.OpAcquire, func() error { _, err := faulty.Acquire(ctx, request("free")); return err }},
		{storetest.OpRenew, func() error { _, err := faulty.Renew(ctx, grants); return err }},
		{storetest.OpGet, func() error { _, err := faulty.Get(ctx, "job"); return err }},
		{storetest.OpList, func() error {
			for _, err := range faulty.List(ctx, "") {
				return err
			}
			return nil
		}},
		{storetest.OpRevoke, func() error { return faulty.Revoke(ctx, "job", rec.Token, store.Revocation{}) }},
		{storetest.OpRaiseFloor, func() error { return faulty.RaiseFloor(ctx, "job", 10) }},
		{storetest.OpRelease, func() error { _, err := faulty.Release(ctx, grants); return err }},
	}
	before := st.Writes()
	for _, m := range methods {
		faulty.Script(m.op, storetest.Fault{DropRequest: true, Err: store.ErrUnavailable})
	}
	for _, m := range methods {
		counted := faulty.Calls(m.op)
		if err := m.call(); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: got error %v, want the scripted one", m.op, err)
		}
		if got := faulty.Calls(m.op); got != counted+1 {
			t.Errorf("%s: got %d calls, want %d", m.op, got, counted+1)
		}
	}
	if got := st.Writes(); got != before {
		t.Errorf("dropped requests wrote %d times", got-before)
	}
	for _, m := range methods {
		if err := m.call(); err != nil {
			t.Errorf("%s after its script: got error %v", m.op, err)
		}
	}
	faulty.Rule(func(storetest.Op) storetest.Fault {
		return storetest.Fault{DropRequest: true, Err: store.ErrReadOnly}
	})
	faulty.Script(storetest.OpGet, storetest.Fault{DropReply: true, Err: store.ErrUnavailable})
	for _, want := range []error{store.ErrUnavailable, store.ErrReadOnly, store.ErrReadOnly} {
		if _, err := faulty.Get(ctx, "job"); !errors.Is(err, want) {
			t.Errorf("Get: got error %v, want %v", err, want)
		}
	}
	faulty.Pass()
	if _, err := faulty.Get(ctx, "job"); err != nil {
		t.Errorf("Get after Pass: got error %v", err)
	}
}

func TestRandom(t *testing.T) {
	t.Parallel()
	draw := func(seed uint64, rate float64) []storetest.Fault {
		rule := storetest.Random(seed, rate, storetest.Fault{DropReply: true}, storetest.Fault{DropRequest: true})
		got := make([]storetest.Fault, 1000)
		for i := range got {
			got[i] = rule(storetest.OpRenew)
		}
		return got
	}
	if !slices.Equal(draw(1, 0.3), draw(1, 0.3)) {
		t.Error("the same seed gave two sequences")
	}
	if slices.Equal(draw(1, 0.3), draw(2, 0.3)) {
		t.Error("two seeds gave the same sequence")
	}
	count := func(rate float64) (faults int) {
		for _, f := range draw(1, rate) {
			if f != (storetest.Fault{}) {
				faults++
			}
		}
		return faults
	}
	if none, some, all := count(0), count(0.3), count(1); none != 0 || some < 200 || some > 400 || all != 1000 {
		t.Errorf("faults of 1000 calls: got %d at rate 0, %d at 0.3, %d at 1", none, some, all)
	}
}
