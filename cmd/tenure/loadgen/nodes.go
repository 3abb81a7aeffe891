package loadgen

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

// nodesConfig says which nodes a part is to be.
type nodesConfig struct {
	Servers  []string      `json:"servers"` // host:port of each replica; connections take turns
	First    int           `json:"first"`   // number of the first node
	Count    int           `json:"count"`
	Relay    int           `json:"relay"` // nodes behind one connection, whose beats share a body
	Interval time.Duration `json:"interval_ns"`
	TTL      time.Duration `json:"ttl_ns"`
	Joining  int           `json:"joining"` // nodes that acquire and join at a time
}

// simulation is the nodes of one part.
type simulation struct {
	cfg    nodesConfig
	leases *api.Store
	gate   chan struct{} // has a value for each line that acquires and joins
	asking chan struct{} // has a value for each lease that is being acquired
	joined atomic.Int64
	out    *speaker

	mu    sync.Mutex
	tally tally
}

// line is a connection to a replica, with the nodes that use it.
type line struct {
	sim    *simulation
	server string
	conn   net.Conn

	mu    sync.Mutex
	nodes []*node
}

// node is a simulated node. Its line's mutex guards dead; the rest is its line's.
type node struct {
	dead      bool
	beat      api.Beat
	facts     *fleet.Facts
	confirmed time.Time // when the renewal that was confirmed last was sent
	fenced    bool
	over      bool // the lease was refused for good
}

// simulate is the nodes, until ctx ends.
func simulate(ctx context.Context, cfg nodesConfig, orders <-chan order, out *speaker) error {
	servers := make([]string, len(cfg.Servers))
	for i, s := range cfg.Servers {
		servers[i] = "http://" + s
	}
	client, err := api.NewClient(api.Config{Servers: servers, AttemptTimeout: time.Minute})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	s := &simulation{cfg: cfg, leases: api.NewStore(client), out: out,
		gate: make(chan struct{}, max(cfg.Joining/cfg.Relay, 2)), asking: make(chan struct{}, cfg.Joining)}
	var lines []*line
	var all sync.WaitGroup
	defer all.Wait()
	for first := 0; first < cfg.Count; first += cfg.Relay {
		l := &line{sim: s, server: cfg.Servers[len(lines)%len(cfg.Servers)]}
		for i := first; i < min(first+cfg.Relay, cfg.Count); i++ {
			l.nodes = append(l.nodes, newNode(cfg.First+i))
		}
		lines = append(lines, l)
		all.Go(func() { l.run(ctx) })
	}
	progress := time.NewTicker(100 * time.Millisecond)
	defer progress.Stop()
	for told := 0; ; {
		select {
		case <-progress.C:
			if n := int(s.joined.Load()); n != told {
				told = n
				out.say(event{Joined: n})
			}
		case o := <-orders:
			s.obey(ctx, o, lines)
		case <-ctx.Done():
			return nil
		}
	}
}

func newNode(number int) *node {
	id := fmt.Sprintf("load-%06d", number)
	return &node{
		beat: api.Beat{Node: id, Incarnation: store.NewAttempt().String(), FactsVersion: 1},
		facts: &fleet.Facts{
			Address: id + ".example:7471", Labels: map[string]string{"zone": "zone-" + strconv.Itoa(number%5)},
			Capacity:  fleet.Resources{"cpu_milli": 16_000, "memory_mb": 65_536},
			Readiness: fleet.Readiness{Ready: true},
		},
	}
}

func (s *simulation) obey(ctx context.Context, o order, lines []*line) {
	switch o.Do {
	case doTally:
		s.mu.Lock()
		answer := s.tally
		s.tally = tally{}
		s.mu.Unlock()
		s.out.say(event{Answer: true, Tally: &answer})
	case doKill:
		var living []func() // each kills one
		for _, l := range lines {
			l.mu.Lock()
			for _, n := range l.nodes {
				if !n.dead {
					living = append(living, func() { l.kill(n) })
				}
			}
			l.mu.Unlock()
		}
		for _, i := range rand.Perm(len(living))[:min(o.N, len(living))] {
			after := time.NewTimer(rand.N(s.cfg.Interval))
			go func() {
				defer after.Stop()
				select {
				case <-after.C:
					living[i]()
				case <-ctx.Done():
				}
			}()
		}
		s.out.say(event{Answer: true})
	}
}

func (l *line) kill(n *node) {
	l.mu.Lock()
	n.dead = true
	at := time.Now()
	l.mu.Unlock()
	l.sim.out.say(event{Killed: &sighting{Node: n.beat.Node, At: at}})
}

// living returns the nodes that still live.
func (l *line) living() []*node {
	l.mu.Lock()
	defer l.mu.Unlock()
	living := make([]*node, 0, len(l.nodes))
	for _, n := range l.nodes {
		if !n.dead {
			living = append(living, n)
		}
	}
	return living
}

func (s *simulation) count(f func(*tally)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.tally)
}

// run acquires the leases, joins, and beats until ctx ends or all nodes are dead.
func (l *line) run(ctx context.Context) {
	defer func() {
		if l.conn != nil {
			l.conn.Close()
		}
	}()
	if !l.join(ctx) {
		return
	}
	interval := l.sim.cfg.Interval
	due := time.Now().Add(rand.N(interval))
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		nodes := l.living()
		if len(nodes) == 0 {
			return
		}
		late := time.Since(due)
		l.sim.count(func(t *tally) { t.Late.count(late) })
		for _, n := range nodes {
			n.beat.LateMS = late.Milliseconds() // as an agent says of its own timers
		}
		if l.beat(ctx, nodes) {
			// A node that is late catches up with its own schedule, and does not send in bursts.
			for due = due.Add(interval); time.Until(due) < 0; {
				due = due.Add(interval)
			}
		} else {
			due = time.Now().Add(l.sim.backoff())
		}
		timer.Reset(time.Until(due))
	}
}

// backoff is how long a node waits after a request without an answer.
func (s *simulation) backoff() time.Duration {
	d := min(s.cfg.Interval/4, time.Second)
	return d/2 + rand.N(d)
}

// join acquires the leases of the line's nodes and sends their first beats.
func (l *line) join(ctx context.Context) bool {
	s := l.sim
	select {
	case s.gate <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	defer func() { <-s.gate }()
	var all sync.WaitGroup
	for _, n := range l.nodes {
		all.Go(func() { s.acquire(ctx, n) })
	}
	if all.Wait(); ctx.Err() != nil {
		return false
	}
	for !l.beat(ctx, l.nodes) {
		if !pause(ctx, s.backoff()) {
			return false
		}
	}
	s.joined.Add(int64(len(l.nodes)))
	return true
}

// acquire takes the lease of a node, and tries until it has it or ctx ends.
func (s *simulation) acquire(ctx context.Context, n *node) {
	s.asking <- struct{}{}
	defer func() { <-s.asking }()
	req := store.Request{Name: fleet.LeaseName(n.beat.Node), Holder: "load/" + n.beat.Node, TTL: s.cfg.TTL}
	for {
		req.Attempt = store.NewAttempt()
		n.confirmed = time.Now()
		rec, err := s.leases.Acquire(ctx, req)
		if err == nil {
			n.beat.Renew = &api.Renewal{Token: rec.Token, TTLMS: s.cfg.TTL.Milliseconds(), Known: []store.Attempt{req.Attempt}}
			n.beat.Facts = n.facts
			return
		}
		s.out.say(event{Trouble: "acquire: " + err.Error()})
		if len(req.Known) < store.MaxKnown {
			req.Known = append(req.Known, req.Attempt)
		}
		if !pause(ctx, s.backoff()) {
			return
		}
	}
}

// pause waits, and reports whether ctx is not over.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// beat sends the next beat of each node and takes in the replies. It reports
// whether there were any.
func (l *line) beat(ctx context.Context, nodes []*node) bool {
	sent := time.Now()
	for i, attempt := range store.NewAttempts(len(nodes)) {
		n := nodes[i]
		n.beat.Seq++
		n.beat.SentAt = sent.UTC()
		if n.beat.Renew != nil {
			n.beat.Renew.Attempt = attempt
		}
		// A real agent counts its trust so, and stops what may not go on without.
		ttl := l.sim.cfg.TTL
		if !n.fenced && !n.over && !sent.Before(n.confirmed.Add(ttl-ttl/5)) {
			n.fenced = true
			l.sim.count(func(t *tally) { t.Fenced++ })
		}
	}
	replies, err := l.exchange(ctx, nodes)
	if err != nil {
		for _, n := range nodes {
			n.unknown()
		}
		if l.conn != nil {
			l.conn.Close()
			l.conn = nil
		}
		l.sim.count(func(t *tally) { t.Lost += len(nodes) })
		return false
	}
	took := time.Since(sent)
	l.sim.count(func(t *tally) {
		t.Reply.count(took)
		t.Requests++
		t.Beats += len(nodes)
		for i, n := range nodes {
			if replies == nil {
				n.yes(sent)
				t.Renewed++
			} else {
				n.took(&replies[i], sent, t)
			}
		}
	})
	return true
}

// unknown notes that an attempt may have been applied.
func (n *node) unknown() {
	if r := n.beat.Renew; r != nil && len(r.Known) < store.MaxKnown {
		r.Known = append(r.Known, r.Attempt)
	}
}

// yes notes that the beat was accepted and the lease renewed.
func (n *node) yes(sent time.Time) {
	n.beat.Facts = nil
	r := n.beat.Renew
	r.Known = append(r.Known[:0], r.Attempt)
	n.confirmed, n.fenced = sent, false
}

// took takes in a reply that has more to say.
func (n *node) took(reply *api.BeatReply, sent time.Time, t *tally) {
	if reply.Code != "" {
		t.refuse("beat", string(reply.Code))
	}
	if reply.Orders != nil {
		n.beat.Orders = reply.Orders.Revision
	}
	switch r := reply.Renewed; {
	case n.beat.Renew == nil:
	case r == nil: // it was not passed on
		n.unknown()
	case r.Code == "":
		n.yes(sent)
		t.Renewed++
	case r.Code == store.CodeBusy: // nothing was decided
		t.refuse("renewal", string(r.Code))
	case r.Code == store.CodeNoContact:
		n.unknown()
		t.refuse("renewal", string(r.Code))
	default:
		t.refuse("renewal", string(r.Code))
		n.beat.Renew, n.over = nil, true
	}
	n.beat.Facts = nil
	if reply.NeedFacts {
		n.beat.Facts = n.facts
	}
}

// buffers are for one exchange, so that idle connections need none.
type buffers struct {
	out  bytes.Buffer
	body bytes.Buffer
	in   *bufio.Reader
}

var bufferPool = sync.Pool{New: func() any { return &buffers{in: bufio.NewReaderSize(nil, 16<<10)} }}

// exchange sends the beats of nodes in one request. It returns nil replies if
// each is a plain yes.
func (l *line) exchange(ctx context.Context, nodes []*node) ([]api.BeatReply, error) {
	b := bufferPool.Get().(*buffers)
	defer bufferPool.Put(b)
	b.out.Reset()
	b.body.Reset()
	path, single := "/v1/beat", l.sim.cfg.Relay == 1
	enc := json.NewEncoder(&b.body)
	var err error
	if single {
		err = enc.Encode(&nodes[0].beat)
	} else {
		path = "/v1/beats"
		beats := make([]api.Beat, len(nodes))
		for i, n := range nodes {
			beats[i] = n.beat
		}
		err = enc.Encode(api.Beats{Beats: beats})
	}
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(&b.out, "POST %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: tenure\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", path, l.server, b.body.Len())
	b.out.Write(b.body.Bytes())

	limit := max(l.sim.cfg.Interval, time.Second)
	if l.conn == nil {
		if l.conn, err = (&net.Dialer{Timeout: limit}).DialContext(ctx, "tcp", l.server); err != nil {
			return nil, err
		}
	}
	if err := l.conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return nil, err
	}
	if _, err := l.conn.Write(b.out.Bytes()); err != nil {
		return nil, err
	}
	b.in.Reset(l.conn)
	defer b.in.Reset(nil)
	resp, err := http.ReadResponse(b.in, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b.body.Reset()
	if _, err := b.body.ReadFrom(resp.Body); err != nil {
		return nil, err
	}
	text := b.body.Bytes()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %.200s", resp.Status, text)
	}
	if plainYes(text, len(nodes)) {
		return nil, nil
	}
	replies := make([]api.BeatReply, 1)
	if single {
		err = json.Unmarshal(text, &replies[0])
	} else {
		var all api.BeatReplies
		err = json.Unmarshal(text, &all)
		replies = all.Replies
	}
	if err == nil && len(replies) != len(nodes) {
		err = io.ErrUnexpectedEOF
	}
	return replies, err
}

// plainYes reports, without decoding it, that an answer accepts n beats with
// their renewals and asks for nothing.
func plainYes(text []byte, n int) bool {
	return bytes.Count(text, []byte(`"renewed":{`)) == n &&
		!bytes.Contains(text, []byte(`"code":`)) && !bytes.Contains(text, []byte(`"need_facts":`)) && !bytes.Contains(text, []byte(`"orders":`))
}
