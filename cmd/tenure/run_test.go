//go:build linux

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/storetest"
)

// These tests run the real program as processes of its own, on a real file or
// server. They wait more than they compute.

// patience bounds every wait for something that must happen.
const patience = 60 * time.Second

// part returns a path under which the test binary plays a part; see playPart.
func part(t *testing.T, name string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// program is a running "tenure".
type program struct {
	t        *testing.T
	cmd      *exec.Cmd
	dir      string // of its output; short, since a socket may lie in it
	done     chan struct{}
	finished result        // once done
	ended    time.Duration // on the boot clock, once done
}

// start runs "tenure" with args.
func start(t *testing.T, args ...string) *program {
	t.Helper()
	return startWith(t, func(*exec.Cmd) {}, args...)
}

// startWith is start with a change of how it is run.
func startWith(t *testing.T, change func(*exec.Cmd), args ...string) *program {
	t.Helper()
	dir, err := os.MkdirTemp("", "tenure")
	if err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, cmd: exec.Command(part(t, "tenure"), args...), dir: dir, done: make(chan struct{})}
	out, err1 := os.Create(filepath.Join(dir, "out"))
	stderr, err2 := os.Create(filepath.Join(dir, "err"))
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = out, stderr
	p.cmd.Env = append(os.Environ(), "TENURE_RUNTIME_DIR="+dir, "GORACE=atexit_sleep_ms=0")
	change(p.cmd)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out.Close()
	stderr.Close()
	go func() {
		_ = p.cmd.Wait() // how it ended is in the state
		p.ended = clock.Boot()
		code := p.cmd.ProcessState.ExitCode()
		if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			code = -int(status.Signal())
		}
		p.finished = result{code: code, out: p.read("out"), err: p.read("err")}
		close(p.done)
	}()
	t.Cleanup(p.cleanup)
	return p
}

// cleanup ends what a test left: a command, by the death of its runner.
func (p *program) cleanup() {
	if !p.over() {
		guard := p.guardian()
		p.signal(syscall.SIGKILL)
		if guard != 0 {
			_ = syscall.Kill(guard, syscall.SIGCONT)
		}
		<-p.done
	}
	if p.t.Failed() {
		p.t.Logf("%q, process %d, ended with %d; stdout %q, stderr %q", p.cmd.Args[1:], p.pid(), p.finished.code, p.finished.out, p.finished.err)
	}
	os.RemoveAll(p.dir)
}

func (p *program) read(name string) string {
	text, _ := os.ReadFile(filepath.Join(p.dir, name))
	return string(text)
}

func (p *program) stderr() string { return p.read("err") }

func (p *program) pid() int { return p.cmd.Process.Pid }

func (p *program) signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }

// guardian returns the pid of the guardian, 0 if there is none.
func (p *program) guardian() int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		after := string(text[strings.LastIndexByte(string(text), ')')+1:])
		fields := strings.Fields(after)
		if len(fields) < 2 || fields[1] != strconv.Itoa(p.pid()) {
			continue
		}
		if line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline")); string(line) == "tenure-guardian\x00" {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			return pid
		}
	}
	return 0
}

// over says whether it has ended.
func (p *program) over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// wait returns how it ended.
func (p *program) wait() result {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("%q has not ended after %s; stderr %q", p.cmd.Args[1:], patience, p.stderr())
	}
	return p.finished
}

// run runs "tenure" to its end.
func run(t *testing.T, args ...string) result {
	t.Helper()
	return start(t, args...).wait()
}

// clean fails unless r ended with code and said nothing of its own.
func (r result) clean(t *testing.T, code int) {
	t.Helper()
	if r.code != code || r.err != "" {
		t.Errorf("got exit code %d, stderr %q; want %d and nothing", r.code, r.err, code)
	}
}

// until waits for something that must happen.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for limit := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("waited %s for %s", patience, what)
		}
	}
}

// waiting waits until p says that it waits.
func (p *program) waiting() {
	p.t.Helper()
	until(p.t, "a line that tells of waiting", func() bool { return strings.Contains(p.stderr(), "waiting for") })
}

// members returns the processes of all commands under this lease.
func members(lease string) (pids []int) {
	for pid, env := range environments() {
		if env["TENURE_LEASE"] == lease {
			pids = append(pids, pid)
		}
	}
	return pids
}

// life is what one beat logged.
type life struct {
	token       fence.Token
	pid         int
	begin, last time.Duration
}

// lives returns what the beats in dir logged, in the order of their tokens.
func lives(t *testing.T, dir string) (list []life) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(f.Name(), "overlap-") {
			t.Errorf("%s: at its begin there was %s", f.Name(), text)
			continue
		}
		var l life
		if n, err := fmt.Sscanf(f.Name(), "%d-%d", &l.token, &l.pid); n != 2 || err != nil || len(text) != 16 {
			continue // not written yet
		}
		l.begin = time.Duration(binary.LittleEndian.Uint64(text))
		l.last = time.Duration(binary.LittleEndian.Uint64(text[8:]))
		list = append(list, l)
	}
	slices.SortFunc(list, func(a, b life) int { return int(a.token - b.token) })
	return list
}

// terms returns the lives of each term.
func terms(t *testing.T, dir string) map[fence.Token][]life {
	t.Helper()
	m := map[fence.Token][]life{}
	for _, l := range lives(t, dir) {
		m[l.token] = append(m[l.token], l)
	}
	return m
}

// apart fails if lives of different terms overlap, and returns how many pairs do.
func apart(t *testing.T, dir string) (overlaps int) {
	t.Helper()
	list := lives(t, dir)
	for i, a := range list {
		for _, b := range list[i+1:] {
			if a.token != b.token && a.last >= b.begin {
				overlaps++
				t.Errorf("token %d, process %d lived until %s; token %d, process %d began at %s, %s before", a.token, a.pid, a.last, b.token, b.pid, b.begin, a.last-b.begin)
			}
		}
	}
	return overlaps
}

// open opens the store at target.
func open(t *testing.T, target string) store.Store {
	t.Helper()
	loc, err := locate(target)
	if err != nil {
		t.Fatal(err)
	}
	st, closeStore, err := openAt(t.Context(), loc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeStore)
	return st
}

// get returns the record of a lease.
func get(t *testing.T, st store.Store, lease string) store.Record {
	t.Helper()
	r, err := st.Get(t.Context(), lease)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// serverStore returns the URL of a Postgres store of the test's own.
func serverStore(t *testing.T) string {
	t.Helper()
	address := pgtest.Database(t)
	cli(t, "migrate", "--store", address).want(t, exitOK)
	return address
}

// proxied returns address behind a proxy, and the proxy.
func proxied(t *testing.T, address string) (string, *storetest.Proxy) {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := storetest.NewProxy("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	return with(t, address, func(u *url.URL) { u.Host = proxy.Addr() }), proxy
}

// hole makes a black hole of everything.
func hole(p *storetest.Proxy) { p.HoldNew(); p.HoldExisting() }
