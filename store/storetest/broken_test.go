package storetest_test

import (
	"context"
	"errors"
	"iter"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
	"github.com/tenurehq/tenure/store/storetest"
)

// A suite that passes everything proves nothing. Each store below makes one
// mistake that stores have made, and the suite must find it.
var brokenStores = []struct {
	name    string
	harness func() storetest.Harness
	fails   string // the subtests that are there for this mistake: all of them fail
	also    string // those that may fail with them, for what follows from it; no other does
}{
	{"sound", func() storetest.Harness { return sound(func(r *rows) store.Store { return r }) }, "", ""},
	{"token restarts after release", func() storetest.Harness {
		return sound(func(r *rows) store.Store { return newRenumbered(r, restartOnRelease) })
	}, "P1 C46 P7", "P1_restart P10 C06_release C06_release_late C11 C17 Floor_all Floor_below_live_term Floor_ends_live_term " +
		"Floor_name Handoff History One_way_loss Renew_earlier_term Revoke_now Slot Slot_stale_term"},
	{"token restarts after cleaning", func() storetest.Harness {
		return sound(func(r *rows) store.Store { return newRenumbered(r, restartOnClean) })
	}, "C46_clean", ""},
	{"token restarts with the store", func() storetest.Harness {
		h := sound(func(r *rows) store.Store { return newRenumbered(r, restartOnRestart) })
		h.Restart = h.Store.(*renumbered).restart
		return h
	}, "P1_restart", ""},
	{"cleaning raises every floor", func() storetest.Harness {
		return sound(func(r *rows) store.Store { return &cleanRaisesAll{r} })
	}, "C46_clean Floor_all_after_clean", ""},
	{"renew by name only", func() storetest.Harness {
		return sound(func(r *rows) store.Store { return &renewByName{rows: r} })
	}, "P4 P5 P5_concurrent P5_outstanding_applied P5_outstanding_late C06_renew_late Renew_stranger Renew_earlier_term",
		"P10 Batch_outcomes C06_acquire One_way_loss Renew_missing Replace Replace_by_copies Revoke_now"},
	{"own send is taken as proof", func() storetest.Harness {
		return sound(func(r *rows) store.Store { return &ownSend{r} })
	}, "C06_renew_twice One_way_loss", ""},
	{"lost reply is a loss", func() storetest.Harness {
		return sound(func(r *rows) store.Store { return &lastConfirmed{r} })
	}, "P6 C06_renew C06_acquire C06_release C06_release_after_lost_renewal One_way_loss", "C28_renewal_in_flight P5_outstanding_applied"},
	{"recognised by holder name", func() storetest.Harness {
		return sound(func(r *rows) store.Store { return &byHolder{r} })
	}, "Acquire_held Replace_not_own", "P1 C06_acquire_late C17_writes MinHold_replace"},
	{"renewal inserts a record", func() storetest.Harness {
		return sound(func(r *rows) store.Store { return &renewInserts{r} })
	}, "Renew_missing Batch_outcomes P10", ""},
	{"expired term is revived", func() storetest.Harness {
		return sound(func(r *rows) store.Store { return newRenumbered(r, reviveExpired) })
	}, "P4 Expired_untaken One_way_loss", "P10 Batch_outcomes ClockNotAfter"},
	{"expiry by the caller's clock", func() storetest.Harness {
		h := sound(func(r *rows) store.Store { return r })
		second := &callersClock{rows: h.Store.(*rows), ahead: 3 * time.Minute}
		h.Second = func(*testing.T) store.Store { return second }
		return h
	}, "P2 P3 C15_renewing", ""},
	{"clock is read before the wait", func() storetest.Harness {
		return sound(func(r *rows) store.Store { return &earlyClock{r} })
	}, "C34", ""},
	{"losing try writes", func() storetest.Harness {
		var losses *writingLoser
		h := sound(func(r *rows) store.Store { losses = &writingLoser{rows: r}; return losses })
		h.Writes = func(*testing.T) int64 { return losses.Writes() + losses.tries.Load() }
		return h
	}, "C17_writes", ""},
	{"release ignores the token", func() storetest.Harness {
		return sound(func(r *rows) store.Store { return &releaseByName{rows: r} })
	}, "C27 C28 P5 C06_release C06_release_late C06_acquire_given_back", "P10 C28_renewal_in_flight Replace Revoke_now"},
	{"bad release stops the rest", func() storetest.Harness {
		return sound(func(r *rows) store.Store { return &releaseStops{r} })
	}, "C28", ""},
	{"busy row fails the batch", func() storetest.Harness {
		return sound(func(r *rows) store.Store { return &busyBatch{r} })
	}, "Busy_row", ""},
	{"revocation is forgotten", func() storetest.Harness {
		return sound(func(r *rows) store.Store { return &revokeForgets{r} })
	}, "Revoke Revoke_lapses", "P10 Batch_outcomes History Operator_arguments Replace_not_own Revision Slot_stale_term"},
	{"min-hold ends with the term", func() storetest.Harness {
		return sound(func(r *rows) store.Store { return &noMinHold{r} })
	}, "MinHold MinHold_ends MinHold_replace", "Clean_keeps_holds"},
	{"guard does not hold the row", func() storetest.Harness {
		h := sound(func(r *rows) store.Store { return r })
		h.GuardTx = h.Store.(*rows).looseGuardTx
		return h
	}, "P7_open_transaction", ""},
	{"names without case", func() storetest.Harness {
		return sound(func(r *rows) store.Store { return &lowerCase{r} })
	}, "C73", ""},
	{"prefix is a pattern", func() storetest.Harness {
		return sound(func(r *rows) store.Store { return &wildcard{r} })
	}, "C73", ""},
	{"watch is registered late", func() storetest.Harness {
		return sound(func(r *rows) store.Store { return &lateWatch{r} })
	}, "Watch Watch_registered", "Watch_ends Watch_other_name"},
}

const brokenEnv = "TENURE_STORETEST_BROKEN"

// TestBrokenStores runs the suite over the broken stores in a process of its
// own, since a subtest that fails fails all above it, and reads the outcome.
func TestBrokenStores(t *testing.T) {
	if os.Getenv(brokenEnv) != "" {
		for _, broken := range brokenStores {
			t.Run(strings.ReplaceAll(broken.name, " ", "_"), func(t *testing.T) {
				t.Parallel()
				storetest.Run(t, func(*testing.T) storetest.Harness { return broken.harness() })
			})
		}
		return
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	child := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestBrokenStores$", "-test.v", "-test.short", "-test.parallel=256")
	child.Env = append(os.Environ(), brokenEnv+"=1")
	out, err := child.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
		t.Fatalf("the child ended with %v, want exit code 1:\n%s", err, tail(out))
	}
	outcome := regexp.MustCompile(`(?m)^ +--- (FAIL|PASS|SKIP): TestBrokenStores/([^/ \n]+)/([^/ \n]+) `)
	failed, ran := make(map[string][]string), make(map[string]int)
	for _, m := range outcome.FindAllStringSubmatch(string(out), -1) {
		ran[m[2]]++
		if m[1] == "FAIL" {
			failed[m[2]] = append(failed[m[2]], m[3])
		}
	}
	for _, broken := range brokenStores {
		name := strings.ReplaceAll(broken.name, " ", "_")
		if ran[name] != ran["sound"] || ran[name] == 0 {
			t.Errorf("%s: %d subtests ended, want %d:\n%s", broken.name, ran[name], ran["sound"], tail(out))
		}
		must, may := strings.Fields(broken.fails), strings.Fields(broken.also)
		for _, sub := range must {
			if !slices.Contains(failed[name], sub) {
				t.Errorf("%s: %s passes", broken.name, sub)
			}
		}
		for _, sub := range failed[name] {
			if !slices.Contains(must, sub) && !slices.Contains(may, sub) {
				t.Errorf("%s: %s fails too:\n%s", broken.name, sub, messages(out, name, sub))
			}
		}
	}
}

// messages returns what a subtest of the child said.
func messages(out []byte, name, sub string) string {
	var said strings.Builder
	current := ""
	for line := range strings.Lines(string(out)) {
		if fields := strings.Fields(line); len(fields) >= 3 && fields[0] == "===" {
			current = fields[2]
		} else if current == "TestBrokenStores/"+name+"/"+sub {
			said.WriteString(line)
		}
	}
	return said.String()
}

func tail(out []byte) string {
	const most = 4000
	return string(out[max(0, len(out)-most):])
}

// rows is a memory store whose records strangers can lock, and whose guarded
// writes hold them: what a database adds.
type rows struct {
	*memory.Store
	mu      sync.Mutex
	changed chan struct{}  // closed and replaced at each unlock
	locked  map[string]int // by strangers: busy for everybody
	guarded map[string]int // by guarded transactions: no new term
}

// sound returns the harness of a store without a mistake, wrapped in one.
func sound(wrap func(*rows) store.Store) storetest.Harness {
	var stepped atomic.Int64
	r := &rows{
		Store:   memory.NewWith(memory.Config{Clock: func() time.Duration { return clock.Boot() + time.Duration(stepped.Load()) }}),
		changed: make(chan struct{}), locked: make(map[string]int), guarded: make(map[string]int),
	}
	return storetest.Harness{
		Store:     wrap(r),
		MinTTL:    500 * time.Millisecond, // many stores share the machine
		Restart:   func(*testing.T) {},
		Writes:    func(*testing.T) int64 { return r.Writes() },
		StepClock: func(_ *testing.T, d time.Duration) { stepped.Add(int64(d)) },
		LockRow:   func(_ *testing.T, name string) func() { return r.lock(r.locked, name) },
		GuardTx:   r.guardTx,
	}
}

func (r *rows) lock(in map[string]int, name string) (unlock func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	in[name]++
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if in[name]--; in[name] == 0 {
			delete(in, name)
		}
		close(r.changed)
		r.changed = make(chan struct{})
	}
}

func (r *rows) Acquire(ctx context.Context, req store.Request) (store.Record, error) {
	limit := time.NewTimer(200 * time.Millisecond)
	defer limit.Stop()
	for {
		r.mu.Lock()
		busy, changed := r.locked[req.Name]+r.guarded[req.Name] > 0, r.changed
		if !busy {
			defer r.mu.Unlock()
			return r.Store.Acquire(ctx, req)
		}
		r.mu.Unlock()
		select {
		case <-changed:
		case <-limit.C:
			return store.Record{}, &store.BusyError{Name: req.Name}
		case <-ctx.Done():
			return store.Record{}, ctx.Err()
		}
	}
}

func (r *rows) Renew(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	return r.free(ctx, grants, r.Store.Renew)
}

func (r *rows) Release(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	return r.free(ctx, grants, r.Store.Release)
}

// free sends the grants whose records are not locked.
func (r *rows) free(ctx context.Context, grants []store.Grant, send func(context.Context, []store.Grant) ([]store.Result, error)) ([]store.Result, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]store.Result, len(grants))
	var sent []store.Grant
	var at []int
	for i, g := range grants {
		if r.locked[g.Name] > 0 {
			all[i].Err = &store.BusyError{Name: g.Name}
			continue
		}
		sent, at = append(sent, g), append(at, i)
	}
	results, err := send(ctx, sent)
	if err != nil {
		return nil, err
	}
	for i, res := range results {
		all[at[i]] = res
	}
	return all, nil
}

// current checks a guarded write.
func (r *rows) current(ctx context.Context, name string, token fence.Token) error {
	rec, err := r.Get(ctx, name)
	if err == nil && rec.Token != token {
		err = &fence.StaleError{Resource: name, Token: token, Current: rec.Token}
	}
	return err
}

func (r *rows) guardTx(ctx context.Context, name string, token fence.Token) (func() error, func(), error) {
	unlock := r.lock(r.guarded, name)
	if err := r.current(ctx, name, token); err != nil {
		unlock()
		return nil, nil, err
	}
	return func() error { unlock(); return nil }, unlock, nil
}

func (r *rows) looseGuardTx(ctx context.Context, name string, token fence.Token) (func() error, func(), error) {
	return func() error { return nil }, func() {}, r.current(ctx, name, token)
}

// The mistakes.

// renumbered shows tokens that are smaller than the ones behind it, and so can
// make a counter start over.
type renumbered struct {
	*rows
	mistake mistake
	mu      sync.Mutex
	hidden  map[string]fence.Token // how much smaller, by name
	cleaned map[string]bool        // names that had a record when it cleaned
}

type mistake int

const (
	restartOnRelease mistake = iota
	restartOnClean
	restartOnRestart
	reviveExpired
)

func newRenumbered(r *rows, m mistake) *renumbered {
	return &renumbered{rows: r, mistake: m, hidden: make(map[string]fence.Token), cleaned: make(map[string]bool)}
}

func (s *renumbered) show(rec store.Record) store.Record {
	rec.Token = max(rec.Token-s.hidden[rec.Name], 0)
	rec.Floor = max(rec.Floor-s.hidden[rec.Name], 0)
	return rec
}

func (s *renumbered) Acquire(ctx context.Context, req store.Request) (store.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if req.Replace != nil {
		replaced := *req.Replace
		replaced.Token += s.hidden[req.Name]
		req.Replace = &replaced
	}
	before, found := s.rows.Get(ctx, req.Name)
	rec, err := s.rows.Acquire(ctx, req)
	if held, ok := errors.AsType[*store.HeldError](err); ok {
		held.Record = s.show(held.Record)
	}
	if err != nil {
		return rec, err
	}
	switch {
	case s.mistake == restartOnRelease && found == nil && before.Status == store.Released,
		s.mistake == restartOnClean && s.cleaned[req.Name] && found != nil:
		s.hidden[req.Name] = rec.Token - 1
	}
	return s.show(rec), nil
}

func (s *renumbered) send(ctx context.Context, grants []store.Grant, send func(context.Context, []store.Grant) ([]store.Result, error)) ([]store.Result, error) {
	grants = slices.Clone(grants)
	for i, g := range grants {
		if g.Token > 0 {
			grants[i].Token += s.hidden[g.Name]
		}
	}
	results, err := send(ctx, grants)
	for i, res := range results {
		if errors.Is(res.Err, store.ErrExpired) && s.mistake == reviveExpired {
			results[i].Record, results[i].Err = s.rows.Acquire(ctx, store.Request{
				Name: grants[i].Name, Holder: res.Record.Holder, TTL: grants[i].TTL, Attempt: grants[i].Attempt,
			})
			s.hidden[grants[i].Name]++
		}
		results[i].Record = s.show(results[i].Record)
	}
	return results, err
}

func (s *renumbered) Renew(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.send(ctx, grants, s.rows.Renew)
}

func (s *renumbered) Release(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.send(ctx, grants, s.rows.Release)
}

func (s *renumbered) Get(ctx context.Context, name string) (store.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rec, err := s.rows.Get(ctx, name)
	return s.show(rec), err
}

func (s *renumbered) List(ctx context.Context, prefix string) iter.Seq2[store.Record, error] {
	return func(yield func(store.Record, error) bool) {
		for rec, err := range s.rows.List(ctx, prefix) {
			s.mu.Lock()
			rec = s.show(rec)
			s.mu.Unlock()
			if !yield(rec, err) {
				return
			}
		}
	}
}

func (s *renumbered) Revoke(ctx context.Context, name string, token fence.Token, rev store.Revocation) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rows.Revoke(ctx, name, token+s.hidden[name], rev)
}

func (s *renumbered) RaiseFloor(ctx context.Context, name string, floor fence.Token) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if floor < 1 {
		return s.rows.RaiseFloor(ctx, name, floor)
	}
	return s.rows.RaiseFloor(ctx, name, floor+s.hidden[name])
}

func (s *renumbered) History(ctx context.Context, name string) iter.Seq2[store.Term, error] {
	return func(yield func(store.Term, error) bool) {
		for term, err := range s.rows.History(ctx, name) {
			s.mu.Lock()
			term.Token -= s.hidden[name]
			s.mu.Unlock()
			if !yield(term, err) {
				return
			}
		}
	}
}

func (s *renumbered) Done(ctx context.Context, g store.Grant, slot string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	g.Token += s.hidden[g.Name]
	err := s.rows.Done(ctx, g, slot)
	if done, ok := errors.AsType[*store.SlotError](err); ok {
		done.Slot.Token -= s.hidden[g.Name]
	}
	return err
}

func (s *renumbered) Slot(ctx context.Context, name, slot string) (store.Slot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	done, err := s.rows.Slot(ctx, name, slot)
	if err == nil {
		done.Token -= s.hidden[name]
	}
	return done, err
}

func (s *renumbered) Clean(ctx context.Context, idle time.Duration) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for rec, err := range s.rows.List(ctx, "") {
		if err == nil {
			s.cleaned[rec.Name] = true
		}
	}
	return s.rows.Clean(ctx, idle)
}

// restart forgets the last term of every name that was released.
func (s *renumbered) restart(*testing.T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for rec, err := range s.rows.List(context.Background(), "") {
		if err == nil && rec.Status == store.Released {
			s.hidden[rec.Name]++
		}
	}
}

// found returns the grants as the record itself would have them. Those that
// break a rule stay as they are.
func (r *rows) found(ctx context.Context, grants []store.Grant) []store.Grant {
	grants = slices.Clone(grants)
	for i, g := range grants {
		if rec, err := r.Get(ctx, g.Name); err == nil && rec.Token > 0 && g.Attempt != rec.Attempt && g.CheckRelease() == nil {
			grants[i].Token, grants[i].Known = rec.Token, []store.Attempt{rec.Attempt}
		}
	}
	return grants
}

type renewByName struct {
	*rows
	mu sync.Mutex
}

func (s *renewByName) Renew(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rows.Renew(ctx, s.found(ctx, grants))
}

type releaseByName struct {
	*rows
	mu sync.Mutex
}

func (s *releaseByName) Release(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rows.Release(ctx, s.found(ctx, grants))
}

// callersClock is a client that decides expiry by its own clock.
type callersClock struct {
	*rows
	ahead time.Duration
}

func (s *callersClock) Acquire(ctx context.Context, req store.Request) (store.Record, error) {
	if rec, err := s.Get(ctx, req.Name); err == nil && rec.Status == store.Held && rec.Remaining < s.ahead && req.Replace == nil {
		req.Replace = &store.Grant{Name: req.Name, Token: rec.Token, TTL: req.TTL, Attempt: req.Attempt, Known: []store.Attempt{rec.Attempt}}
	}
	return s.rows.Acquire(ctx, req)
}

// lastConfirmed compares with what the last reply told, and with nothing else.
type lastConfirmed struct{ *rows }

func (s *lastConfirmed) first(grants []store.Grant) []store.Grant {
	grants = slices.Clone(grants)
	for i, g := range grants {
		if g.CheckRelease() == nil {
			grants[i].Known = g.Known[:1]
		}
	}
	return grants
}

func (s *lastConfirmed) Acquire(ctx context.Context, req store.Request) (store.Record, error) {
	if req.Check(s.Features().MinTTL) == nil {
		req.Known = nil
	}
	return s.rows.Acquire(ctx, req)
}

func (s *lastConfirmed) Renew(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	return s.rows.Renew(ctx, s.first(grants))
}

func (s *lastConfirmed) Release(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	return s.rows.Release(ctx, s.first(grants))
}

type byHolder struct{ *rows }

func (s *byHolder) Acquire(ctx context.Context, req store.Request) (store.Record, error) {
	if rec, err := s.Get(ctx, req.Name); err == nil && rec.Holder == req.Holder && len(req.Known) == 0 && rec.Attempt != req.Attempt {
		req.Known = []store.Attempt{rec.Attempt}
	}
	return s.rows.Acquire(ctx, req)
}

type renewInserts struct{ *rows }

func (s *renewInserts) Renew(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	results, err := s.rows.Renew(ctx, grants)
	for i, res := range results {
		if errors.Is(res.Err, store.ErrMissing) && res.Record.Name == "" {
			results[i].Record, results[i].Err = s.rows.Acquire(ctx, store.Request{
				Name: grants[i].Name, Holder: "unknown", TTL: grants[i].TTL, Attempt: grants[i].Attempt,
			})
		}
	}
	return results, err
}

// writingLoser notes each losing try.
type writingLoser struct {
	*rows
	tries atomic.Int64
}

func (s *writingLoser) Acquire(ctx context.Context, req store.Request) (store.Record, error) {
	rec, err := s.rows.Acquire(ctx, req)
	if errors.Is(err, store.ErrHeld) {
		s.tries.Add(1)
	}
	return rec, err
}

type revokeForgets struct{ *rows }

func (s *revokeForgets) Revoke(ctx context.Context, name string, token fence.Token, rev store.Revocation) error {
	rec, err := s.Get(ctx, name)
	switch {
	case !rev.Now && err == nil && rec.Token == token && rec.Status == store.Held && rev.Check() == nil && rev.HandoffTo == "":
		return nil
	}
	return s.rows.Revoke(ctx, name, token, rev)
}

type cleanRaisesAll struct{ *rows }

func (s *cleanRaisesAll) Clean(ctx context.Context, idle time.Duration) (int, error) {
	var largest fence.Token
	for rec, err := range s.List(ctx, "") {
		if err == nil && rec.Status != store.Held {
			largest = max(largest, rec.Token, rec.Floor)
		}
	}
	n, err := s.rows.Clean(ctx, idle)
	if err == nil && n > 0 {
		err = s.RaiseFloor(ctx, "", largest)
	}
	return n, err
}

// ownSend takes a record that carries the request's own attempt for proof.
type ownSend struct{ *rows }

func (s *ownSend) Renew(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	grants = slices.Clone(grants)
	for i, g := range grants {
		if rec, err := s.Get(ctx, g.Name); err == nil && rec.Attempt == g.Attempt && rec.Token == g.Token {
			grants[i].Attempt, grants[i].Known = store.NewAttempt(), []store.Attempt{rec.Attempt}
		}
	}
	return s.rows.Renew(ctx, grants)
}

// earlyClock counts a term from when its request came in.
type earlyClock struct{ *rows }

func (s *earlyClock) Acquire(ctx context.Context, req store.Request) (store.Record, error) {
	if err := req.Check(s.Features().MinTTL); err != nil {
		return store.Record{}, err
	}
	came, ttl := time.Now(), req.TTL
	s.mu.Lock()
	busy, changed := s.locked[req.Name] > 0, s.changed
	s.mu.Unlock()
	if busy {
		select {
		case <-changed:
		case <-ctx.Done():
			return store.Record{}, ctx.Err()
		}
		req.TTL = max(ttl-time.Since(came), s.Features().MinTTL)
	}
	rec, err := s.rows.Acquire(ctx, req)
	if err == nil {
		rec.TTL = ttl
	}
	return rec, err
}

// busyBatch gives up a whole batch for one busy record.
type busyBatch struct{ *rows }

func (s *busyBatch) Renew(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	s.mu.Lock()
	for _, g := range grants {
		if s.locked[g.Name] > 0 {
			s.mu.Unlock()
			return nil, &store.BusyError{Name: g.Name}
		}
	}
	s.mu.Unlock()
	return s.rows.Renew(ctx, grants)
}

// releaseStops does not look at what comes after a release that failed.
type releaseStops struct{ *rows }

func (s *releaseStops) Release(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	results := make([]store.Result, len(grants))
	for i, g := range grants {
		before, err := s.Get(ctx, g.Name)
		if err == nil {
			err = store.JudgeRelease(&before, &g)
		}
		if err == nil {
			continue
		}
		done, fatal := s.rows.Release(ctx, grants[:i+1])
		copy(results, done)
		for j := i + 1; j < len(results); j++ {
			results[j].Err = err
		}
		return results, fatal
	}
	return s.rows.Release(ctx, grants)
}

// noMinHold keeps a min-hold with the holder instead of the record.
type noMinHold struct{ *rows }

func (s *noMinHold) Acquire(ctx context.Context, req store.Request) (store.Record, error) {
	if err := req.Check(s.Features().MinTTL); err != nil {
		return store.Record{}, err
	}
	hold := req.MinHold
	req.MinHold = 0
	rec, err := s.rows.Acquire(ctx, req)
	if err == nil {
		rec.Wait = max(rec.Wait, hold)
	}
	return rec, err
}

// lowerCase compares names as some collations do.
type lowerCase struct{ *rows }

func (s *lowerCase) Acquire(ctx context.Context, req store.Request) (store.Record, error) {
	req.Name = fold(req.Name)
	rec, err := s.rows.Acquire(ctx, req)
	return rec, err
}

func (s *lowerCase) Get(ctx context.Context, name string) (store.Record, error) {
	return s.rows.Get(ctx, fold(name))
}

// fold folds the part of a name after the last slash if it is all letters, so
// that the other subtests' names stay theirs.
func fold(name string) string {
	at := strings.LastIndexByte(name, '/') + 1
	return name[:at] + strings.ToLower(name[at:])
}

// wildcard lists as LIKE does without an escape.
type wildcard struct{ *rows }

func (s *wildcard) List(ctx context.Context, prefix string) iter.Seq2[store.Record, error] {
	if store.CheckPrefix(prefix) != nil {
		return s.rows.List(ctx, prefix)
	}
	pattern := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(prefix), "_", "."))
	return func(yield func(store.Record, error) bool) {
		for rec, err := range s.rows.List(ctx, "") {
			if (err != nil || pattern.MatchString(rec.Name)) && !yield(rec, err) {
				return
			}
		}
	}
}

// lateWatch returns before it is registered.
type lateWatch struct{ *rows }

func (s *lateWatch) Watch(ctx context.Context, name string) (<-chan store.Event, error) {
	events := make(chan store.Event, 1)
	go func() {
		defer close(events)
		timer := time.NewTimer(time.Second)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}()
	return events, nil
}
