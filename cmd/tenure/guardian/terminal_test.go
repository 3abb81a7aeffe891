//go:build linux

package guardian_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/cmd/tenure/guardian"
	"golang.org/x/sys/unix"
)

// console is a terminal with somebody at its keys.
type console struct {
	t      *testing.T
	keys   *os.File
	mu     sync.Mutex
	screen bytes.Buffer
	from   int // what expect has read
}

// openConsole returns the keyboard side and the terminal to give to a program.
func openConsole(t *testing.T) (*console, *os.File) {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminal here: %v", err)
	}
	fd := int(keys.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminal here: %v", err)
	}
	c := &console{t: t, keys: keys}
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := keys.Read(buf)
			c.mu.Lock()
			c.screen.Write(buf[:n])
			c.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		keys.Close()
		if t.Failed() {
			t.Logf("the screen:\n%s", c.text())
		}
	})
	return c, tty
}

func (c *console) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.screen.String()
}

func (c *console) press(keys string) {
	c.t.Helper()
	if _, err := c.keys.WriteString(keys); err != nil {
		c.t.Fatal(err)
	}
}

// expect waits for text after what it found before.
func (c *console) expect(text string) {
	c.t.Helper()
	until(c.t, fmt.Sprintf("%q on the screen", text), func() bool {
		at := strings.Index(c.text()[c.from:], text)
		if at >= 0 {
			c.from += at + len(text)
		}
		return at >= 0
	})
}

const (
	ctrlC = "\x03"
	ctrlZ = "\x1a"
	// reader says what it reads and what signals it gets.
	reader = `trap 'echo "<INT>"' INT; trap 'echo "<CONT>"' CONT
echo "<ready>"
while :; do read line && case $line in quit) exit 6;; *) echo "<got $line>";; esac; done`
)

// shellOn starts an interactive shell whose word RUN runs the plan.
func shellOn(t *testing.T, pl plan) (*console, *runner) {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash here, which the tests use for its job control")
	}
	c, tty := openConsole(t)
	defer tty.Close()
	r := launch(t, pl, func(cmd *exec.Cmd) {
		cmd.Path, cmd.Args = bash, []string{"bash", "--norc", "--noprofile", "-i"}
		cmd.Env = append(cmd.Env, "RUN="+self(t), "PS1=$ ", "TERM=dumb", "HISTFILE=")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	})
	t.Cleanup(func() { c.keys.WriteString("exit\nexit\n") }) // runs before r's own
	c.expect("$ ")
	return c, r
}

// up waits for the command and returns the runner's pid, which is not the shell's.
func (r *runner) up() (runner int) {
	r.t.Helper()
	s := r.await("the command to start", func(s said) bool { return s.Started != 0 })
	r.command, r.guardian = s.Started, s.Guardian
	parent, _ := stat(r.guardian)
	return parent
}

func state(pid int) string { _, s := stat(pid); return s }

func TestTerminalJobControl(t *testing.T) {
	t.Parallel()
	c, r := shellOn(t, plan{Argv: shell(reader)})
	c.press("$RUN\n")
	runner := r.up()
	c.expect("<ready>")
	c.press("one\n")
	c.expect("<got one>")

	c.press(ctrlC)
	c.expect("<INT>")
	c.press("two\n")
	c.expect("<got two>")
	if got := strings.Count(c.text(), "<INT>"); got != 1 {
		t.Errorf("Ctrl-C came %d times, want once", got)
	}

	for range 2 {
		c.press(ctrlZ)
		c.expect("Stopped")
		until(t, "runner and command to be stopped", func() bool { return state(runner) == "T" && state(r.command) == "T" })
		c.press("echo shell-$((40+2))\n")
		c.expect("shell-42")
		c.press("fg\n")
		c.expect("<CONT>")
		c.press("three\n")
		c.expect("<got three>")
	}
	c.press("quit\n")
	if got := r.outcome(); got.ExitCode != 6 || got.Why != "" {
		t.Errorf("got %+v, want exit code 6", got)
	}
	c.press("echo shell-$((40+3))\n")
	c.expect("shell-43")
}

func TestTerminalDeadlineWhileStopped(t *testing.T) {
	t.Parallel()
	c, r := shellOn(t, plan{Argv: shell(reader), Margin: 200 * time.Millisecond, Trial: "shorten", Short: 1500 * time.Millisecond})
	for tries := 1; ; tries++ {
		c.press("$RUN\n")
		runner := r.up()
		c.expect("<ready>")
		r.signal(runner, syscall.SIGUSR2)
		r.await("the deadline to come near", func(s said) bool { return s.Read == "shortened" })
		c.press(ctrlZ)
		stopped := false
		until(t, "the job to stop or to end", func() bool { stopped = state(runner) == "T"; return stopped || len(r.tree()) == 0 })
		if stopped {
			break
		}
		if tries == 5 {
			t.Fatalf("the deadline came before the job had stopped, %d times", tries)
		}
		r.outcome() // a machine so busy tries something else than this test
	}
	c.expect("Stopped")
	r.fall(time.Now())
	c.press("fg\n")
	if got := r.outcome(); got.Why != guardian.WhyDeadline {
		t.Errorf("got %+v, want why deadline", got)
	}
	c.press("echo shell-$((40+2))\n")
	c.expect("shell-42")
}

func TestTerminalInPipeline(t *testing.T) {
	t.Parallel()
	c, r := shellOn(t, plan{Argv: shell(reader)})
	c.press("$RUN | cat\n")
	r.up()
	c.expect("<ready>") // it reads next, in the background, and is given the terminal
	c.press("one\n")
	c.expect("<got one>")
	c.press(ctrlC)
	c.expect("<INT>")
	c.press("quit\n")
	if got := r.outcome(); got.ExitCode != 6 {
		t.Errorf("got %+v, want exit code 6", got)
	}
	if got := strings.Count(c.text(), "<INT>"); got != 1 {
		t.Errorf("Ctrl-C came %d times, want once", got)
	}
	c.press("echo shell-$((40+2))\n")
	c.expect("shell-42")
}

func TestTerminalInBackground(t *testing.T) {
	t.Parallel()
	c, r := shellOn(t, plan{Argv: shell(reader)})
	c.press("$RUN &\n")
	runner := r.up()
	until(t, "the job to stop for the terminal", func() bool { return state(runner) == "T" && state(r.command) == "T" })
	c.press("fg\n")
	c.press("one\n")
	c.expect("<got one>")
	c.press("quit\n")
	if got := r.outcome(); got.ExitCode != 6 {
		t.Errorf("got %+v, want exit code 6", got)
	}
	c.press("echo shell-$((40+2))\n")
	c.expect("shell-42")
}

func TestTerminalWithoutShell(t *testing.T) {
	t.Parallel()
	c, tty := openConsole(t)
	defer tty.Close()
	r := run(t, plan{Argv: shell(reader)}, func(cmd *exec.Cmd) {
		cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	})
	c.expect("<ready>")
	c.press(ctrlZ) // nobody could say fg, so it must go on
	c.press("one\n")
	c.expect("<got one>")
	c.press(ctrlC)
	c.expect("<INT>")
	c.press("quit\n")
	if got := r.outcome(); got.ExitCode != 6 {
		t.Errorf("got %+v, want exit code 6", got)
	}
}
