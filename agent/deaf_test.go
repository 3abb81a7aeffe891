package agent_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/agent"
	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

// deafness loses answers on their way to the agent, as a cut of one direction does.
type deafness struct {
	store.Store
	agent.Server
	on atomic.Bool
}

func lost[T any](d *deafness, v T, err error) (T, error) {
	if err == nil && d.on.Load() {
		var none T
		return none, store.ErrUnavailable
	}
	return v, err
}

func (d *deafness) Acquire(ctx context.Context, req store.Request) (store.Record, error) {
	rec, err := d.Store.Acquire(ctx, req)
	return lost(d, rec, err)
}

func (d *deafness) Beat(ctx context.Context, b *api.Beat) (*api.BeatReply, error) {
	reply, err := d.Server.Beat(ctx, b)
	return lost(d, reply, err)
}

// An agent that is heard and hears nothing gives its lease up, and takes no other
// one before it hears a server again.
func TestDeafAgentTakesNoLease(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := &deafness{}
	n := r.start(func(c *agent.Config) {
		d.Store, d.Server = c.Store, c.Server
		c.Store, c.Server = d, d
	})
	lease := func() store.Record {
		rec, err := r.srv.Store().Get(t.Context(), fleet.LeaseName("n1"))
		if err != nil {
			t.Fatal(err)
		}
		return rec
	}
	until(t, "the lease", mayAct(n))
	d.on.Store(true)
	until(t, "the loss", func() bool { return n.saw(agent.EventLost) })
	until(t, "the expiry", func() bool { return lease().Status != store.Held })
	beats := len(r.srv.Beats())
	over := time.Now().Add(2 * ttl)
	until(t, "two more TTLs, and beats in them", func() bool {
		if rec := lease(); rec.Status == store.Held {
			t.Fatalf("the lease is held with token %s by an agent that cannot know it", rec.Token)
		}
		return time.Now().After(over) && len(r.srv.Beats()) > beats+4
	})
	d.on.Store(false)
	until(t, "the lease again", mayAct(n))
	if rec := lease(); rec.Token != 2 {
		t.Errorf("got token %s, want 2", rec.Token)
	}
}
