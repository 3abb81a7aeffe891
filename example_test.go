package tenure_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
)

// One keeper for a process; Run in the background; a term for a piece of work,
// given back after the work has ended.
func Example() {
	st := memory.New() // store/sqlite or store/postgres in earnest
	k, err := tenure.NewKeeper(st, tenure.Config{TTL: 30 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()

	term, err := k.Acquire(ctx, "nightly-invoice") // waits; TryAcquire does not
	if err != nil {
		log.Fatal(err)
	}
	if token, ok := term.MayAct(); ok { // before each step that must not be done twice
		fmt.Printf("write with token %s\n", token)
	}
	if err := term.Release(ctx); err != nil {
		log.Print(err)
	}

	cancel()
	if err := <-ended; err != nil {
		log.Print(err)
	}
	// Output: write with token 1
}

// Do runs work under one term after the other: if a term is lost it waits for
// the work to stop and contends again.
func ExampleDo() {
	k, err := tenure.NewKeeper(memory.New(), tenure.Config{})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()

	err = tenure.Do(ctx, k, "reaper", func(ctx context.Context, t *tenure.Term) error {
		for i := range 3 {
			if ctx.Err() != nil {
				return context.Cause(ctx) // the term is over: why
			}
			fmt.Printf("round %d under token %s\n", i, t.Token())
		}
		return nil // done: the term is released
	})
	fmt.Println(err)

	cancel()
	<-ended
	// Output:
	// round 0 under token 1
	// round 1 under token 1
	// round 2 under token 1
	// <nil>
}

// A try that must not wait learns who holds the lease.
func ExampleKeeper_TryAcquire() {
	st := memory.New()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	var keepers []*tenure.Keeper
	for _, host := range []string{"a", "b"} {
		k, err := tenure.NewKeeper(st, tenure.Config{Host: host})
		if err != nil {
			log.Fatal(err)
		}
		go func() { ended <- k.Run(ctx) }()
		keepers = append(keepers, k)
	}
	term, err := keepers[0].TryAcquire(ctx, "import")
	if err != nil {
		log.Fatal(err)
	}
	_, err = keepers[1].TryAcquire(ctx, "import")
	var held *store.HeldError
	if errors.As(err, &held) {
		fmt.Printf("held under token %s\n", held.Record.Token)
	}
	_ = term.Release(ctx)
	cancel()
	<-ended
	<-ended
	// Output: held under token 1
}
