package memory_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/store/memory"
	"github.com/tenurehq/tenure/store/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		var stepped atomic.Int64
		st := memory.NewWith(memory.Config{Clock: func() time.Duration { return clock.Boot() + time.Duration(stepped.Load()) }})
		return storetest.Harness{
			Store:     st,
			MinTTL:    20 * time.Millisecond,
			Writes:    func(*testing.T) int64 { return st.Writes() },
			StepClock: func(_ *testing.T, d time.Duration) { stepped.Add(int64(d)) },
		}
	})
}
