//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestRunKeepsPasswords: no secret of the store reaches the command, and what is none
// of the store's does.
func TestRunKeepsPasswords(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, target string) {
		env := func(cmd *exec.Cmd) {
			cmd.Env = append(cmd.Env, "PGPASSWORD=secret-1", "PGSSLPASSWORD=secret-2", "PGPASSFILE=/none", "TENURE_SERVER_TOKEN=secret-3")
		}
		r := startWith(t, env, "run", "a", "--store", target, "--", "env").wait()
		r.clean(t, exitOK)
		for _, v := range []string{"PGPASSWORD=secret-1", "PGSSLPASSWORD=secret-2"} {
			if passed, postgres := strings.Contains(r.out, v), strings.HasPrefix(target, "postgres"); passed == postgres {
				t.Errorf("%s: passed on is %v", v, passed)
			}
		}
		if strings.Contains(r.out, "secret-3") || !strings.Contains(r.out, "PGPASSFILE=/none\n") {
			t.Errorf("got %q", r.out)
		}
	})
}

// TestRunRefusesProgressOfNoFile: what cannot be read as progress is a mistake, not a
// stall.
func TestRunRefusesProgressOfNoFile(t *testing.T) {
	t.Parallel()
	path, dir := fileStore(t), t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for at, why := range map[string]string{dir: "is a directory", pipe: "is no regular file", "/dev/null": "is no regular file", "/dev/null/x": "not a directory"} {
		cli(t, "run", "a", "--store", path, "--stall-after", "1h", "--progress", at, "--", "true").want(t, exitUsage, "--progress", at, why)
	}
	run(t, "run", "a", "--store", path, "--stall-after", "1h", "--progress", filepath.Join(dir, "later"), "--", "true").clean(t, exitOK)
}

// TestReadOnlySQLite: a file that nobody can write, because of how its directory is
// mounted, is told as that.
func TestReadOnlySQLite(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	path := fileStore(t)
	script := `mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" || exit 99; exec "$@"`
	for _, args := range [][]string{{"run", "a", "--store", path, "--", "true"}, {"migrate", "--store", path}, {"migrate", "--store", path + ".new"}} {
		contain := func(cmd *exec.Cmd) {
			cmd.Args = append([]string{"unshare", "-m", "sh", "-c", script, filepath.Dir(path), cmd.Path}, cmd.Args[1:]...)
			cmd.Path, cmd.Err = exec.LookPath("unshare")
		}
		r := startWith(t, contain, args...).wait()
		if r.code == 99 {
			t.Skip("nothing can be mounted here: " + r.err)
		}
		r.want(t, exitPermission, path, "read-only file system", "name a file elsewhere with --store")
		if strings.Contains(r.err, "permission denied") {
			t.Errorf("%q: got %q, which tells of a right", args, r.err)
		}
	}
}
