package loadgen

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/tenurehq/tenure/fleet"
)

// ErrConfig reports settings that cannot be run.
var ErrConfig = errors.New("loadgen: invalid settings")

// ErrBroke reports that the fleet did not come up, or that a part ended.
var ErrBroke = errors.New("loadgen: the run broke")

// Config says what to measure.
type Config struct {
	// Database is what OpenFunc is given; it is set up and holds no node.
	Database string
	// Name is the database for people, without a password.
	Name string
	// SQLite is the path of the file, Postgres the URL of the database; one of them.
	SQLite, Postgres string

	Nodes        int
	Interval     time.Duration // between two beats of a node
	SuspectAfter int           // missed beats until a node is suspect; 0 means 3
	NodeTTL      time.Duration // life of a node's lease; 0 means six intervals
	Relay        int           // beats in one body; 0 or 1 means a connection for each node
	Replicas     int           // 0 means 1
	Duration     time.Duration // of the steady time
	Kill         int           // nodes to kill after it
	Restart      bool          // kill each replica and start it again, at the end
	Profile      string        // for profiles of the first replica: the files Profile-join, -steady and -heap

	// Part returns the command of a new part, whose process calls Play.
	Part func() *exec.Cmd
	// Progress is told how far the run is, from any goroutine; nil tells nobody.
	Progress func(stage string, done, of int)
}

const (
	// perProcess bounds the connections of a process of nodes.
	perProcess = 15_000
	// spareFiles is what a process opens beside its connections.
	spareFiles = 300
	// joining is how many nodes acquire leases and join at a time.
	joining = 48
	// joinStall is how long no node may join before the run is given up.
	joinStall = time.Minute
	// mostTrouble is how many warnings a report keeps.
	mostTrouble = 20
)

func (c Config) filled() (Config, error) {
	c.SuspectAfter = cmp.Or(c.SuspectAfter, 3)
	c.NodeTTL = cmp.Or(c.NodeTTL, 6*c.Interval)
	c.Relay = max(c.Relay, 1)
	c.Replicas = max(c.Replicas, 1)
	if c.Progress == nil {
		c.Progress = func(string, int, int) {}
	}
	if c.Nodes < 1 || c.Interval <= 0 || c.Duration <= 0 {
		return c, fmt.Errorf("%w: nodes %d, interval %s and duration %s must be positive", ErrConfig, c.Nodes, c.Interval, c.Duration)
	}
	if c.Kill < 0 || c.Kill > c.Nodes/2 {
		return c, fmt.Errorf("%w: kill %d; at most half of the %d nodes", ErrConfig, c.Kill, c.Nodes)
	}
	files, err := maxFiles()
	if err != nil {
		return c, fmt.Errorf("%w: this needs Linux: %w", ErrConfig, err)
	}
	if most := files - spareFiles; c.connections() > most*c.Replicas {
		return c, fmt.Errorf("%w: %d connections to %d replicas; a process may open %d files here (ulimit -n), so raise that, use %d replicas, or relay", ErrConfig, c.connections(), c.Replicas, files, (c.connections()+most-1)/most)
	}
	return c, nil
}

func (c *Config) connections() int { return (c.Nodes + c.Relay - 1) / c.Relay }

func (c *Config) suspect() time.Duration { return time.Duration(c.SuspectAfter) * c.Interval }

// Run measures. It needs Linux, whose /proc says what the parts use. Errors match
// ErrConfig, ErrBroke, or are ctx's.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	cfg, err := cfg.filled()
	if err != nil {
		return nil, err
	}
	c := &conductor{cfg: cfg, killed: map[string]time.Time{}, suspected: map[suspicion][]time.Time{}, joined: map[int]int{}}
	c.report.Settings = Settings{
		Database: cfg.Name, Nodes: cfg.Nodes, IntervalMS: cfg.Interval.Milliseconds(), SuspectAfterMS: cfg.suspect().Milliseconds(),
		NodeTTLMS: cfg.NodeTTL.Milliseconds(), Relay: cfg.Relay, Replicas: cfg.Replicas, Connections: cfg.connections(),
	}
	defer c.close()
	err = c.run(ctx)
	if err != nil && ctx.Err() == nil && !errors.Is(err, ErrBroke) && !errors.Is(err, ErrConfig) {
		err = fmt.Errorf("%w: %w", ErrBroke, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report.Trouble = c.trouble
	return &c.report, err
}

// conductor runs the parts.
type conductor struct {
	cfg      Config
	meter    meter
	replicas []*part
	address  []string // of each replica
	nodes    []*part
	report   Report

	mu        sync.Mutex
	joined    map[int]int // by part
	killed    map[string]time.Time
	suspected map[suspicion][]time.Time // as told
	false     []string
	watching  bool // all have joined, so that a suspicion has to be right
	trouble   []string
}

// suspicion is a replica's of a node.
type suspicion struct {
	replica int
	node    string
}

func (c *conductor) close() {
	for _, p := range c.nodes {
		p.end()
	}
	for _, p := range c.replicas {
		p.end()
	}
	if c.meter != nil {
		c.meter.close()
	}
}

func (c *conductor) run(ctx context.Context) error {
	cfg := &c.cfg
	for i := range cfg.Replicas {
		c.replicas, c.address = append(c.replicas, nil), append(c.address, "127.0.0.1:0")
		if err := c.startReplica(ctx, i); err != nil {
			return fmt.Errorf("replica %d: %w", i, err)
		}
	}
	var err error
	if cfg.Postgres != "" {
		c.meter, err = openPostgresMeter(ctx, cfg.Postgres)
	} else {
		c.meter = sqliteMeter{cfg.SQLite}
	}
	if err != nil {
		return err
	}
	for _, stage := range []func(context.Context) error{c.join, c.steady, c.detect, c.restart, c.finish} {
		if err := stage(ctx); err != nil {
			return err
		}
	}
	return nil
}

// startReplica starts a replica at its address and waits until it is ready.
func (c *conductor) startReplica(ctx context.Context, i int) error {
	cfg := &c.cfg
	listening := make(chan string, 1)
	p, err := startPart(cfg.Part(), order{Serve: &replicaConfig{
		Database: cfg.Database, Name: fmt.Sprintf("replica-%d", i), Listen: c.address[i],
		Interval: cfg.Interval, SuspectAfter: cfg.SuspectAfter, NodeTTL: cfg.NodeTTL,
	}}, func(e event) {
		switch {
		case e.Listening != "":
			listening <- e.Listening
		case e.Liveness != nil && e.Liveness.Is == string(fleet.Suspect):
			c.suspect(i, e.Liveness)
		case e.Trouble != "":
			c.warn(fmt.Sprintf("replica %d: %s", i, e.Trouble))
		}
	})
	if err != nil {
		return err
	}
	c.replicas[i] = p
	select {
	case c.address[i] = <-listening:
		return nil
	case <-p.gone:
		return fmt.Errorf("it ended: %w", p.err)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *conductor) warn(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.trouble) < mostTrouble {
		c.trouble = append(c.trouble, text)
	}
}

func (c *conductor) suspect(replica int, s *sighting) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := suspicion{replica, s.Node}
	c.suspected[key] = append(c.suspected[key], s.At)
	if at, dead := c.killed[s.Node]; c.watching && (!dead || s.At.Before(at)) {
		c.false = append(c.false, s.Node)
	}
}

// detected returns after which time a replica suspected a node that died. What it
// suspected before that was something else. The caller holds c.mu.
func (c *conductor) detected(replica int, node string, death time.Time) (after time.Duration, ok bool) {
	for _, at := range c.suspected[suspicion{replica, node}] {
		if d := at.Sub(death); d >= 0 && (!ok || d < after) {
			after, ok = d, true
		}
	}
	return after, ok
}

// join starts the nodes and waits until all beat.
func (c *conductor) join(ctx context.Context) error {
	cfg := &c.cfg
	empty, err := c.used()
	if err != nil {
		return err
	}
	heap, err := c.heap(ctx, "")
	if err != nil {
		return err
	}
	c.report.Memory.EmptyRSS, c.report.Memory.EmptyLive = empty.rss, heap.Live
	if err := c.profile(ctx, "join"); err != nil {
		return err
	}
	began := time.Now()
	lines := cfg.connections()
	processes := (lines + perProcess - 1) / perProcess
	each := (lines + processes - 1) / processes * cfg.Relay
	for first := 0; first < cfg.Nodes; first += each {
		i := len(c.nodes)
		p, err := startPart(cfg.Part(), order{Nodes: &nodesConfig{
			Servers: c.address, First: first, Count: min(each, cfg.Nodes-first), Relay: cfg.Relay,
			Interval: cfg.Interval, TTL: cfg.NodeTTL, Joining: max(joining/processes, 1),
		}}, func(e event) {
			switch {
			case e.Joined != 0:
				c.mu.Lock()
				c.joined[i] = e.Joined
				c.mu.Unlock()
			case e.Killed != nil:
				c.mu.Lock()
				c.killed[e.Killed.Node] = e.Killed.At
				c.mu.Unlock()
			case e.Trouble != "":
				c.warn("nodes: " + e.Trouble)
			}
		})
		if err != nil {
			return err
		}
		c.nodes = append(c.nodes, p)
	}
	last, lastAt := 0, time.Now()
	err = c.until(ctx, func() (bool, error) {
		c.mu.Lock()
		n := 0
		for _, joined := range c.joined {
			n += joined
		}
		c.mu.Unlock()
		if n != last {
			last, lastAt = n, time.Now()
		} else if time.Since(lastAt) > joinStall {
			return false, fmt.Errorf("%w: no node joined for %s; %d of %d have", ErrBroke, joinStall, n, cfg.Nodes)
		}
		cfg.Progress("acquire and join", n, cfg.Nodes)
		return n == cfg.Nodes, nil
	})
	if err != nil {
		return err
	}
	took := time.Since(began)
	after, err := c.used()
	if err != nil {
		return err
	}
	c.report.Join = Join{MS: took.Milliseconds(), PerSec: float64(cfg.Nodes) / took.Seconds(), ServerUS: micros(after.cpu-empty.cpu) / float64(cfg.Nodes)}
	// What the rush left behind is no part of the steady time, nor is the time
	// until every replica has heard, or read, of every node.
	if err := c.wait(ctx, "settle", cfg.Interval+2*time.Second); err != nil {
		return err
	}
	c.mu.Lock()
	c.watching = true
	c.mu.Unlock()
	return nil
}

// steady measures while nothing but beats happens.
func (c *conductor) steady(ctx context.Context) error {
	cfg := &c.cfg
	if err := c.profile(ctx, "steady"); err != nil {
		return err
	}
	if err := c.addTally(ctx); err != nil {
		return err
	}
	before, err := c.all(ctx)
	if err != nil {
		return err
	}
	if err := c.wait(ctx, "measure beats", cfg.Duration); err != nil {
		return err
	}
	t, err := c.tally(ctx)
	if err != nil {
		return err
	}
	after, err := c.all(ctx)
	if err != nil {
		return err
	}
	if err := c.profile(ctx, ""); err != nil {
		return err
	}
	seconds, beats := after.at.Sub(before.at).Seconds(), float64(max(t.Beats, 1))
	rate := func(from, to int64) float64 {
		if to < 0 {
			return -1
		}
		return float64(to-from) / seconds
	}
	cpu := after.server.cpu - before.server.cpu
	s := &c.report.Steady
	*s = Steady{
		Seconds: seconds, Load: loadAverage(),
		BeatsPerSec: float64(t.Beats) / seconds, DuePerSec: float64(cfg.Nodes) / cfg.Interval.Seconds(),
		ServerUS: micros(cpu) / beats, ServerCores: cpu.Seconds() / seconds,
		GeneratorUS: micros(after.nodes.cpu-before.nodes.cpu) / beats,
		DatabaseUS:  -1, DatabaseCores: -1,
		CommitsPerSec: rate(before.db.commits, after.db.commits),
		RowsPerSec:    rate(before.db.rows, after.db.rows),
		LogPerSec:     rate(before.db.log, after.db.log),
		WrittenPerSec: rate(before.server.written, after.server.written),
		Reply:         spread(&t.Reply), GeneratorLate: spread(&t.Late), Lost: t.Lost,
	}
	if after.db.cpu >= 0 {
		spent := after.db.cpu - before.db.cpu
		s.DatabaseUS, s.DatabaseCores = micros(spent)/beats, spent.Seconds()/seconds
	}
	s.CommitsPerBeat, s.RowsPerBeat = s.CommitsPerSec/s.BeatsPerSec, max(s.RowsPerSec/s.BeatsPerSec, -1)
	heap, err := c.heap(ctx, "heap")
	if err != nil {
		return err
	}
	m := &c.report.Memory
	nodes := float64(cfg.Nodes)
	m.RSS, m.PerNode = after.server.rss, float64(after.server.rss-m.EmptyRSS)/nodes
	m.Live, m.LivePerNode = heap.Live, (float64(heap.Live)-float64(m.EmptyLive))/nodes
	m.Stacks, m.Goroutines = heap.Stacks, heap.Goroutines
	return nil
}

// profile begins the profile of a stage, in place of any that is being written.
func (c *conductor) profile(ctx context.Context, stage string) error {
	if c.cfg.Profile == "" {
		return nil
	}
	o := order{Do: doProfile}
	if stage != "" {
		o.File = c.cfg.Profile + "-" + stage
	}
	e, err := c.replicas[0].ask(ctx, o)
	if err == nil && e.Trouble != "" {
		err = fmt.Errorf("%w: profile: %s", ErrConfig, e.Trouble)
	}
	return err
}

// detect kills nodes and waits until every replica suspects them.
func (c *conductor) detect(ctx context.Context) (err error) {
	if c.cfg.Kill == 0 {
		return nil
	}
	if err := c.kill(ctx); err != nil {
		return err
	}
	c.report.Detection, err = c.awaitSuspicion(ctx, "detect the killed", nil, c.cfg.suspect()+3*c.cfg.Interval+5*time.Second)
	return err
}

// kill has nodes die at random instants within the next interval.
func (c *conductor) kill(ctx context.Context) error {
	left := c.cfg.Kill
	for i, p := range c.nodes {
		n := left / (len(c.nodes) - i)
		left -= n
		if _, err := p.ask(ctx, order{Do: doKill, N: n}); err != nil {
			return err
		}
	}
	return nil
}

// awaitSuspicion waits, for limit at most, until every replica suspects the
// killed nodes that are not in before.
func (c *conductor) awaitSuspicion(ctx context.Context, stage string, before map[string]bool, limit time.Duration) (*Detection, error) {
	d := &Detection{Killed: c.cfg.Kill}
	var times []time.Duration
	deadline := time.Now().Add(limit)
	err := c.until(ctx, func() (bool, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		d.Detected, times = 0, times[:0]
		for node, at := range c.killed {
			if before[node] {
				continue
			}
			everywhere := true
			for i := range c.replicas {
				if after, ok := c.detected(i, node, at); ok {
					times = append(times, after)
				} else {
					everywhere = false
				}
			}
			if everywhere {
				d.Detected++
			}
		}
		c.cfg.Progress(stage, d.Detected, d.Killed)
		return d.Detected == d.Killed || time.Now().After(deadline), nil
	})
	d.Time = spreadOf(times)
	return d, err
}

// restart ends each replica by SIGKILL and starts it again.
func (c *conductor) restart(ctx context.Context) error {
	if !c.cfg.Restart {
		return nil
	}
	// So that what happened before is told apart.
	if err := c.addTally(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	falseBefore := len(c.false)
	dead := map[string]bool{}
	for node := range c.killed {
		dead[node] = true
	}
	c.mu.Unlock()
	r := &Restart{}
	for i, p := range c.replicas {
		c.cfg.Progress("restart", i, len(c.replicas))
		began := time.Now()
		p.kill()
		if i == 0 && c.cfg.Kill > 0 {
			if err := c.kill(ctx); err != nil {
				return err
			}
			// The nodes die within an interval; the server is away for as long, as it
			// is when a host restarts.
			if err := c.wait(ctx, "replica 0 is down", c.cfg.Interval); err != nil {
				return err
			}
		}
		if err := c.startReplica(ctx, i); err != nil {
			return fmt.Errorf("restart of replica %d: %w", i, err)
		}
		r.DownMS = max(r.DownMS, time.Since(began).Milliseconds())
	}
	if c.cfg.Kill > 0 {
		gap, err := c.awaitSuspicion(ctx, "detect those killed in the gap", dead, 2*c.cfg.suspect()+3*c.cfg.Interval+5*time.Second)
		if err != nil {
			return err
		}
		r.Gap = gap
	}
	if err := c.wait(ctx, "watch for false suspicions", 2*c.cfg.suspect()); err != nil {
		return err
	}
	t, err := c.tally(ctx)
	if err != nil {
		return err
	}
	r.Lost = t.Lost
	c.mu.Lock()
	r.FalseSuspicions = len(c.false) - falseBefore
	c.mu.Unlock()
	c.report.Restart = r
	return nil
}

// finish counts what is left to count.
func (c *conductor) finish(ctx context.Context) error {
	err := c.addTally(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report.FalseSuspicions = append([]string{}, c.false...)
	slices.Sort(c.report.FalseSuspicions)
	return err
}

// addTally adds to the report what was counted so far, and has the nodes count anew.
func (c *conductor) addTally(ctx context.Context) error {
	_, err := c.tally(ctx)
	return err
}

// tally returns what the nodes counted since the last call, and adds what was
// refused to the report.
func (c *conductor) tally(ctx context.Context) (*tally, error) {
	sum := &tally{}
	for _, p := range c.nodes {
		e, err := p.ask(ctx, order{Do: doTally})
		if err != nil {
			return nil, fmt.Errorf("nodes: %w", err)
		}
		sum.add(e.Tally)
	}
	if c.report.Refused == nil {
		c.report.Refused = map[string]int{}
	}
	for code, n := range sum.Refused {
		c.report.Refused[code] += n
	}
	c.report.Lapses += sum.Fenced
	return sum, nil
}

// reading is what all parts have used at an instant.
type reading struct {
	at            time.Time
	server, nodes usage
	db            writes
}

func (c *conductor) all(ctx context.Context) (r reading, err error) {
	r.at = time.Now()
	if r.db, err = c.meter.read(ctx); err != nil {
		return r, err
	}
	if r.server, err = c.used(); err != nil {
		return r, err
	}
	r.nodes, err = sumUsage(c.nodes)
	return r, err
}

func (c *conductor) used() (usage, error) { return sumUsage(c.replicas) }

func sumUsage(parts []*part) (sum usage, err error) {
	for _, p := range parts {
		u, err := usageOf(p.cmd.Process.Pid)
		if err != nil {
			return sum, err
		}
		sum.cpu, sum.rss, sum.written = sum.cpu+u.cpu, sum.rss+u.rss, sum.written+u.written
	}
	return sum, nil
}

// heap is what the replicas keep, together. The first writes a profile of it, if
// there are to be profiles and stage is not "".
func (c *conductor) heap(ctx context.Context, stage string) (sum heapState, err error) {
	for i, p := range c.replicas {
		o := order{Do: doMemory}
		if i == 0 && stage != "" && c.cfg.Profile != "" {
			o.File = c.cfg.Profile + "-" + stage
		}
		e, err := p.ask(ctx, o)
		if err == nil && e.Trouble != "" {
			err = fmt.Errorf("%w: profile: %s", ErrConfig, e.Trouble)
		}
		if err != nil {
			return sum, err
		}
		sum.Live, sum.Stacks, sum.Goroutines = sum.Live+e.Heap.Live, sum.Stacks+e.Heap.Stacks, sum.Goroutines+e.Heap.Goroutines
	}
	return sum, nil
}

// wait lets time pass and shows it.
func (c *conductor) wait(ctx context.Context, stage string, d time.Duration) error {
	began := time.Now()
	return c.until(ctx, func() (bool, error) {
		passed := min(time.Since(began), d)
		c.cfg.Progress(stage, int(passed.Milliseconds()), int(d.Milliseconds()))
		return passed == d, nil
	})
}

// until asks done again and again, and fails if a part has ended.
func (c *conductor) until(ctx context.Context, done func() (bool, error)) error {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		for _, p := range c.nodes {
			select {
			case <-p.gone:
				return fmt.Errorf("%w: a process of nodes ended: %w", ErrBroke, p.err)
			default:
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
