//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/store"
)

// runs counts the lines of a file to which each run adds one.
func runs(t *testing.T, path string) int {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Count(string(text), "\n")
}

// both runs a test on a file and on a server.
func both(t *testing.T, f func(t *testing.T, target string)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) { t.Parallel(); f(t, fileStore(t)) })
	t.Run("postgres", func(t *testing.T) { t.Parallel(); f(t, serverStore(t)) })
}

// C18: a short job on three hosts whose clocks differ runs once a window with
// --min-hold; the others exit with the code that says so. The minute of a
// crontab is scaled down to 4 s, the offset to 200 ms.
func TestRunMinHold(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, target string) {
		const window, offset = 4 * time.Second, 200 * time.Millisecond
		log := filepath.Join(t.TempDir(), "log")
		ticks := time.NewTicker(window)
		defer ticks.Stop()
		for n := range 3 {
			codes := map[int]int{}
			var hosts []*program
			for host := range 3 {
				if host > 0 {
					later := time.NewTimer(offset)
					<-later.C
				}
				hosts = append(hosts, start(t, "run", "min-hold", "--no-wait", "--min-hold", "3s", "--store", target, "--", "sh", "-c", "echo x >> "+log))
			}
			for _, p := range hosts {
				r := p.wait()
				codes[r.code]++
				if r.code == exitNotAcquired && !strings.Contains(r.err, "min-hold") && !strings.Contains(r.err, "held") {
					t.Errorf("got stderr %q, want it to say why", r.err)
				}
			}
			if codes[exitOK] != 1 || codes[exitNotAcquired] != 2 || runs(t, log) != n+1 {
				t.Errorf("window %d: got exit codes %v and %d runs, want one run a window", n, codes, runs(t, log))
			}
			<-ticks.C
		}
	})
}

// Without --min-hold a host whose clock is late runs the job again: the help
// says what to use in a crontab.
func TestRunWithoutMinHold(t *testing.T) {
	t.Parallel()
	path := fileStore(t)
	log := filepath.Join(t.TempDir(), "log")
	for range 2 {
		run(t, "run", "a", "--no-wait", "--store", path, "--", "sh", "-c", "echo x >> "+log).clean(t, exitOK)
	}
	if runs(t, log) != 2 {
		t.Errorf("got %d runs, want 2", runs(t, log))
	}
	if help := cli(t, "run", "--help").out; !strings.Contains(help, "--no-wait --min-hold 50s") || !strings.Contains(help, "crontab") {
		t.Errorf("help: got %q, want an example for a crontab", help)
	}
}

// C18: the minimum hold is kept by the store, so that it outlives a kill of the
// program after its command has ended, and before the lease was given back.
func TestRunMinHoldOutlivesTheProgram(t *testing.T) {
	t.Parallel()
	const ttl, hold = 2 * time.Second, 7 * time.Second
	direct := serverStore(t)
	st := open(t, direct)
	address, network := proxied(t, direct)
	mark := filepath.Join(t.TempDir(), "mark")
	a := start(t, "run", "hold-on", "--ttl", ttl.String(), "--min-hold", hold.String(), "--store", address, "--", "sh", "-c",
		fmt.Sprintf(`touch %[1]s; while [ -e %[1]s ]; do sleep 0.02; done`, mark))
	until(t, "the command", func() bool { _, err := os.Stat(mark); return err == nil })
	hole(network) // so that the release hangs
	if err := os.Remove(mark); err != nil {
		t.Fatal(err)
	}
	until(t, "the end of the command", func() bool { return len(members("hold-on")) == 0 })
	a.signal(syscall.SIGKILL)
	a.wait()
	until(t, "the expiry of the term", func() bool { return get(t, st, "hold-on").Status == store.Lapsed })
	r := run(t, "run", "hold-on", "--no-wait", "--store", direct, "--", "true")
	if rec := get(t, st, "hold-on"); rec.Wait <= 0 {
		t.Fatalf("the minimum hold passed before it could be tested: %+v", rec)
	}
	r.want(t, exitNotAcquired, "hold-on")
	b := start(t, "run", "hold-on", "--store", direct, "--", "true")
	if r := b.wait(); r.code != exitOK || !strings.Contains(r.err, "kept free") {
		t.Errorf("a waiter: got %d, %q", r.code, r.err)
	}
	if rec := get(t, st, "hold-on"); rec.Token != 2 {
		t.Errorf("got token %s, want 2", rec.Token)
	}
	history := open(t, direct).(store.Historian)
	var began []time.Time
	for term, err := range history.History(t.Context(), "hold-on") {
		if err != nil {
			t.Fatal(err)
		}
		began = append(began, term.AcquiredAt)
	}
	if len(began) != 2 || began[0].Sub(began[1]) < hold {
		t.Errorf("got terms that began at %v, want them %s apart", began, hold)
	}
}

// C18: a job of three TTLs is renewed and runs once, under one token.
func TestRunLongJob(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, target string) {
		const ttl = 2 * time.Second
		log := filepath.Join(t.TempDir(), "log")
		a := start(t, "run", "long", "--ttl", ttl.String(), "--store", target, "--", "sh", "-c", fmt.Sprintf(`echo x >> %s; sleep 6`, log))
		until(t, "the command", func() bool { return runs(t, log) > 0 })
		for refused := 0; ; refused++ {
			r := run(t, "run", "long", "--no-wait", "--store", target, "--", "sh", "-c", "echo x >> "+log)
			select {
			case <-a.done:
				a.wait().clean(t, exitOK)
				if refused < 3 {
					t.Errorf("got %d tries in three TTLs, want some", refused)
				}
				return
			default:
			}
			r.want(t, exitNotAcquired, "long", "token 1")
			if runs(t, log) != 1 {
				t.Fatalf("got %d runs at once", runs(t, log))
			}
		}
	})
}

// At most one run succeeds for a slot, whoever tries; a failure leaves it open.
func TestRunSlot(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, target string) {
		log := filepath.Join(t.TempDir(), "log")
		job := func(code int) []string {
			return []string{"--", "sh", "-c", fmt.Sprintf("echo x >> %s; exit %d", log, code)}
		}
		slot := []string{"run", "billing", "--slot", "2026-11-30", "--store", target}
		run(t, append(slot, job(5)...)...).clean(t, 5)
		var five []*program
		for range 5 {
			five = append(five, start(t, append(slot, job(0)...)...))
		}
		codes := map[int]int{}
		for _, p := range five {
			codes[p.wait().code]++
		}
		if codes[exitOK] != 1 || codes[exitSlotDone] != 4 || runs(t, log) != 2 {
			t.Errorf("got exit codes %v and %d runs, want one success, four times %d, and 2 runs", codes, runs(t, log), exitSlotDone)
		}
		run(t, append(slot, job(0)...)...).want(t, exitSlotDone, "2026-11-30", "billing", "done")
		// Another slot is another matter, and so is another lease.
		run(t, append([]string{"run", "billing", "--slot", "2026-12-01", "--store", target}, job(0)...)...).clean(t, exitOK)
		run(t, append([]string{"run", "billing2", "--slot", "2026-11-30", "--store", target}, job(0)...)...).clean(t, exitOK)
		released(t, target, "billing")
	})
}

// --once-per makes the slot from the store's clock.
func TestRunOncePer(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, target string) {
		for range 2 { // a second time only if the day changed meanwhile
			log := filepath.Join(t.TempDir(), "log")
			day := time.Now().UTC().YearDay()
			lease := fmt.Sprintf("once/%d", day)
			var five []*program
			for range 5 {
				five = append(five, start(t, "run", lease, "--once-per", "24h", "--store", target, "--", "sh", "-c", "echo x >> "+log))
			}
			codes := map[int]int{}
			for _, p := range five {
				codes[p.wait().code]++
			}
			if time.Now().UTC().YearDay() != day {
				continue
			}
			if codes[exitOK] != 1 || codes[exitSlotDone] != 4 || runs(t, log) != 1 {
				t.Errorf("got exit codes %v and %d runs, want one success and four times %d", codes, runs(t, log), exitSlotDone)
			}
			return
		}
	})
}

func TestSlotAt(t *testing.T) {
	t.Parallel()
	at := func(s string) time.Time {
		v, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, tc := range []struct {
		now  string
		per  time.Duration
		want string
	}{
		{"2026-11-30T00:00:00Z", 24 * time.Hour, "24h/2026-11-30T00:00:00Z"},
		{"2026-11-30T23:59:59.999999999Z", 24 * time.Hour, "24h/2026-11-30T00:00:00Z"},
		{"2026-11-30T23:59:59+05:00", time.Hour, "1h/2026-11-30T18:00:00Z"},
		{"2026-11-30T10:00:07.5Z", 1500 * time.Millisecond, "1.5s/2026-11-30T10:00:07.5Z"},
	} {
		if got := slotAt(at(tc.now), tc.per); got != tc.want {
			t.Errorf("%s per %s: got %q, want %q", tc.now, tc.per, got, tc.want)
		}
		if err := store.CheckSlot(slotAt(at(tc.now), tc.per)); err != nil {
			t.Error(err)
		}
	}
}

// A slot is recorded under the token: a run whose lease passed to somebody else
// does not record it, though its command succeeded.
func TestRunSlotUnderALostTerm(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, target string) {
		st := open(t, target)
		mark := filepath.Join(t.TempDir(), "mark")
		a := start(t, "run", "stale", "--slot", "x", "--store", target, "--", "sh", "-c",
			fmt.Sprintf(`touch %[1]s; while [ -e %[1]s ]; do sleep 0.02; done`, mark))
		until(t, "the command", func() bool { _, err := os.Stat(mark); return err == nil })
		// Freed before the holder learns of it, which takes up to 10 s.
		if err := st.Revoke(t.Context(), "stale", 1, store.Revocation{Why: "test", Now: true}); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(mark); err != nil {
			t.Fatal(err)
		}
		a.wait().want(t, exitLost, "stale", `slot "x"`, "could not be recorded", "may run again")
		run(t, "run", "stale", "--slot", "x", "--store", target, "--", "true").clean(t, exitOK)
		if r := get(t, st, "stale"); r.Token != 2 {
			t.Errorf("got token %s, want 2", r.Token)
		}
	})
}

// Who has nothing to do begins no hold, which would keep the next slot from being
// done: neither at once nor after it waited for the hold of the run that did it.
func TestRunDoneSlotBeginsNoHold(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, target string) {
		st := open(t, target)
		for _, slot := range [][2]string{{"--once-per", "8784h"}, {"--slot", "x"}} {
			args := func(lease, command string, more ...string) []string {
				return append(append([]string{"run", lease, "--store", target, slot[0], slot[1]}, more...), "--", "sh", "-c", command)
			}
			at := "at-once" + slot[0]
			run(t, args(at, "true")...).clean(t, exitOK)
			run(t, args(at, "true", "--min-hold", "1h")...).want(t, exitSlotDone, at, "done")
			if r := get(t, st, at); r.Token != 1 || r.Wait != 0 {
				t.Errorf("%s: got token %s and a hold of %s more, want the first term alone", slot[0], r.Token, r.Wait)
			}

			later, finish := "later"+slot[0], filepath.Join(t.TempDir(), "finish")
			a := start(t, args(later, "while [ ! -e "+finish+" ]; do sleep 0.02; done", "--min-hold", "1h")...)
			until(t, "the first run", func() bool { r, err := st.Get(t.Context(), later); return err == nil && r.Status == store.Held })
			b := start(t, args(later, "true", "--min-hold", "1h", "--ttl", "3s")...)
			until(t, "the second one to wait", func() bool { return b.stderr() != "" })
			if err := os.WriteFile(finish, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			a.wait().clean(t, exitOK)
			if r := b.wait(); r.code != exitSlotDone || !strings.Contains(r.err, "done") {
				t.Errorf("%s: who waited: got %+v, want code %d", slot[0], r, exitSlotDone)
			}
			if r := get(t, st, later); r.Token != 1 {
				t.Errorf("%s: got token %s, want that no second term began", slot[0], r.Token)
			}
		}
	})
}
