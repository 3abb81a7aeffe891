//go:build linux

package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/publish"
)

// publishRound is one name for which several terms follow each other while their
// holders publish, readers read, and sweeps keep nothing that they need not.
type publishRound struct {
	*publishBed
	ledger *publish.Ledger // of the publishers
	name   string
	order  atomic.Int64 // real-time order of what is noted below

	mu       sync.Mutex
	granted  map[fence.Token]int64 // when the grant had returned
	accepted []acceptance
	mixed    []string
	broken   []error
}

// acceptance is one that succeeded.
type acceptance struct {
	token fence.Token
	began int64 // just before it was sent
	seq   int64
}

func (r *publishRound) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = append(r.broken, err)
}

// pause sleeps for a random time, often for none.
func pause() {
	if n := rand.IntN(6); n > 2 {
		time.Sleep(time.Duration(rand.Int64N(int64(n) * int64(time.Millisecond))))
	}
}

// pausing pauses before each file and each read of one.
type pausing struct{ fs.FS }

func (p pausing) Open(name string) (fs.File, error) {
	pause()
	return p.FS.Open(name)
}

func (r *publishRound) publisher(ctx context.Context, token fence.Token) {
	files := taggedFiles(fmt.Sprintf("%s, token %s, %d", r.name, token, rand.Int()))
	m, err := publish.Scan(ctx, files, nil)
	if err != nil {
		r.fail(err)
		return
	}
	to, err := openPublishTarget(ctx, r.target)
	if err != nil {
		r.fail(err)
		return
	}
	defer to.Close()
	refused := func(err error) bool {
		if err != nil && !errors.Is(err, fence.ErrStale) {
			r.fail(fmt.Errorf("token %s: %w", token, err))
		}
		return err != nil
	}
	for range 2 { // who was refused tries once more
		pause()
		a, err := publish.Begin(ctx, r.ledger, to, r.name, token, m)
		if refused(err) {
			continue
		}
		pause()
		if refused(a.Upload(ctx, pausing{files}, publish.Transfer{Parallel: 1 + rand.IntN(3)})) {
			continue
		}
		pause()
		began := r.order.Add(1)
		p, err := a.Accept(ctx)
		if refused(err) {
			continue
		}
		r.mu.Lock()
		r.accepted = append(r.accepted, acceptance{token, began, p.Seq})
		r.mu.Unlock()
		return
	}
}

// reader reads whole sets until done, with pauses.
func (r *publishRound) reader(ctx context.Context, done <-chan struct{}) {
	var seen int64
	for last := false; ; {
		seq, err := r.readOnce(ctx)
		switch {
		case errors.Is(err, publish.ErrNone) && seen == 0:
		case err != nil:
			r.fail(fmt.Errorf("reader: %w", err))
			return
		case seq < seen:
			r.fail(fmt.Errorf("reader: got publication %d after %d", seq, seen))
		default:
			seen = seq
		}
		if last {
			return
		}
		pause()
		select {
		case <-done:
			last = true
		default:
		}
	}
}

func (r *publishRound) readOnce(ctx context.Context) (int64, error) {
	s, err := publish.Open(ctx, r.publishBed.ledger, openPublishTarget, r.name, publish.OpenOptions{})
	if err != nil {
		return 0, err
	}
	defer s.Close(ctx)
	var tag string
	for _, f := range s.Manifest.Files {
		pause()
		in, err := s.Open(ctx, f.Path)
		if err != nil {
			return 0, err
		}
		text, err := io.ReadAll(in)
		if err := errors.Join(err, in.Close()); err != nil {
			return 0, err
		}
		if tag != "" && tag != string(text) {
			r.mu.Lock()
			r.mixed = append(r.mixed, fmt.Sprintf("%q with %q", tag, text))
			r.mu.Unlock()
		}
		tag = string(text)
	}
	return s.Seq, nil
}

func (r *publishRound) sweeper(ctx context.Context, done <-chan struct{}) {
	for {
		if _, err := publish.Sweep(ctx, r.publishBed.ledger, openPublishTarget, r.name, publish.SweepOptions{}); err != nil {
			r.fail(fmt.Errorf("sweep: %w", err))
			return
		}
		select {
		case <-done:
			return
		case <-time.After(time.Duration(rand.Int64N(int64(5 * time.Millisecond)))):
		}
	}
}

// stale returns the acceptances that were sent after a later grant had returned.
func (r *publishRound) stale() (all []string) {
	last := map[int64]fence.Token{}
	for _, a := range r.accepted {
		last[a.seq] = a.token
		for token, at := range r.granted {
			if token > a.token && at < a.began {
				all = append(all, fmt.Sprintf("%s: token %s accepted (publication %d) after token %s was granted", r.name, a.token, a.seq, token))
			}
		}
	}
	for seq := int64(2); seq <= int64(len(last)); seq++ {
		if last[seq] < last[seq-1] {
			all = append(all, fmt.Sprintf("%s: token %s published over token %s", r.name, last[seq], last[seq-1]))
		}
	}
	return all
}

// playPublishRound runs one round and returns it.
func playPublishRound(ctx context.Context, b *publishBed, ledger *publish.Ledger, name string) *publishRound {
	r := &publishRound{publishBed: b, ledger: ledger, name: name, granted: map[fence.Token]int64{}}
	done := make(chan struct{})
	var publishers, others sync.WaitGroup
	others.Go(func() { r.reader(ctx, done) })
	others.Go(func() { r.reader(ctx, done) })
	others.Go(func() { r.sweeper(ctx, done) })
	var token fence.Token
	for range 3 {
		var err error
		if token, err = b.grant(ctx, name, token); err != nil {
			r.fail(err)
			break
		}
		r.mu.Lock()
		r.granted[token] = r.order.Add(1)
		r.mu.Unlock()
		held := token // the next grant must not become this publisher's
		publishers.Go(func() { r.publisher(ctx, held) })
		for range rand.IntN(8) {
			pause()
		}
	}
	publishers.Wait()
	close(done)
	others.Wait()
	return r
}

// TestPublishRounds plays rounds in which publishers, readers and sweeps pause at
// every step: no read is a mix, and nothing is accepted after a later grant.
// TENURE_PUBLISH_ROUNDS says how many for each database and target.
func TestPublishRounds(t *testing.T) {
	t.Parallel()
	rounds := environmentNumber(t, "TENURE_PUBLISH_ROUNDS", 8)
	publishBeds(t, func(t *testing.T, b *publishBed) {
		accepted := 0
		for i := range rounds {
			r := playPublishRound(t.Context(), b, b.ledger, fmt.Sprintf("round/%d", i))
			for _, err := range r.broken {
				t.Errorf("%s: %v", r.name, err)
			}
			for _, s := range append(r.stale(), r.mixed...) {
				t.Error(s)
			}
			accepted += len(r.accepted)
			if t.Failed() {
				return
			}
		}
		t.Logf("%d rounds, %d of %d publications accepted", rounds, accepted, 3*rounds)
	})
}

// TestPublishRoundsNoticeTheMissingGuard plays the same rounds with a guard that
// lets everybody pass, and wants them to fail.
func TestPublishRoundsNoticeTheMissingGuard(t *testing.T) {
	t.Parallel()
	b := newPublishBed(t, t.TempDir()+"/tenure.db", t.TempDir())
	for i := range 200 {
		if r := playPublishRound(t.Context(), b, b.unguarded, fmt.Sprintf("round/%d", i)); len(r.stale()) > 0 {
			t.Logf("noticed in round %d: %s", i, r.stale()[0])
			return
		}
	}
	t.Error("got no stale acceptance in 200 rounds without the guard, want the rounds to notice")
}
