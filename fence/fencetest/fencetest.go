// Package fencetest shows whether an implementation of fence.Marks keeps what
// the interface promises, as a database, a Redis or an object store with its own
// conditions may claim.
//
//	func TestMarks(t *testing.T) {
//		fencetest.Run(t, func(t *testing.T) fencetest.Harness {
//			return fencetest.Harness{Marks: newMarks(t)}
//		})
//	}
//
// What it cannot show: that the mark is checked in the same write as the data,
// and that it is as durable. Those are properties of the whole target.
package fencetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
)

// limit bounds each subtest on a slow machine.
const limit = 60 * time.Second

// Harness is what a subtest works with. Each gets one of its own; they may share
// a server.
type Harness struct {
	// Marks is under test. The resources that the subtest names have no marks.
	Marks fence.Marks
	// Second returns Marks of the same target as another process would have.
	// Nil: Marks itself.
	Second func(t *testing.T) fence.Marks
	// Prepare is called with each resource before its first use, for a target
	// whose marks stand beside existing data. The resource then has data and no
	// mark. Nil if nothing is to be done.
	Prepare func(t *testing.T, resource string)
	// Parallel is the number of writers at once; default 100.
	Parallel int
}

// edges are tokens at which a number that passes through floating point, a
// 32-bit column or a comparison of text goes wrong. They ascend.
var edges = []fence.Token{1, 2, 9, 10, 1<<31 - 1, 1 << 31, 1<<53 - 1, 1 << 53, 1<<53 + 1, 1<<53 + 2, 1<<63 - 2, 1<<63 - 1}

// Run runs one subtest for each promise of fence.Marks.
func Run(t *testing.T, harness func(t *testing.T) Harness) {
	for _, s := range subtests {
		t.Run(s.name, func(t *testing.T) {
			h := harness(t)
			if h.Parallel == 0 {
				h.Parallel = 100
			}
			s.f(t, h)
		})
	}
}

var subtests = []struct {
	name string
	f    func(t *testing.T, h Harness)
}{
	{"first use", firstUse},
	{"at least", atLeast},
	{"edges of the token", tokenEdges},
	{"another resource", otherResource},
	{"equal token", equalToken},
	{"once", once},
	{"once by slot", onceBySlot},
	{"once when stale", onceStale},
	{"once after a raise", onceRaises},
	{"retry", retry},
	{"names", names},
	{"arguments", arguments},
	{"context", contextEnded},
	{"parallel raises", parallelRaises},
	{"parallel once", parallelOnce},
	{"parallel takeovers", parallelTakeovers},
}

// target is a Harness with the checks of the subtests.
type target struct {
	t        *testing.T
	m        fence.Marks
	resource string
}

func (h Harness) target(t *testing.T, resource string) *target {
	t.Helper()
	if h.Prepare != nil {
		h.Prepare(t, resource)
	}
	return &target{t, h.Marks, resource}
}

func (h Harness) second(t *testing.T) fence.Marks {
	if h.Second == nil {
		return h.Marks
	}
	return h.Second(t)
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

func (g *target) accept(token fence.Token) {
	g.t.Helper()
	if got, err := g.m.Raise(bounded(g.t), g.resource, token); err != nil || got != token {
		g.t.Fatalf("Raise(%q, %s): got %s, %v; want it accepted", g.resource, token, got, err)
	}
}

func (g *target) refuse(token, current fence.Token) {
	g.t.Helper()
	got, err := g.m.Raise(bounded(g.t), g.resource, token)
	if why := wantStale(err, g.resource, token, current); why != "" || got != current {
		g.t.Fatalf("Raise(%q, %s): current %s, want %s; %s", g.resource, token, got, current, why)
	}
}

func (g *target) once(slot string, token fence.Token, want bool) {
	g.t.Helper()
	if first, err := g.m.Once(bounded(g.t), g.resource, slot, token); err != nil || first != want {
		g.t.Fatalf("Once(%q, %q, %s): got %v, %v; want %v", g.resource, slot, token, first, err, want)
	}
}

func (g *target) onceStale(slot string, token, current fence.Token) {
	g.t.Helper()
	first, err := g.m.Once(bounded(g.t), g.resource, slot, token)
	if why := wantStale(err, g.resource, token, current); why != "" || first {
		g.t.Fatalf("Once(%q, %q, %s): first %v; %s", g.resource, slot, token, first, why)
	}
}

func (g *target) onceDone(slot string, token, by fence.Token) {
	g.t.Helper()
	first, err := g.m.Once(bounded(g.t), g.resource, slot, token)
	var done *fence.SlotError
	if first || !errors.As(err, &done) || *done != (fence.SlotError{Resource: g.resource, Slot: slot, Token: token, By: by}) {
		g.t.Fatalf("Once(%q, %q, %s): got %v, %v; want *SlotError by %s", g.resource, slot, token, first, err, by)
	}
}

// wantStale returns what is wrong with err, "" for nothing.
func wantStale(err error, resource string, token, current fence.Token) string {
	var stale *fence.StaleError
	if !errors.As(err, &stale) || !errors.Is(err, fence.ErrStale) {
		return fmt.Sprintf("got %v, want *StaleError", err)
	}
	if want := (fence.StaleError{Resource: resource, Token: token, Current: current}); *stale != want {
		return fmt.Sprintf("got %+v, want %+v", *stale, want)
	}
	return ""
}

func firstUse(t *testing.T, h Harness) {
	for _, token := range []fence.Token{1, 41, 1<<63 - 1} {
		h.target(t, "first/"+token.String()).accept(token)
		h.target(t, "first-once/"+token.String()).once("a", token, true)
	}
}

func atLeast(t *testing.T, h Harness) {
	g := h.target(t, "at-least")
	g.accept(5)
	g.accept(5)
	g.refuse(4, 5)
	g.accept(6)
	g.refuse(5, 6)
	g.refuse(1, 6)
	g.accept(60)
	g.refuse(7, 60) // as text it is larger
	g.accept(60)
}

func tokenEdges(t *testing.T, h Harness) {
	g := h.target(t, "edges")
	for i, token := range edges {
		g.accept(token)
		g.once("slot/"+token.String(), token, true)
		g.once("slot/"+token.String(), token, false)
		if i > 0 {
			g.refuse(edges[i-1], token)
			g.onceStale("stale/"+token.String(), edges[i-1], token)
		}
	}
}

func otherResource(t *testing.T, h Harness) {
	a, b := h.target(t, "resource/a"), h.target(t, "resource/b")
	a.accept(9)
	b.accept(2)
	b.refuse(1, 2)
	a.refuse(2, 9)
	a.once("night", 9, true)
	b.once("night", 2, true)
}

// equalToken: a second client with the same token is taken for the first one.
func equalToken(t *testing.T, h Harness) {
	g := h.target(t, "equal")
	g.accept(7)
	other := &target{t, h.second(t), "equal"}
	other.accept(7)
	other.once("night", 7, true)
	g.once("night", 7, false)
	g.accept(8)
	other.refuse(7, 8)
}

func once(t *testing.T, h Harness) {
	g := h.target(t, "once")
	g.once("night", 5, true)
	g.once("night", 5, false)
	g.onceDone("night", 6, 5)
	g.onceDone("night", 6, 5)
}

// onceBySlot: thirty nights in one term, and then another term.
func onceBySlot(t *testing.T, h Harness) {
	g := h.target(t, "nights")
	night := func(i int) string { return fmt.Sprintf("2026-11-%02d", i) }
	for i := 1; i <= 30; i++ {
		g.once(night(i), 3, true)
	}
	g.accept(4)
	for i := 1; i <= 30; i++ {
		g.onceDone(night(i), 4, 3)
	}
	g.once(night(31), 4, true)
}

func onceStale(t *testing.T, h Harness) {
	g := h.target(t, "once-stale")
	g.accept(6)
	g.onceStale("night", 5, 6)
	g.once("night", 6, true) // the refused call left no record
	g.onceStale("night", 5, 6)
	g.refuse(5, 6)
}

// onceRaises: an accepted Once moves the mark, one of a slot that is done too.
func onceRaises(t *testing.T, h Harness) {
	g := h.target(t, "once-raises")
	g.once("night", 5, true)
	g.refuse(4, 5)
	g.onceDone("night", 6, 5)
	g.refuse(5, 6)
	g.once("next", 7, true)
	g.onceStale("third", 6, 7)
}

// retry: each call gives the same answer again, after a takeover too.
func retry(t *testing.T, h Harness) {
	g := h.target(t, "retry")
	g.once("night", 5, true)
	g.accept(6)
	for range 3 {
		g.refuse(5, 6)
		g.onceStale("other", 5, 6)
		g.once("night", 5, false) // its reply was lost, and it was done
	}
	g.accept(6)
}

func names(t *testing.T, h Harness) {
	for _, name := range []string{"Case", "case", "a'b", `a"b`, "a%_b", "a\\b", "a;--", "$1", "{a}", "a/b:c@d+e", longest} {
		g := h.target(t, name)
		g.accept(2)
		g.refuse(1, 2)
		g.once(name, 2, true)
		g.once(name, 2, false)
		g.once("other", 2, true)
	}
}

var longest = func() string {
	b := make([]byte, fence.MaxResource)
	for i := range b {
		b[i] = 'x'
	}
	return string(b)
}()

func arguments(t *testing.T, h Harness) {
	ctx := bounded(t)
	h.target(t, "good")
	for _, tc := range []struct {
		resource, slot string
		token          fence.Token
	}{
		{"", "a", 1}, {"good", "", 1}, {"good", "a", 0}, {"good", "a", -1}, {"a b", "a", 1}, {"good", "a b", 1},
		{"good", longest + "x", 1}, {longest + "x", "a", 1}, {"good\x00", "a", 1}, {"good", "a\nb", 1},
	} {
		if first, err := h.Marks.Once(ctx, tc.resource, tc.slot, tc.token); first || !errors.Is(err, fence.ErrMark) {
			t.Errorf("Once(%q, %q, %s): got %v, %v; want ErrMark", tc.resource, tc.slot, tc.token, first, err)
		}
		if tc.resource == "good" && tc.token > 0 {
			continue // right for Raise
		}
		if _, err := h.Marks.Raise(ctx, tc.resource, tc.token); !errors.Is(err, fence.ErrMark) {
			t.Errorf("Raise(%q, %s): got %v, want ErrMark", tc.resource, tc.token, err)
		}
	}
	if _, err := h.Marks.Raise(ctx, "good", 1); err != nil {
		t.Errorf("the refused calls left something: %v", err)
	}
}

func contextEnded(t *testing.T, h Harness) {
	g := h.target(t, "context")
	g.accept(1)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := h.Marks.Raise(ctx, "context", 2); !errors.Is(err, context.Canceled) {
		t.Errorf("Raise: got %v, want context.Canceled", err)
	}
	if first, err := h.Marks.Once(ctx, "context", "a", 2); first || !errors.Is(err, context.Canceled) {
		t.Errorf("Once: got %v, %v; want context.Canceled", first, err)
	}
}

// parallelRaises: of 100 writers with different tokens, those that come after a
// larger one are refused, and the largest is the mark.
func parallelRaises(t *testing.T, h Harness) {
	g := h.target(t, "parallel")
	second := h.second(t)
	ctx := bounded(t)
	largest := fence.Token(1<<53 + h.Parallel)
	errs := make([]error, h.Parallel)
	var wg sync.WaitGroup
	for i, n := range rand.Perm(h.Parallel) {
		m := g.m
		if i%2 == 1 {
			m = second
		}
		token := largest - fence.Token(n)
		wg.Go(func() {
			for range 3 {
				current, err := m.Raise(ctx, "parallel", token)
				var stale *fence.StaleError
				switch {
				case err == nil && current == token:
				case errors.As(err, &stale) && stale.Current > token && stale.Current <= largest && current == stale.Current:
				default:
					errs[i] = errors.Join(errs[i], fmt.Errorf("token %s: got %s, %w", token, current, errOr(err)))
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	g.accept(largest)
	g.refuse(largest-1, largest)
}

func errOr(err error) error {
	if err == nil {
		return errors.New("no error")
	}
	return err
}

// parallelOnce: of 100 calls for one slot, exactly one is the first.
func parallelOnce(t *testing.T, h Harness) {
	g := h.target(t, "parallel-once")
	second := h.second(t)
	ctx := bounded(t)
	firsts, errs := make([]bool, h.Parallel), make([]error, h.Parallel)
	var wg sync.WaitGroup
	for i := range h.Parallel {
		m := g.m
		if i%2 == 1 {
			m = second
		}
		wg.Go(func() { firsts[i], errs[i] = m.Once(ctx, "parallel-once", "night", 5) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, first := range firsts {
		if first {
			n++
		}
	}
	if n != 1 {
		t.Fatalf("%d of %d calls were the first, want 1", n, h.Parallel)
	}
}

// parallelTakeovers: terms overtake each other at one slot after the other. A slot
// has one record, and no term makes one after it was refused.
func parallelTakeovers(t *testing.T, h Harness) {
	g := h.target(t, "takeovers")
	second := h.second(t)
	ctx := bounded(t)
	const slots = 8
	terms := max(h.Parallel/10, 4)
	var mu sync.Mutex
	by := map[string][]fence.Token{}
	errs := make([]error, terms)
	var wg sync.WaitGroup
	for i := range terms {
		m := g.m
		if i%2 == 1 {
			m = second
		}
		token := fence.Token(i + 1)
		wg.Go(func() {
			refused := false
			for s := range slots {
				slot := fmt.Sprint("slot/", s)
				first, err := m.Once(ctx, "takeovers", slot, token)
				if first {
					mu.Lock()
					by[slot] = append(by[slot], token)
					mu.Unlock()
				}
				switch {
				case first && refused:
					errs[i] = errors.Join(errs[i], fmt.Errorf("token %s did %q after it was stale", token, slot))
				case errors.Is(err, fence.ErrStale):
					refused = true
				case err != nil && !errors.Is(err, fence.ErrSlotDone):
					errs[i] = errors.Join(errs[i], fmt.Errorf("token %s, %q: %w", token, slot, err))
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for s := range slots {
		slot := fmt.Sprint("slot/", s)
		if len(by[slot]) != 1 {
			t.Errorf("%q was done first under %v, want one token", slot, by[slot])
		}
	}
	g.refuse(fence.Token(terms-1), fence.Token(terms))
}
