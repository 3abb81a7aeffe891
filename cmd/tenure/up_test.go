//go:build linux

package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/tenurehq/tenure/cmd/tenure/tree"
)

// demoLines are what the demo shows, in this order.
var demoLines = []string{
	`a throw-away fleet`, `the server listens`, `its pages, as long as this runs: http://127\.0\.0\.1:\d+/ui/`, `host-\w is alive, its lease is held with token 1`,
	`work "report" \(movable\) runs on (host-\w) and has written \d+ rows with token 1`,
	`work "disk" \(pinned: its data is on its host\) runs on host-\w`,
	`is paused as a whole \(SIGSTOP\): its agent, 2 minders, 2 processes of work`,
	`the beats of host-\w stop: it is (late|suspect)`,
	`is suspect: it gets no new work \(stale_heartbeat\), and keeps what it has`,
	`the lease of host-\w lapses \(token 1\)`,
	`work "report" moves: host-\w, token 1, to host-\w, token 2`,
	`evidence: last beat [0-9:.]+, suspect [0-9:.]+, lease lapsed \(token 1\) at [0-9:.]+, recorded [0-9:.]+`,
	`the copy on host-\w has written \d+ rows with token 2, and began after marker "\d+"`,
	`work "disk" is pinned and waits for host-\w: "its host is gone`,
	`the old copy on host-\w goes on \(process \d+\): its UPDATE … WHERE token = 1 changes 0 rows`,
	`the old copy is ended`,
	`host-\w is alive again, under a new lease with token 2`,
	`work "disk" goes on on host-\w, still with token 1`,
	`moved once`, `none was lost`, `tenure up`,
}

func TestDemo(t *testing.T) {
	t.Parallel()
	r := run(t, "up", "--demo")
	checkDemo(t, r)
}

func checkDemo(t *testing.T, r result) {
	t.Helper()
	if r.code != exitOK || r.err != "" {
		t.Fatalf("got exit code %d, %q, %q", r.code, r.out, r.err)
	}
	rest := r.out
	for _, line := range demoLines {
		at := regexp.MustCompile(line).FindStringIndex(rest)
		if at == nil {
			t.Fatalf("got %q, want %q in its place", r.out, line)
		}
		rest = rest[at[1]:]
	}
	nothingLeft(t, demoDir(t, r.out), true)
}

// demoDir returns the directory of a demo.
func demoDir(t *testing.T, out string) string {
	t.Helper()
	m := regexp.MustCompile(`in (\S+): one server`).FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("got %q, want it to name its directory", out)
	}
	return m[1]
}

// nothingLeft fails unless no process of a demo lives, and its directory is as it
// should be.
func nothingLeft(t *testing.T, dir string, removed bool) {
	t.Helper()
	for pid, text := range leftOf(t, dir) {
		t.Errorf("process %d is left: %q", pid, text)
	}
	if _, err := os.Stat(dir); os.IsNotExist(err) != removed {
		t.Errorf("directory %s: got %v, want it removed: %v", dir, err, removed)
	}
}

// leftOf returns the command lines of the processes of a demo in dir.
func leftOf(t *testing.T, dir string) map[int]string {
	t.Helper()
	all, err := tree.Table()
	if err != nil {
		t.Fatal(err)
	}
	left := map[int]string{}
	for _, p := range all {
		text, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.PID), "cmdline"))
		if strings.Contains(string(text), dir) && !p.Dead() {
			left[p.PID] = string(text)
		}
	}
	return left
}

// Ctrl-C ends every process, the paused ones too.
func TestDemoInterrupted(t *testing.T) {
	t.Parallel()
	p := start(t, "up", "--demo")
	until(t, "the pause", func() bool { return strings.Contains(p.read("out"), "is paused as a whole") || p.over() })
	p.signal(syscall.SIGINT)
	r := p.wait()
	r.want(t, 130)
	nothingLeft(t, demoDir(t, r.out), true)
}

// Also if nobody is left to end it, nothing of it stays.
func TestDemoKilled(t *testing.T) {
	t.Parallel()
	p := start(t, "up", "--demo")
	until(t, "the pause", func() bool { return strings.Contains(p.read("out"), "is paused as a whole") || p.over() })
	dir := demoDir(t, p.read("out"))
	p.signal(syscall.SIGKILL)
	p.wait()
	until(t, "the end of the demo's directory and of who removed it", func() bool {
		_, err := os.Stat(dir)
		return os.IsNotExist(err) && len(leftOf(t, dir)) == 0
	})
	nothingLeft(t, dir, true)
}

// The demo shows what it observes: a part of it that fails, fails it.
func TestDemoFails(t *testing.T) {
	t.Parallel()
	p := start(t, "up", "--demo")
	var victim int
	until(t, "the pause", func() bool {
		m := regexp.MustCompile(`(host-\w) is alive, its lease is held with token 1, agent process (\d+)`).FindStringSubmatch(p.read("out"))
		if m != nil {
			victim, _ = strconv.Atoi(m[2])
		}
		return victim > 0 && strings.Contains(p.read("out"), "is paused as a whole")
	})
	if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r := p.wait()
	r.want(t, exitDemo, "ended by itself")
	dir := demoDir(t, r.out)
	nothingLeft(t, dir, false)
	os.RemoveAll(dir)
}

// asUser lets a program run as an ordinary user with a home of its own, which may
// be this one.
func asUser(t *testing.T) (home string, change func(*exec.Cmd)) {
	t.Helper()
	home = t.TempDir()
	for dir := home; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) { // on the way
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(home, "tenure")
	if err := copyFile(program, self); err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	root := os.Geteuid() == 0
	if root {
		if err := os.Chown(home, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	return home, func(cmd *exec.Cmd) {
		cmd.Path, cmd.Args[0] = program, program
		cmd.Env = append(cmd.Env, "HOME="+home, "XDG_STATE_HOME="+filepath.Join(home, "state"), "TENURE_RUNTIME_DIR="+home, "TMPDIR="+home)
		if root {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		}
	}
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Close()
}

// With a directory of its own "up" touches nothing of this user's.
func TestUpStateDir(t *testing.T) {
	t.Parallel()
	home, user := asUser(t)
	dir, node := filepath.Join(home, "try"), unique("try")
	p := startWith(t, user, "up", "--listen", "127.0.0.1:0", "--node", node, "--state-dir", dir)
	until(t, "the next commands", func() bool { return strings.Contains(p.read("out"), "tenure nodes ls") || p.over() })
	if want := "export TENURE_SERVER=" + servedURL(t, p); !strings.Contains(p.read("out"), want) {
		t.Errorf("got %q, want %q", p.read("out"), want)
	}
	p.signal(syscall.SIGINT)
	p.wait().wantLast(t, exitOK)
	for _, path := range []string{"tenure.db", filepath.Join("agent", node)} {
		if _, err := os.Stat(filepath.Join(dir, path)); err != nil {
			t.Errorf("%s: got %v, want it there", path, err)
		}
	}
	if _, err := os.Stat(filepath.Join(home, "state")); !os.IsNotExist(err) {
		t.Errorf("the user's own directory: got %v, want none", err)
	}
}

// "up" serves this user's default store; its commands find the server without
// being told; its work outlives it and is taken up again.
func TestUp(t *testing.T) {
	t.Parallel()
	home, user := asUser(t)
	node := unique("up")
	t.Cleanup(func() {
		until(t, "the end of the work", func() bool {
			left := workOf(node)
			for _, pid := range left {
				if p, err := tree.Read(pid); err == nil && p.Parent > 1 {
					_ = syscall.Kill(p.Parent, syscall.SIGTERM)
				}
			}
			return len(left) == 0
		})
	})
	up := func() *program {
		t.Helper()
		p := startWith(t, user, "up", "--listen", "127.0.0.1:0", "--node", node)
		until(t, "the next commands", func() bool { return strings.Contains(p.read("out"), "tenure nodes ls") || p.over() })
		return p
	}
	tenure := func(args ...string) result { t.Helper(); return startWith(t, user, args...).wait() }
	first := up()
	url := servedURL(t, first)
	note, err := os.ReadFile(filepath.Join(home, "state", "tenure", "server"))
	if err != nil || strings.TrimSpace(string(note)) != url {
		t.Errorf("got %q, %v, want %q noted", note, err, url)
	}
	tenure("up", "--listen", strings.TrimPrefix(url, "tenure://")).want(t, exitUnavailable, "another server", "--listen")
	tenure("up", "--listen", "127.0.0.1:0", "--node", node).wantLast(t, exitNotAcquired, "another agent", "--node")
	until(t, "the node", func() bool { return strings.Contains(tenure("nodes", "ls").out, node) })
	until(t, "room on the node", func() bool {
		r := tenure("work", "submit", "hello", "--", "sleep", "1000")
		return r.code == exitOK || r.code == exitConflict
	})
	until(t, "the work runs", func() bool { return len(workOf(node)) == 1 })
	pid := workOf(node)[0]
	first.signal(syscall.SIGINT)
	first.wait().wantLast(t, exitOK)
	if _, err := os.Stat(filepath.Join(home, "state", "tenure", "server")); !os.IsNotExist(err) {
		t.Errorf("the note of the server that ended: got %v, want none", err)
	}
	second := up()
	until(t, "the work is the node's again", func() bool {
		return strings.Contains(tenure("why", "hello").out, "hello: running on "+node+", token 1")
	})
	if now := workOf(node); len(now) != 1 || now[0] != pid {
		t.Errorf("got processes %v, want %d", now, pid)
	}
	second.signal(syscall.SIGTERM)
	second.wait().wantLast(t, exitOK)
	checkDemo(t, tenure("up", "--demo"))
}
