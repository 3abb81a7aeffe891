package agent_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"testing"

	"github.com/tenurehq/tenure/agent"
	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/store"
)

// forbid has the server refuse every request.
func (r *rig) forbid(why string) {
	r.srv.Fail(func(string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			e := api.Refuse(api.CodeForbidden, "%s", why)
			w.Header().Set("Content-Type", api.ProblemType)
			w.WriteHeader(e.Status)
			_ = json.NewEncoder(w).Encode(e.Problem())
		}
	})
}

// count returns how many events of a kind there were.
func (n *node) count(kind agent.EventKind) (count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.events {
		if e.Kind == kind {
			count++
		}
	}
	return count
}

// A node that the server will not have ends at once, with the reason.
func TestRefusedAtStart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.forbid("this token is bound to another node")
	n := r.start()
	<-n.done
	var refused *agent.RefusedError
	if !errors.As(n.err, &refused) || !errors.Is(n.err, store.ErrPermission) || refused.Node != "n1" {
		t.Errorf("Run returned %v, want RefusedError for want of permission", n.err)
	}
	if n.count(agent.EventRefused) != 1 || n.saw(agent.EventNoServer) {
		t.Errorf("got %+v, want one refusal and no silence", n.events)
	}
}

// Once it was heard, a refusal may pass: it is told of at each change, and the node
// goes on trying.
func TestRefusedLater(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.start()
	until(t, "the lease", mayAct(n))
	r.forbid("first")
	until(t, "the refusal", func() bool { return n.count(agent.EventRefused) == 1 })
	r.srv.Fail(func(string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "", http.StatusBadGateway) }
	})
	until(t, "the silence", func() bool { return n.count(agent.EventNoServer) == 1 })
	r.forbid("second")
	until(t, "the second refusal", func() bool { return n.count(agent.EventRefused) == 2 })
	r.forbid("third")
	until(t, "the third", func() bool { return n.count(agent.EventRefused) == 3 })
	r.srv.Fail(nil)
	until(t, "the server again", func() bool { return n.count(agent.EventServer) == 1 && mayAct(n)() })
	if n.count(agent.EventNoServer) != 1 || n.count(agent.EventRefused) != 3 {
		t.Errorf("got %+v, want each change told once", n.events)
	}
}
