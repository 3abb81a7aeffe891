package term_test

import (
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/internal/term"
	"github.com/tenurehq/tenure/store"
)

var (
	zero   = clock.Reading{Mono: time.Hour, Boot: 2 * time.Hour, Wall: 1000 * time.Hour}
	params = term.Params{TTL: 10 * time.Second, Margin: 2 * time.Second}
)

func at(d time.Duration) clock.Reading { return zero.Add(d) }

func attempt(n byte) store.Attempt { return store.Attempt{n} }

func held(t *testing.T) *term.Machine {
	t.Helper()
	m := term.New(params, attempt(1), zero, zero, params.TTL)
	if m.Check(zero) != term.Held {
		t.Fatalf("a new term is in state %d", m.State())
	}
	return m
}

// P3: nothing is sent once the trust has ended, and no answer brings it back.
func TestP3NothingAfterTheEnd(t *testing.T) {
	t.Parallel()
	m := held(t)
	if !m.Sent(attempt(2), at(7*time.Second)) {
		t.Fatal("a renewal within the trust was refused")
	}
	if m.Sent(attempt(3), at(8*time.Second)) {
		t.Error("a renewal was allowed at TrustedUntil")
	}
	if m.Confirm(attempt(2), at(8*time.Second), params.TTL) || m.State() != term.Lost {
		t.Error("an answer after TrustedUntil brought the term back")
	}
	if m.Reason() != term.NoContact {
		t.Errorf("reason %q, want no_contact: a renewal was on its way", m.Reason())
	}
	m = held(t)
	if m.Check(at(8*time.Second)) != term.Lost || m.Reason() != term.Paused {
		t.Errorf("reason %q, want paused: nobody looked for the whole trust", m.Reason())
	}
}

// Silence counts as no progress only while somebody listened (P9): after a pause of
// the holder the work has the whole time again to show that it gets on.
func TestP9NoProgressIsSeenNotAssumed(t *testing.T) {
	t.Parallel()
	p := params
	p.TTL, p.StallAfter = time.Hour, 10*time.Second
	m := term.New(p, attempt(1), zero, zero, p.TTL)
	for d := time.Second; d < 10*time.Second; d += time.Second {
		if m.Check(at(d)) != term.Held {
			t.Fatalf("lost after %s", d)
		}
	}
	paused := 9*time.Second + 5*time.Minute
	if m.Check(at(paused)) != term.Held {
		t.Fatalf("lost for %q by a pause in which nobody looked", m.Reason())
	}
	for d := time.Second; d < 10*time.Second; d += time.Second {
		if m.Check(at(paused+d)) != term.Held {
			t.Fatalf("lost for %q %s after the pause", m.Reason(), d)
		}
	}
	if m.Check(at(paused+10*time.Second)) != term.Lost || m.Reason() != term.NoProgress {
		t.Errorf("state %d, reason %q: want lost for no_progress once it was watched for the whole time", m.State(), m.Reason())
	}
}

func TestTrustCountsFromDeparture(t *testing.T) {
	t.Parallel()
	m := held(t)
	m.Sent(attempt(2), at(3*time.Second))
	m.Confirm(attempt(2), at(6*time.Second), params.TTL)
	if left := m.Left(at(6 * time.Second)); left != 5*time.Second {
		t.Errorf("%s left, want 5s: the request left at 3s", left)
	}
	m.Sent(attempt(3), at(7*time.Second))
	m.Confirm(attempt(3), at(7*time.Second), 4*time.Second) // the store grants less
	if left := m.Left(at(7 * time.Second)); left != 2*time.Second {
		t.Errorf("%s left of a grant of 4s, want 2s", left)
	}
	m.Sent(attempt(4), at(8*time.Second))
	m.Confirm(attempt(4), at(8*time.Second), time.Hour) // or more than was asked
	if left := m.Left(at(8 * time.Second)); left != 8*time.Second {
		t.Errorf("%s left of a grant of 1h, want 8s", left)
	}
}

func TestKnownAttempts(t *testing.T) {
	t.Parallel()
	m := held(t)
	m.Sent(attempt(2), at(1*time.Second))
	m.Sent(attempt(3), at(2*time.Second))
	m.Sent(attempt(4), at(3*time.Second))
	if k := m.Known(); len(k) != 4 || k[0] != attempt(1) || k[3] != attempt(4) {
		t.Errorf("known %v, want 1 2 3 4", k)
	}
	m.Confirm(attempt(3), at(4*time.Second), params.TTL)
	if k := m.Known(); len(k) != 2 || k[0] != attempt(3) || k[1] != attempt(4) {
		t.Errorf("known %v, want 3 4: what left before 3 cannot be accepted any more", k)
	}
	if m.Confirm(attempt(2), at(5*time.Second), params.TTL) {
		t.Error("an attempt from before the confirmed one was believed")
	}
	for i := range 2 * store.MaxKnown {
		m.Sent(store.Attempt{9, byte(i), 1}, at(5*time.Second))
	}
	if k := m.Known(); len(k) != store.MaxKnown || k[0] != attempt(3) {
		t.Errorf("%d known, want %d with the confirmed one first", len(k), store.MaxKnown)
	}
}

func TestStep(t *testing.T) {
	t.Parallel()
	day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name      string
		sent, got time.Duration // of the second reply; the first is 0 to 1s, at the store 0
		store     time.Duration
		want      time.Duration
	}{
		{"in step", 10 * time.Second, 11 * time.Second, 10 * time.Second, 0},
		{"earliest", 10 * time.Second, 11 * time.Second, 9 * time.Second, 0},
		{"latest", 10 * time.Second, 11 * time.Second, 11 * time.Second, 0},
		{"ahead", 10 * time.Second, 11 * time.Second, 2 * time.Hour, 2*time.Hour - 11*time.Second},
		{"back", 10 * time.Second, 11 * time.Second, -time.Hour, -time.Hour - 9*time.Second},
	} {
		var p term.Progress
		if s := p.Step(at(0), at(time.Second), day); s != 0 {
			t.Errorf("%s: the first reply is a step of %s", c.name, s)
		}
		if s := p.Step(at(c.sent), at(c.got), day.Add(c.store)); s != c.want {
			t.Errorf("%s: step %s, want %s", c.name, s, c.want)
		}
	}
	var p term.Progress
	if _, ok := p.Bound(zero); ok {
		t.Error("a bound without a reply")
	}
	p.Step(at(0), at(time.Second), day)
	if b, ok := p.Bound(at(5 * time.Second)); !ok || b != day.Add(5*time.Second) {
		t.Errorf("bound %v", b)
	}
}

// A step of the wall clock that shows first in an answer is older than the
// answer: the request left before it, so its confirmation clears no doubt.
func TestP4StepSeenInAnAnswer(t *testing.T) {
	t.Parallel()
	m := held(t)
	m.Sent(attempt(2), at(time.Second))
	now := at(2 * time.Second)
	now.Wall += time.Hour
	if m.Confirm(attempt(2), now, params.TTL) || m.State() != term.Doubt {
		t.Errorf("state %d after an answer across a wall step, want doubt", m.State())
	}
	// Nor does it extend the trust that the doubt calls into question.
	if left := m.Left(now); left != 6*time.Second {
		t.Errorf("%s left, want 6s: the trust of the confirmation before the step", left)
	}
}
