package main

import (
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
)

// notified listens as systemd does and returns what it was told so far.
func notified(t *testing.T) (env []string, told func() []string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var all []string
	var reading sync.WaitGroup
	reading.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			mu.Lock()
			all = append(all, string(buf[:n]))
			mu.Unlock()
		}
	})
	t.Cleanup(func() {
		conn.Close()
		reading.Wait()
	})
	return []string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=400000"}, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// TestSupervised: a server and an agent tell systemd when they serve, that they
// are alive for as long as their keeper goes round, and that they end.
func TestSupervised(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	for name, args := range map[string][]string{
		"server": append([]string{"server", "--listen", "127.0.0.1:0", "--store", fileStore(t)}, quickTimes...),
		"agent":  {"agent", "--server", url, "--node", unique("n"), "--state-dir", t.TempDir()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, told := notified(t)
			p := startWith(t, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, env...) }, args...)
			signs := func() (n int) {
				for _, s := range told() {
					if s == "WATCHDOG=1" {
						n++
					}
				}
				return n
			}
			until(t, "READY and signs of life", func() bool {
				return slices.Contains(told(), "READY=1") && slices.Contains(told(), "STATUS=serving") && signs() > 3
			})
			p.signal(syscall.SIGTERM)
			until(t, "STOPPING", func() bool { return slices.Contains(told(), "STOPPING=1") })
			until(t, "the end", p.over)
			if p.finished.code != exitOK {
				t.Errorf("got exit code %d, want %d; stderr %q", p.finished.code, exitOK, p.finished.err)
			}
		})
	}
}
