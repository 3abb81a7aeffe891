//go:build linux

package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/tenurehq/tenure/store"
)

// metricsIn returns a function that reads the values of lease from a file, none if it is not there.
func metricsIn(t *testing.T, file, lease string) func() map[string]float64 {
	return func() map[string]float64 {
		t.Helper()
		text, err := os.ReadFile(file)
		if err != nil {
			return nil
		}
		return sampled(t, text, lease)
	}
}

// TestRunMetricsOfOverlappingRuns: a file that runs of one crontab line share tells of
// the one that works, whatever the others do and however it ends.
func TestRunMetricsOfOverlappingRuns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, file := fileStore(t), filepath.Join(dir, "job.prom")
	read := metricsIn(t, file, "job")
	job := func(command string, flags ...string) []string {
		args := append([]string{"run", "job", "--store", path, "--metrics-textfile", file}, flags...)
		return append(args, "--", "sh", "-c", command)
	}
	waiting := func(finish string, code string) string {
		return "while [ ! -e " + filepath.Join(dir, finish) + " ]; do sleep 0.02; done; exit " + code
	}
	end := func(finish string) {
		if err := os.WriteFile(filepath.Join(dir, finish), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// holds fails unless the file is that of the run at work with token.
	holds := func(what string, token float64) {
		t.Helper()
		v := read()
		if _, over := v["tenure_run_exit_code"]; over || v["tenure_lease_held"] != 1 || v["tenure_lease_token"] != token {
			t.Errorf("%s: got %v, want token %v, held and at work", what, v, token)
		}
	}

	// With the default TTL the one at work writes every 5 s.
	a := start(t, job(waiting("a", "0"))...)
	until(t, "a holds", func() bool { return read()["tenure_lease_held"] == 1 })
	run(t, job("true", "--no-wait", "--skip-ok")...).clean(t, exitOK)
	holds("after a run that was skipped", 1)
	run(t, job("true", "--no-wait")...).want(t, exitNotAcquired)
	holds("after a run that was refused", 1)
	b := start(t, job(waiting("b", "7"))...)
	until(t, "b waits", func() bool { return b.stderr() != "" })
	holds("while another one waits", 1)

	end("a")
	a.wait().clean(t, exitOK)
	until(t, "b holds", func() bool { return read()["tenure_lease_held"] == 1 })
	holds("after a handed over", 2)
	success := read()[successes]
	if success == 0 {
		t.Error("the success of a is not in the file of b, which began before it")
	}
	end("b")
	if r := b.wait(); r.code != 7 {
		t.Errorf("b: got %+v, want code 7", r)
	}
	if v := read(); v["tenure_run_exit_code"] != 7 || v["tenure_lease_held"] != 0 || v[successes] != success {
		t.Errorf("after b: got %v, want code 7 and the success of a at %v", v, success)
	}

	// Who is killed keeps nobody out: its lease has not lapsed, so the next one is refused.
	c := start(t, job(waiting("c", "0"))...)
	until(t, "c holds", func() bool { return read()["tenure_lease_token"] == 3 })
	c.signal(syscall.SIGKILL)
	c.wait()
	run(t, job("true", "--no-wait")...).want(t, exitNotAcquired)
	if v := read(); v["tenure_run_exit_code"] != exitNotAcquired || v["tenure_lease_held"] != 0 || v[successes] != success {
		t.Errorf("after a kill: got %v, want what the next run tells", v)
	}
	if left, _ := filepath.Glob(file + "?*"); len(left) > 0 {
		t.Errorf("beside the file there is something left: %q", left)
	}
}

// TestRunMetricsOfADoneSlot: who finds the slot done tells when that was, and no
// success of its own.
func TestRunMetricsOfADoneSlot(t *testing.T) {
	t.Parallel()
	path, file := fileStore(t), filepath.Join(t.TempDir(), "job.prom")
	job := func(flags ...string) result {
		return run(t, append(append([]string{"run", "job", "--store", path, "--slot", "1"}, flags...), "--", "true")...)
	}
	job().clean(t, exitOK)
	slot, err := open(t, path).(store.Slotter).Slot(t.Context(), "job", "1")
	if err != nil {
		t.Fatal(err)
	}
	job("--skip-ok", "--metrics-textfile", file).clean(t, exitOK)
	v := metricsIn(t, file, "job")()
	if done := float64(slot.DoneAt.UnixNano()) / 1e9; v["tenure_run_exit_code"] != exitSlotDone || v[successes] != done {
		t.Errorf("got %v, want code %d and the success of %v", v, exitSlotDone, done)
	}
}
