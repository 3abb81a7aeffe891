// Package gocron lets several schedulers of gocron v2 share their jobs: a
// [Locker] so that one of them runs a job, an [Elector] so that one of them runs
// all jobs.
//
//	k, err := tenure.NewKeeper(st, tenure.Config{})
//	go k.Run(ctx)
//	l := gocron.NewLocker(k, 50*time.Second)
//	s, err := cron.NewScheduler(cron.WithDistributedLocker(l))
//	s.NewJob(cron.CronJob("* * * * *", false), l.Task(report), cron.WithName("report"))
//
// # Promised
//
// A run begins only under a term of the lease that is named like the job
// (Locker), or of the one lease of the scheduler (Elector), and the lease is
// given back after the run has ended. No run begins in a process in which an
// earlier one of that lease has not ended, even if its term was lost. The
// context of a [Func] ends with the term, with a *tenure.LostError as its cause,
// before another instance can begin; a process that was paused learns of it
// before it runs on (P3, P4). A run whose term was lost is counted as failed.
//
// # Not promised
//
// A function that ignores its context goes on, and a write that is on its way
// when the term ends cannot be called back: give the token to whoever stores it
// (package fence). A job that is not wrapped by Task begins under a term all the
// same, but is not told of its end.
//
// gocron has no name for a tick. Instances whose clocks differ reach the same
// tick one after the other, and a short run is over when the second comes:
// that is what the hold of NewLocker is for. What must be done once a day,
// however often it is tried, needs a slot (adapters/robfigcron, or tenure run
// --once-per).
package gocron

import (
	"context"
	"errors"

	"github.com/tenurehq/tenure"
)

// Func is the work of a job. ctx ends with the term t, when the job is removed,
// and when the scheduler, the Keeper or the Elector is shut down. As under tenure.Do, t.MayAct gives the
// token before each step that must not be done twice.
type Func func(ctx context.Context, t *tenure.Term) error

var (
	// ErrRunning reports a job that was skipped because an earlier run of it has
	// not ended in this process.
	ErrRunning = errors.New("gocron: an earlier run has not ended in this process")
	// ErrNoTerm reports a job that was not run, or is not to be, because this
	// instance holds no term for it.
	ErrNoTerm = errors.New("gocron: this instance holds no term")
)

// under calls f with a context that ends with job and with held, the context of
// the term t or one derived from it.
func under(job, held context.Context, t *tenure.Term, f Func) error {
	work, cancel := context.WithCancelCause(job)
	defer cancel(nil)
	stop := context.AfterFunc(held, func() { cancel(context.Cause(held)) })
	defer stop()
	if err := t.Err(); err != nil { // a pause since it was won shows here
		return err
	}
	if err := f(work, t); err != nil {
		return err
	}
	return t.Err()
}
