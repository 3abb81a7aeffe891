package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

// missing says that an answer lacks a field, if it does: a list that is empty is
// there, so that nobody takes the lack of an answer for the answer "nothing".
func missing(lacks bool, field string) string {
	if lacks {
		return fmt.Sprintf("it has no %q", field)
	}
	return ""
}

// about says that an answer is about something else, if it is.
func about(got, want string) string {
	if got != want {
		return fmt.Sprintf("it is about %q, not %q", got, want)
	}
	return ""
}

func (c *Client) get(ctx context.Context, path string, query url.Values, out any, check func() string) error {
	return c.send(ctx, call{lane: &c.calls, method: http.MethodGet, path: path, query: query, again: true}, out, check)
}

func (c *Client) post(ctx context.Context, path string, again bool, body, out any, check func() string) error {
	return c.send(ctx, call{lane: &c.calls, method: http.MethodPost, path: path, body: body, again: again}, out, check)
}

// Beat sends one heartbeat, on connections of its own. If its outcome is
// unknown, it was not repeated: a renewal in it may have been applied, so the
// next beat lists its attempt as known.
func (c *Client) Beat(ctx context.Context, b *Beat) (*BeatReply, error) {
	var out BeatReply
	err := c.send(ctx, call{lane: &c.beats, method: http.MethodPost, path: "/v1/beat", body: b}, &out, func() string { return out.wrong(b) })
	if err != nil {
		return nil, err
	}
	return &out, nil
}

func (r *BeatReply) wrong(b *Beat) string {
	switch {
	case r.Node != b.Node:
		return about(r.Node, b.Node)
	case r.Orders != nil && r.Orders.Work == nil:
		return missing(true, "work")
	case r.Renewed != nil && b.Renew == nil:
		return "it answers a renewal that was not sent"
	}
	return ""
}

// Beats sends the heartbeats of many nodes. As for Beat, nothing is repeated.
func (c *Client) Beats(ctx context.Context, beats []Beat) ([]BeatReply, error) {
	var out BeatReplies
	err := c.send(ctx, call{lane: &c.beats, method: http.MethodPost, path: "/v1/beats", body: Beats{beats}}, &out, func() string {
		if len(out.Replies) != len(beats) {
			return fmt.Sprintf("it has %d replies for %d beats", len(out.Replies), len(beats))
		}
		for i := range beats {
			if wrong := out.Replies[i].wrong(&beats[i]); wrong != "" {
				return wrong
			}
		}
		return ""
	})
	if err != nil {
		return nil, err
	}
	return out.Replies, nil
}

// Nodes returns all nodes, those with the oldest beat first.
func (c *Client) Nodes(ctx context.Context) ([]Node, error) {
	var out Nodes
	err := c.get(ctx, "/v1/nodes", nil, &out, func() string { return missing(out.Nodes == nil, "nodes") })
	return out.Nodes, err
}

// NodesNow is Nodes as the registry has them now. Nodes may be as old as what the
// replica read last.
func (c *Client) NodesNow(ctx context.Context) ([]Node, error) {
	var out Nodes
	err := c.get(ctx, "/v1/nodes", url.Values{"authoritative": {"true"}}, &out, func() string { return missing(out.Nodes == nil, "nodes") })
	return out.Nodes, err
}

// Node returns one node.
func (c *Client) Node(ctx context.Context, id string) (*Node, error) {
	return c.node(ctx, call{method: http.MethodGet, path: "", again: true}, id)
}

func (c *Client) node(ctx context.Context, r call, id string) (*Node, error) {
	if err := checkID("node", id); err != nil {
		return nil, err
	}
	var out Node
	r.lane, r.path = &c.calls, nodePath(id)+r.path
	if err := c.send(ctx, r, &out, func() string { return about(out.ID, id) }); err != nil {
		return nil, err
	}
	return &out, nil
}

func nodePath(id string) string { return "/v1/nodes/" + url.PathEscape(id) }
func workPath(id string) string { return "/v1/work/" + url.PathEscape(id) }

// checkID refuses what would be another path.
func checkID(field, id string) error {
	if err := store.CheckName(id); err != nil {
		return &store.InvalidError{Field: field, Value: id, Rule: "a name: letters, digits and . _ - : @ +"}
	}
	return nil
}

// Eligible says whether a node may get new work, and all reasons if not.
func (c *Client) Eligible(ctx context.Context, node string) (*Eligible, error) {
	if err := checkID("node", node); err != nil {
		return nil, err
	}
	// Load balancers are told of a node that is not eligible by the status.
	r := call{lane: &c.calls, method: http.MethodGet, path: nodePath(node) + "/eligible", again: true, also: http.StatusServiceUnavailable}
	var out Eligible
	if err := c.send(ctx, r, &out, func() string { return about(out.Node, node) }); err != nil {
		return nil, err
	}
	return &out, nil
}

// Orders returns all that a node is to do, as soon as their revision differs
// from after, or when wait has passed. Only an answer that was decoded whole
// changes what a node does.
func (c *Client) Orders(ctx context.Context, node string, after uint64, wait time.Duration) (*Orders, error) {
	if err := checkID("node", node); err != nil {
		return nil, err
	}
	query := url.Values{"after": {strconv.FormatUint(after, 10)}, "wait_ms": {strconv.FormatInt(wait.Milliseconds(), 10)}}
	r := call{lane: &c.calls, method: http.MethodGet, path: nodePath(node) + "/orders", query: query, again: true, wait: wait}
	var out Orders
	if err := c.send(ctx, r, &out, func() string { return missing(out.Work == nil, "work") }); err != nil {
		return nil, err
	}
	return &out, nil
}

// Cordon keeps new work from a node.
func (c *Client) Cordon(ctx context.Context, node string, r CordonRequest) (*Node, error) {
	return c.node(ctx, call{method: http.MethodPost, path: "/cordon", body: r, again: true}, node)
}

// Drain empties a node.
func (c *Client) Drain(ctx context.Context, node string, r DrainRequest) (*Node, error) {
	return c.node(ctx, call{method: http.MethodPost, path: "/drain", body: r, again: true}, node)
}

// Resume ends a drain, or also a cordon.
func (c *Client) Resume(ctx context.Context, node string, r ResumeRequest) (*Node, error) {
	return c.node(ctx, call{method: http.MethodPost, path: "/resume", body: r, again: true}, node)
}

// RemoveNode takes a node from the registry, whose lease is over. Its lease's record
// stays. With gone, the caller vouches that the host never comes back, and what is
// pinned to it ends as failed.
func (c *Client) RemoveNode(ctx context.Context, node, actor, reason string, gone bool) (*Node, error) {
	query := url.Values{"actor": {actor}, "reason": {reason}}
	if gone {
		query.Set("gone", "true")
	}
	return c.node(ctx, call{method: http.MethodDelete, query: query}, node)
}

// submitRetries is how often Submit tries again when there is no room.
const submitRetries = 4

// Submit places a new work item, or stores it for later if r.Queue says so. When
// there is no room it tries again, 4 times at most, after 250 ms, 500 ms, 1 s and
// 2 s less a random part, or what the server asks for, and then returns an *Error
// with the code no_capacity and its counts.
func (c *Client) Submit(ctx context.Context, r SubmitRequest) (*Work, error) {
	if err := checkID("work", r.Spec.ID); err != nil {
		return nil, err
	}
	wait := 250 * time.Millisecond
	for retry := 0; ; retry++ {
		work, err := c.submit(ctx, r)
		refusal, refused := errors.AsType[*Error](err)
		if err == nil || !refused || refusal.Code != string(fleet.CodeNoCapacity) || retry == submitRetries {
			return work, err
		}
		if pause(ctx, max(jitter(wait), min(refusal.RetryAfter, 5*time.Second))) != nil {
			return nil, err
		}
		wait *= 2
	}
}

// submit sends the item. One that exists already is this one if an earlier try of
// this call may have been applied.
func (c *Client) submit(ctx context.Context, r SubmitRequest) (*Work, error) {
	var out Work
	var unknown bool
	err := c.send(ctx, call{lane: &c.calls, method: http.MethodPost, path: "/v1/work", body: r, again: true, unknown: &unknown}, &out, func() string {
		return about(out.ID, r.Spec.ID)
	})
	if refusal, ok := errors.AsType[*Error](err); ok && unknown && refusal.Code == string(fleet.CodeWorkExists) {
		if there, getErr := c.Work(ctx, r.Spec.ID); getErr == nil && sameSpec(there.Spec, r.Spec) {
			return there, nil
		}
	}
	if err != nil {
		return nil, err
	}
	return &out, nil
}

// sameSpec reports whether two items are the same order.
func sameSpec(a, b fleet.Spec) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// WorkQuery chooses work items. Its zero value is all of them.
type WorkQuery struct {
	States []fleet.WorkState
	Owner  string
	Stuck  bool   // only items that are stuck
	After  string // the id after which to begin
	Limit  int    // 0 is the server's
}

// Works returns a page of work items.
func (c *Client) Works(ctx context.Context, q WorkQuery) (*Works, error) {
	query := url.Values{}
	if len(q.States) > 0 {
		states := make([]string, len(q.States))
		for i, s := range q.States {
			states[i] = string(s)
		}
		query.Set("state", strings.Join(states, ","))
	}
	for name, text := range map[string]string{"owner": q.Owner, "after": q.After} {
		if text != "" {
			query.Set(name, text)
		}
	}
	if q.Stuck {
		query.Set("stuck", "true")
	}
	if q.Limit != 0 {
		query.Set("limit", strconv.Itoa(q.Limit))
	}
	var out Works
	if err := c.get(ctx, "/v1/work", query, &out, func() string { return missing(out.Work == nil, "work") }); err != nil {
		return nil, err
	}
	return &out, nil
}

// Work returns one work item.
func (c *Client) Work(ctx context.Context, id string) (*Work, error) {
	return c.work(ctx, call{method: http.MethodGet, again: true}, id)
}

func (c *Client) work(ctx context.Context, r call, id string) (*Work, error) {
	if err := checkID("work", id); err != nil {
		return nil, err
	}
	var out Work
	r.lane, r.path = &c.calls, workPath(id)+r.path
	if err := c.send(ctx, r, &out, func() string { return about(out.ID, id) }); err != nil {
		return nil, err
	}
	return &out, nil
}

// Owner says who has a work item, and where.
func (c *Client) Owner(ctx context.Context, id string) (*Owner, error) {
	if err := checkID("work", id); err != nil {
		return nil, err
	}
	var out Owner
	err := c.get(ctx, workPath(id)+"/owner", nil, &out, func() string {
		if out.Answer != OwnerFound && out.Answer != OwnerNone && out.Answer != OwnerLapsed {
			return fmt.Sprintf("it has the unknown answer %q", out.Answer)
		}
		return about(out.Work, id)
	})
	if err != nil {
		return nil, err
	}
	return &out, nil
}

// StopWork ends a work item for good. If its outcome is unknown, it was not repeated.
func (c *Client) StopWork(ctx context.Context, id string, r WorkOrder) (*Work, error) {
	return c.work(ctx, call{method: http.MethodPost, path: "/stop", body: r}, id)
}

// MoveWork stops a work item and has it placed elsewhere. If its outcome is
// unknown, it was not repeated.
func (c *Client) MoveWork(ctx context.Context, id string, r WorkOrder) (*Work, error) {
	return c.work(ctx, call{method: http.MethodPost, path: "/move", body: r}, id)
}

// RemoveWork forgets an item that has ended. Whoever submits its name again begins
// with a larger token. If its outcome is unknown, it was not repeated.
func (c *Client) RemoveWork(ctx context.Context, id, actor, reason string) (*Work, error) {
	return c.work(ctx, call{method: http.MethodDelete, query: url.Values{"actor": {actor}, "reason": {reason}}}, id)
}

// Progress records a marker for a work item. A verdict with a code says that
// nothing was changed, and why.
func (c *Client) Progress(ctx context.Context, id string, r ProgressRequest) (*WorkVerdict, error) {
	if err := checkID("work", id); err != nil {
		return nil, err
	}
	var out WorkVerdict
	if err := c.post(ctx, workPath(id)+"/progress", true, r, &out, func() string { return about(out.Work, id) }); err != nil {
		return nil, err
	}
	return &out, nil
}

// WhyNode says all that there is to say of a node's state.
func (c *Client) WhyNode(ctx context.Context, id string) (*NodeWhy, error) {
	if err := checkID("node", id); err != nil {
		return nil, err
	}
	var out NodeWhy
	if err := c.get(ctx, "/v1/why/nodes/"+url.PathEscape(id), nil, &out, func() string { return about(out.Node.ID, id) }); err != nil {
		return nil, err
	}
	return &out, nil
}

// WhyWork says where a work item is, and why.
func (c *Client) WhyWork(ctx context.Context, id string) (*WorkWhy, error) {
	if err := checkID("work", id); err != nil {
		return nil, err
	}
	var out WorkWhy
	if err := c.get(ctx, "/v1/why/work/"+url.PathEscape(id), nil, &out, func() string { return about(out.Work.ID, id) }); err != nil {
		return nil, err
	}
	return &out, nil
}

// Brake says which domains are held back.
func (c *Client) Brake(ctx context.Context) (*Brake, error) {
	var out Brake
	if err := c.get(ctx, "/v1/brake", nil, &out, func() string { return missing(out.Domains == nil, "domains") }); err != nil {
		return nil, err
	}
	return &out, nil
}

// ConfirmBrake says that a loss is real, so that its consequences may happen.
func (c *Client) ConfirmBrake(ctx context.Context, r BrakeRequest) (*Brake, error) {
	return c.brake(ctx, "confirm", r)
}

// ReleaseBrake lets the brake of a domain go.
func (c *Client) ReleaseBrake(ctx context.Context, r BrakeRequest) (*Brake, error) {
	return c.brake(ctx, "release", r)
}

func (c *Client) brake(ctx context.Context, verb string, r BrakeRequest) (*Brake, error) {
	var out Brake
	if err := c.post(ctx, "/v1/brake/"+verb, false, r, &out, func() string { return missing(out.Domains == nil, "domains") }); err != nil {
		return nil, err
	}
	return &out, nil
}

// Config returns what the server runs with.
func (c *Client) Config(ctx context.Context) (*ServerConfig, error) {
	var out ServerConfig
	if err := c.get(ctx, "/v1/config", nil, &out, func() string { return missing(out.Settings == nil, "settings") }); err != nil {
		return nil, err
	}
	return &out, nil
}
