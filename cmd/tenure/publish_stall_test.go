//go:build linux

package main

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// heldS3 is an S3 server that holds the writes of some objects.
type heldS3 struct {
	target  string
	arrived chan string   // keys whose writes are held
	release chan struct{} // closed to let them go

	mu     sync.Mutex
	writes map[string]int // by the last part of the key
}

// newHeldS3 starts one that holds writes of keys that end in suffix.
func newHeldS3(t *testing.T, suffix string) *heldS3 {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket("results"); err != nil {
		t.Fatal(err)
	}
	s := &heldS3{arrived: make(chan string, 10), release: make(chan struct{}), writes: map[string]int{}}
	inner := gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			s.mu.Lock()
			s.writes[r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]]++
			s.mu.Unlock()
			if strings.HasSuffix(r.URL.Path, suffix) {
				select {
				case <-s.release:
				default:
					s.arrived <- r.URL.Path
					select {
					case <-s.release:
					case <-r.Context().Done():
						return
					}
				}
			}
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s.target = "s3://results?" + url.Values{"endpoint": {server.URL}, "region": {"eu-north-1"}, "use_path_style": {"true"}}.Encode()
	return s
}

// withAWS gives a program credentials, which that server does not look at.
func withAWS(cmd *exec.Cmd) {
	cmd.Env = append(cmd.Env, "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test")
}

// TestPublishStalled is the classic sequence with the program itself: A has token
// 41 and stalls in its upload, B gets 42 and publishes, A resumes.
func TestPublishStalled(t *testing.T) {
	t.Parallel()
	for what, tc := range map[string]struct {
		given bool  // A is told its token
		codes []int // of A
	}{
		"under a term of its own": {false, []int{exitLost, exitConflict}},
		"under a given token":     {true, []int{exitConflict}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			path := fileStore(t)
			one, two := writeFiles(t, "A"), writeFiles(t, "B")
			s3 := newHeldS3(t, "data/two")
			program := func(args ...string) result {
				t.Helper()
				return startWith(t, withAWS, append(args, "--store", path)...).wait()
			}
			cli(t, "lease", "raise-floor", "reports", "--to", "40", "--store", path).want(t, exitOK)
			argsA := []string{"publish", "reports", one, "--parallel", "1", "--store", path, "--target", s3.target}
			if tc.given {
				acquire(t, path, "reports", "somebody")
				argsA = append(argsA, "--token", "41")
			}
			a := startWith(t, withAWS, argsA...)
			if key := <-s3.arrived; !strings.Contains(key, "/reports/41-") {
				t.Errorf("got object %s, want it below token 41", key)
			}
			a.signal(syscall.SIGSTOP)
			cli(t, "lease", "revoke", "reports", "--token", "41", "--reason", "stalled", "--now", "--store", path).want(t, exitOK)
			close(s3.release)
			if r := program("publish", "reports", two, "--target", s3.target); r.code != exitOK || !strings.Contains(r.out, "token 42") {
				t.Fatalf("B: got %+v, want it published under token 42", r)
			}
			a.signal(syscall.SIGCONT)
			r := a.wait()
			if !slices.Contains(tc.codes, r.code) || !strings.Contains(r.err, "nothing was published") {
				t.Errorf("A: got %+v, want code %v", r, tc.codes)
			}
			got := filepath.Join(t.TempDir(), "got")
			for range 2 {
				if r := program("fetch", "reports", got); r.code != exitOK || !strings.Contains(r.out, "token 42") {
					t.Fatalf("fetch: got %+v, want B's set", r)
				}
				if text, err := os.ReadFile(filepath.Join(got, "data", "two")); err != nil || string(text) != "B two" {
					t.Errorf("got %q, %v, want B's file", text, err)
				}
				if r := program("sweep", "reports", "--retention", "0s"); r.code != exitOK {
					t.Errorf("sweep: got %+v", r)
				}
			}
			if r := program("sweep", "reports"); strings.Contains(r.out, "41-") || !strings.Contains(r.out, "42-") {
				t.Errorf("after the sweep: got %q, want B's attempt alone", r.out)
			}
		})
	}
}

func TestPublishInterrupted(t *testing.T) {
	t.Parallel()
	path := fileStore(t)
	s3 := newHeldS3(t, "data/two")
	args := []string{"publish", "reports", writeFiles(t, "x"), "--parallel", "1", "--store", path, "--target", s3.target}
	first := startWith(t, withAWS, args...)
	<-s3.arrived
	first.signal(syscall.SIGINT)
	if r := first.wait(); r.code != 128+int(syscall.SIGINT) || !strings.Contains(r.err, "run the same command again") {
		t.Errorf("interrupted: got %+v, want the signal's code and the next step", r)
	}
	close(s3.release)
	if r := startWith(t, withAWS, args...).wait(); r.code != exitOK || !strings.Contains(r.out, "token 2, 3 files") {
		t.Errorf("again: got %+v, want it published under the next token", r)
	}
	s3.mu.Lock()
	defer s3.mu.Unlock()
	if s3.writes["one"] != 1 || s3.writes["index"] != 1 {
		t.Errorf("got writes %v, want what had arrived sent once", s3.writes)
	}
}
