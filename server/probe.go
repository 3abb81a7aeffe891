package server

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

// Probe says how a node that cannot call out is asked whether it is there.
type Probe struct {
	Node string
	// URL is requested with GET; a status from 200 to 299 is a reply, and a redirect
	// is none. Address is connected to by TCP, and an open port is a reply. One of
	// the two is set.
	URL, Address string
	// Interval is between two probes. Default Config.Interval; above that the node
	// would be late between them.
	Interval time.Duration
	// Timeout is how long a reply may take. Default half of Interval.
	Timeout time.Duration
	// Facts are what such a node cannot say of itself. Readiness is set by the
	// replies.
	Facts fleet.Facts
}

// String names the node and the target, without what a URL may hold of secrets.
func (p Probe) String() string {
	target := "tcp " + p.Address
	if u, err := url.Parse(p.URL); p.URL != "" && err == nil {
		target = u.Redacted()
	}
	return fmt.Sprintf("%s: %s each %s, within %s", p.Node, target, p.Interval, p.Timeout)
}

// withDefaults returns p with its defaults in place, or why it cannot be used.
func (p Probe) withDefaults(interval time.Duration) (Probe, error) {
	if p.Interval == 0 {
		p.Interval = interval
	}
	if p.Timeout == 0 {
		p.Timeout = p.Interval / 2
	}
	if err := fleet.CheckID("probe node", p.Node); err != nil {
		return p, err
	}
	if (p.URL == "") == (p.Address == "") {
		return p, fmt.Errorf("probe of node %q: want a URL or an address, and not both", p.Node)
	}
	if u, err := url.Parse(p.URL); p.URL != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return p, fmt.Errorf("probe of node %q: want a URL that begins with http:// or https://", p.Node)
	}
	if p.Address != "" {
		if _, _, err := net.SplitHostPort(p.Address); err != nil {
			return p, fmt.Errorf("probe of node %q: %q is no host and port", p.Node, p.Address)
		}
	}
	if p.Interval < 0 || p.Interval > interval {
		return p, fmt.Errorf("probe of node %q: interval %s; want more than 0 and at most the interval of beats, %s", p.Node, p.Interval, interval)
	}
	if p.Timeout < 0 || p.Timeout > p.Interval {
		return p, fmt.Errorf("probe of node %q: timeout %s; want more than 0 and at most its interval %s", p.Node, p.Timeout, p.Interval)
	}
	if err := p.Facts.Check(); err != nil {
		return p, fmt.Errorf("probe of node %q: %w", p.Node, err)
	}
	return p, nil
}

// probeIncarnation is that of every probed node. It is the same on all replicas,
// so that the next active one goes on where the last one ended.
const probeIncarnation = "probe"

// prober probes one node. While its replica is the active one it speaks for the
// node: each reply is a beat, which renews the node's lease. Without a reply the
// node falls silent and its lease lapses, as that of any other node.
type prober struct {
	Probe
	s      *Server
	client *http.Client
	seq    uint64
	term   *api.Renewal // nil: this prober holds no lease for the node
}

// probeLoop probes all nodes that are configured to be, on the active replica.
func (s *Server) probeLoop(ctx context.Context) {
	transport := &http.Transport{
		MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute, ResponseHeaderTimeout: s.cfg.Interval,
		MaxResponseHeaderBytes: 64 << 10,
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	var all sync.WaitGroup
	for _, p := range s.cfg.Probes {
		pr := &prober{Probe: p, s: s, client: client}
		all.Go(func() { pr.run(ctx) })
	}
	all.Wait()
}

func (p *prober) run(ctx context.Context) {
	// Nodes of one interval are not all probed at once.
	select {
	case <-time.After(rand.N(p.Interval)):
	case <-ctx.Done():
		return
	}
	every(ctx, p.Interval, nil, func(ctx context.Context) {
		if !p.s.active.Load() || !p.s.loaded.Load() {
			p.giveUp(ctx)
			return
		}
		if err := p.probe(ctx); err != nil {
			p.s.counts.add("probe", "no_reply")
			p.s.log.Debug("probe", "node", p.Node, "err", err)
			return
		}
		p.s.counts.add("probe", "")
		if err := p.beat(ctx); err != nil {
			p.s.log.Debug("probed beat", "node", p.Node, "err", err)
		}
	})
	p.giveUp(context.WithoutCancel(ctx))
}

// probe returns nil if the node replied.
func (p *prober) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	if p.Address != "" {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.Address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL, nil)
	if err != nil {
		return err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	// A short rest is read, so that the connection serves the next probe too.
	_, _ = io.CopyN(io.Discard, resp.Body, 4096)
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return fmt.Errorf("status %s", resp.Status)
	}
	return nil
}

// beat says for the node that it is there.
func (p *prober) beat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.s.cfg.Interval)
	defer cancel()
	facts := p.Facts
	facts.Readiness = fleet.Readiness{Ready: true}
	p.seq++
	b := api.Beat{Node: p.Node, Incarnation: probeIncarnation, Seq: p.seq, Facts: &facts, FactsVersion: 1}
	if p.term == nil {
		p.acquire(ctx)
	} else {
		p.term.Attempt = store.NewAttempt()
		term := *p.term
		b.Renew = &term
		// Until an answer says which one is the last, any of them may be.
		p.term.Known = append(p.term.Known[:len(p.term.Known):len(p.term.Known)], p.term.Attempt)
	}
	reply, err := p.s.Beat(ctx, &b)
	if err != nil {
		return err
	}
	switch r := reply.Renewed; {
	case r == nil:
	case r.Code == "":
		p.term.Known = []store.Attempt{b.Renew.Attempt}
	case r.Code != store.CodeBusy && r.Code != store.CodeNoContact, len(p.term.Known) >= store.MaxKnown:
		p.term = nil
	}
	if reply.Code != "" {
		return fmt.Errorf("%s: %s", reply.Code, reply.Text)
	}
	return nil
}

// acquire starts a term of the node's lease, if it is free.
func (p *prober) acquire(ctx context.Context) {
	attempt := store.NewAttempt()
	rec, err := p.s.st.Acquire(ctx, store.Request{
		Name: fleet.LeaseName(p.Node), Holder: "probe/" + p.Node, TTL: p.s.cfg.NodeTTL, Attempt: attempt,
	})
	if err != nil {
		p.s.log.Debug("probed lease", "node", p.Node, "err", err)
		return
	}
	p.term = &api.Renewal{Token: rec.Token, TTLMS: p.s.cfg.NodeTTL.Milliseconds(), Known: []store.Attempt{attempt}}
}

// giveUp ends the term, so that the replica which is active now can go on.
func (p *prober) giveUp(ctx context.Context) {
	if p.term == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err := p.s.st.Release(ctx, []store.Grant{{
		Name: fleet.LeaseName(p.Node), Token: p.term.Token, Attempt: store.NewAttempt(), Known: p.term.Known,
	}})
	if err != nil {
		p.s.log.Debug("probed lease", "node", p.Node, "err", err)
	}
	p.term = nil
}
