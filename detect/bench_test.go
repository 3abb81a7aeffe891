package detect_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tenurehq/tenure/detect"
)

// benchmark measures one node, and many visited in turn, where memory is part of
// the figure.
func benchmark[D any, P interface {
	*D
	detect.Detector
}](b *testing.B, proto D) {
	const interval = 10 * time.Second
	for _, nodes := range []int{1, 100_000} {
		slots := make([]D, nodes)
		for i := range slots {
			slots[i] = proto
		}
		run := func(what string, f func(d P, i int)) {
			b.Run(fmt.Sprintf("%s/nodes=%d", what, nodes), func(b *testing.B) {
				b.ReportAllocs()
				for i, k := 0, 0; b.Loop(); i++ {
					f(&slots[k], i)
					if k++; k == nodes {
						k = 0
					}
				}
			})
		}
		at, suspects, sum := time.Duration(0), 0, 0.0
		run("observe", func(d P, i int) {
			if i%nodes == 0 {
				at += interval
			}
			d.Observe(at)
		})
		run("state", func(d P, _ int) {
			if d.State(at+interval) == detect.Suspect {
				suspects++
			}
		})
		run("suspicion", func(d P, _ int) { sum += d.Suspicion(at + interval) })
		run("explain", func(d P, _ int) { _ = d.Explain(at).String() })
	}
}

func BenchmarkFixed(b *testing.B) { benchmark(b, must(detect.NewFixed(detect.FixedConfig{}))) }
func BenchmarkPhi(b *testing.B)   { benchmark(b, must(detect.NewPhi(detect.PhiConfig{}))) }
func BenchmarkChen(b *testing.B)  { benchmark(b, must(detect.NewChen(detect.ChenConfig{}))) }
