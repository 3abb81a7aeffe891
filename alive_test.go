package tenure_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
)

// TestAlive: a keeper whose store does not answer is alive, and one whose loop does
// not go round is not.
func TestAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &faults{Store: memory.New()}
		k, err := tenure.NewKeeper(f, tenure.Config{TTL: 30 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		alive := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return k.Alive(ctx)
		}
		if err := alive(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("before Run: got %v, want that it does not answer", err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- k.Run(ctx) }()
		if err := alive(); err != nil {
			t.Errorf("without terms: got %v", err)
		}
		if _, err := k.Acquire(t.Context(), "job"); err != nil {
			t.Fatal(err)
		}
		silent := func(ctx context.Context, _ []store.Grant) ([]store.Result, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		f.renew.Store(&silent)
		time.Sleep(15 * time.Second)
		if err := alive(); err != nil {
			t.Errorf("while the store is silent: got %v", err)
		}
		stop()
		<-ended
		if err := alive(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after Run: got %v, want that it does not answer", err)
		}
	})
}
