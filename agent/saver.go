package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// savedAttempts is what the store may know of a term.
type savedAttempts struct {
	name  string
	token fence.Token
	ttl   time.Duration
	known []store.Attempt
}

// saver writes the small files that change with each renewal, so that a disk that
// stalls holds up no heartbeat. The newest of each is written, and what comes
// meanwhile replaces what waits. A deadline that is written late ends work early,
// and attempts that are written late make a successor wait: both are safe.
type saver struct {
	a      *Agent
	queued chan struct{} // has room for one

	mu       sync.Mutex
	terms    *savedAttempts
	forget   bool
	next     *Deadline
	busy     bool
	finished *sync.Cond // with mu: nothing waits and nothing is being written
}

func newSaver(a *Agent) *saver {
	s := &saver{a: a, queued: make(chan struct{}, 1)}
	s.finished = sync.NewCond(&s.mu)
	return s
}

func (s *saver) queue(change func()) {
	s.mu.Lock()
	change()
	s.busy = true
	s.mu.Unlock()
	select {
	case s.queued <- struct{}{}:
	default:
	}
}

// term waits a moment for the write, since a crash right after the send could
// otherwise leave an attempt that nobody knows.
func (s *saver) term(t savedAttempts) {
	s.queue(func() { s.terms, s.forget = &t, false })
	s.settle()
}

// settle waits for the writes, but only a moment.
func (s *saver) settle() {
	done := make(chan struct{})
	go func() {
		s.flush()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(s.a.cfg.Interval / 20):
	}
}

// dropTerm forgets the term: it was given back.
func (s *saver) dropTerm() { s.queue(func() { s.terms, s.forget = nil, true }) }

func (s *saver) deadline(d Deadline) { s.queue(func() { s.next = &d }) }

// flush waits until all that was queued has been written.
func (s *saver) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.busy {
		s.finished.Wait()
	}
}

func (s *saver) run(ctx context.Context) {
	for {
		select {
		case <-s.queued:
			s.write()
		case <-ctx.Done():
			s.write()
			return
		}
	}
}

func (s *saver) write() {
	for {
		s.mu.Lock()
		t, forget, d := s.terms, s.forget, s.next
		s.terms, s.forget, s.next = nil, false, nil
		if t == nil && !forget && d == nil {
			s.busy = false
			s.finished.Broadcast()
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		var errs []error
		if d != nil {
			errs = append(errs, WriteDeadline(s.a.state.path(deadlineName), *d))
		}
		if t != nil {
			errs = append(errs, s.a.state.saveTerm(t.name, t.token, t.ttl, t.known))
		}
		if forget {
			errs = append(errs, s.a.state.dropTerm())
		}
		if err := errors.Join(errs...); err != nil {
			s.a.emit(Event{Kind: EventStateFailed, Err: err})
		}
	}
}
