// Package agenttest is a control plane for tests of agents: it takes beats, keeps
// work and leases in memory or in a store that the test brings, gives orders, and
// fails in the ways that the test asks for.
package agenttest

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

// Beat is one that arrived.
type Beat struct {
	At time.Time
	api.Beat
}

// Item is one work item.
type Item struct {
	Spec     fleet.Spec
	Owner    string // "" if it has none
	Token    fence.Token
	Lease    fence.Token // of the owner's term under which it got Token; 0: it had none yet
	Stop     bool
	State    fleet.WorkState
	Progress string
	ExitCode int
	Text     string
	Reports  int // accepted
	Refused  int
}

// Server is the control plane. It is an agent.Server, and an http.Handler for
// api.Client. Its methods are safe for concurrent use.
type Server struct {
	st store.Store

	mu       sync.Mutex
	intent   map[string]fleet.IntentState
	revision map[string]uint64
	changed  chan struct{} // closed at each change
	items    map[string]*Item
	beats    []Beat
	fault    func(path string) http.HandlerFunc
	reply    func(*api.BeatReply)
	old      bool
}

// New returns a control plane over st.
func New(st store.Store) *Server {
	return &Server{st: st, intent: map[string]fleet.IntentState{}, revision: map[string]uint64{}, changed: make(chan struct{}), items: map[string]*Item{}}
}

// Store returns the store of the leases.
func (s *Server) Store() store.Store { return s.st }

// bump makes a new revision of a node's orders. mu is held.
func (s *Server) bump(nodes ...string) {
	for _, n := range nodes {
		s.revision[n]++
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// SetIntent says what operators want of a node.
func (s *Server) SetIntent(node string, i fleet.IntentState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.intent[node] = i
	s.bump(node)
}

// held returns the token of a node's term, 0 if it has none.
func (s *Server) held(ctx context.Context, node string) fence.Token {
	if rec, err := s.st.Get(ctx, fleet.LeaseName(node)); err == nil && rec.Status == store.Held {
		return rec.Token
	}
	return 0
}

// bind notes the term of a node as that of what it was given before it had one. mu
// is held.
func (s *Server) bind(node string, lease fence.Token) {
	bound := false
	for _, it := range s.items {
		if it.Owner == node && it.Lease == 0 && lease != 0 {
			it.Lease, bound = lease, true
		}
	}
	if bound {
		s.bump(node)
	}
}

// Assign gives an item to a node, with a larger token than before, and returns that.
// A node without a lease gets it under its first term to come.
func (s *Server) Assign(node string, spec fleet.Spec) fence.Token {
	lease := s.held(context.Background(), node)
	s.mu.Lock()
	defer s.mu.Unlock()
	it := s.items[spec.ID]
	if it == nil {
		it = &Item{}
		s.items[spec.ID] = it
	}
	before := it.Owner
	*it = Item{Spec: spec, Owner: node, Token: it.Token + 1, Lease: lease, State: fleet.Placed, Progress: it.Progress}
	s.bump(node, cmp.Or(before, node))
	return it.Token
}

// Stop orders the end of an item.
func (s *Server) Stop(work string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	it := s.items[work]
	it.Stop, it.State = true, fleet.Stopping
	s.bump(it.Owner)
}

// End ends an item as an operator does who has given its host up: its owner is not
// asked, and what it still writes carries an old token.
func (s *Server) End(work string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	it := s.items[work]
	it.State, it.Token = fleet.Failed, it.Token+1
	s.bump(it.Owner)
}

// SpeakOld makes it a server of before orders had the term of the node, and facts what
// is left over: it does not tell the one, and refuses a beat with the other.
func (s *Server) SpeakOld() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.old = true
}

// Item returns an item as it is now.
func (s *Server) Item(work string) Item {
	s.mu.Lock()
	defer s.mu.Unlock()
	if it := s.items[work]; it != nil {
		return *it
	}
	return Item{}
}

// Beats returns the beats that arrived so far.
func (s *Server) Beats() []Beat {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.beats)
}

// Fail lets f answer in place of the control plane wherever it returns a handler
// for a path. Nil ends that. It holds over HTTP alone.
func (s *Server) Fail(f func(path string) http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// Reply lets f change each reply to a beat. Nil ends that.
func (s *Server) Reply(f func(*api.BeatReply)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reply = f
}

// Beat implements agent.Server.
func (s *Server) Beat(ctx context.Context, b *api.Beat) (*api.BeatReply, error) {
	s.mu.Lock()
	reply := &api.BeatReply{Node: b.Node, Leftovers: !s.old}
	s.mu.Unlock()
	if b.Facts != nil && len(b.Facts.Leftovers) > 0 && !reply.Leftovers {
		return nil, api.RefuseInvalid("leftovers", "", "must be a known field")
	}
	if b.Renew != nil {
		results, err := s.st.Renew(ctx, []store.Grant{{
			Name: fleet.LeaseName(b.Node), Token: b.Renew.Token, TTL: time.Duration(b.Renew.TTLMS) * time.Millisecond,
			Attempt: b.Renew.Attempt, Known: b.Renew.Known,
		}})
		if err != nil {
			return nil, err
		}
		r := api.NewResult(results[0])
		reply.Renewed = &r
	}
	for _, r := range b.Work {
		reply.Work = append(reply.Work, s.judge(ctx, b.Node, r))
	}
	lease := s.held(ctx, b.Node)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bind(b.Node, lease)
	s.beats = append(s.beats, Beat{time.Now(), *b})
	if o := s.orders(b.Node); o.Revision != b.Orders {
		reply.Orders = o
	}
	reply.Intent = s.intent[b.Node]
	if s.reply != nil {
		s.reply(reply)
	}
	return reply, nil
}

func (s *Server) judge(ctx context.Context, node string, r api.WorkReport) api.WorkVerdict {
	rec, err := s.st.Get(ctx, fleet.LeaseName(node))
	s.mu.Lock()
	defer s.mu.Unlock()
	it := s.items[r.Work]
	v := api.WorkVerdict{Work: r.Work}
	switch {
	case it == nil:
		v.Code = fleet.CodeNoSuchWork
		return v
	case it.Owner != node:
		v.Code = fleet.CodeNotOwner
	case it.State.Ended():
		v.Code = fleet.CodeWrongState
	case it.Token != r.Token:
		v.Code = fleet.CodeStaleToken
	case err != nil || rec.Status != store.Held || rec.Token != r.Lease:
		v.Code = fleet.CodeLeaseLapsed
	case !it.State.CanReport(r.State) && (it.State != fleet.Stopping || r.State != fleet.Running):
		v.Code = fleet.CodeWrongState
	default:
		it.State, it.ExitCode, it.Text = r.State, r.ExitCode, r.Text
		if r.Progress != "" {
			it.Progress = r.Progress
		}
		it.Reports++
		if r.State == fleet.Placed {
			it.Token, it.Lease = it.Token+1, r.Lease
			s.bump(node)
		}
		if r.State.Ended() {
			it.Owner = ""
			s.bump(node)
		}
		return v
	}
	it.Refused++
	v.Owner, v.Current = it.Owner, it.Token
	return v
}

// orders returns all that a node is to do. mu is held.
func (s *Server) orders(node string) *api.Orders {
	o := &api.Orders{Revision: s.revision[node] + 1, Intent: cmp.Or(s.intent[node], fleet.Active), Work: []api.Order{}}
	for _, it := range s.items {
		if it.Owner != node || it.State.Ended() {
			continue
		}
		order := api.Order{Spec: it.Spec, Token: it.Token, Lease: it.Lease, Stop: it.Stop, Progress: it.Progress}
		if s.old {
			order.Lease = 0
		}
		o.Work = append(o.Work, order)
	}
	return o
}

// Orders implements agent.Server.
func (s *Server) Orders(ctx context.Context, node string, after uint64, wait time.Duration) (*api.Orders, error) {
	limit := time.After(wait)
	for {
		lease := s.held(ctx, node)
		s.mu.Lock()
		s.bind(node, lease)
		o, changed := s.orders(node), s.changed
		s.mu.Unlock()
		if o.Revision != after {
			return o, nil
		}
		select {
		case <-changed:
		case <-limit:
			return o, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// ServeHTTP answers what an agent asks for.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	fault := s.fault
	s.mu.Unlock()
	if fault != nil {
		if f := fault(r.URL.Path); f != nil {
			f(w, r)
			return
		}
	}
	ctx := r.Context()
	switch path := r.URL.Path; {
	case path == "/v1/beat":
		serve(w, r, func(b *api.Beat) (any, error) { return s.Beat(ctx, b) })
	case strings.HasSuffix(path, "/orders"):
		after, _ := strconv.ParseUint(r.URL.Query().Get("after"), 10, 64)
		wait, _ := strconv.Atoi(r.URL.Query().Get("wait_ms"))
		node := strings.TrimSuffix(strings.TrimPrefix(path, "/v1/nodes/"), "/orders")
		o, err := s.Orders(ctx, node, after, time.Duration(wait)*time.Millisecond)
		answer(w, o, err)
	case path == "/v1/leases/features":
		f := s.st.Features()
		answer(w, api.Features{Backend: f.Backend, Clock: f.Clock, MinTTLUS: api.Microseconds(f.MinTTL), BatchRenew: f.BatchRenew}, nil)
	case path == "/v1/leases/acquire":
		serve(w, r, func(q *api.AcquireRequest) (any, error) {
			req := store.Request{Name: q.Name, Holder: q.Holder, TTL: time.Duration(q.TTLUS) * time.Microsecond, Attempt: q.Attempt, Known: q.Known, ClockNotAfter: q.ClockNotAfter, IfRevision: q.IfRevision, Meta: q.Meta}
			if q.Replace != nil {
				req.Replace = &store.Grant{Name: q.Name, Token: q.Replace.Token, Known: q.Replace.Known, TTL: req.TTL, Attempt: q.Attempt}
			}
			rec, err := s.st.Acquire(ctx, req)
			return api.NewRecord(rec), err
		})
	case path == "/v1/leases/release":
		serve(w, r, func(q *api.ReleaseRequest) (any, error) {
			var grants []store.Grant
			for _, g := range q.Grants {
				grants = append(grants, store.Grant{Name: g.Name, Token: g.Token, Attempt: g.Attempt, Known: g.Known, HandoffTo: g.HandoffTo})
			}
			results, err := s.st.Release(ctx, grants)
			var out api.Results
			for _, res := range results {
				out.Results = append(out.Results, api.NewResult(res))
			}
			return out, err
		})
	default:
		answer(w, nil, api.Refuse(api.CodeNoSuchPath, "no path %s", path))
	}
}

func serve[T any](w http.ResponseWriter, r *http.Request, f func(*T) (any, error)) {
	var in T
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		answer(w, nil, api.RefuseInvalid("body", "", err.Error()))
		return
	}
	out, err := f(&in)
	answer(w, out, err)
}

func answer(w http.ResponseWriter, out any, err error) {
	kind, status := "application/json", http.StatusOK
	if err != nil {
		e := api.NewError(err)
		kind, status, out = api.ProblemType, e.Status, e.Problem()
	}
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(out)
}
