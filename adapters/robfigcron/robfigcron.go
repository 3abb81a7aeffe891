// Package robfigcron runs jobs of robfig/cron v3 under terms of a lease, so that
// of several instances with the same schedule one runs each job.
//
//	k, err := tenure.NewKeeper(st, tenure.Config{})
//	go k.Run(ctx)
//	c := cron.New()
//	daily, err := cron.ParseStandard("0 3 * * *")
//	j, err := robfigcron.New(k, "report", report, robfigcron.Config{Schedule: daily, Location: c.Location()})
//	c.Schedule(daily, j)
//
// # Promised
//
// The job's function is called under a term of the lease alone, and the lease is
// given back after it has returned. Its context ends with the term, with a
// *tenure.LostError as its cause, before another instance can begin; a process
// that was paused learns of it before it runs on (P3, P4). No run begins while an
// earlier one of the same Job has not returned.
//
// With Config.Schedule each scheduled time is a slot: the store remembers
// that it is done, and it is done at most once, whatever the clocks of the
// instances show. While one instance runs, the others wait; if its run fails,
// or it is lost, one of them runs the same slot, until the next scheduled time.
//
// Without it a tick that finds the lease held is skipped.
//
// # Not promised
//
// A run that fails or loses its term may have done part of its work, and the next
// run of the slot does that again: give the token to whoever stores it (package
// fence). What the function has done is not undone if the term is lost between
// its return and the slot's entry. A slot that every instance missed, as all
// were down at that time, is not made up for.
package robfigcron

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
)

var (
	// ErrRunning reports a tick that was skipped because an earlier run of the
	// Job has not returned in this process.
	ErrRunning = errors.New("robfigcron: an earlier run has not returned in this process")
	// ErrSchedule reports a schedule whose times cannot be slots.
	ErrSchedule = errors.New("robfigcron: the schedule's times differ between instances")
)

// Func is the work of a job. ctx ends with the term t, and when the Keeper is
// shut down. As under tenure.Do, t.MayAct gives the token before each step that
// must not be done twice.
type Func func(ctx context.Context, t *tenure.Term) error

// Config sets how a job shares its ticks. The zero value of each field means its default.
type Config struct {
	// Schedule, if set, is the schedule on which the cron runs the job, and makes
	// each of its times a slot. Its Next must depend on the given time alone, as
	// that of a parsed expression does: cron.ConstantDelaySchedule ("@every
	// 5m"), which counts from the start of its process, is refused ("*/5 * * * *").
	Schedule cron.Schedule

	// Location is the cron's (Cron.Location), in which it reads the schedule.
	// Default time.Local. It should be the same on all instances.
	Location *time.Location

	// Hold is for jobs without a Schedule: the least time between the beginnings of
	// two runs, kept by the store (tenure.WithMinHold). It should be longer than the
	// clocks of the instances differ, so that the tick of a late one finds it
	// done, and shorter than the time between two ticks. Default none. With a
	// Schedule it is refused, as a term that finds its slot done would hold up the next.
	Hold time.Duration

	// Options are those of Keeper.Acquire, for every run.
	Options []tenure.AcquireOption

	// OnEnd is called after each tick with its outcome: nil if the job ran and
	// its slot is done; errors that match store.ErrHeld (another instance runs
	// it, or ran it less than Hold ago), store.ErrSlotDone or ErrRunning if it
	// was skipped; tenure.ErrLost if its term was lost; the function's own error.
	OnEnd func(error)
}

// Job is a cron.Job: each tick runs a function under a term of its own. It is safe
// for concurrent use. Add it to one cron.
type Job struct {
	k     *tenure.Keeper
	name  string
	f     Func
	cfg   Config
	slots store.Slotter // nil without a schedule

	turn    chan struct{} // holds one value while a tick waits or runs
	working atomic.Bool   // the tick whose turn it is has a term
}

var _ cron.Job = (*Job)(nil)

// New returns a Job that runs f under terms of the lease name through k, which must
// be running when the job is. The error matches store.ErrInvalid for a bad
// name or hold, ErrSchedule, or store.ErrUnsupported if the store cannot remember slots.
func New(k *tenure.Keeper, name string, f Func, cfg Config) (*Job, error) {
	if err := store.CheckName(name); err != nil {
		return nil, err
	}
	if cfg.Hold < 0 || cfg.Hold > 0 && cfg.Schedule != nil {
		return nil, &store.InvalidError{Field: "hold", Value: cfg.Hold.String(), Rule: "0s or more, and 0s with a schedule"}
	}
	if cfg.Location == nil {
		cfg.Location = time.Local
	}
	opts := append([]tenure.AcquireOption{}, cfg.Options...)
	if cfg.Hold > 0 {
		opts = append(opts, tenure.WithMinHold(cfg.Hold))
	}
	cfg.Options = opts
	j := &Job{k: k, name: name, f: f, cfg: cfg, turn: make(chan struct{}, 1)}
	if cfg.Schedule == nil {
		return j, nil
	}
	switch cfg.Schedule.(type) {
	case cron.ConstantDelaySchedule, *cron.ConstantDelaySchedule:
		return nil, fmt.Errorf("%w: \"@every\" counts from the start of each process; write the times, as in \"*/5 * * * *\"", ErrSchedule)
	}
	var ok bool
	if j.slots, ok = k.Store().(store.Slotter); !ok {
		return nil, fmt.Errorf("robfigcron: %w: this store (%s) cannot remember which times are done", store.ErrUnsupported, k.Store().Features().Backend)
	}
	return j, nil
}

// Wrap returns a wrapper for jobs that know nothing of terms: the wrapped job
// runs as a Func would, but is not told when its term is over. Errors are those
// of New. Wrap one job with it: what it wraps shares the lease, and the slots.
func Wrap(k *tenure.Keeper, name string, cfg Config) (cron.JobWrapper, error) {
	j, err := New(k, name, nil, cfg)
	if err != nil {
		return nil, err
	}
	return func(inner cron.Job) cron.Job {
		f := func(context.Context, *tenure.Term) error {
			inner.Run()
			return nil
		}
		return &Job{k: j.k, name: j.name, f: f, cfg: j.cfg, slots: j.slots, turn: make(chan struct{}, 1)}
	}, nil
}

// Run is one tick. It is for cron to call, and returns when the run has ended or
// was skipped. Called by hand it is for the last scheduled time.
func (j *Job) Run() {
	now := time.Now()
	err := ErrRunning
	if j.begin() {
		defer func() { <-j.turn }()
		err = j.tick(now)
	}
	switch log := j.k.Config().Logger; {
	case err == nil:
	case errors.Is(err, store.ErrHeld), errors.Is(err, store.ErrSlotDone), errors.Is(err, tenure.ErrClosed):
		log.Debug("tick is skipped", "lease", j.name, "err", err)
	default:
		log.Warn("tick has failed", "lease", j.name, "err", err)
	}
	if j.cfg.OnEnd != nil {
		j.cfg.OnEnd(err)
	}
}

// begin reports whether it is this tick's turn. It waits for an earlier tick
// that has no term yet, since that one gives up at the time of this one.
func (j *Job) begin() bool {
	if j.slots != nil && !j.working.Load() {
		j.turn <- struct{}{}
		return true
	}
	select {
	case j.turn <- struct{}{}:
		return true
	default:
		return false
	}
}

// tick runs the function if that is this instance's to do. now is when the tick came.
func (j *Job) tick(now time.Time) error {
	if j.slots == nil {
		t, err := j.k.TryAcquire(context.Background(), j.name, j.cfg.Options...)
		if err != nil {
			return err
		}
		return j.under(t, "")
	}
	at, next, err := around(j.cfg.Schedule, now.In(j.cfg.Location))
	if err != nil {
		return err
	}
	slot := at.UTC().Format(time.RFC3339Nano)
	ctx, cancel := context.Background(), func() {}
	if !next.IsZero() { // it is a tick of its own
		ctx, cancel = context.WithDeadline(ctx, next)
	}
	defer cancel()
	if err := j.open(ctx, slot); errors.Is(err, store.ErrSlotDone) {
		return err // no need to wait
	}
	t, err := j.k.Acquire(ctx, j.name, j.cfg.Options...)
	if err != nil {
		return err
	}
	return j.under(t, slot)
}

// under runs the function under t, for slot unless that is "", and gives t back.
func (j *Job) under(t *tenure.Term, slot string) (err error) {
	j.working.Store(true)
	defer j.working.Store(false)
	defer func() { // after a panic, too
		if rerr := t.Release(context.Background()); err == nil && errors.Is(rerr, tenure.ErrLost) {
			err = rerr // else the lease lapses by itself, and the Keeper has told
		}
	}()
	if slot != "" {
		if err := j.ask(t, func(ctx context.Context) error { return j.open(ctx, slot) }); err != nil {
			return err
		}
	}
	if err := t.Err(); err != nil { // a pause since it was won shows here
		return err
	}
	if err := j.f(t.Context(), t); err != nil {
		return fmt.Errorf("under %q (token %s): %w", t.Name(), t.Token(), err)
	}
	if err := t.Err(); err != nil || slot == "" {
		return err
	}
	err = j.ask(t, func(ctx context.Context) error { return j.slots.Done(ctx, t.Grant(), slot) })
	if err != nil {
		return fmt.Errorf("the job has run, but %s of %q could not be noted as done, so it may run again: %w", slot, t.Name(), err)
	}
	return nil
}

// open returns nil if the slot is not done, and *store.SlotError if it is.
func (j *Job) open(ctx context.Context, slot string) error {
	ctx, cancel := context.WithTimeout(ctx, j.k.Config().Interval)
	defer cancel()
	done, err := j.slots.Slot(ctx, j.name, slot)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case err != nil:
		return err
	}
	return &store.SlotError{Slot: done}
}

// ask puts a question to the store, again while it does not decide and t lasts.
func (j *Job) ask(t *tenure.Term, question func(context.Context) error) error {
	cfg := j.k.Config()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), cfg.Interval)
		err := question(ctx)
		cancel()
		switch store.Classify(err) {
		case store.CodeNoContact, store.CodeBusy:
		default:
			return err
		}
		select {
		case <-time.After(min(cfg.Interval/10, time.Second)):
		case <-t.Context().Done():
			return errors.Join(context.Cause(t.Context()), err)
		}
	}
}
