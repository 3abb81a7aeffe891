//go:build linux

package gocron_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	cron "github.com/go-co-op/gocron/v2"
	_ "modernc.org/sqlite"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/adapters/gocron"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/sqlite"
)

// envInstance makes this binary another instance, and holds the path of the store.
const envInstance = "TENURE_GOCRON_INSTANCE"

func TestMain(m *testing.M) {
	if path := os.Getenv(envInstance); path != "" {
		if err := playInstance(path); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// openFile opens the store that two processes share.
func openFile(ctx context.Context, path string) (store.Store, error) {
	db, err := sql.Open("sqlite", sqlite.ModerncDSN(path))
	if err != nil {
		return nil, err
	}
	st, err := sqlite.New(db, sqlite.Config{})
	if err != nil {
		return nil, err
	}
	return st, st.Migrate(ctx)
}

// playInstance runs the job once. The job says that it runs, waits for a line,
// and says whether it may act and why not.
func playInstance(path string) error {
	ctx := context.Background()
	st, err := openFile(ctx, path)
	if err != nil {
		return err
	}
	k, err := tenure.NewKeeper(st, tenure.Config{TTL: time.Second})
	if err != nil {
		return err
	}
	go func() { _ = k.Run(ctx) }()
	l := gocron.NewLocker(k, 0)
	s, err := cron.NewScheduler(cron.WithDistributedLocker(l))
	if err != nil {
		return err
	}
	done := make(chan struct{})
	task := l.Task(func(ctx context.Context, t *tenure.Term) error {
		fmt.Printf("token %s\n", t.Token())
		if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
			return err
		}
		_, ok := t.MayAct()
		<-ctx.Done()
		var lost *tenure.LostError
		errors.As(context.Cause(ctx), &lost)
		fmt.Printf("may act: %t, lost: %s\n", ok, lost.Reason)
		close(done)
		return nil
	})
	if _, err := s.NewJob(cron.DurationJob(tick), task, cron.WithName("report")); err != nil {
		return err
	}
	s.Start()
	<-done
	return s.Shutdown()
}

// pause stops a process at a moment at which it is not writing to st: a stopped
// writer would keep everybody out of the file.
func pause(t *testing.T, p *os.Process, st store.Store) {
	t.Helper()
	for n := fence.Token(1); ; n++ {
		if err := p.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		err := st.RaiseFloor(ctx, "probe", n)
		cancel()
		if err == nil {
			return
		}
		if n == 50 {
			t.Fatalf("no moment to stop: %v", err)
		}
		if err := p.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
}

// A process that is stopped in the middle of a run and goes on after another has
// taken over learns of it in its first check, and its context has ended.
func TestLockerPause(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "leases.db")
	st, err := openFile(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), envInstance+"="+path)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // nothing else ends it while it is stopped
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	line := func() string { lines.Scan(); return lines.Text() }
	if got := line(); got != "token 1" {
		t.Fatalf("the other instance: got %q, want that it runs", got)
	}
	pause(t, cmd.Process, st)
	tokens := make(chan fence.Token, 1000)
	l := gocron.NewLocker(keeper(t, st, tenure.Config{TTL: time.Second}), 0)
	scheduler(t, l.Task(func(_ context.Context, term *tenure.Term) error {
		tokens <- term.Token()
		return nil
	}), cron.WithDistributedLocker(l), cron.WithName("report"))
	if got := <-tokens; got != 2 {
		t.Errorf("got token %s after the pause began, want 2", got)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(in, "\n"); err != nil {
		t.Fatal(err)
	}
	if got, want := line(), "may act: false, lost: paused"; got != want {
		t.Errorf("the other instance after its pause: got %q, want %q", got, want)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
