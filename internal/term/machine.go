// Package term is the holder's side of one term as a pure state machine: what
// is sent, what is answered, and what the three clocks show decide whether the
// holder may act. It does no I/O, starts no goroutine and reads no clock; every
// method takes the present reading.
//
//	            Confirm                  wall step, Doubt
//	          ┌────────┐             ┌──────────────────────► doubt
//	          ▼        │             │                          │
//	New ───► held ─────┴─────────────┘◄─────────────────────────┤ Confirm of a
//	          │                                                 │ request sent after
//	          ├── trust ends, Lose ──► lost(reason) ◄───────────┘
//	          └── Release ───────────► released
//
// lost and released are final: a new term is a new Machine.
package term

import (
	"slices"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/store"
)

// State is where a term stands for its holder.
type State uint8

// The states.
const (
	Held     State = iota + 1 // the holder may act
	Doubt                     // it may not until a renewal confirms
	Lost                      // it may not any more
	Released                  // it gave the term back
)

// Reasons that the machine itself finds. Others are codes of package store.
const (
	Paused     = "paused"      // the process or its host stood still past the trust
	NoContact  = "no_contact"  // no confirmation in time
	NoProgress = "no_progress" // the progress marker did not move
	WallStep   = "wall_step"   // doubt: the wall clock was set
)

// Params are the fixed facts of a term.
type Params struct {
	TTL        time.Duration // as asked; a store may grant less
	Margin     time.Duration // TrustedUntil = departure + TTL - Margin
	StallAfter time.Duration // 0: no progress is asked for; else Check has to be called several times in it
}

// Machine is one term. It is not safe for concurrent use.
type Machine struct {
	p       Params
	state   State
	reason  string
	began   clock.Reading
	sent    clock.Reading // when the last confirmed request left
	at      clock.Reading // the last full reading
	ttl     time.Duration // as last granted
	known   store.Attempt // last confirmed
	open    []open        // sent and unanswered, oldest first
	failure string        // code of the last failed try since the last confirmation
	doubt   string        // why in doubt
	urgent  bool          // no renewal has left since the doubt arose
	marker  string
	moved   clock.Reading // when the marker last moved
}

type open struct {
	attempt store.Attempt
	sent    clock.Reading
	before  bool // it left before the present doubt arose, so it cannot end it
}

// New returns the machine of a term that was granted to the request with this
// attempt, which left at sent and was answered by now, for ttl. Call Check: a
// reply that came too late gives a term that is lost from the start.
func New(p Params, attempt store.Attempt, sent, now clock.Reading, ttl time.Duration) *Machine {
	m := &Machine{p: p, state: Held, began: sent, sent: sent, at: now, ttl: min(ttl, p.TTL), known: attempt, moved: now}
	if m.stepped(sent, now) {
		m.Doubt(WallStep, now)
	}
	return m
}

// Check brings the machine up to now and returns its state. Every check of the
// right to act goes through it or through a shortcut that it has allowed.
func (m *Machine) Check(now clock.Reading) State {
	if m.state == Lost || m.state == Released {
		return m.state
	}
	gap, last := now.Elapsed(m.at), m.at
	m.at = now
	if gap >= m.p.StallAfter/2 {
		m.moved = now // nobody looked: what the work did meanwhile is not known
	}
	switch {
	case m.Left(now) <= 0:
		switch {
		case gap >= (m.ttl-m.p.Margin)/2:
			m.lose(Paused) // nobody looked for so long that no renewal could be tried
		case m.failure != "":
			m.lose(m.failure)
		default:
			m.lose(NoContact)
		}
	case m.p.StallAfter > 0 && now.Elapsed(m.moved) >= m.p.StallAfter:
		m.lose(NoProgress)
	case m.stepped(last, now):
		m.Doubt(WallStep, now)
	}
	return m.state
}

// stepped reports whether the wall clock moved by more than the margin, either
// way, against the time that passed.
func (m *Machine) stepped(from, to clock.Reading) bool {
	step := (to.Wall - from.Wall) - to.Elapsed(from)
	return step > m.p.Margin || step < -m.p.Margin
}

// Left is the time from now until TrustedUntil: departure of the last confirmed
// request + TTL - margin. It is negative once that has passed.
func (m *Machine) Left(now clock.Reading) time.Duration {
	return m.ttl - m.p.Margin - now.Elapsed(m.sent)
}

// TrustedUntil returns the last instant at which the holder may act, on each clock.
func (m *Machine) TrustedUntil() clock.Reading { return m.sent.Add(m.ttl - m.p.Margin) }

// Sent notes that a renewal with this attempt is about to leave. It returns
// false, and notes nothing, if the term is over: nothing may be sent then.
func (m *Machine) Sent(attempt store.Attempt, now clock.Reading) bool {
	if s := m.Check(now); s != Held && s != Doubt {
		return false
	}
	if len(m.open) >= store.MaxKnown-1 { // an answer to the oldest would not be believed any more
		m.open = slices.Delete(m.open, 0, 1)
	}
	m.open = append(m.open, open{attempt: attempt, sent: now})
	m.urgent = false
	return true
}

// Confirm notes that the store accepted the renewal with this attempt and
// granted ttl. Trust counts from that request's departure. A confirmation that
// comes after the trust ended does not bring it back. It reports whether the
// trust was extended.
func (m *Machine) Confirm(attempt store.Attempt, now clock.Reading, ttl time.Duration) bool {
	m.Check(now) // a step that shows only now is older than the answer
	for i, o := range m.open {
		if o.attempt != attempt {
			continue
		}
		// What left before it can no longer be accepted: the store now expects
		// this attempt, which those requests do not list.
		m.open = append([]open(nil), m.open[i+1:]...)
		m.known = attempt
		if m.state != Held && m.state != Doubt || o.before {
			return false
		}
		m.sent, m.ttl, m.failure, m.state, m.doubt = o.sent, min(ttl, m.p.TTL), "", Held, ""
		return m.Check(now) == Held
	}
	return false
}

// Fail notes that a renewal brought no decision, with the code of the reason.
func (m *Machine) Fail(code string, now clock.Reading) {
	if s := m.Check(now); s == Held || s == Doubt {
		m.failure = code
	}
}

// Lose ends the term for a reason that is certain.
func (m *Machine) Lose(reason string, now clock.Reading) {
	if s := m.Check(now); s == Held || s == Doubt {
		m.lose(reason)
	}
}

// Doubt forbids to act until a renewal that leaves after now is confirmed.
func (m *Machine) Doubt(why string, now clock.Reading) {
	if m.state != Held && m.state != Doubt {
		return
	}
	m.at = now
	m.state, m.doubt, m.urgent = Doubt, why, true
	for i := range m.open {
		m.open[i].before = true
	}
}

// Progress notes the work's marker. Only a marker that differs from the last one counts.
func (m *Machine) Progress(marker string, now clock.Reading) {
	if m.Check(now); marker != m.marker {
		m.marker, m.moved = marker, now
	}
}

// Release ends the term by the holder's own will.
func (m *Machine) Release() {
	if m.state == Held || m.state == Doubt {
		m.state = Released
	}
}

func (m *Machine) lose(reason string) { m.state, m.reason, m.doubt = Lost, reason, "" }

// Urgent reports whether the term is in doubt and no renewal has left since.
func (m *Machine) Urgent() bool { return m.state == Doubt && m.urgent }

// State returns the state at the last reading.
func (m *Machine) State() State { return m.state }

// Reason returns why the term was lost, or why it is in doubt.
func (m *Machine) Reason() string {
	if m.state == Doubt {
		return m.doubt
	}
	return m.reason
}

// Known returns the attempts by which the store may recognise this term: the
// last confirmed one and every later one that is unanswered.
func (m *Machine) Known() []store.Attempt {
	list := make([]store.Attempt, 0, 1+len(m.open))
	list = append(list, m.known)
	for _, o := range m.open {
		list = append(list, o.attempt)
	}
	return list
}

// Confirmed returns when the last confirmed request left, and Began when the
// first did.
func (m *Machine) Confirmed() clock.Reading { return m.sent }

// Began returns when the request that won the term left.
func (m *Machine) Began() clock.Reading { return m.began }

// At returns the last full reading.
func (m *Machine) At() clock.Reading { return m.at }

// Margin returns the margin of the term.
func (m *Machine) Margin() time.Duration { return m.p.Margin }

// TTL returns the life that the store last granted.
func (m *Machine) TTL() time.Duration { return m.ttl }

// Snapshot is a machine at rest, as a memory image holds it. Tests continue
// several processes from one of them.
type Snapshot struct {
	Params  Params
	Began   clock.Reading
	Sent    clock.Reading
	At      clock.Reading
	TTL     time.Duration
	Known   store.Attempt
	Open    []store.Attempt
	OpenAt  []clock.Reading
	Failure string
}

// Snapshot copies the machine, which must be held or in doubt.
func (m *Machine) Snapshot() Snapshot {
	s := Snapshot{Params: m.p, Began: m.began, Sent: m.sent, At: m.at, TTL: m.ttl, Known: m.known, Failure: m.failure}
	for _, o := range m.open {
		s.Open, s.OpenAt = append(s.Open, o.attempt), append(s.OpenAt, o.sent)
	}
	return s
}

// Resume makes a machine that goes on from a snapshot, as a process does that
// was resumed from a memory image.
func Resume(s Snapshot) *Machine {
	m := &Machine{p: s.Params, state: Held, began: s.Began, sent: s.Sent, at: s.At, ttl: s.TTL, known: s.Known, failure: s.Failure, moved: s.At}
	for i, a := range s.Open {
		m.open = append(m.open, open{attempt: a, sent: s.OpenAt[i]})
	}
	return m
}

// Image is a term as a memory image of its process holds it.
type Image struct {
	Name     string
	Holder   string
	Token    fence.Token
	Interval time.Duration
	Warn     time.Duration
	Machine  Snapshot
}
