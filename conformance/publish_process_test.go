//go:build linux

package conformance_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/publish"
)

// envPublisher makes this binary a publisher and holds its publisherConfig.
const envPublisher = "TENURE_CONFORMANCE_PUBLISHER"

func init() {
	if text := os.Getenv(envPublisher); text != "" {
		if err := playPublisher([]byte(text)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// publisherConfig tells a publisher what to do.
type publisherConfig struct {
	Database, Target, Name, Tag string
	Token                       fence.Token
	Stop                        int // the step before which it stops itself; 0 for none
}

// The steps of a publisher. Between stepBegun and stepUploaded it opens a file a step.
const (
	stepStarted = iota + 1
	stepBegun
	stepFile1
	stepFile2
	stepFile3
	stepFile4
	stepUploaded
	stepAccepted
)

// stopping is a source that tells of each file that is opened.
type stopping struct {
	fs.FS
	step func()
}

func (s stopping) Open(name string) (fs.File, error) {
	s.step()
	return s.FS.Open(name)
}

// playPublisher publishes once, and stops itself, as SIGSTOP does, before a step.
func playPublisher(config []byte) error {
	var c publisherConfig
	if err := json.Unmarshal(config, &c); err != nil {
		return err
	}
	ctx := context.Background()
	at := 0
	step := func() {
		if at++; at == c.Stop {
			_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		}
	}
	_, db, cfg, end, err := openPublishStore(ctx, c.Database)
	if err != nil {
		return err
	}
	defer end()
	ledger, err := publish.NewLedger(db, cfg)
	if err != nil {
		return err
	}
	to, err := openPublishTarget(ctx, c.Target)
	if err != nil {
		return err
	}
	files := taggedFiles(c.Tag)
	m, err := publish.Scan(ctx, files, nil)
	if err != nil {
		return err
	}
	step()
	a, err := publish.Begin(ctx, ledger, to, c.Name, c.Token, m)
	if err != nil {
		return err
	}
	step()
	if err := a.Upload(ctx, stopping{files, step}, publish.Transfer{Parallel: 1}); err != nil {
		return err
	}
	step()
	if _, err := a.Accept(ctx); err != nil {
		return err
	}
	step()
	return nil
}

// startPublisher starts the process.
func startPublisher(t *testing.T, c publisherConfig) (*exec.Cmd, *strings.Builder) {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envPublisher+"="+string(text))
	out := new(strings.Builder)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, out
}

// awaitStopped waits until the process pid is stopped.
func awaitStopped(t *testing.T, pid int) {
	t.Helper()
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(2 * time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		_, state, _ := strings.Cut(string(stat), ") ")
		if strings.HasPrefix(state, "T") {
			return
		} else if strings.HasPrefix(state, "Z") {
			t.Fatal("the publisher ended before it was to stop")
		}
	}
	t.Fatal("the publisher did not stop itself")
}

// TestPublishStoppedProcesses is the classic sequence with processes: A has token
// 41 and is stopped before some step, B gets 42 and publishes, A goes on: it is
// refused wherever it was, and readers see B's files whole. What A sent is swept.
// TENURE_PUBLISH_PROCESSES says how often for each database and target.
func TestPublishStoppedProcesses(t *testing.T) {
	t.Parallel()
	rounds := environmentNumber(t, "TENURE_PUBLISH_PROCESSES", 4)
	publishBeds(t, func(t *testing.T, b *publishBed) {
		first := rand.IntN(stepAccepted) // each step has its turn
		for i := range rounds {
			b.stoppedProcess(t, fmt.Sprintf("stopped/%d", i), 1+(first+int(i))%stepAccepted, i%2 == 1)
		}
	})
}

func (b *publishBed) stoppedProcess(t *testing.T, name string, stop int, sweepMeanwhile bool) {
	t.Helper()
	ctx := t.Context()
	if err := b.store.RaiseFloor(ctx, name, 40); err != nil {
		t.Fatal(err)
	}
	tokenA, err := b.grant(ctx, name, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, saidA := startPublisher(t, publisherConfig{b.database, b.target, name, "A of " + name, tokenA, stop})
	awaitStopped(t, a.Process.Pid)
	tokenB, err := b.grant(ctx, name, tokenA)
	if err != nil {
		t.Fatal(err)
	}
	if tokenA != 41 || tokenB != 42 {
		t.Errorf("got tokens %s and %s, want 41 and 42", tokenA, tokenB)
	}
	tagB := "B of " + name
	bCmd, saidB := startPublisher(t, publisherConfig{b.database, b.target, name, tagB, tokenB, 0})
	if err := bCmd.Wait(); err != nil {
		t.Errorf("B: %v: %s", err, saidB)
	}
	if sweepMeanwhile { // also of what A has sent so far
		if _, err := publish.Sweep(ctx, b.ledger, openPublishTarget, name, publish.SweepOptions{}); err != nil {
			t.Error(err)
		}
	}
	b.expectPublished(t, name, tagB)
	if err := a.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	err = a.Wait()
	switch {
	case stop == stepAccepted: // it had published before
		if err != nil {
			t.Errorf("A, stopped after its acceptance: %v: %s", err, saidA)
		}
	case err == nil || !strings.Contains(saidA.String(), "stale token 41") || !strings.Contains(saidA.String(), "42 is current"):
		t.Errorf("A, stopped before step %d: got %v, %q, want it refused", stop, err, saidA)
	}
	b.expectPublished(t, name, tagB)
	done, err := publish.Sweep(ctx, b.ledger, openPublishTarget, name, publish.SweepOptions{Retention: time.Hour})
	if err != nil || len(done.Dropped) > 0 {
		t.Errorf("within the retention: got %+v, %v, want nothing dropped", done, err)
	}
	if _, err = publish.Sweep(ctx, b.ledger, openPublishTarget, name, publish.SweepOptions{}); err != nil {
		t.Error(err)
	}
	to, err := openPublishTarget(ctx, b.target)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	it := to.Bucket.List(nil)
	for o, err := it.Next(ctx); !errors.Is(err, io.EOF); o, err = it.Next(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(o.Key, name+"/41-") {
			t.Errorf("got object %s of A after the sweep, want none", o.Key)
		}
	}
	b.expectPublished(t, name, tagB)
}

// expectPublished fails unless readers get the files of tag, whole.
func (b *publishBed) expectPublished(t *testing.T, name, tag string) {
	t.Helper()
	s, err := publish.Open(t.Context(), b.ledger, openPublishTarget, name, publish.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	for _, f := range s.Manifest.Files {
		r, err := s.Open(t.Context(), f.Path)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil || string(text) != tag {
			t.Errorf("%s: got %q, %v, want %q", f.Path, text, err, tag)
		}
	}
	if len(s.Manifest.Files) != len(taggedFiles(tag)) {
		t.Errorf("got %d files, want all", len(s.Manifest.Files))
	}
}
