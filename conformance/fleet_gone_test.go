//go:build linux

package conformance_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
)

// A host that an operator has given up comes back. What was pinned to it has ended, with
// a larger token, so its copy is ended there; and while that lives, however soon the
// node is drained, it is not drained.
func TestFleetRemovedHostReturns(t *testing.T) {
	t.Parallel()
	for _, backend := range fleetBackends {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			b := newFleetBed(t, backend, 2, 1)
			ctx, h := t.Context(), b.hosts[0]
			if _, err := b.client.Submit(ctx, api.SubmitRequest{Actor: "test", Spec: fleet.Spec{
				ID: "pinned", GraceMS: fleetSoon.Milliseconds(), Request: fleet.Request{Node: h.node},
				Command: []string{"/bin/sh", "-c", "trap 'sleep 3; exit 0' TERM; while :; do sleep 0.05; done"},
			}}); err != nil {
				t.Fatal(err)
			}
			b.eventually("the item runs", func() bool { return b.work("pinned").State == fleet.Running })
			pid := h.minded()[0].Command.PID

			h.signal(syscall.SIGSTOP)
			b.eventually("the node is removed", func() bool {
				_, err := b.client.RemoveNode(ctx, h.node, "test", "burnt", true)
				return err == nil
			})
			if w := b.work("pinned"); w.State != fleet.Failed || w.Token != 2 || !lives(pid) {
				t.Fatalf("got %s with token %s, its process lives: %t; want failed, 2, true", w.State, w.Token, lives(pid))
			}
			h.signal(syscall.SIGCONT)
			b.eventually("the node is back, and to be drained", func() bool {
				_, err := b.client.Drain(ctx, h.node, api.DrainRequest{Actor: "test", Reason: "now it shall go"})
				var refused *api.Error
				if errors.As(err, &refused) && refused.Code != string(fleet.CodeNoSuchNode) {
					t.Fatal(err)
				}
				return err == nil
			})
			named := false
			b.eventually("the node is drained", func() bool {
				lived := lives(pid) // before the question
				why, err := b.client.WhyNode(ctx, h.node)
				if err != nil {
					return false
				}
				for _, l := range why.Leftovers {
					named = named || l == fleet.Leftover{Work: "pinned", Token: 1, PID: pid}
				}
				drained := why.Node.Intent == fleet.Drained
				if drained && lives(pid) {
					t.Fatalf("drained while process %d lives", pid)
				}
				return drained && !lived
			})
			if !named {
				t.Error("nobody was told what the drain waited for")
			}
		})
	}
}
