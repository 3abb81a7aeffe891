package browsertest

import (
	"context"
	"database/sql"
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server"
	"github.com/tenurehq/tenure/server/dashboard"
	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/sqlite"
)

// bed is a replica with its dashboard, on a SQLite file of its own, and the nodes
// that it is told of.
type bed struct {
	*server.Server
	t     testing.TB
	web   *httptest.Server
	url   string
	api   *api.Client
	lease *api.Store

	mu    sync.Mutex
	nodes []*node
}

// node is an agent in a few words.
type node struct {
	beat   api.Beat
	silent bool // it sends no beats
	bare   bool // its beats renew nothing
}

func newBed(t testing.TB, cfg server.Config, tokens server.Tokens, token string) *bed {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	db, err := sql.Open("sqlite", sqlite.ModerncDSN(filepath.Join(t.TempDir(), "tenure.db")))
	check(err)
	t.Cleanup(func() { db.Close() })
	db.SetMaxIdleConns(8)
	st, err := sqlite.New(db, sqlite.Config{})
	check(err)
	t.Cleanup(func() { st.Close() })
	check(st.Migrate(t.Context()))
	host, err := sqlite.ThisHost()
	check(err)
	reg, err := registry.New(db, registry.Config{Dialect: registry.SQLite, Clock: registry.Clock{Domain: host.Domain, Boot: host.Boot, Wall: host.Wall}, Lost: st.Lost})
	check(err)
	check(reg.Migrate(t.Context()))
	cfg.Name = "replica-1"
	b := &bed{t: t}
	b.Server, err = server.New(st, reg, cfg)
	check(err)
	web := httptest.NewUnstartedServer(nil)
	web.Config = b.HTTPServer(dashboard.New(dashboard.Config{API: b.Handler(server.HTTPConfig{Version: "1.2.3", Tokens: tokens})}))
	web.Start()
	t.Cleanup(func() {
		web.CloseClientConnections() // pages that are watched
		web.Close()
	})
	b.web, b.url = web, web.URL
	b.api, err = api.NewClient(api.Config{Servers: []string{web.URL}, Token: token, AttemptTimeout: 30 * time.Second})
	check(err)
	b.lease = api.NewStore(b.api)
	ctx, cancel := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	loops.Go(func() {
		if err := b.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	loops.Go(func() { b.beats(ctx) })
	t.Cleanup(func() {
		cancel()
		loops.Wait()
	})
	b.until("ready", func() bool { return b.Ready() == nil })
	return b
}

// until polls until ok says so, and fails after a bound.
func (b *bed) until(what string, ok func() bool) {
	b.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for bound := time.Now().Add(2 * time.Minute); !ok(); <-tick.C {
		if time.Now().After(bound) {
			b.t.Fatalf("not in time: %s", what)
		}
	}
}

// beats sends the beats of all nodes each half interval, as a relay would.
func (b *bed) beats(ctx context.Context) {
	tick := time.NewTicker(b.Config().Interval / 2)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		b.mu.Lock()
		b.send(ctx, b.nodes)
		b.mu.Unlock()
	}
}

// send sends the next beats of nodes. The caller holds b.mu.
func (b *bed) send(ctx context.Context, nodes []*node) {
	const most = 250
	for len(nodes) > 0 {
		some := nodes[:min(most, len(nodes))]
		nodes = nodes[len(some):]
		var beats []api.Beat
		var senders []*node
		for _, n := range some {
			if n.silent {
				continue
			}
			n.beat.Seq++
			n.beat.SentAt = time.Now()
			beat := n.beat
			if n.beat.Renew != nil && !n.bare {
				renew := *n.beat.Renew
				renew.Attempt = store.NewAttempt()
				n.beat.Renew.Attempt = renew.Attempt
				beat.Renew = &renew
			} else {
				beat.Renew = nil
			}
			beats, senders = append(beats, beat), append(senders, n)
		}
		if len(beats) == 0 {
			continue
		}
		replies, err := b.api.Beats(ctx, beats)
		if err != nil {
			continue // the next beats say the same
		}
		for i := range replies {
			n, r := senders[i], &replies[i]
			if r.Renewed != nil && r.Renewed.Code == "" {
				n.beat.Renew.Known = []store.Attempt{n.beat.Renew.Attempt}
			}
			if !r.NeedFacts {
				n.beat.Work = nil
			}
			if r.Orders != nil {
				n.beat.Orders = r.Orders.Revision
			}
		}
	}
}

// join adds nodes, each with a lease of the TTL.
func (b *bed) join(ttl time.Duration, facts fleet.Facts, ids ...string) []*node {
	b.t.Helper()
	if facts.Capacity == nil {
		facts.Capacity = fleet.Resources{"memory_mb": 1000, "slots": 8}
	}
	var joined []*node
	for i, id := range ids {
		attempt := store.NewAttempt()
		rec, err := b.lease.Acquire(b.t.Context(), store.Request{Name: fleet.LeaseName(id), Holder: "agent@" + id, TTL: ttl, Attempt: attempt})
		if err != nil {
			b.t.Fatal(err)
		}
		own := facts
		if own.Address == "" {
			own.Address = fmt.Sprintf("10.0.%d.%d:8080", i/250, i%250)
		}
		own.Used = fleet.Resources{"memory_mb": int64(100 + i*37%800)}
		joined = append(joined, &node{beat: api.Beat{
			Node: id, Incarnation: "i-" + id, FactsVersion: 1, Facts: &own,
			Renew: &api.Renewal{Token: rec.Token, TTLMS: ttl.Milliseconds(), Known: []store.Attempt{attempt}},
		}})
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nodes = append(b.nodes, joined...)
	b.send(b.t.Context(), joined)
	return joined
}

// run submits an item for a node, and says that it runs.
func (b *bed) run(n *node, spec fleet.Spec, progress string) fence.Token {
	b.t.Helper()
	if !spec.Movable {
		spec.Request.Node = n.beat.Node
	}
	w, err := b.api.Submit(b.t.Context(), api.SubmitRequest{Spec: spec, Actor: "test"})
	if err != nil {
		b.t.Fatal(err)
	}
	b.report(n, w.ID, w.Token, fleet.Running, progress)
	return w.Token
}

// report says how an item stands, and how far it is.
func (b *bed) report(n *node, work string, token fence.Token, state fleet.WorkState, progress string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n.beat.Work = append(n.beat.Work, api.WorkReport{Work: work, Token: token, Lease: n.beat.Renew.Token, State: state, Progress: progress})
}

// set changes what nodes do.
func (b *bed) set(nodes []*node, change func(*node)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range nodes {
		change(n)
	}
}

func ids(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("%s-%03d", prefix, i)
	}
	return all
}
