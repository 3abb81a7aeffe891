//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/tenurehq/tenure/store"
)

// released fails unless the lease is free, or was never held.
func released(t *testing.T, path, lease string) {
	t.Helper()
	r, err := open(t, path).Get(t.Context(), lease)
	if err == nil && r.Status != store.Released {
		t.Errorf("%s: got status %q, want it released", lease, r.Status)
	}
}

// C32: the command's own code passes through, and tenure says nothing of its own.
func TestRunExitCodes(t *testing.T) {
	t.Parallel()
	path := fileStore(t)
	for _, tc := range []struct {
		script string
		code   int
	}{
		{"exit 0", 0}, {"exit 1", 1}, {"exit 2", 2}, {"exit 64", 64}, {"exit 75", 75}, {"exit 127", 127}, {"exit 255", 255},
		{"kill -9 $$", 137}, {"kill -15 $$", 143}, {"kill -2 $$", 130}, {"kill -11 $$", 139},
	} {
		t.Run(tc.script, func(t *testing.T) {
			t.Parallel()
			lease := "exit/" + strings.NewReplacer(" ", "-", "$", "").Replace(tc.script)
			r := run(t, "run", lease, "--store", path, "--", "sh", "-c", tc.script)
			r.clean(t, tc.code)
			if r.out != "" {
				t.Errorf("stdout: got %q, want nothing", r.out)
			}
			released(t, path, lease)
		})
	}
}

// C32: what cannot be started has the shell's codes and never leaves the lease held.
func TestRunCannotStart(t *testing.T) {
	t.Parallel()
	path, dir := fileStore(t), t.TempDir()
	write := func(name, content string, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for name, tc := range map[string]struct {
		command string
		code    int
	}{
		"not found":      {"nosuch-command", exitNoCommand},
		"no such file":   {filepath.Join(dir, "nosuch"), exitNoCommand},
		"not executable": {write("plain", "#!/bin/sh\n", 0o644), exitNotExec},
		"a directory":    {dir, exitNotExec},
		"no program":     {write("garbage", "\x00\x01", 0o755), exitNotExec},
		"no interpreter": {write("orphan", "#!/nosuch/interpreter\n", 0o755), exitNoCommand},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lease := "start/" + strings.ReplaceAll(name, " ", "-")
			run(t, "run", lease, "--store", path, "--", tc.command).want(t, tc.code, "cannot start", tc.command)
			released(t, path, lease)
			run(t, "run", lease, "--no-wait", "--store", path, "--", "true").clean(t, exitOK)
		})
	}
}

// C32: the command gets its arguments byte for byte, the facts of the term, no
// store, and no descriptor but 0, 1 and 2.
func TestRunPassesArguments(t *testing.T) {
	t.Parallel()
	path := fileStore(t)
	args := []string{"-v", "--ttl=5", "a b", "$X", "", "--", "\xff\xfe", "new\nline", "--store", "x"}
	leak, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer leak.Close()
	p := startWith(t, func(cmd *exec.Cmd) {
		cmd.ExtraFiles = []*os.File{leak}
		cmd.Env = append(cmd.Env, "TENURE_STORE=sqlite:"+path, "TENURE_LEASE=wrong", "TENURE_TOKEN=wrong", "TENURE_HOLDER=wrong", "KEPT=yes")
	}, append([]string{"run", "jobs/args", "--", part(t, "tell")}, args...)...)
	r := p.wait()
	r.clean(t, exitOK)
	var got told
	if err := json.Unmarshal([]byte(r.out), &got); err != nil {
		t.Fatalf("%v: %q", err, r.out)
	}
	if !slices.EqualFunc(got.Args, args, func(a []byte, b string) bool { return string(a) == b }) {
		t.Errorf("got arguments %q, want %q", got.Args, args)
	}
	for _, kv := range []string{"TENURE_LEASE=jobs/args", "TENURE_TOKEN=1", "KEPT=yes"} {
		if !slices.Contains(got.Env, kv) {
			t.Errorf("environment: got %q, want %s in it", got.Env, kv)
		}
	}
	seen := map[string]int{}
	for _, kv := range got.Env {
		key, value, _ := strings.Cut(kv, "=")
		seen[key]++
		if key == "TENURE_HOLDER" && !strings.Contains(value, "/"+fmt.Sprint(p.pid())+"-") {
			t.Errorf("got holder %q, want the pid %d in it", value, p.pid())
		}
	}
	if seen["TENURE_STORE"] != 0 || seen["TENURE_HOLDER"] != 1 || seen["TENURE_LEASE"] != 1 || seen["TENURE_TOKEN"] != 1 {
		t.Errorf("environment: got %q, want each fact of the term once, and no store", got.Env)
	}
	if len(got.Files) != 0 {
		t.Errorf("got descriptors %q, want none", got.Files)
	}
}

// The store's URL, which may hold a password, is in no process but the runner.
func TestRunKeepsTheStoreSecret(t *testing.T) {
	t.Parallel()
	const secret = "hunter2-in-the-path"
	dir := filepath.Join(t.TempDir(), secret)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "leases.db")
	run(t, "migrate", "--store", path).want(t, exitOK)
	p := startWith(t, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "TENURE_STORE="+path) }, "run", "secret", "--", "sleep", "60")
	until(t, "the command", func() bool { return len(members("secret")) > 0 })
	guard := p.guardian()
	if guard == 0 {
		t.Fatal("no guardian")
	}
	for _, pid := range append(members("secret"), guard) {
		for _, file := range []string{"environ", "cmdline"} {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), secret) {
				t.Errorf("%s of process %d: got %q, which names the store", file, pid, text)
			}
		}
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, f := range files {
			if target, _ := os.Readlink(f); strings.Contains(target, secret) {
				t.Errorf("process %d has the store's file open: %s", pid, target)
			}
		}
	}
	p.signal(syscall.SIGTERM)
	p.wait().clean(t, 143)
}

// C32: somebody else holds the lease.
func TestRunNotAcquired(t *testing.T) {
	t.Parallel()
	path := fileStore(t)
	acquire(t, path, "a", "host-1/4711/a")
	for _, tc := range []struct {
		flag  string
		parts []string
	}{
		{"--no-wait", []string{`"a"`, "host-1/4711/a", "token 1"}},
		{"--wait=false", []string{`"a"`, "host-1/4711/a"}},
		{"--wait-for=200ms", nil},
	} {
		r := run(t, "run", "a", tc.flag, "--store", path, "--", "touch", path+".ran")
		if tc.parts != nil {
			r.want(t, exitNotAcquired, tc.parts...)
			continue
		}
		// Waiting told who holds it, then how it went.
		if lines := strings.Split(strings.TrimSuffix(r.err, "\n"), "\n"); r.code != exitNotAcquired || len(lines) != 2 ||
			!strings.Contains(lines[0], "host-1/4711/a") || !strings.Contains(lines[1], "not acquired within 200ms") {
			t.Errorf("%s: got %d, %q", tc.flag, r.code, r.err)
		}
	}
	if _, err := os.Stat(path + ".ran"); err == nil {
		t.Error("the command ran")
	}
}

// What would run without the protection that was asked for does not run.
func TestRunRefusesToRunUnprotected(t *testing.T) {
	t.Parallel()
	path, dir := fileStore(t), t.TempDir()
	mark := filepath.Join(dir, "ran")
	named := func(extra ...string) func(cmd *exec.Cmd) {
		return func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, extra...) }
	}
	for what, tc := range map[string]struct {
		env  []string
		args []string
		code int
		part string
	}{
		"an empty slot":     {nil, []string{"--store", path, "--slot", ""}, exitUsage, "slot"},
		"an empty store":    {nil, []string{"--store", ""}, exitUsage, "missing"},
		"an empty variable": {[]string{"TENURE_STORE="}, nil, exitUsage, "set and empty"},
		"a mistyped file":   {nil, []string{"--store", filepath.Join(dir, "typo.db")}, exitConfig, "tenure migrate"},
		"a tenure inside":   {[]string{storeWithheld + "=1"}, nil, exitUsage, "give --store"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			args := append(append([]string{"run", "a"}, tc.args...), "--", "touch", mark)
			r := startWith(t, named(tc.env...), args...).wait()
			r.want(t, tc.code, tc.part)
			if _, err := os.Stat(mark); err == nil {
				t.Error("the command ran")
			}
		})
	}
	t.Run("the variable reaches what runs inside", func(t *testing.T) {
		t.Parallel()
		out := filepath.Join(t.TempDir(), "env")
		run(t, "run", "b", "--store", path, "--", "sh", "-c", "env > "+out).want(t, exitOK)
		text, _ := os.ReadFile(out)
		if !strings.Contains(string(text), storeWithheld+"=1") || strings.Contains(string(text), path) {
			t.Error("the environment does not say that the store is withheld, or names it")
		}
	})
}

// A /proc of another process namespace shows processes by numbers that mean
// others here: what the command leaves could not be found.
func TestRunRefusesAForeignProc(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can make a process namespace")
	}
	path, mark := fileStore(t), filepath.Join(t.TempDir(), "ran")
	contain := func(cmd *exec.Cmd) {
		cmd.Args = append([]string{"unshare", "-pf", cmd.Path}, cmd.Args[1:]...)
		cmd.Path, cmd.Err = exec.LookPath("unshare")
	}
	startWith(t, contain, "run", "a", "--store", path, "--", "touch", mark).wait().want(t, exitConfig, "/proc", "pid namespace")
	if _, err := os.Stat(mark); err == nil {
		t.Error("the command ran")
	}
	released(t, path, "a")
}
