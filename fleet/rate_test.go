package fleet_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fleet"
)

func TestRate(t *testing.T) {
	t.Parallel()
	rate := fleet.Rate{Burst: 3, Every: time.Second}
	var b fleet.Bucket
	var wait time.Duration
	for i := range 3 {
		if b, wait = rate.Take(b, t0); wait != 0 {
			t.Fatalf("take %d: got to wait %v", i, wait)
		}
	}
	full, wait := rate.Take(b, t0)
	if wait != time.Second || full != b {
		t.Errorf("the fourth: got to wait %v, and the bucket changed: %v", wait, full != b)
	}
	if b, wait = rate.Take(b, t0.Add(wait)); wait != 0 {
		t.Errorf("after the wait: got to wait %v", wait)
	}
	if _, wait = rate.Take(b, t0.Add(-time.Hour)); wait > 3*time.Second {
		t.Errorf("clock set back: got to wait %v, want one bucket at most", wait)
	}
	for range 100 {
		if b, wait = (fleet.Rate{}).Take(b, t0); wait != 0 {
			t.Fatalf("no limit: got to wait %v", wait)
		}
	}
}

// However it is asked, no span of time sees more than the burst and one each Every.
func TestRateNeverMore(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 2))
	for range 50 {
		rate := fleet.Rate{Burst: 1 + r.IntN(5), Every: time.Duration(1+r.IntN(1000)) * time.Millisecond}
		var b fleet.Bucket
		var through []time.Time
		now := t0
		for range 400 {
			now = now.Add(time.Duration(r.ExpFloat64() * float64(rate.Every) / 2))
			var wait time.Duration
			if b, wait = rate.Take(b, now); wait == 0 {
				through = append(through, now)
			} else if _, again := rate.Take(b, now.Add(wait)); again != 0 {
				t.Fatalf("seed %d: waited %v as told, and again %v", seed, wait, again)
			}
		}
		for i := range through {
			for j := i; j < len(through); j++ {
				if most := rate.Burst + int(through[j].Sub(through[i])/rate.Every); j-i+1 > most {
					t.Fatalf("seed %d: %d within %v, want at most %d of %+v", seed, j-i+1, through[j].Sub(through[i]), most, rate)
				}
			}
		}
	}
}
