package fleet_test

import (
	"fmt"
	"testing"

	"github.com/tenurehq/tenure/fleet"
)

// slots is a node with nothing but slots.
func slots(id string, of int64) fleet.Node {
	return with(good(id), func(n *fleet.Node) {
		n.Facts.Capacity = fleet.Resources{"slots": of}
		n.Reserved = fleet.Resources{}
	})
}

// Exactly full is full, and not earlier: 3 × 40 slots take 120 of 121 works, and
// the last one is told for each node why.
func TestPlaceC56(t *testing.T) {
	t.Parallel()
	for _, strategy := range []fleet.Strategy{"", fleet.MostFree, fleet.Spread, fleet.BinPack} {
		nodes := []fleet.Node{slots("n1", 40), slots("n2", 40), slots("n3", 40)}
		req := fleet.Request{Resources: fleet.Resources{"slots": 1}, Strategy: strategy}
		placed, refused := 0, 0
		for range 121 {
			ranked, counts := fleet.Rank(nodes, req, fleet.Conditions{})
			if len(ranked) == 0 {
				refused++
				equal(t, "counts", counts, map[fleet.Code]int{"insufficient_slots": 3})
				for _, n := range nodes {
					ex := fleet.Exclusions(n, req, t0, fleet.Conditions{})
					if len(ex) != 1 {
						t.Fatalf("%s: got %v, want one reason", n.ID, ex)
					}
					contains(t, n.ID, ex[0].Text, "full 40/40")
				}
				continue
			}
			n := &nodes[ranked[0].Index]
			n.Reserved["slots"]++
			n.Work++
			placed++
		}
		if placed != 120 || refused != 1 {
			t.Errorf("%q: got %d placed and %d refused, want 120 and 1", strategy, placed, refused)
		}
		// A finished work frees its place at once.
		nodes[1].Reserved["slots"]--
		if ranked, _ := fleet.Rank(nodes, req, fleet.Conditions{}); len(ranked) != 1 || ranked[0].Node != "n2" {
			t.Errorf("%q: got %v, want n2", strategy, ranked)
		}
	}
}

// Who lacks the label never wins, also when nobody else is left, and also when it
// loses the label while it has the work.
func TestPlaceC58(t *testing.T) {
	t.Parallel()
	req := fleet.Request{Labels: map[string]string{"role": "scheduler"}, Features: []string{"cron"}}
	able := func(n *fleet.Node) {
		n.Facts.Labels = map[string]string{"role": "scheduler"}
		n.Facts.Features = []string{"cron"}
	}
	empty := with(good("a-first-by-name"), func(n *fleet.Node) { n.Facts.Labels, n.Facts.Features = nil, nil })
	nodes := []fleet.Node{empty, with(good("n2"), able), with(good("n3"), able)}
	for left := 3; left > 0; left-- {
		ranked, counts := fleet.Rank(nodes[:left], req, fleet.Conditions{})
		if len(ranked) != left-1 || counts[fleet.CodeMissingLabel] != 1 || counts[fleet.CodeMissingFeature] != 1 {
			t.Errorf("%d left: got %v, %v, want all but the first", left, ranked, counts)
		}
	}
	nodes[1].Facts.Labels = nil
	if ranked, _ := fleet.Rank(nodes, req, fleet.Conditions{}); len(ranked) != 1 || ranked[0].Node != "n3" {
		t.Errorf("label removed: got %v, want n3", ranked)
	}
}

func TestRankStrategies(t *testing.T) {
	t.Parallel()
	node := func(id string, memory, used int64, work int) fleet.Node {
		return with(slots(id, 10), func(n *fleet.Node) {
			n.Facts.Capacity["memory_mb"] = memory
			n.Reserved["memory_mb"] = used
			n.Work = work
		})
	}
	big, small, tie := node("big", 1000, 600, 1), node("small", 100, 10, 3), node("tie", 100, 10, 2)
	plain := with(slots("plain", 10), func(n *fleet.Node) { n.Work = 0 })
	for _, tc := range []struct {
		what  string
		nodes []fleet.Node
		req   fleet.Request
		want  []string
	}{
		{"most free as a share, ties by items", []fleet.Node{big, small, tie}, fleet.Request{}, []string{"tie", "small", "big"}},
		{"after placement", []fleet.Node{big, small}, fleet.Request{Resources: fleet.Resources{"memory_mb": 90}}, []string{"big", "small"}},
		{"by memory, whatever else is asked", []fleet.Node{big, small}, fleet.Request{Resources: fleet.Resources{"slots": 1}}, []string{"small", "big"}},
		{"without memory nothing is free", []fleet.Node{plain, big}, fleet.Request{Resources: fleet.Resources{"slots": 1}}, []string{"big", "plain"}},
		{"by the first named if nobody has memory", []fleet.Node{with(slots("x", 10), func(n *fleet.Node) { n.Reserved["slots"] = 5 }), with(slots("y", 10), func(n *fleet.Node) { n.Work = 9 })},
			fleet.Request{Resources: fleet.Resources{"slots": 1}}, []string{"y", "x"}},
		{"spread", []fleet.Node{small, big, tie}, fleet.Request{Strategy: fleet.Spread}, []string{"big", "tie", "small"}},
		{"bin-pack", []fleet.Node{small, big, tie}, fleet.Request{Strategy: fleet.BinPack}, []string{"big", "tie", "small"}},
		{"by id at last", []fleet.Node{slots("b", 1), slots("a", 1)}, fleet.Request{}, []string{"a", "b"}},
		{"nobody", nil, fleet.Request{}, nil},
	} {
		ranked, _ := fleet.Rank(tc.nodes, tc.req, fleet.Conditions{})
		var got []string
		for _, c := range ranked {
			got = append(got, c.Node)
			if c.Free < 0 || c.Free > 1 {
				t.Errorf("%s: got free %v, want 0 to 1", tc.what, c.Free)
			}
		}
		same(t, tc.what, got, tc.want)
	}
}

func BenchmarkRank(b *testing.B) {
	var nodes []fleet.Node
	for i := range 10_000 {
		nodes = append(nodes, with(good(fmt.Sprintf("n%05d", i)), func(n *fleet.Node) { n.Reserved["slots"] = int64(i % 41) }))
	}
	req := fleet.Request{Resources: fleet.Resources{"slots": 1}}
	for b.Loop() {
		fleet.Rank(nodes, req, fleet.Conditions{})
	}
}
