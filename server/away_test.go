package server

import (
	"testing"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
)

// TestComesBackToTheOnlyNode: what a drain moved away, and found no other node, comes
// back when the node is resumed.
func TestComesBackToTheOnlyNode(t *testing.T) {
	t.Parallel()
	b := newBed(t, braking(), HTTPConfig{})
	n := b.join("n1")
	w := b.submit("w", true, "n1")
	report := func(state fleet.WorkState) {
		n.beat.Work = []api.WorkReport{{Work: "w", Token: w.Token, Lease: n.token, State: state}}
		n.next()
		n.beat.Work = nil
	}
	report(fleet.Running)
	must[api.Node](b, "POST", "/v1/nodes/n1/drain", api.DrainRequest{Actor: "a", Reason: "r", Move: true})
	eventually(t, "it is to stop", func() bool {
		n.next()
		return b.work("w").State == fleet.Stopping
	})
	report(fleet.Stopped)
	eventually(t, "drained, with the item waiting", func() bool {
		n.next()
		return must[api.Node](b, "GET", "/v1/nodes/n1", nil).Intent == fleet.Drained && b.work("w").State == fleet.Pending
	})
	must[api.Node](b, "POST", "/v1/nodes/n1/resume", api.ResumeRequest{Actor: "a", What: "all"})
	eventually(t, "it is back", func() bool {
		n.next()
		w := b.work("w")
		return w.State == fleet.Placed && w.Owner == "n1"
	})
}
