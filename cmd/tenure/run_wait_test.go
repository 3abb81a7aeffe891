//go:build linux

package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/store"
)

// held runs a command that holds the lease until the returned function lets it end.
func held(t *testing.T, target, lease string, flags ...string) (p *program, finish func()) {
	t.Helper()
	dir := t.TempDir()
	script := fmt.Sprintf(`touch %[1]s/runs; while [ ! -e %[1]s/finish ]; do sleep 0.02; done`, dir)
	args := append(append([]string{"run", lease, "--store", target}, flags...), "--", "sh", "-c", script)
	p = start(t, args...)
	until(t, "the holder's command", func() bool { _, err := os.Stat(filepath.Join(dir, "runs")); return err == nil })
	return p, func() {
		if err := os.WriteFile(filepath.Join(dir, "finish"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// A wait shows one line where nobody looks on, however long it takes, and names
// who holds the lease, since when, and for how long still.
func TestRunWaitingIsOneLine(t *testing.T) {
	t.Parallel()
	path := fileStore(t)
	a, finish := held(t, path, "a", "--ttl", "2s")
	b := start(t, "run", "a", "--store", path, "--", "true")
	b.waiting()
	began := get(t, open(t, path), "a").RenewedAt
	until(t, "three renewals by the holder", func() bool { return get(t, open(t, path), "a").RenewedAt.Sub(began) > 1500*time.Millisecond })
	finish()
	a.wait().clean(t, exitOK)
	r := b.wait()
	line := regexp.MustCompile(fmt.Sprintf(`^tenure: waiting for "a": held by \S+/%d-\S+ \(token 1\) since 20\S+Z \(\d+s\), for another [\d.]+m?s unless renewed\n$`, a.pid()))
	if r.code != exitOK || !line.MatchString(r.err) || r.out != "" {
		t.Errorf("got %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
}

// screen is a terminal of 80 columns.
type screen struct {
	tty  *os.File
	mu   sync.Mutex
	text bytes.Buffer
}

func openScreen(t *testing.T) *screen {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminal here: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
		t.Fatal(err)
	}
	s := &screen{}
	if s.tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Skipf("no pseudo-terminal here: %v", err)
	}
	t.Cleanup(func() { s.tty.Close() })
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			s.mu.Lock()
			s.text.Write(buf[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return s
}

func (s *screen) read() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

const wiped = "\r\x1b[K"

// On a terminal the line lives: it is rewritten in place and gone afterwards.
func TestRunWaitingOnATerminal(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"acquired", "interrupted"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			path := fileStore(t)
			a, finish := held(t, path, "a")
			s := openScreen(t)
			b := startWith(t, func(cmd *exec.Cmd) { cmd.Stdin, cmd.Stderr = s.tty, s.tty }, "run", "a", "--store", path, "--", "true")
			until(t, "a line that was rewritten twice", func() bool { return strings.Count(s.read(), wiped) >= 3 })
			if how == "acquired" {
				finish()
				a.wait().clean(t, exitOK)
				b.wait().clean(t, exitOK)
			} else {
				b.signal(syscall.SIGINT)
				b.wait().clean(t, 130)
			}
			until(t, "the line to be wiped", func() bool { return strings.HasSuffix(s.read(), wiped) })
			text := s.read()
			if strings.Contains(text, "\n") {
				t.Errorf("got %q, want no new line", text)
			}
			// Automatic wrapping is off while the line is written, so that it
			// stays one line on a narrow terminal, however long the names.
			line := regexp.MustCompile(fmt.Sprintf(`^(\r\x1b\[K\x1b\[\?7lwaiting for "a": held by \S+/%d-\S+ since \d\d:\d\d:\d\dZ, [\d.]+m?s left\x1b\[\?7h){2,}\r\x1b\[K$`, a.pid()))
			if !line.MatchString(text) {
				t.Errorf("got %q", text)
			}
			if first, _, _ := strings.Cut(strings.TrimPrefix(text, wiped), wiped); len(first) > 80+len("\x1b[?7l\x1b[?7h") {
				t.Errorf("got %q, want what matters within 80 columns", first)
			}
		})
	}
}

// C24: whoever asks a waiting program to end gets 128+n, and nothing is held.
func TestRunEndedWhileWaiting(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			path := fileStore(t)
			a, finish := held(t, path, "a")
			b := start(t, "run", "a", "--store", path, "--", "touch", path+".ran")
			b.waiting()
			b.signal(sig)
			if r := b.wait(); r.code != 128+int(sig) || strings.Count(r.err, "\n") != 1 {
				t.Errorf("got %d, %q; want %d and no more than the line of the wait", r.code, r.err, 128+int(sig))
			}
			finish()
			a.wait().clean(t, exitOK)
			if r := get(t, open(t, path), "a"); r.Status != store.Released || r.Token != 1 {
				t.Errorf("got %s, token %s; want token 1, released", r.Status, r.Token)
			}
		})
	}
}

// A signal while the command runs is the command's: its code is the program's.
func TestRunPassesSignals(t *testing.T) {
	t.Parallel()
	path := fileStore(t)
	for sig, name := range map[syscall.Signal]string{syscall.SIGTERM: "TERM", syscall.SIGINT: "INT", syscall.SIGHUP: "HUP", syscall.SIGUSR1: "USR1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mark := filepath.Join(t.TempDir(), "ready")
			p := start(t, "run", "signal/"+name, "--store", path, "--", "sh", "-c",
				fmt.Sprintf(`trap 'exit 7' %s; touch %s; while :; do sleep 0.02; done`, name, mark))
			until(t, "the trap", func() bool { _, err := os.Stat(mark); return err == nil })
			p.signal(sig)
			p.wait().clean(t, 7)
			released(t, path, "signal/"+name)
		})
	}
}

// C24: a request to end is heard at every moment: before the lease is held,
// while the command starts, and when it runs.
func TestRunEndedAtAnyMoment(t *testing.T) {
	t.Parallel()
	path := fileStore(t)
	for round := range 30 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			t.Parallel()
			lease := fmt.Sprintf("moment/%d", round)
			p := start(t, "run", lease, "--store", path, "--", "sleep", "300")
			moment := time.NewTimer(rand.N(200 * time.Millisecond))
			<-moment.C
			p.signal(syscall.SIGTERM)
			r := p.wait()
			if r.code == -int(syscall.SIGTERM) { // before the program could listen
				r.code = 143
			}
			r.clean(t, 143)
			released(t, path, lease)
		})
	}
}

// A store that is down at the start gives one line and the code of that kind.
func TestRunStoreDownAtStart(t *testing.T) {
	t.Parallel()
	address, network := proxied(t, serverStore(t))
	hole(network)
	begin := time.Now()
	run(t, "run", "a", "--store", address, "--", "true").want(t, exitUnavailable, "store postgres://", network.Addr(), "check the address")
	if took := time.Since(begin); took > requestTime+15*time.Second {
		t.Errorf("took %s, want about %s", took, requestTime)
	}
	network.Close()
	run(t, "run", "a", "--store", address, "--", "true").want(t, exitUnavailable, "store postgres://", network.Addr())
}

// A request to end is heard also while the store is silent.
func TestRunEndedWhileTheStoreIsSilent(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"opening", "waiting"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			direct, lease := serverStore(t), "silent/"+when
			address, network := proxied(t, direct)
			a, finish := held(t, direct, lease)
			if when == "opening" {
				hole(network)
			}
			b := start(t, "run", lease, "--ttl", "3s", "--store", address, "--", "true")
			if when == "opening" {
				until(t, "a connection", func() bool { return network.Accepted() > 0 })
			} else {
				b.waiting()
				hole(network)
			}
			begin := clock.Boot()
			b.signal(syscall.SIGTERM)
			if r := b.wait(); r.code != 143 || strings.Contains(r.err, "store") {
				t.Errorf("got %d, %q; want 143 and no word of the store", r.code, r.err)
			}
			if took := b.ended - begin; took > 8*time.Second {
				t.Errorf("ended %s after it was asked to", took)
			}
			finish()
			a.wait().clean(t, exitOK)
			if r := get(t, open(t, direct), lease); r.Token != 1 || r.Status != store.Released {
				t.Errorf("got %s, token %s", r.Status, r.Token)
			}
		})
	}
}

// With --verbose it tells of each change of state, and names no secret.
func TestRunVerbose(t *testing.T) {
	t.Parallel()
	address := with(t, serverStore(t), func(u *url.URL) { u.User = url.UserPassword("postgres", "geheim") })
	r := run(t, "run", "verbose", "-v", "--store", address, "--", "echo", "mine")
	if r.code != exitOK || r.out != "mine\n" {
		t.Errorf("got %d, %q", r.code, r.out)
	}
	for _, part := range []string{"acquired", "started", "released", "lease=verbose", "token=1"} {
		if !strings.Contains(r.err, part) {
			t.Errorf("stderr: got %q, want %q in it", r.err, part)
		}
	}
	if strings.Contains(r.err, "geheim") {
		t.Errorf("stderr shows a password: %q", r.err)
	}
}

// A store that is down at the end costs a bounded time and no code: the work was done.
func TestRunStoreDownAtRelease(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second // so the release is tried for two seconds
	address, network := proxied(t, serverStore(t))
	mark := filepath.Join(t.TempDir(), "mark")
	p := start(t, "run", "down-at-release", "--ttl", ttl.String(), "--store", address, "--", "sh", "-c",
		fmt.Sprintf(`touch %[1]s; while [ -e %[1]s ]; do sleep 0.02; done; exit 3`, mark))
	until(t, "the command", func() bool { _, err := os.Stat(mark); return err == nil })
	hole(network)
	begin := time.Now()
	if err := os.Remove(mark); err != nil {
		t.Fatal(err)
	}
	p.wait().want(t, 3, "left to expire", `"down-at-release"`, "token 1", ttl.String())
	// The release, a renewal that may be on its way, and the closing.
	if took := time.Since(begin); took > ttl/5+ttl/3+5*time.Second {
		t.Errorf("took %s after the command ended", took)
	}
}

// A store that goes away while somebody waits is waited for.
func TestRunStoreAwayWhileWaiting(t *testing.T) {
	t.Parallel()
	direct := serverStore(t)
	address, network := proxied(t, direct)
	a, finish := held(t, direct, "away", "--ttl", "2s")
	b := start(t, "run", "away", "--ttl", "2s", "--store", address, "--", "true")
	b.waiting()
	hole(network)
	finish()
	a.wait().clean(t, exitOK)
	network.Reset()
	network.Pass()
	if r := b.wait(); r.code != exitOK {
		t.Errorf("got %d, %q", r.code, r.err)
	}
}

// Names of leases are completed from the store.
func TestRunCompletion(t *testing.T) {
	t.Parallel()
	path := fileStore(t)
	acquire(t, path, "jobs/nightly", "host-1/1/a/b")
	r := run(t, "__complete", "--store", path, "run", "jo")
	if r.code != exitOK || !strings.HasPrefix(r.out, "jobs/nightly\theld\n") {
		t.Errorf("got %d, %q, %q", r.code, r.out, r.err)
	}
	if r := run(t, "__complete", "--store", path, "run", "a", "--on-loss", ""); !strings.HasPrefix(r.out, "exit\nagain\n") {
		t.Errorf("--on-loss: got %q", r.out)
	}
}

// What a person types wrong gets one line that names the thing, the value and
// the rule, before anything is asked of a store. C72 and C73 are among it.
func TestRunUsage(t *testing.T) {
	t.Parallel()
	never := filepath.Join(t.TempDir(), "never.db")
	for _, tc := range []struct {
		args  []string
		parts []string
	}{
		{nil, []string{"name a lease and a command", "tenure run --help"}},
		{[]string{"a"}, []string{"name a command"}},
		{[]string{"a", "true"}, []string{"write --", "tenure run a -- true"}},
		{[]string{"--", "true"}, []string{"name a lease"}},
		{[]string{"a", "--"}, []string{"name a command"}},
		{[]string{"a", "b", "--", "true"}, []string{"one lease, not 2"}},
		{[]string{"a", "--no-wait", "--wait-for", "1s", "--", "true"}, []string{"exclude each other"}},
		{[]string{"a", "--grace", "5s", "--", "true"}, []string{"--grace 5s", "margin of 6s", "--ttl 30s", "at most 4.5s"}},
		{[]string{"a", "--ttl", "2s", "--grace", "400ms", "--", "true"}, []string{"--grace 400ms", "at most 300ms"}},
		{[]string{"a", "--on-loss", "weep", "--", "true"}, []string{`"weep"`, "exit or again"}},
		{[]string{"a", "--stall-after", "1m", "--", "true"}, []string{"--progress"}},
		{[]string{"a", "--progress", "x", "--", "true"}, []string{"--stall-after"}},
		{[]string{"a", "--slot", "x", "--once-per", "24h", "--", "true"}, []string{"exclude each other"}},
		{[]string{"a", "--slot", "a b", "--", "true"}, []string{`"a b"`, "slot"}},
		{[]string{"a", "--meta", "x", "--", "true"}, []string{"x"}},
		{[]string{"a", "--nosuch", "--", "true"}, []string{"--nosuch"}},
		{[]string{"a", "--store", "memory:", "--", "true"}, []string{"memory"}},
		{[]string{"a", "--store", "mysql://u:geheim@h/x", "--", "true"}, []string{"mysql://u:xxxxx@h/x"}},
		{[]string{"a", "--store", "postgres://u:geheim@h:port/x", "--", "true"}, []string{"postgres://USER@HOST"}},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			t.Parallel()
			args := append([]string{"run"}, tc.args...)
			if !strings.Contains(strings.Join(args, " "), "--store") {
				args = append([]string{"--store", never}, args...)
			}
			r := cli(t, args...)
			r.want(t, exitUsage, tc.parts...)
			if r.out != "" || strings.Contains(r.err, "geheim") {
				t.Errorf("got stdout %q, stderr %q", r.out, r.err)
			}
		})
	}
	for _, flag := range []string{"ttl", "grace", "wait-for", "min-hold", "once-per", "stall-after"} {
		for _, value := range []string{
			"-1", "1", "1e3", "1125899906842624", "9007199254740992", "4611686018427387904", "9223372036854775807", "1e308", "1.5", "10", "PT10S", "null", "",
			"-5s", "0.5ms", "9223372036854775807s", "999999h",
		} {
			r := cli(t, "run", "a", "--store", never, "--"+flag, value, "--", "true")
			r.want(t, exitUsage, "--"+flag, fmt.Sprintf("%q", value), "from ")
		}
	}
	for _, name := range []string{
		"/a", "a//b", "a/../b", "a%2Fb", "a b", "a\u00a0b", "\u00e9", "e\u0301", "a ", "\U0001f98a", "", strings.Repeat("a", 201), "a\nb", "a\u202eb",
	} {
		r := cli(t, "run", "--store", never, "--", "true")
		r.want(t, exitUsage)
		cli(t, "run", name, "--store", never, "--", "true").want(t, exitUsage, "name", "letter")
	}
	if _, err := os.Stat(never); err == nil {
		t.Error("a store was made")
	}
}

// Stores that cannot be used: one line, the documented code, nothing run.
func TestRunBadStores(t *testing.T) {
	t.Parallel()
	server, dir := serverStore(t), t.TempDir()
	later, text := fileStore(t), filepath.Join(dir, "text.db")
	edit(t, later, "UPDATE tenure_meta SET value = '99' WHERE key = 'schema'")
	if err := os.WriteFile(text, bytes.Repeat([]byte("not a database\n"), 100), 0o600); err != nil {
		t.Fatal(err)
	}
	option := func(key, value string) string {
		return with(t, server, func(u *url.URL) {
			q := u.Query()
			q.Set(key, value)
			u.RawQuery = q.Encode()
		})
	}
	for what, tc := range map[string]struct {
		target string
		code   int
		parts  []string
	}{
		"a later version":     {later, exitConfig, []string{later, "99", "newer tenure"}},
		"a text":              {text, exitConfig, []string{text, "not a database"}},
		"a directory":         {dir, exitUsage, []string{dir, "is a directory"}},
		"no directory":        {filepath.Join(dir, "none", "x.db"), exitConfig, []string{"none/x.db", "no such file", "tenure migrate --store"}},
		"no tables":           {with(t, server, func(u *url.URL) { u.Path = "/postgres" }), exitConfig, []string{"tenure migrate --store"}},
		"no database":         {with(t, server, func(u *url.URL) { u.Path = "/nosuch" }), exitUnavailable, []string{`"nosuch"`, "does not exist"}},
		"no role":             {with(t, server, func(u *url.URL) { u.User = url.UserPassword("nosuch", "geheim") }), exitPermission, []string{"nosuch"}},
		"a wrong password":    {refusing(t), exitPermission, []string{"refused the password", "PGPASSWORD"}},
		"read-only":           {option("default_transaction_read_only", "on"), exitPermission, []string{"read-only"}},
		"an old certificate":  {expiredServer(t), exitUnavailable, []string{"valid from 2001-", "clock"}},
		"a host without name": {"postgres://u@nosuch.invalid/x", exitUnavailable, []string{"nosuch.invalid"}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			mark := filepath.Join(t.TempDir(), "ran")
			r := run(t, "run", "a", "--no-wait", "--store", tc.target, "--", "touch", mark)
			r.want(t, tc.code, append(tc.parts, "store ")...)
			if strings.Contains(r.err, "geheim") || strings.Count(r.err, "acquire: ") > 1 || strings.Contains(r.err, "tenure: tenure") {
				t.Errorf("got %q", r.err)
			}
			if _, err := os.Stat(mark); err == nil {
				t.Error("the command ran")
			}
		})
	}
}
