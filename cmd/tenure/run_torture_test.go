//go:build linux

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/storetest"
)

// fault may befall a runner whose command runs.
type fault struct {
	name   string
	code   int    // with which the runner ends
	says   string // on its standard error
	strike func(runner *program, guardian int, network *storetest.Proxy)
	heal   func(runner *program, guardian int)
	family bool // with a descendant that left the session
	frees  bool // the lease is given back before it expires
}

var faults = []fault{
	{name: "cut off", code: exitLost, says: "no_contact", strike: func(_ *program, _ int, n *storetest.Proxy) { hole(n) }},
	{name: "cut off with a family", family: true, code: exitLost, says: "no_contact", strike: func(_ *program, _ int, n *storetest.Proxy) { hole(n) }},
	{name: "replies lost", code: exitLost, says: "no_contact", strike: func(_ *program, _ int, n *storetest.Proxy) { n.HoldReplies() }},
	{name: "runner stopped", code: exitLost, says: "lost", strike: func(r *program, _ int, _ *storetest.Proxy) { r.signal(syscall.SIGSTOP) },
		heal: func(r *program, _ int) { r.signal(syscall.SIGCONT) }},
	{name: "runner killed", code: -9, strike: func(r *program, _ int, _ *storetest.Proxy) { r.signal(syscall.SIGKILL) }},
	{name: "guardian stopped", code: 137, says: "guardian stopped answering", frees: true, strike: func(_ *program, g int, _ *storetest.Proxy) { _ = syscall.Kill(g, syscall.SIGSTOP) }},
	{name: "guardian killed", code: 137, says: "guardian was killed", frees: true, family: true, strike: func(_ *program, g int, _ *storetest.Proxy) { _ = syscall.Kill(g, syscall.SIGKILL) }},
}

// spread collects by fault how long before the expiry the last process died.
type spread struct {
	mu       sync.Mutex
	before   map[string][]time.Duration
	overlaps int
}

// C29 and C31: whatever happens to the store's path, the runner or the
// guardian, the whole tree is dead before the store can give the lease to
// another. Half of the commands ignore SIGTERM. TENURE_LONG=1 makes it longer.
func TestNoChildOutlivesItsTerm(t *testing.T) {
	t.Parallel()
	rounds := 4
	if os.Getenv("TENURE_LONG") != "" {
		rounds = 20
	}
	s := &spread{before: map[string][]time.Duration{}}
	t.Cleanup(func() {
		for _, f := range faults {
			list := s.before[f.name]
			slices.Sort(list)
			if len(list) > 0 {
				t.Logf("%-22s %d runs, the last process died before the expiry by %s to %s, median %s", f.name, len(list),
					list[0].Round(time.Millisecond), list[len(list)-1].Round(time.Millisecond), list[len(list)/2].Round(time.Millisecond))
			}
		}
		t.Logf("overlaps: %d", s.overlaps)
	})
	address := serverStore(t)
	for n, f := range faults {
		for round := range rounds {
			t.Run(fmt.Sprintf("%s/%d", f.name, round), func(t *testing.T) {
				t.Parallel()
				// On a machine with no time to spare a term may be lost before the
				// fault; that shows nothing, so it is tried again.
				for try := range 4 {
					if oneTerm(t, address, fmt.Sprintf("torture/%d/%d/%d", n, round, try), f, round%2 == 1, s) {
						return
					}
				}
				t.Error("the machine is too slow to hold a lease")
			})
		}
	}
}

// oneTerm lets a fault befall a runner while another one waits. It returns false
// if a runner lost its lease by itself.
func oneTerm(t *testing.T, address, lease string, f fault, stubborn bool, s *spread) bool {
	const ttl = 5 * time.Second
	st := open(t, address)
	throughProxy, network := proxied(t, address)
	dir := t.TempDir()
	command := []string{part(t, "beat"), dir}
	others := 1
	if f.family {
		command, others = append(command, "family"), 2
	}
	if stubborn {
		command = append(command, "stubborn")
	}
	a := start(t, append([]string{"run", lease, "--ttl", ttl.String(), "--store", throughProxy, "--"}, command...)...)
	until(t, "the first command", func() bool { return len(lives(t, dir)) == others || a.over() })
	guard := a.guardian()
	b := start(t, "run", lease, "--ttl", ttl.String(), "--store", address, "--", part(t, "beat"), dir)
	until(t, "the other one to wait", func() bool { return strings.Contains(b.stderr(), "waiting for") || a.over() || b.over() })
	phase := time.NewTimer(rand.N(ttl / 3)) // anywhere between two renewals
	<-phase.C

	// The expiry by the store's clock, on ours: each answer gives a bound that is
	// not later than the true one, by the time that the request took.
	asked := clock.Boot()
	last := get(t, st, lease)
	first, expiry := last.Token, asked+last.Remaining
	if a.over() || b.over() || first != 1 || last.Status != store.Held {
		return disturbed(t, a, b, dir)
	}
	struck := clock.Boot()
	f.strike(a, guard, network)
	t.Cleanup(func() { // a failed test must not leave a stopped process
		a.signal(syscall.SIGCONT)
	})
	until(t, "the second command", func() bool {
		asked := clock.Boot()
		switch r := get(t, st, lease); {
		case r.Token != first || r.Status != store.Held:
		case r.Revision == last.Revision:
			expiry = max(expiry, asked+r.Remaining)
		default:
			last, expiry = r, asked+r.Remaining
		}
		return len(terms(t, dir)) > 1 || b.over()
	})
	if len(terms(t, dir)) < 2 {
		return disturbed(t, a, b, dir)
	}
	var died, next, healed time.Duration
	for _, l := range lives(t, dir) {
		if l.token == first {
			died = max(died, l.last)
		} else {
			next = l.begin
		}
	}
	if f.heal != nil {
		healed = clock.Boot()
		f.heal(a, guard)
	}
	got := a.wait()
	if got.code != f.code {
		t.Errorf("the runner: got exit code %d, want %d; stderr %q", got.code, f.code, got.err)
	}
	// Releasing is tried for a margin at most; nothing else may hold the runner up.
	if from := max(died, healed); a.ended-from > 10*time.Second {
		t.Errorf("the runner ended %s after its command, want at most the release timeout of %s", a.ended-from, ttl/5)
	}
	if !strings.Contains(got.err, f.says) {
		t.Errorf("the runner: got stderr %q, want %q in it", got.err, f.says)
	}
	b.signal(syscall.SIGTERM)
	if got := b.wait(); got.code == exitLost {
		return disturbed(t, a, b, dir)
	} else if got.code != 143 {
		t.Errorf("the other runner: got exit code %d, want 143; stderr %q", got.code, got.err)
	}

	overlaps := apart(t, dir)
	if died >= expiry {
		t.Errorf("the last process died %s after the expiry", died-expiry)
	}
	if !f.frees && next < expiry {
		t.Errorf("the other command began %s before the expiry", expiry-next)
	}
	if f.name == "runner killed" && died-struck > time.Second {
		t.Errorf("after the runner was killed the command lived on for %s, want at most 1s", died-struck)
	}
	if left := members(lease); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before[f.name] = append(s.before[f.name], expiry-died)
	s.overlaps += overlaps
	return true
}

// disturbed ends both and checks what must hold in any case. It returns false.
func disturbed(t *testing.T, a, b *program, dir string) bool {
	t.Helper()
	for _, p := range []*program{a, b} {
		p.signal(syscall.SIGKILL)
		t.Logf("disturbed: %d, %q", p.wait().code, p.stderr())
	}
	apart(t, dir)
	return false
}
