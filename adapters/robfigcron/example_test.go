package robfigcron_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/adapters/robfigcron"
	"github.com/tenurehq/tenure/store/memory"
)

// Every instance runs this; each scheduled time is done by one of them.
func Example() {
	st := memory.New() // store/sqlite or store/postgres in earnest
	k, err := tenure.NewKeeper(st, tenure.Config{TTL: 30 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()

	c := cron.New(cron.WithLocation(time.UTC))
	daily, err := cron.ParseStandard("0 3 * * *")
	if err != nil {
		log.Fatal(err)
	}
	report := func(ctx context.Context, t *tenure.Term) error {
		if token, ok := t.MayAct(); ok { // before each step that must not be done twice
			fmt.Printf("write with token %s\n", token)
		}
		return context.Cause(ctx) // the term is over: why
	}
	j, err := robfigcron.New(k, "report", report, robfigcron.Config{Schedule: daily, Location: c.Location()})
	if err != nil {
		log.Fatal(err)
	}
	c.Schedule(daily, j)
	c.Start()
	j.Run() // what the cron does at three o'clock
	j.Run() // and what it does on the other instances

	<-c.Stop().Done() // waits for runs
	cancel()          // then the keeper
	if err := <-ended; err != nil {
		log.Print(err)
	}
	// Output: write with token 1
}
