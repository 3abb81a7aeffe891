package main

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/cmd/tenure/guardian"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/store"
)

// job is one "tenure run": a keeper, and one command after another under terms
// of one lease (one alone unless --on-loss again).
type job struct {
	f    *runFlags
	con  console
	st   store.Store
	k    *tenure.Keeper
	note *notebook
	show *jobMetrics // nil if nothing is to be shown

	tried   bool  // to start a command, once or more
	skipped error // why there was nothing to do, which is no failure with --skip-ok

	mu       sync.Mutex
	grace    time.Duration
	margin   time.Duration
	doubts   int               // how often the term was in doubt
	process  *guardian.Process // while a command runs
	starting bool              // a command is about to run
	early    []os.Signal       // came while it was starting
	last     guardian.Deadline // of the present term
}

// runJob opens the store, runs the command and returns its exit code as an error.
func runJob(cmd *cobra.Command, con console, f *runFlags, cfg tenure.Config) (err error) {
	if err := canStart(f.argv[0]); err != nil {
		return err // before the lease is asked for
	}
	ctx, cancel := context.WithCancelCause(cmd.Context())
	defer cancel(nil)
	j := &job{f: f, con: con, grace: f.grace, note: newNotebook(con, f.name, f.verbose)}
	newKeeper := tenure.NewKeeper
	if j.show, err = newJobMetrics(f, j.note); err != nil {
		return err
	}
	if j.show != nil {
		newKeeper = j.show.NewKeeper
		defer func() { j.show.end(cmp.Or(j.skipped, err)) }() // when all below has ended
	}
	defer j.passSignals(cancel)()

	opening, opened := context.WithTimeout(ctx, requestTime)
	st, closeStore, err := openStore(opening, cmd)
	opened()
	if err != nil {
		return asExit(stopped(ctx, err))
	}
	defer closeStore()
	if _, ok := st.(store.Slotter); !ok && (f.slot != "" || f.oncePer > 0) {
		return failf(exitConfig, "this store cannot remember which slots are done: use SQLite or Postgres for --slot and --once-per")
	}
	cfg.Logger = f.logger(con)
	cfg.OnEvent = j.event
	j.margin = cfg.Margin
	cfg.DrainTimeout = time.Millisecond // what is not released when the job ends is meant to expire
	if j.k, err = newKeeper(st, cfg); err != nil {
		return failf(exitUsage, "%w", err)
	}
	j.st = st
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	var background sync.WaitGroup
	background.Go(func() { _ = j.k.Run(keeping) }) // the job itself says what is left to expire
	background.Go(func() {
		if err := j.k.ListenDoubt(keeping, "", nil); err != nil {
			cfg.Logger.Warn("\"tenure doubt\" will not reach this process", "err", err)
		}
	})
	if j.show != nil {
		background.Go(func() { j.show.run(keeping) })
	}
	defer background.Wait()
	defer stop()
	for {
		again, err := j.once(ctx)
		if f.skipOK && !j.tried && (errors.Is(err, store.ErrHeld) || errors.Is(err, store.ErrSlotDone)) {
			j.skipped = asExit(err)
			return nil
		}
		if !again || f.onLoss != onLossAgain {
			return asExit(explainHere(cmd, err))
		}
		if ctx.Err() != nil {
			return asExit(stopped(ctx, err))
		}
		j.note.line("%v; trying again", err)
		if j.show != nil {
			j.show.work(false)
		}
	}
}

// canStart refuses a command that cannot be started, with the shell's codes.
func canStart(name string) error {
	switch _, err := exec.LookPath(name); {
	case err == nil, errors.Is(err, exec.ErrDot):
		return nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return failf(exitNoCommand, "cannot start %q: no such command", name)
	default:
		return failf(exitNotExec, "cannot start %q: not executable (%w)", name, err)
	}
}

// passSignals gives every signal to the command while one runs or starts. Before
// that, those that ask a program to end give up the waiting; after it they find
// nobody.
func (j *job) passSignals(cancel context.CancelCauseFunc) (stop func()) {
	signals := make(chan os.Signal, 64)
	signal.Notify(signals, guardian.Signals()...)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case s := <-signals:
				j.pass(s, cancel)
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
	}
}

func (j *job) pass(s os.Signal, cancel context.CancelCauseFunc) {
	j.mu.Lock()
	defer j.mu.Unlock()
	n, _ := s.(syscall.Signal)
	switch {
	case j.process != nil:
		_ = j.process.Signal(s) // it has just ended: nothing to tell
	case j.starting:
		j.early = append(j.early, s)
	case n == syscall.SIGTSTP:
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	case n == syscall.SIGINT, n == syscall.SIGTERM, n == syscall.SIGHUP, n == syscall.SIGQUIT:
		cancel(&exitError{code: 128 + int(n)})
	}
}

// begin says that a command starts: from now on signals are for it. It returns
// the cause if ctx has ended, by one that came before.
func (j *job) begin(ctx context.Context) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	j.starting = true
	return nil
}

// began says that the command runs as p, which was started with the deadline first.
func (j *job) began(p *guardian.Process, first guardian.Deadline) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.process = p
	if j.last != first {
		_ = p.Extend(j.last) // as in confirmed
	}
	for _, s := range j.early {
		_ = p.Signal(s) // as in pass
	}
}

// finished says that no command runs or starts.
func (j *job) finished() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.process, j.starting, j.early = nil, false, nil
}

// stopped returns the exit code of the signal that ended the waiting, or err.
func stopped(ctx context.Context, err error) error {
	var bySignal *exitError
	if errors.As(context.Cause(ctx), &bySignal) {
		return bySignal
	}
	return err
}

// once holds one term and runs the command under it. again says that the term
// was lost and that another may be tried for.
func (j *job) once(ctx context.Context) (again bool, err error) {
	// Who has nothing to do begins no term, as that may begin a minimum hold.
	if _, err := j.slotFree(ctx); err != nil {
		switch store.Classify(err) {
		case store.CodeNotFound: // nobody has had the lease
		case store.CodeNoContact, store.CodeBusy: // as acquire takes it
		default:
			return false, stopped(ctx, err)
		}
	}
	t, err := j.acquire(ctx)
	if err != nil {
		return false, stopped(ctx, err)
	}
	if j.show != nil {
		j.show.work(true)
	}
	slot, err := j.slotFree(ctx) // it may have been done, or be another one, since
	var outcome guardian.Outcome
	if err == nil {
		j.undoubted(ctx, t)
		j.tried = true
		outcome, err = j.command(ctx, t)
	}
	if errors.Is(err, guardian.ErrMayHaveRun) { // what it started may be beyond reach
		return false, failf(exitLost, "lease %q (token %s) is left to expire, within %s: %w", t.Name(), t.Token(), shortDuration(j.f.ttl), err)
	}
	var lost *tenure.LostError
	if err != nil && !errors.As(err, &lost) { // else it was lost before the command was started
		return errors.Is(err, guardian.ErrLate), errors.Join(stopped(ctx, err), j.release(t))
	}
	isLost := errors.As(t.Err(), &lost)
	if len(outcome.Leftovers) > 0 {
		return false, j.leave(t, outcome.Leftovers)
	}
	if isLost {
		if lost.Reason != tenure.ReasonRestored || j.f.onLoss != onLossAgain { // else it waits to be replaced
			if err := j.release(t); err != nil && !errors.Is(err, tenure.ErrLost) { // that one is told below
				j.note.line("%v", err)
			}
		}
		code := exitLost
		if lost.Reason == tenure.ReasonNoProgress {
			code = exitNoProgress
		}
		return true, &exitError{code: code, err: lost}
	}
	switch outcome.Why {
	case guardian.WhyDeadline: // our renewal came, but its guardian had not heard of it
		late := failf(exitLost, "the command was stopped: its guardian knew of no renewal of %q (token %s) in time", t.Name(), t.Token())
		return true, errors.Join(late, j.release(t))
	case guardian.WhyGuardianGone:
		j.note.line("the command was killed, because its guardian was killed")
	case guardian.WhyGuardianStalled:
		j.note.line("the command was killed, because its guardian stopped answering")
	}
	if outcome.ExitCode == 0 && slot != "" {
		if err := j.slotDone(t, slot); err != nil {
			return false, errors.Join(err, j.release(t))
		}
	}
	if err := j.release(t); err != nil {
		if errors.As(err, &lost) { // too late to be sure that it was alone, and done all the same
			return false, &exitError{code: exitLost, err: lost}
		}
		j.note.line("%v", err) // the work is done; the lease will lapse
	}
	switch {
	case outcome.Signal != 0:
		return false, &exitError{code: 128 + int(outcome.Signal)}
	case outcome.ExitCode < 0: // who knew it was killed
		return false, failf(exitInternal, "the command has ended, but its exit code is unknown")
	case outcome.ExitCode != 0:
		return false, &exitError{code: outcome.ExitCode}
	}
	return false, nil
}

// acquire gets a term, as --wait, --no-wait or --wait-for ask.
func (j *job) acquire(ctx context.Context) (*tenure.Term, error) {
	j.mu.Lock()
	j.last = guardian.Deadline{}
	j.mu.Unlock()
	opts := append(j.f.options(), tenure.WithConfirm(j.confirmed))
	if j.f.noWait {
		return j.k.TryAcquire(ctx, j.f.name, opts...)
	}
	defer j.note.stop()
	ctx, look, stop := j.untilSlotDone(ctx)
	defer stop()
	opts = append(opts, tenure.WithWait(func(held *store.HeldError) {
		j.note.waiting(held)
		look(held)
	}))
	if j.f.waitFor == 0 {
		t, err := j.k.Acquire(ctx, j.f.name, opts...)
		return t, slotCause(ctx, err)
	}
	limited, cancel := context.WithTimeout(ctx, j.f.waitFor)
	defer cancel()
	t, err := j.k.Acquire(limited, j.f.name, opts...)
	var held *store.HeldError
	switch {
	case limited.Err() == nil || ctx.Err() != nil || err == nil:
		return t, slotCause(ctx, err)
	case errors.As(err, &held):
		err = held
	case errors.Is(err, store.ErrBusy), j.f.waitFor < time.Second: // too short a time to blame the store
	default:
		return nil, err
	}
	return nil, failf(exitNotAcquired, "not acquired within %s: %w", shortDuration(j.f.waitFor), err)
}

// untilSlotDone returns a context for waiting for the lease. Each time that look is
// given a min-hold, whoever has it may have done the slot, and if so the context ends
// with its *store.SlotError as the cause: to win the lease then would begin another
// min-hold for nothing. stop ends what look began.
func (j *job) untilSlotDone(parent context.Context) (ctx context.Context, look func(*store.HeldError), stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	var looking sync.WaitGroup
	var busy atomic.Bool
	look = func(held *store.HeldError) {
		if held.Reason != store.HeldByMinHold || j.f.slot == "" && j.f.oncePer == 0 || !busy.CompareAndSwap(false, true) {
			return
		}
		looking.Go(func() {
			defer busy.Store(false)
			if _, err := j.slotFree(ctx); errors.Is(err, store.ErrSlotDone) {
				cancel(err)
			} // else it is looked up under the lease
		})
	}
	return ctx, look, func() {
		cancel(nil)
		looking.Wait()
	}
}

// slotCause returns the *store.SlotError that ended ctx, if one did, or err.
func slotCause(ctx context.Context, err error) error {
	if done, ok := errors.AsType[*store.SlotError](context.Cause(ctx)); ok && err != nil {
		return done
	}
	return err
}

// confirmed gives the guardian the deadline of a confirmed renewal, unless a
// doubt came after it.
func (j *job) confirmed(t *tenure.Term) {
	j.mu.Lock()
	doubts := j.doubts
	j.mu.Unlock()
	until, held := t.TrustedUntil(), t.State() == tenure.StateHeld
	j.mu.Lock()
	defer j.mu.Unlock()
	if !held || doubts != j.doubts {
		return
	}
	j.last = guardian.Deadline{TermAt: until, KillAt: until + j.grace}
	if j.process != nil {
		_ = j.process.Extend(j.last) // too late, or over: the guardian has decided
	}
}

// undoubted waits until a term that began in doubt is confirmed, or over, or
// until ctx ends.
func (j *job) undoubted(ctx context.Context, t *tenure.Term) {
	for {
		j.mu.Lock()
		known := j.last != guardian.Deadline{}
		j.mu.Unlock()
		if known && t.State() != tenure.StateDoubt {
			return
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-t.Context().Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// event tells what is wrong. In doubt the command's time is cut to the margin: a
// trust that was counted by clocks that stood still may be over already. The
// renewal that ends the doubt gives it back.
func (j *job) event(e tenure.Event) {
	j.note.event(e)
	if j.show != nil {
		j.show.nudge()
	}
	if e.Kind != tenure.EventDoubt {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.doubts++
	if (j.last == guardian.Deadline{}) {
		return
	}
	until := min(j.last.TermAt, clock.Boot()+j.margin)
	j.last = guardian.Deadline{TermAt: until, KillAt: until + j.grace}
	if j.process != nil {
		_ = j.process.Extend(j.last) // as in confirmed
	}
}

// command runs the command under t until it and all it started have ended. It
// runs nothing if ctx has ended.
func (j *job) command(ctx context.Context, t *tenure.Term) (guardian.Outcome, error) {
	if err := j.begin(ctx); err != nil {
		return guardian.Outcome{}, err
	}
	defer j.finished()
	spec := guardian.Spec{Argv: j.f.argv, Env: j.f.environment(t), Grace: max(j.grace, time.Millisecond), Notice: j.note.notice}
	watching, stopWatching := context.WithCancel(context.Background())
	defer stopWatching()
	if j.f.progress == progressDescriptor {
		ours, theirs, err := os.Pipe()
		if err != nil {
			return guardian.Outcome{}, failf(exitInternal, "a pipe for progress: %w", err)
		}
		defer ours.Close()
		defer theirs.Close()
		spec.Files = []*os.File{theirs}
		go readProgress(ours, t)
	} else if j.f.progress != "" {
		go watchProgress(watching, j.f.progress, j.f.stallAfter, t)
	}
	j.mu.Lock()
	first := j.last
	j.mu.Unlock()
	if (first == guardian.Deadline{}) { // it ended before it was confirmed
		return guardian.Outcome{}, failf(exitLost, "%w", t.Err())
	}
	p, err := guardian.Start(context.Background(), spec, first)
	if err != nil {
		return guardian.Outcome{}, cannotStart(err)
	}
	for _, f := range spec.Files {
		f.Close() // the command has its own; ours would keep the pipe open
	}
	j.began(p, first)
	select {
	case <-p.Done():
	case <-t.Context().Done():
		end(p, t)
	}
	return p.Wait()
}

// end stops the command of a term that is over: at once if somebody else may
// act already, with the grace that is left otherwise.
func end(p *guardian.Process, t *tenure.Term) {
	var lost *tenure.LostError
	if errors.As(t.Err(), &lost) {
		switch lost.Reason {
		case tenure.ReasonRevoked, tenure.ReasonNoProgress, tenure.ReasonNoContact, tenure.ReasonBusy,
			tenure.ReasonPermission, tenure.ReasonReadOnly, tenure.ReasonSchema, tenure.ReasonCopied:
			p.Stop()
			return
		}
	}
	now := clock.Boot()
	_ = p.Extend(guardian.Deadline{TermAt: now, KillAt: now}) // refused only if killing has begun
}

// cannotStart gives the guardian's refusals their codes. The command did not run.
func cannotStart(err error) error {
	var refused *guardian.StartError
	switch {
	case errors.Is(err, guardian.ErrNotFound):
		return failf(exitNoCommand, "%w", err)
	case errors.Is(err, guardian.ErrLate):
		return failf(exitLost, "%w", err)
	case errors.Is(err, guardian.ErrUnsupported):
		return failf(exitConfig, "%w", err)
	case errors.As(err, &refused):
		return failf(exitNotExec, "%w", err)
	}
	return failf(exitInternal, "%w", err) // the guardian's own trouble
}

// release gives the term back; the work under it has ended.
func (j *job) release(t *tenure.Term) error { return t.Release(context.Background()) }

// leave names what could not be ended. Nothing is released: the lease lapses by
// itself, after which whoever runs next must cope with what is still there.
func (j *job) leave(t *tenure.Term, left []guardian.Leftover) error {
	for _, l := range left {
		j.note.line("process %d (%s) could not be ended: %s", l.PID, l.Comm, l.Why)
	}
	return failf(exitLost, "lease %q (token %s) is left to expire, within %s, because not all of its processes could be ended", t.Name(), t.Token(), shortDuration(j.f.ttl))
}

// slotFree returns the slot that is to be done now, "" if none was asked for. The
// error is *store.SlotError if it is done, and store.ErrNotFound if the lease has
// no record that shows the store's clock.
func (j *job) slotFree(ctx context.Context) (slot string, err error) {
	if slot, err = j.f.slotKey(ctx, j.st); err != nil || slot == "" {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	s, err := j.st.(store.Slotter).Slot(ctx, j.f.name, slot)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return slot, nil
	case err != nil:
		return "", err
	}
	return "", &store.SlotError{Slot: s}
}

// slotDone records the slot under the term, and tries again while the term lasts.
func (j *job) slotDone(t *tenure.Term, slot string) error {
	for {
		ctx, cancel := context.WithTimeout(t.Context(), requestTime)
		err := j.st.(store.Slotter).Done(ctx, t.Grant(), slot)
		cancel()
		if err == nil {
			return nil
		}
		switch store.Classify(err) {
		case store.CodeNoContact, store.CodeBusy:
			select {
			case <-time.After(200 * time.Millisecond):
				continue
			case <-t.Context().Done():
			}
		}
		return failf(exitLost, "the command succeeded, but slot %q of %q could not be recorded, so it may run again: %w", slot, j.f.name, err)
	}
}
