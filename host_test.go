package tenure_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store/memory"
)

// A hook tells two keepers; when it returns neither may act.
func TestTellDoubt(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "d") // short: it holds Unix sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var terms []*tenure.Term
	ended := make(chan error, 4)
	ctx, cancel := context.WithCancel(t.Context())
	for range 2 {
		k, err := tenure.NewKeeper(memory.New(), tenure.Config{})
		if err != nil {
			t.Fatal(err)
		}
		go func() { ended <- k.Run(ctx) }()
		ready := make(chan struct{})
		go func() { ended <- k.ListenDoubt(ctx, dir, func() { close(ready) }) }()
		<-ready
		term, err := k.TryAcquire(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		terms = append(terms, term)
	}
	// One that died without cleaning up.
	dead := filepath.Join(dir, "1-dead.doubt")
	l, err := net.Listen("unix", dead)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = l.Close()

	if _, err := tenure.TellDoubt(ctx, []string{dir}, "odd", ""); err == nil {
		t.Error("an unknown kind was accepted")
	}
	replies, err := tenure.TellDoubt(ctx, []string{dir}, tenure.DoubtRestore, "snapshot 7")
	if err != nil || len(replies) != 2 {
		t.Fatalf("%d replies (%v), want 2", len(replies), err)
	}
	for _, r := range replies {
		if r.Err != nil || r.Terms != 1 || r.Holder == "" {
			t.Errorf("reply %+v", r)
		}
	}
	for _, term := range terms {
		if _, ok := term.MayAct(); ok {
			t.Error("may act after the hook returned")
		}
		if err := term.Err(); err == nil || !strings.Contains(err.Error(), "snapshot 7") {
			t.Errorf("the loss %v does not carry the hook's words", err)
		}
	}
	if _, err := os.Stat(dead); !os.IsNotExist(err) {
		t.Errorf("the socket of a dead process is still there: %v", err)
	}
	cancel()
	for range 4 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestListenDoubtRefusesOpenDirectories(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	k, err := tenure.NewKeeper(memory.New(), tenure.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := k.ListenDoubt(t.Context(), dir, nil); err == nil || !strings.Contains(err.Error(), "0700") {
		t.Errorf("listening in a directory that all may write to: %v", err)
	}
}
