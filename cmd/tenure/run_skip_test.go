package main

import (
	"syscall"
	"testing"
)

// TestRunSkipOK: not to get the turn is a silent success with --skip-ok, and nothing
// else is.
func TestRunSkipOK(t *testing.T) {
	t.Parallel()
	path := fileStore(t)
	holder := start(t, "run", "a", "--store", path, "--", "sleep", "60")
	until(t, "the lease is held", func() bool {
		return cli(t, "run", "a", "--no-wait", "--store", path, "--", "true").code == exitNotAcquired
	})
	run(t, "run", "a", "--no-wait", "--skip-ok", "--store", path, "--", "echo", "ran").clean(t, exitOK)
	if r := run(t, "run", "a", "--wait-for", "200ms", "--skip-ok", "--store", path, "--", "echo", "ran"); r.code != exitOK || r.out != "" {
		t.Errorf("after a wait in vain: got %+v, want code 0", r) // it says that it waits
	}
	holder.signal(syscall.SIGTERM)
	until(t, "its end", holder.over)

	if r := run(t, "run", "b", "--slot", "1", "--skip-ok", "--store", path, "--", "echo", "ran"); r.code != exitOK || r.out != "ran\n" {
		t.Errorf("the first of a slot: got %+v, want that it runs", r)
	}
	run(t, "run", "b", "--slot", "1", "--skip-ok", "--store", path, "--", "echo", "ran").clean(t, exitOK)
	if r := run(t, "run", "c", "--skip-ok", "--store", path, "--", "sh", "-c", "exit 75"); r.code != 75 {
		t.Errorf("a command that exits with 75: got %d, want its code", r.code)
	}
	run(t, "run", "c", "--skip-ok", "--store", path+"/none", "--", "true").want(t, exitConfig)
}
