package gocron_test

import (
	"context"
	"fmt"
	"log"
	"time"

	cron "github.com/go-co-op/gocron/v2"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/adapters/gocron"
	"github.com/tenurehq/tenure/store/memory"
)

// Every instance runs this; one of them runs the job at each tick.
func ExampleLocker() {
	st := memory.New() // store/sqlite or store/postgres in earnest
	k, err := tenure.NewKeeper(st, tenure.Config{TTL: 30 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()

	l := gocron.NewLocker(k, 50*time.Second) // of a minute
	s, err := cron.NewScheduler(cron.WithDistributedLocker(l))
	if err != nil {
		log.Fatal(err)
	}
	done := make(chan struct{})
	_, err = s.NewJob(
		cron.DurationJob(time.Minute),
		l.Task(func(ctx context.Context, t *tenure.Term) error {
			if token, ok := t.MayAct(); ok { // before each step that must not be done twice
				fmt.Printf("write with token %s\n", token)
			}
			close(done)
			return ctx.Err() // the term is over: stop
		}),
		cron.WithName("report"), // of the lease, too
		cron.WithStartAt(cron.WithStartImmediately()),
	)
	if err != nil {
		log.Fatal(err)
	}
	s.Start()
	<-done

	if err := s.Shutdown(); err != nil { // waits for runs
		log.Print(err)
	}
	cancel() // then the keeper
	if err := <-ended; err != nil {
		log.Print(err)
	}
	// Output: write with token 1
}

// The instance that holds the lease "scheduler" runs all jobs.
func ExampleElector() {
	k, err := tenure.NewKeeper(memory.New(), tenure.Config{})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- k.Run(ctx) }()
	e := gocron.NewElector(k, "scheduler")
	go func() { ended <- e.Run(ctx) }()

	s, err := cron.NewScheduler(cron.WithDistributedElector(e))
	if err != nil {
		log.Fatal(err)
	}
	done := make(chan fmt.Stringer, 10)
	_, err = s.NewJob(
		cron.DurationJob(100*time.Millisecond),
		e.Task(func(_ context.Context, t *tenure.Term) error {
			done <- t.Token()
			return nil
		}),
		cron.WithLimitedRuns(1),
	)
	if err != nil {
		log.Fatal(err)
	}
	s.Start()
	fmt.Printf("ran under token %s\n", <-done)

	if err := s.Shutdown(); err != nil {
		log.Print(err)
	}
	cancel()
	for range 2 {
		if err := <-ended; err != nil {
			log.Print(err)
		}
	}
	// Output: ran under token 1
}
