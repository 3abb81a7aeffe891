package term_test

import (
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/internal/term"
	"github.com/tenurehq/tenure/store"
)

// FuzzMachine drives a machine with any sequence of sends, answers, pauses and
// steps of the clocks, and holds it to P3 and P4 after each: it may act only
// while a request that was confirmed left less than TTL minus margin ago, by the
// faster of the two clocks that nobody sets; and what is over stays over.
func FuzzMachine(f *testing.F) {
	f.Add([]byte{0, 10, 1, 0, 2, 200, 3, 5, 4, 0})
	f.Add([]byte{0, 30, 5, 90, 1, 0, 6, 100, 0, 40, 1, 0})
	f.Fuzz(func(t *testing.T, steps []byte) {
		const unit = 100 * time.Millisecond
		now := zero
		m := term.New(params, attempt(1), now, now, params.TTL)
		type send struct {
			attempt   store.Attempt
			at        clock.Reading
			confirmed bool
			doubted   bool // before a doubt that is not cleared
		}
		var (
			sends   []send
			trusted = now // departure of the best confirmed request
			doubt   bool
			over    bool
			n       = uint16(1)
		)
		for i := 0; i+1 < len(steps); i += 2 {
			d := time.Duration(steps[i+1]) * unit
			before := m.State()
			switch steps[i] % 7 {
			case 0: // time passes
				now = now.Add(d)
			case 1: // a request leaves
				n++
				a := store.Attempt{byte(n), byte(n >> 8), 7}
				if m.Sent(a, now) {
					sends = append(sends, send{attempt: a, at: now})
				}
			case 2: // an answer to the d-th request comes
				if len(sends) == 0 {
					continue
				}
				j := int(steps[i+1]) % len(sends)
				s := &sends[j]
				extended := m.Confirm(s.attempt, now, params.TTL)
				if extended && s.doubted {
					t.Fatalf("step %d: a request from before the doubt extended the trust", i)
				}
				if extended {
					trusted, doubt = s.at, false
				}
				s.confirmed = true
			case 3: // a failure is told
				m.Fail("no_contact", now)
			case 4: // the wall clock is set
				now.Wall += d * 10
				if m.Check(now); d*10 > params.Margin && before == term.Held {
					doubt = true
				}
			case 5: // a suspend: the monotonic clock stands still
				now.Boot += d
				now.Wall += d
			case 6: // the platform tells
				m.Doubt("wake", now)
				if before == term.Held || before == term.Doubt {
					doubt = true
				}
			}
			state := m.Check(now)
			if state == term.Doubt {
				doubt = true
			}
			if doubt {
				for j := range sends {
					sends[j].doubted = sends[j].doubted || !sends[j].confirmed && state == term.Doubt && before != term.Doubt
				}
			}
			if over && (state == term.Held || state == term.Doubt) {
				t.Fatalf("step %d: a term that was over is in state %d", i, state)
			}
			over = over || state == term.Lost
			if state == term.Held && now.Elapsed(trusted) >= params.TTL-params.Margin {
				t.Fatalf("step %d: held %s after the last confirmed request left", i, now.Elapsed(trusted))
			}
			if state == term.Held && doubt {
				t.Fatalf("step %d: held in doubt", i)
			}
			if k := m.Known(); len(k) == 0 || len(k) > store.MaxKnown {
				t.Fatalf("step %d: %d known attempts", i, len(k))
			}
		}
	})
}
