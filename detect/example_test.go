package detect_test

import (
	"fmt"
	"time"

	"github.com/tenurehq/tenure/detect"
)

// A control plane watches its nodes in a slice. Its clock is its own; instants
// are converted into listened time, so that its pauses are nobody's silence.
func Example() {
	fixed, err := detect.NewFixed(detect.FixedConfig{Interval: 10 * time.Second}) // suspect after 3
	if err != nil {
		panic(err)
	}
	observer, err := detect.NewObserver(detect.ObserverConfig{}, 0)
	if err != nil {
		panic(err)
	}
	nodes := make([]detect.Fixed, 2)
	for i := range nodes {
		nodes[i] = fixed
		nodes[i].Begin(observer.At(0))
	}

	for clock := time.Duration(0); clock <= 2*time.Minute; clock += time.Second {
		if clock > 20*time.Second && clock < 80*time.Second {
			continue // stopped
		}
		gap := observer.Tick(clock)
		if gap.Restart {
			fmt.Println(clock, "missed", gap.Missed)
			for i := range nodes {
				nodes[i].Begin(observer.At(clock))
			}
		}
		if clock%(10*time.Second) == 0 {
			nodes[0].Observe(observer.At(clock)) // node 1 says nothing
		}
	}
	for i := range nodes {
		fmt.Println(i, nodes[i].Explain(observer.At(2*time.Minute+time.Second)))
	}
	// Output:
	// 1m20s missed 58.5s
	// 0 alive: last beat 1s ago; suspect after 30s (3 missed beats of 10s)
	// 1 suspect: no beat since the watch began 41s ago; suspect after 30s (3 missed beats of 10s)
}
