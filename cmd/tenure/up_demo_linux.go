package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/cmd/tenure/tree"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store/sqlite"
)

// Times and names of the demo.
const (
	demoInterval = 500 * time.Millisecond
	demoTTL      = 6 * time.Second
	demoPoll     = 20 * time.Millisecond
	demoSoon     = 20 * time.Second // for what is expected at once, on a busy machine
	demoGrace    = 3 * time.Second  // for minders to end in order

	movable = "report" // the work item that may move
	pinned  = "disk"   // the one whose data is on its host
)

// demo is a throw-away fleet. One goroutine owns it, but for the events.
type demo struct {
	out    io.Writer
	dir    string
	began  time.Time
	db     *sql.DB // the file of the server, where the work keeps its data too
	agents map[string]*exec.Cmd
	url    string
	client *api.Client

	mu     sync.Mutex
	events []fleet.Event
	dead   string // a process of the demo that ended by itself
}

// runDemo shows the whole, and ends every process that it started.
func runDemo(ctx context.Context, out io.Writer, keep bool) (err error) {
	interrupted := ctx
	// Children die with this thread if this process is killed; orphans of theirs
	// become its own.
	runtime.LockOSThread()
	if err := tree.Subreaper(); err != nil {
		return failf(exitConfig, "up --demo: %w", err)
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP) // a terminal that is closed
	defer stop()
	dir, err := os.MkdirTemp("", "tenure-demo-")
	if err != nil {
		return failf(exitPermission, "up --demo: %w", err)
	}
	d := &demo{out: out, dir: dir, began: time.Now(), agents: map[string]*exec.Cmd{}}
	defer func() {
		signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP) // the end is under way
		d.end()
		if ctx.Err() != nil && interrupted.Err() == nil {
			err = &exitError{code: 128 + int(syscall.SIGHUP)}
		}
		var failed *exitError
		if ctx.Err() == nil && errors.As(err, &failed) && failed.code == exitDemo {
			fmt.Fprintf(out, "\nThe logs are in %s.\n", dir)
			return
		}
		os.RemoveAll(dir)
	}()
	if err := d.play(ctx); err != nil {
		return err
	}
	if keep {
		fmt.Fprintf(out, "\nThe fleet stays up until Ctrl-C. Its pages: %s\nIn another terminal:\n  export %s=%s\n  tenure nodes ls; tenure why %s; tenure events --follow\n", pagesURL(d.url), envServer, d.url, movable)
		<-ctx.Done()
	}
	return nil
}

// say tells of something that was observed now.
func (d *demo) say(format string, args ...any) {
	now := time.Now()
	fmt.Fprintf(d.out, "%s %6.1fs  %s\n", now.Format("15:04:05.000"), now.Sub(d.began).Seconds(), escape(fmt.Sprintf(format, args...)))
}

// missed ends the demo: what it shows was not there.
func missed(format string, args ...any) error {
	return failf(exitDemo, "up --demo: "+format, args...)
}

// await waits until seen is true, and fails if that takes longer than limit.
func (d *demo) await(ctx context.Context, limit time.Duration, what string, seen func(context.Context) (bool, error)) error {
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(demoPoll)
	defer tick.Stop()
	var last error
	for {
		ok, err := seen(bounded)
		if ok && err == nil {
			return nil
		}
		d.mu.Lock()
		dead := d.dead
		d.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case dead != "":
			return missed("%s ended by itself; expected: %s", dead, what)
		case errors.As(err, new(*exitError)):
			return err
		case err != nil:
			last = err
		}
		select {
		case <-tick.C:
		case <-bounded.Done():
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if last != nil {
				return missed("not observed within %s: %s (last error: %s)", limit, what, words(last.Error()))
			}
			return missed("not observed within %s: %s", limit, what)
		}
	}
}

// event waits for an entry of the ledger.
func (d *demo) event(ctx context.Context, limit time.Duration, what string, match func(*fleet.Event) bool) (found fleet.Event, err error) {
	err = d.await(ctx, limit, what, func(context.Context) (bool, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		for i := range d.events {
			if match(&d.events[i]) {
				found = d.events[i]
				return true, nil
			}
		}
		return false, nil
	})
	return found, err
}

// play is the demo from the first process to the summary.
func (d *demo) play(ctx context.Context) error {
	if err := d.start(ctx); err != nil {
		return err
	}
	owner, err := d.submit(ctx)
	if err != nil {
		return err
	}
	before, host, err := d.pause(ctx, owner)
	if err != nil {
		return err
	}
	if err := d.watchLoss(ctx, owner); err != nil {
		return err
	}
	evidence, err := d.watchMove(ctx, owner, before)
	if err != nil {
		return err
	}
	if err := d.resume(ctx, owner, before, host); err != nil {
		return err
	}
	return d.summary(ctx, owner, evidence)
}

// start brings up the server and three agents.
func (d *demo) start(ctx context.Context) error {
	file := demoFile(d.dir)
	_, _, closeDB, err := openFleet(ctx, location{kind: kindSQLite, target: file, own: true})
	if err != nil {
		return err
	}
	closeDB()
	if d.db, err = openDemoData(file); err == nil {
		err = makeDemoTables(ctx, d.db)
	}
	if err != nil {
		return failf(exitInternal, "up --demo: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return failf(exitInternal, "up --demo: %w", err)
	}
	if err := os.Symlink(self, d.program()); err != nil {
		return failf(exitInternal, "up --demo: %w", err)
	}
	if err := d.guard(); err != nil {
		return err
	}
	d.say("a throw-away fleet in %s: one server, three hosts, one SQLite file", d.dir)
	if _, err := d.run("server", "server", "--store", "sqlite:"+file, "--listen", "127.0.0.1:0", "--name", "demo",
		"--interval", demoInterval.String(), "--node-ttl", demoTTL.String(), "--reconcile", "250ms", "--reconciler-ttl", "2s", "--refresh", "250ms", "--window", "5ms"); err != nil {
		return err
	}
	if err := d.await(ctx, demoSoon, "the server listens", func(context.Context) (bool, error) {
		text, err := os.ReadFile(filepath.Join(d.dir, "server.out"))
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, "server:"); ok && strings.HasSuffix(line, "\n") {
				d.url = strings.TrimSpace(rest)
			}
		}
		return d.url != "", err
	}); err != nil {
		return err
	}
	if d.client, err = api.NewClient(api.Config{Servers: []string{d.url}}); err != nil {
		return err
	}
	d.say("the server listens at %s: beats each %s, suspect after 3 missed, a host's lease lives %s", d.url, demoInterval, demoTTL)
	d.say("its pages, as long as this runs: %s", pagesURL(d.url))
	go d.follow(ctx)
	for _, node := range []string{"host-a", "host-b", "host-c"} {
		cmd, err := d.run(node, "agent", "--server", d.url, "--node", node, "--state-dir", filepath.Join(d.dir, node), "--capacity", "slots=4,memory_mb=1024,cpu_milli=1000")
		if err != nil {
			return err
		}
		d.agents[node] = cmd
	}
	for node := range d.agents {
		if err := d.await(ctx, demoSoon, node+" is heard, holds its lease and may get work", func(ctx context.Context) (bool, error) {
			e, err := d.client.Eligible(ctx, node)
			return err == nil && e.Eligible, err
		}); err != nil {
			return err
		}
	}
	nodes, err := d.client.Nodes(ctx)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		d.say("%s is %s, its lease is %s with token %s, agent process %d", n.ID, n.Liveness, n.Lease.State, n.Lease.Token, d.agents[n.ID].Process.Pid)
	}
	return nil
}

func (d *demo) program() string { return filepath.Join(d.dir, "tenure") }

// run starts this program as a process of the demo, which dies with it.
func (d *demo) run(name string, args ...string) (*exec.Cmd, error) {
	out, err := os.Create(filepath.Join(d.dir, name+".out"))
	if err != nil {
		return nil, failf(exitInternal, "up --demo: %w", err)
	}
	defer out.Close()
	log, err := os.Create(filepath.Join(d.dir, name+".log"))
	if err != nil {
		return nil, failf(exitInternal, "up --demo: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(d.program(), args...) //nolint:noctx // ended with its minders, by end
	cmd.Stdout, cmd.Stderr = out, log
	for _, kv := range os.Environ() { // settings of the user's own fleet are none of the demo's
		if !strings.HasPrefix(kv, "TENURE_") || strings.HasPrefix(kv, "TENURE_RUNTIME_DIR=") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	// A group of its own: Ctrl-C is for the demo, which ends the others in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, failf(exitInternal, "up --demo: %s: %w", name, err)
	}
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		d.mu.Lock()
		defer d.mu.Unlock()
		d.dead = name
	}()
	return cmd, nil
}

// guard starts the process that ends the others if this one is killed.
func (d *demo) guard() error {
	self, err := identity()
	if err != nil {
		return err
	}
	cmd := exec.Command(d.program(), "demo-work", "--guard", "--dir", d.dir, "--beside", self) //nolint:noctx // it outlives all others
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return failf(exitInternal, "up --demo: guard: %w", err)
	}
	return nil
}

// identity names this process for "demo-work --beside".
func identity() (string, error) {
	self, err := tree.Read(os.Getpid())
	if err != nil {
		return "", failf(exitInternal, "up --demo: %w", err)
	}
	return fmt.Sprintf("%d:%d", self.PID, self.Start), nil
}

// follow keeps the ledger as it grows.
func (d *demo) follow(ctx context.Context) {
	for e, err := range d.client.FollowEvents(ctx, api.EventQuery{}) {
		if err != nil {
			return
		}
		d.mu.Lock()
		d.events = append(d.events, e)
		d.mu.Unlock()
	}
}

// submit places the movable item, and the pinned one beside it.
func (d *demo) submit(ctx context.Context) (owner string, err error) {
	self, err := identity()
	if err != nil {
		return "", err
	}
	command := []string{d.program(), "demo-work", "--dir", d.dir, "--beside", self}
	for _, spec := range []fleet.Spec{
		{ID: movable, Command: command, Movable: true, Request: fleet.Request{Resources: fleet.Resources{"slots": 1}}},
		{ID: pinned, Command: command, Request: fleet.Request{Resources: fleet.Resources{"slots": 1}}},
	} {
		if spec.ID == pinned {
			spec.Request.Node = owner
		}
		w, err := d.client.Submit(ctx, api.SubmitRequest{Spec: spec, Actor: userAtHost()})
		if err != nil {
			return "", explainServer([]string{d.url}, err)
		}
		owner = w.Owner
		var row demoRow
		if err := d.await(ctx, demoSoon, spec.ID+" writes", func(ctx context.Context) (bool, error) {
			row, err = d.row(ctx, spec.ID, w.Token)
			return row.accepted > 1, err
		}); err != nil {
			return "", err
		}
		kind := "movable"
		if !spec.Movable {
			kind = "pinned: its data is on its host"
		}
		d.say("work %q (%s) runs on %s and has written %d rows with token %s", spec.ID, kind, w.Owner, row.accepted, w.Token)
	}
	return owner, nil
}

// demoHost is the processes of one host.
type demoHost struct {
	agent   tree.Process
	minders map[string]tree.Process // by work item
	work    map[string]tree.Process
}

// host finds the processes of a node.
func (d *demo) host(node string) (demoHost, error) {
	h := demoHost{minders: map[string]tree.Process{}, work: map[string]tree.Process{}}
	var err error
	if h.agent, err = tree.Read(d.agents[node].Process.Pid); err != nil {
		return h, err
	}
	below, err := tree.Descendants(h.agent.PID, nil)
	if err != nil {
		return h, err
	}
	minders := map[int]string{}
	for _, p := range below {
		if item, ok := mindedBy(p); ok {
			h.minders[item], minders[p.PID] = p, item
		} else if item, ok := minders[p.Parent]; ok {
			h.work[item] = p
		}
	}
	for _, item := range []string{movable, pinned} {
		if _, ok := h.work[item]; !ok {
			return h, missed("the process of work %q is not below the agent of %s", item, node)
		}
	}
	return h, nil
}

// mindedBy says whether p is a minder, and of which work item.
func mindedBy(p tree.Process) (item string, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
	args := strings.Split(string(text), "\x00")
	if err != nil || len(args) < 2 || args[0] != "tenure-minder" {
		return "", false
	}
	item, _, _ = strings.Cut(filepath.Base(args[1]), ".")
	return item, true
}

// pause stops every process of a host, and returns what its work had written.
func (d *demo) pause(ctx context.Context, owner string) (before map[string]demoRow, h demoHost, err error) {
	if h, err = d.host(owner); err != nil {
		return nil, h, err
	}
	// What is stopped in the middle of a transaction would keep the whole file
	// locked: it is let go and stopped again.
	for _, p := range h.work {
		if err := d.await(ctx, demoSoon, "a stop of the work between two writes", func(ctx context.Context) (bool, error) {
			if err := p.Send(syscall.SIGSTOP); err != nil {
				return false, err
			}
			if standsStill(ctx, p) && d.unlocked(ctx) {
				return true, nil
			}
			return false, p.Send(syscall.SIGCONT)
		}); err != nil {
			return nil, h, err
		}
	}
	for _, p := range append([]tree.Process{h.agent}, slices.Collect(mapValues(h.minders))...) {
		if err := p.Send(syscall.SIGSTOP); err != nil {
			return nil, h, failf(exitInternal, "up --demo: %w", err)
		}
		if !standsStill(ctx, p) {
			return nil, h, missed("process %d of %s does not stop", p.PID, owner)
		}
	}
	before = map[string]demoRow{}
	for item := range h.work {
		if before[item], err = d.row(ctx, item, 1); err != nil {
			return nil, h, err
		}
	}
	d.say("%s is paused as a whole (SIGSTOP): its agent, %d minders, %d processes of work", owner, len(h.minders), len(h.work))
	return before, h, nil
}

// mapValues yields the values of m.
func mapValues(m map[string]tree.Process) func(yield func(tree.Process) bool) {
	return func(yield func(tree.Process) bool) {
		for _, p := range m {
			if !yield(p) {
				return
			}
		}
	}
}

// standsStill waits a moment until a process stands still.
func standsStill(ctx context.Context, p tree.Process) bool {
	for range 100 {
		now, err := tree.Read(p.PID)
		if err != nil || now.Identity() != p.Identity() {
			return false
		}
		if now.State == 'T' {
			return true
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return false
		}
	}
	return false
}

// unlocked reports whether the file can be written within a moment, for which the
// server can do without it.
func (d *demo) unlocked(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, demoInterval/2)
	defer cancel()
	_, err := d.db.ExecContext(ctx, "UPDATE demo_data SET value = value WHERE work = ''")
	return err == nil
}

// watchLoss tells how a silent host is suspected, and then loses its lease.
func (d *demo) watchLoss(ctx context.Context, owner string) error {
	var n *api.Node
	if err := d.await(ctx, demoSoon, "the beats of "+owner+" stop", func(ctx context.Context) (ok bool, err error) {
		n, err = d.client.Node(ctx, owner)
		return err == nil && n.Liveness != fleet.Alive, err
	}); err != nil {
		return err
	}
	d.say("the beats of %s stop: it is %s, last heard %s ago", owner, n.Liveness, heard(n))
	if _, err := d.event(ctx, demoSoon, owner+" becomes suspect", func(e *fleet.Event) bool { return e.Kind == fleet.EventSuspect && e.Node == owner }); err != nil {
		return err
	}
	e, err := d.client.Eligible(ctx, owner)
	if err != nil {
		return err
	}
	if e.Eligible || e.Exclusions[0].Code != fleet.CodeStaleHeartbeat {
		return missed("%s is suspect, and is not left out for %s", owner, fleet.CodeStaleHeartbeat)
	}
	w, err := d.client.Work(ctx, movable)
	if err != nil {
		return err
	}
	if n, err = d.client.Node(ctx, owner); err != nil {
		return err
	}
	if w.Owner != owner || w.Takeovers != 0 {
		return missed("%q moved on a suspicion alone", movable)
	}
	d.say("%s is suspect: it gets no new work (%s), and keeps what it has, as its lease has %s left", owner, e.Exclusions[0].Code, left(time.Duration(n.Lease.RemainingMS)*time.Millisecond))
	lapsed, err := d.event(ctx, demoTTL+demoSoon, "the lease of "+owner+" lapses", func(e *fleet.Event) bool { return e.Kind == fleet.EventLapsed && e.Node == owner })
	if err != nil {
		return err
	}
	d.say("the lease of %s lapses (token %s): by the store's clock it may not act any more", owner, lapsed.Token)
	return nil
}

// watchMove tells how the movable item moves and the pinned one waits.
func (d *demo) watchMove(ctx context.Context, owner string, before map[string]demoRow) (fleet.Evidence, error) {
	var evidence fleet.Evidence
	e, err := d.event(ctx, demoSoon, movable+" is taken over", func(e *fleet.Event) bool { return e.Kind == fleet.EventTakeover && e.Work == movable })
	if err != nil {
		return evidence, err
	}
	if err := remarshal(e.Fields, &evidence); err != nil {
		return evidence, missed("the takeover has no evidence: %v", err)
	}
	if evidence.From != owner || evidence.To == owner || evidence.FromToken != 1 || evidence.ToToken != 2 {
		return evidence, missed("%q moved from %s, token %s, to %s, token %s; expected one move from %s, token 1 to 2", movable, evidence.From, evidence.FromToken, evidence.To, evidence.ToToken, owner)
	}
	d.say("work %q moves: %s, token %s, to %s, token %s", movable, evidence.From, evidence.FromToken, evidence.To, evidence.ToToken)
	d.say("  evidence: last beat %s, suspect %s, lease %s (token %s) at %s, recorded %s",
		stamp(evidence.Silence), stamp(evidence.Suspect), evidence.LeaseState, evidence.LeaseToken, stamp(evidence.Lapse), stamp(evidence.Recorded))
	var row demoRow
	if err := d.await(ctx, demoSoon, "the new copy writes", func(ctx context.Context) (bool, error) {
		row, err = d.row(ctx, movable, 2)
		return row.accepted > 1, err
	}); err != nil {
		return evidence, err
	}
	d.say("the copy on %s has written %d rows with token 2, and began after marker %q", evidence.To, row.accepted, row.began)
	o, err := d.client.Owner(ctx, pinned)
	if err != nil {
		return evidence, err
	}
	if row, err = d.row(ctx, pinned, 1); err != nil {
		return evidence, err
	}
	if o.Answer != api.OwnerLapsed || o.Token != 1 || row != before[pinned] {
		return evidence, missed("%q waits for %s; got the answer %q, token %s", pinned, owner, o.Answer, o.Token)
	}
	d.say("work %q is pinned and waits for %s: %q (%s)", pinned, owner, o.Text, o.Answer)
	return evidence, nil
}

// resume lets the host go on: the old copy first, so that it can try to write
// before its minder ends it.
func (d *demo) resume(ctx context.Context, owner string, before map[string]demoRow, h demoHost) error {
	old := h.work[movable]
	if err := old.Send(syscall.SIGCONT); err != nil {
		return failf(exitInternal, "up --demo: %w", err)
	}
	var row demoRow
	if err := d.await(ctx, demoSoon, "the old copy tries to write", func(ctx context.Context) (ok bool, err error) {
		row, err = d.row(ctx, movable, 1)
		return row.refused > 0, err
	}); err != nil {
		return err
	}
	if row.accepted != before[movable].accepted {
		return missed("the old copy changed %d rows with token 1", row.accepted-before[movable].accepted)
	}
	d.say("the old copy on %s goes on (process %d): its UPDATE … WHERE token = 1 changes 0 rows", owner, old.PID)
	for _, p := range slices.Concat(slices.Collect(mapValues(h.minders)), []tree.Process{h.work[pinned], h.agent}) {
		if err := p.Send(syscall.SIGCONT); err != nil {
			return failf(exitInternal, "up --demo: %w", err)
		}
	}
	d.say("the rest of %s goes on", owner)
	if err := d.await(ctx, demoSoon, "the old copy is ended", func(context.Context) (bool, error) {
		now, err := tree.Read(old.PID)
		return err != nil || now.Identity() != old.Identity() || now.Dead(), nil
	}); err != nil {
		return err
	}
	if after, err := d.row(ctx, movable, 1); err != nil {
		return err
	} else if after.accepted != before[movable].accepted {
		return missed("the old copy changed %d rows with token 1", after.accepted-before[movable].accepted)
	}
	d.say("the old copy is ended (process %d): its host lost the right to act for it", old.PID)
	var n *api.Node
	if err := d.await(ctx, demoSoon, owner+" is back with a new lease", func(ctx context.Context) (ok bool, err error) {
		n, err = d.client.Node(ctx, owner)
		return err == nil && n.Liveness == fleet.Alive && n.Lease.State == fleet.LeaseHeld && n.Lease.Token > 1, err
	}); err != nil {
		return err
	}
	d.say("%s is %s again, under a new lease with token %s", owner, n.Liveness, n.Lease.Token)
	if err := d.await(ctx, demoSoon, pinned+" goes on on "+owner, func(ctx context.Context) (ok bool, err error) {
		row, err = d.row(ctx, pinned, 1)
		if err != nil || row.accepted <= before[pinned].accepted {
			return false, err
		}
		o, err := d.client.Owner(ctx, pinned)
		return err == nil && o.Answer == api.OwnerFound && o.Node == owner && o.Token == 1, err
	}); err != nil {
		return err
	}
	d.say("work %q goes on on %s, still with token 1: it has written %d rows more", pinned, owner, row.accepted-before[pinned].accepted)
	return nil
}

// summary checks the whole once more and says what it came to.
func (d *demo) summary(ctx context.Context, owner string, evidence fleet.Evidence) error {
	w, err := d.client.Work(ctx, movable)
	if err != nil {
		return err
	}
	p, err := d.client.Work(ctx, pinned)
	if err != nil {
		return err
	}
	rows, err := d.totals(ctx)
	if err != nil {
		return err
	}
	if w.Takeovers != 1 || w.Owner != evidence.To || w.Token != 2 || p.Takeovers != 0 || p.Owner != owner || rows.lost != 0 {
		return missed("at the end %q is on %s, token %s, after %d takeovers, %q on %s after %d, and %d writes are not accounted for",
			movable, w.Owner, w.Token, w.Takeovers, pinned, p.Owner, p.Takeovers, rows.lost)
	}
	fmt.Fprintf(d.out, `
In %.0f seconds: one host was lost and came back. Its movable work moved once, token 1 to
2; of %d writes %d counted, %d came too late and changed nothing, and none was lost. Its
pinned work waited for it.

Next: tenure up --demo --keep   the same again, left up to look at: tenure why %s
      tenure up                 a fleet of this host that stays: tenure work submit
`, time.Since(d.began).Seconds(), rows.accepted+rows.refused, rows.accepted, rows.refused, movable)
	return nil
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "unknown"
	}
	return t.Local().Format("15:04:05.000")
}

// remarshal brings what came as JSON into its type.
func remarshal(from, to any) error {
	text, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, to)
}

// end ends every process below this one.
func (d *demo) end() {
	if d.client != nil {
		closeClient(d.client)
	}
	if d.db != nil {
		d.db.Close()
	}
	self := os.Getpid()
	endDemo(func() []tree.Process {
		for pid := 1; pid > 0; { // orphans that have become this process's own
			pid, _ = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		}
		below, _ := tree.Descendants(self, nil) // without /proc the demo did not begin
		return below
	}, func(p tree.Process) bool { return p.Parent == self })
}

// endDemo ends what alive returns: first those that would start others, then the
// minders with their work, in order, and after a while whatever is left.
func endDemo(alive func() []tree.Process, first func(tree.Process) bool) {
	for begun := time.Now(); time.Since(begun) < 3*demoGrace; <-time.After(demoPoll) {
		left := alive()
		if len(left) == 0 {
			return
		}
		for _, p := range left {
			_, minder := mindedBy(p)
			switch {
			case !minder && first(p), time.Since(begun) > demoGrace:
				_ = p.Send(syscall.SIGKILL)
			case minder:
				_ = p.Send(syscall.SIGTERM)
				_ = p.Send(syscall.SIGCONT)
			default:
				_ = p.Send(syscall.SIGCONT)
			}
		}
	}
}

// demoRow is what one owner of a work item has written.
type demoRow struct {
	accepted, refused int64
	began             string // the marker that it was given
}

// row returns what was written under a token.
func (d *demo) row(ctx context.Context, work string, token fence.Token) (r demoRow, err error) {
	err = d.db.QueryRowContext(ctx, "SELECT accepted, refused, began FROM demo_write WHERE work = ? AND token = ?", work, int64(token)).Scan(&r.accepted, &r.refused, &r.began)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return r, err
}

type demoTotals struct{ accepted, refused, lost int64 }

// totals counts all writes, in one reading. lost are those that were accepted and
// are not in the data.
func (d *demo) totals(ctx context.Context) (t demoTotals, err error) {
	var value int64
	err = d.db.QueryRowContext(ctx, "SELECT sum(accepted), sum(refused), (SELECT sum(value) FROM demo_data) FROM demo_write").Scan(&t.accepted, &t.refused, &value)
	t.lost = t.accepted - value
	return t, err
}

// demoFile is where the server and the work of a demo keep their data.
func demoFile(dir string) string { return filepath.Join(dir, "tenure.db") }

func openDemoData(file string) (*sql.DB, error) { return sql.Open("sqlite", sqlite.ModerncDSN(file)) }

func makeDemoTables(ctx context.Context, db *sql.DB) error {
	for _, statement := range []string{
		"CREATE TABLE demo_data (work TEXT PRIMARY KEY, value INTEGER NOT NULL, token INTEGER NOT NULL, node TEXT NOT NULL)",
		"CREATE TABLE demo_write (work TEXT, token INTEGER, node TEXT, began TEXT NOT NULL, accepted INTEGER NOT NULL, refused INTEGER NOT NULL, PRIMARY KEY (work, token))",
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}
