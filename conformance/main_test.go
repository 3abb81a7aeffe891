//go:build linux

package conformance_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/pgtest"
)

// The environment that makes this binary the other process of a test.
const (
	envRole   = "TENURE_CONFORMANCE_ROLE"
	envConfig = "TENURE_CONFORMANCE_CONFIG"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(envRole); role != "" {
		if err := play(role, []byte(os.Getenv(envConfig))); err != nil {
			fmt.Fprintf(os.Stderr, "%s %d: %v\n", role, os.Getpid(), err)
			os.Exit(1)
		}
		return
	}
	code := pgtest.Main(m)
	dropTenureBinary()
	os.Exit(code)
}

func play(role string, config []byte) error {
	switch role {
	case "contender":
		return playContender(config)
	case "worker":
		return playWorker(config)
	case "copy":
		return playCopy(config)
	case "guarded-writer":
		return playGuardedWriter(config)
	case "fleet-work":
		return playFleetWork(config)
	case "fleet-busy":
		return playFleetBusy(config)
	}
	return fmt.Errorf("no such role")
}

// process is this test binary in another role. Its input tells it what to do,
// and to end by its own end.
type process struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Scanner
	ended chan struct{} // closed when it has; err is final then
	err   error
}

// spawn starts one. If bound, it dies with this process.
func spawn(role string, bound bool, config any) (*process, error) {
	encoded, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envRole+"="+role, envConfig+"="+string(encoded))
	cmd.Stderr = os.Stderr
	if bound {
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, written, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout = written
	p := &process{cmd: cmd, in: in, out: bufio.NewScanner(out), ended: make(chan struct{})}
	p.out.Buffer(nil, 1<<20)
	started := make(chan error, 1)
	go func() {
		// The kernel sends the parent-death signal when this thread ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		_ = written.Close()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
		close(p.ended)
	}()
	return p, <-started
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) } // one that has ended needs none

// stop lets the process end, and ends it if it does not within the bound.
func (p *process) stop(bound time.Duration) error {
	p.signal(syscall.SIGCONT)
	_ = p.in.Close()
	select {
	case <-p.ended:
		return p.err
	case <-time.After(bound):
		p.kill()
		return fmt.Errorf("process %d had to be killed after %s", p.pid(), bound)
	}
}

func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.ended
}
