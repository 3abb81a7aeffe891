//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/cmd/tenure/tree"
)

// TestPages runs the sh blocks of each page of docs/, in order, in one directory,
// as an ordinary user with a home of its own. The text block after one is what it
// printed, to both outputs; … in it stands for anything within a line, and alone on a
// line for any lines. A block without one must end with code 0.
//
// "sh background" is what a reader starts in another terminal: it goes on until the
// end of the page, where it gets Ctrl-C. A block that only looks is repeated until
// its text is printed, since a reader is slower than this test. A block of another
// kind with a name (```sh reindex.sh) is written to that file, and run by others.
//
// The pages write 127.0.0.1:7470 and two databases that stand for yours; here they are
// an address of this test and a database of its own.
func TestPages(t *testing.T) {
	t.Parallel()
	for _, page := range pages(t) {
		if filepath.Base(page) == "FENCING.md" { // by TestFencingPage, in conformance/
			continue
		}
		var list []block
		for _, b := range blocks(t, page) {
			if b.lang == "sh" || b.lang == "text" || b.file != "" {
				list = append(list, b)
			}
		}
		if !slices.ContainsFunc(list, func(b block) bool { return b.lang == "sh" }) {
			continue
		}
		t.Run(filepath.Base(page), func(t *testing.T) {
			t.Parallel()
			newPageRun(t, page, list).all()
		})
	}
}

// examples are the databases that pages name.
var examples = []string{"postgres://app@db.example/ops", "postgres://tenure@db.example/ops"}

// pageRun runs one page.
type pageRun struct {
	t      *testing.T
	page   string
	list   []block
	home   string
	user   func(*exec.Cmd)
	names  *strings.Replacer
	behind []*exec.Cmd // what runs in other terminals
}

func newPageRun(t *testing.T, page string, list []block) *pageRun {
	r := &pageRun{t: t, page: page, list: list}
	var text strings.Builder
	for _, b := range list {
		text.WriteString(b.text)
	}
	for _, program := range []string{"curl", "flock", "psql"} {
		if !strings.Contains(text.String(), program+" -") {
			continue
		}
		if _, err := exec.LookPath(program); err != nil && os.Getenv("TENURE_TEST_STRICT") == "1" {
			t.Fatalf("%s: %v", page, err)
		} else if err != nil {
			t.Skipf("%s: %v", page, err)
		}
	}
	pid := os.Getpid()
	serial := pageSerial(t, page)
	host := fmt.Sprintf("127.%d.%d.%d", 1+pid>>8&0x7f, pid&0xff, 1+serial) // this test's alone
	names := []string{"127.0.0.1", host, "tenure up\n", "tenure up --listen " + host + ":7470\n"}
	var address string
	for _, example := range examples {
		if strings.Contains(text.String(), example) {
			if address == "" {
				address = serverStore(t)
			}
			names = append(names, example, address)
		}
	}
	r.names = strings.NewReplacer(names...)
	r.home, r.user = asUser(t)
	until(t, "the end of all that has the program open for writing", func() bool { // a fork of this process may
		err := exec.CommandContext(t.Context(), filepath.Join(r.home, "tenure"), "version").Run()
		return !errors.Is(err, syscall.ETXTBSY)
	})
	t.Cleanup(r.end)
	return r
}

// pageSerial is the place of page among the pages, from 0.
func pageSerial(t *testing.T, page string) int {
	t.Helper()
	return slices.Index(pages(t), page)
}

func (r *pageRun) all() {
	for i, b := range r.list {
		at := fmt.Sprintf("%s:%d", r.page, b.line)
		script := r.names.Replace(b.text)
		var want string
		if i+1 < len(r.list) && r.list[i+1].lang == "text" {
			want = r.names.Replace(r.list[i+1].text)
		}
		switch {
		case b.lang == "text":
			if i == 0 || r.list[i-1].lang != "sh" || r.list[i-1].file != "" && r.list[i-1].file != "background" {
				r.t.Errorf("%s: this text is printed by nothing", at)
			}
		case b.file == "background":
			r.background(at, script, want)
		case b.file != "":
			path := filepath.Join(r.home, filepath.FromSlash(b.file))
			if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
				r.t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
				r.t.Fatal(err)
			}
		default:
			r.foreground(at, script, want)
		}
	}
}

// looking matches a script that changes nothing and ends by itself.
var looking = regexp.MustCompile(`\A((tenure ((nodes|work|lease|brake) (ls|get|owner|history|show)|why|events)\b|cat |grep )[^\n]*\n)+\z`)

// foreground runs a script and compares what it prints.
func (r *pageRun) foreground(at, script, want string) {
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	for {
		out, err := r.shell(ctx, script).output()
		ok := err == nil && (want == "" || matches(want, out))
		if ok {
			return
		}
		if !looking.MatchString(script) || ctx.Err() != nil {
			r.t.Fatalf("%s: %v; it printed\n%s\nwant\n%s%s", at, err, out, want, r.behindSaid())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// background starts a script and waits until it has printed want.
func (r *pageRun) background(at, script, want string) {
	c := r.shell(context.Background(), script) // which end ends
	if err := c.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.behind = append(r.behind, c.Cmd)
	until(r.t, at+": "+want, func() bool {
		return want == "" || matches("…\n"+want+"…\n", c.said()) || matches(want+"…\n", c.said()) || matches(want, c.said())
	})
}

func (r *pageRun) behindSaid() string {
	var b strings.Builder
	for _, cmd := range r.behind {
		text, _ := os.ReadFile(cmd.Stdout.(*os.File).Name())
		fmt.Fprintf(&b, "\nin another terminal:\n%s", text)
	}
	return b.String()
}

// shell is a script to be run.
type shell struct{ *exec.Cmd }

func (r *pageRun) shell(ctx context.Context, script string) shell {
	out, err := os.CreateTemp(r.t.TempDir(), "out")
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { out.Close() })
	cmd := exec.CommandContext(ctx, "bash", "-e", "-c", script)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	path := cmd.Path
	cmd.Dir = r.home
	cmd.Stdout, cmd.Stderr = out, out
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "TENURE_") && !strings.HasPrefix(kv, "PG") && !strings.HasPrefix(kv, "PATH=") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, "PATH="+r.home+":"+os.Getenv("PATH"), "GORACE=atexit_sleep_ms=0", "LC_ALL=C.UTF-8")
	r.user(cmd)
	cmd.Path, cmd.Args[0] = path, "bash"
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	return shell{cmd}
}

func (s shell) output() (string, error) {
	err := s.Run()
	return s.said(), err
}

func (s shell) said() string {
	text, _ := os.ReadFile(s.Stdout.(*os.File).Name())
	return string(text)
}

// end presses Ctrl-C in the other terminals, and sees that the page left no process.
func (r *pageRun) end() {
	for _, cmd := range slices.Backward(r.behind) {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = cmd.Wait()
		}()
		select {
		case <-done:
		case <-time.After(patience):
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-done
			r.t.Errorf("%s: %q did not end after Ctrl-C", r.page, cmd.Args[3])
		}
	}
	limit := time.Now().Add(10 * time.Second)
	for {
		left := r.left()
		if len(left) == 0 {
			return
		}
		if time.Now().After(limit) {
			for pid, what := range left {
				r.t.Errorf("%s: process %d is left: %q", r.page, pid, what)
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// left returns the live processes that have the page's home.
func (r *pageRun) left() map[int]string {
	left := map[int]string{}
	for pid, env := range environments() {
		if env["HOME"] != r.home {
			continue
		}
		if p, err := tree.Read(pid); err == nil && !p.Dead() {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			left[pid] = strings.ReplaceAll(string(text), "\x00", " ")
		}
	}
	return left
}

var anyBlanks = regexp.MustCompile(`[ \t]+`)

// matches says whether out is as want says. Columns may have other widths.
func matches(want, out string) bool {
	var b strings.Builder
	b.WriteString(`\A`)
	for line := range strings.Lines(want) {
		line = strings.TrimRight(anyBlanks.ReplaceAllString(line, " "), " \n")
		if line == "…" {
			b.WriteString(`(?:[^\n]*\n)*`)
			continue
		}
		parts := strings.Split(line, "…")
		for i, part := range parts {
			parts[i] = regexp.QuoteMeta(part)
		}
		b.WriteString(strings.Join(parts, `[^\n]*`) + `\n`)
	}
	b.WriteString(`\z`)
	var clean strings.Builder
	for line := range strings.Lines(out) {
		clean.WriteString(strings.TrimRight(anyBlanks.ReplaceAllString(line, " "), " \n") + "\n")
	}
	return regexp.MustCompile(b.String()).MatchString(clean.String())
}

func TestMatches(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		want, out string
		ok        bool
	}{
		{"a  b\n", "a b  \n", true},
		{"a … c\n", "a bbb c\n", true},
		{"a … c\n", "a b\nc\n", false},
		{"…\nz\n", "x\ny\nz\n", true},
		{"…\nz\n", "x\ny\n", false},
		{"a\n", "a\nb\n", false},
		{"a.c\n", "abc\n", false},
		{"a\n", "a", true},
	} {
		if got := matches(tc.want, tc.out); got != tc.ok {
			t.Errorf("%q, %q: got %t, want %t", tc.want, tc.out, got, tc.ok)
		}
	}
}
