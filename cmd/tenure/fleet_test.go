//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/cmd/tenure/tree"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/server/registry"
)

// quickTimes are those of servers in tests: a beat costs little, and a lease lives
// long enough for a machine that is busy.
var quickTimes = []string{"--interval", "500ms", "--node-ttl", "6s", "--reconcile", "100ms", "--reconciler-ttl", "3s", "--refresh", "100ms"}

// startServer runs a server on a store of its own and returns its URL.
func startServer(t *testing.T, args ...string) (*program, string) {
	t.Helper()
	args = append([]string{"server", "--listen", "127.0.0.1:0"}, append(quickTimes, args...)...)
	if !slices.Contains(args, "--store") {
		args = append(args, "--store", fileStore(t))
	}
	p := start(t, args...)
	return p, servedURL(t, p)
}

// servedURL waits until a server says where it listens.
func servedURL(t *testing.T, p *program) (url string) {
	t.Helper()
	until(t, "the URL of the server", func() bool {
		if p.over() {
			t.Fatalf("the server ended: %q", p.finished.err)
		}
		for line := range strings.Lines(p.read("out")) {
			if rest, ok := strings.CutPrefix(line, "server:"); ok && strings.HasSuffix(line, "\n") {
				url = strings.TrimSpace(rest)
			}
		}
		return url != ""
	})
	return url
}

// startAgent runs an agent and waits until its node may get work. Its work ends
// with the test.
func startAgent(t *testing.T, url, node string, args ...string) *program {
	t.Helper()
	p := start(t, append([]string{"agent", "--server", url, "--node", node, "--state-dir", t.TempDir(), "--capacity", "slots=2,memory_mb=0,cpu_milli=0"}, args...)...)
	t.Cleanup(func() {
		p.signal(syscall.SIGKILL) // so that it starts nothing again
		until(t, "the end of the work of "+node, func() bool {
			left := workOf(node)
			for _, pid := range left {
				if p, err := tree.Read(pid); err == nil && p.Parent > 1 {
					_ = syscall.Kill(p.Parent, syscall.SIGTERM) // its minder
				}
			}
			return len(left) == 0
		})
	})
	return p
}

// workOf returns the processes of the work of a node.
func workOf(node string) (pids []int) {
	for pid, env := range environments() {
		if env["TENURE_NODE"] == node && env["TENURE_WORK"] != "" {
			pids = append(pids, pid)
		}
	}
	return pids
}

// eligible waits until a node may get new work.
func eligible(t *testing.T, node string, args ...string) {
	t.Helper()
	until(t, node+" may get new work", func() bool {
		var n api.Node
		r := cli(t, append([]string{"nodes", "get", node, "-o", "json"}, args...)...)
		return r.code == exitOK && json.Unmarshal([]byte(r.out), &n) == nil && len(n.Exclusions) == 0
	})
}

// decode reads the JSON that a command printed.
func decode[T any](t *testing.T, r result) (v T) {
	t.Helper()
	r.want(t, exitOK)
	d := json.NewDecoder(strings.NewReader(r.out))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in %q", err, r.out)
	}
	return v
}

// unique is a name that no other test of this machine has.
func unique(name string) string {
	return fmt.Sprintf("%s-%d-%d", name, os.Getpid(), time.Now().UnixNano())
}

func TestFleet(t *testing.T) {
	t.Parallel()
	srv, url := startServer(t)
	a, b := unique("a"), unique("b")
	at := []string{"--server=" + url}
	tenure := func(args ...string) result { t.Helper(); return cli(t, append(at[:1:1], args...)...) }
	agentA := startAgent(t, url, a, "--label", "zone=x", "--feature", "gpu", "--address", "10.0.0.1:80")
	ready := filepath.Join(t.TempDir(), "ready")
	startAgent(t, url, b, "--ready-file", ready)
	eligible(t, a, at...)
	until(t, b+" is there and says that it is not ready", func() bool {
		var n api.Node
		r := tenure("nodes", "get", b, "-o", "json")
		return r.code == exitOK && json.Unmarshal([]byte(r.out), &n) == nil && len(n.Exclusions) == 1 &&
			n.Exclusions[0].Code == fleet.CodeNotReady && n.Facts.Readiness.Text == ready
	})
	if err := os.WriteFile(ready, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eligible(t, b, at...)

	// Nodes.
	nodes := decode[api.Nodes](t, tenure("nodes", "ls", "-o", "json")).Nodes
	if len(nodes) != 2 || nodes[0].AgeMS < nodes[1].AgeMS {
		t.Errorf("nodes: got %d, want 2, the one that was silent longest first: %+v", len(nodes), nodes)
	}
	head := "NODE  HEARD  STALE  FENCED  DRAINING  LEASE  USE  WORK  STUCK  FIRST REASON"
	if r := tenure("nodes", "ls"); strings.Join(strings.Fields(strings.SplitN(r.out, "\n", 2)[0]), " ") != strings.Join(strings.Fields(head), " ") {
		t.Errorf("nodes ls: got %q, want the columns %q", r.out, head)
	}
	n := decode[api.Node](t, tenure("nodes", "get", a, "-o", "json"))
	if n.Facts.Labels["zone"] != "x" || n.Facts.Address != "10.0.0.1:80" || n.Facts.Capacity["slots"] != 2 || len(n.Facts.Capacity) != 1 {
		t.Errorf("facts: got %+v, want those of the flags", n.Facts)
	}

	// Work, by what it asks for.
	w := decode[api.Work](t, tenure("work", "submit", "gpu-1", "--feature", "gpu", "--label", "zone=x", "--resource", "slots=1", "-o", "json", "--", "sleep", "1000"))
	if w.Owner != a || w.Token != 1 {
		t.Errorf("submit: got owner %q, token %s, want %q, 1", w.Owner, w.Token, a)
	}
	tenure("work", "submit", "gpu-1", "--", "true").want(t, exitConflict, `"gpu-1"`)
	tenure("work", "submit", "big", "--resource", "slots=3", "--timeout", "20s", "--", "true").want(t, exitNoCapacity, "insufficient_slots 2", "--queue")
	if w := decode[api.Work](t, tenure("work", "submit", "big", "--resource", "slots=3", "--queue", "-o", "json", "--", "true")); w.State != fleet.Pending {
		t.Errorf("queued: got %s, want pending", w.State)
	}
	until(t, "gpu-1 runs", func() bool {
		return decode[api.Work](t, tenure("work", "get", "gpu-1", "-o", "json")).State == fleet.Running
	})
	if o := decode[api.Owner](t, tenure("work", "owner", "gpu-1", "-o", "json")); o.Answer != api.OwnerFound || o.Address != "10.0.0.1:80" {
		t.Errorf("owner: got %+v, want the address of %s", o, a)
	}
	works := decode[api.Works](t, tenure("work", "ls", "-o", "json"))
	if len(works.Work) != 2 || len(decode[api.Works](t, tenure("work", "ls", "--state", "pending", "-o", "json")).Work) != 1 {
		t.Errorf("work ls: got %+v, want two items, one of them pending", works)
	}
	tenure("work", "ls", "--state", "gone").want(t, exitUsage, `"gone"`, "running")

	// Why, events.
	why := decode[whyJSON](t, tenure("why", "big", "-o", "json"))
	if why.Node != nil || why.Work == nil || why.Work.Counts["insufficient_slots"] != 2 {
		t.Errorf("why: got %+v, want the counts of big", why)
	}
	if r := tenure("why", a); !strings.Contains(r.out, "may get new work") || !strings.Contains(r.out, "work_placed") {
		t.Errorf("why: got %q, want the verdict and the last events", r.out)
	}
	events := decode[api.Events](t, tenure("events", "--work", "gpu-1", "-o", "json")).Events
	if len(events) < 2 || events[0].Kind != fleet.EventSubmitted {
		t.Errorf("events: got %+v, want those of gpu-1 from its beginning", events)
	}
	follow := start(t, "events", "--follow", "--server", url, "--node", b, "--limit", "0")
	decode[api.Brake](t, tenure("brake", "show", "-o", "json"))
	tenure("brake", "release", "--reason", "x").want(t, exitConflict, "no brake")

	// Completion comes from the server.
	for _, tc := range []struct{ args, want string }{
		{"nodes get a-", a}, {"nodes drain b-", b}, {"work stop gp", "gpu-1"}, {"why gp", "gpu-1"}, {"why a-", a},
		{"work submit x --node a-", a}, {"events --work gp", "gpu-1"}, {"brake confirm --domain", ""},
	} {
		args := append([]string{"__complete"}, strings.Fields(tc.args)...)
		r := run(t, append(args[:2:2], append(at, args[2:]...)...)...)
		if !strings.Contains(r.out, tc.want) {
			t.Errorf("complete %q: got %q, want %q", tc.args, r.out, tc.want)
		}
	}

	// A server's store, for leases without the database's credentials.
	run(t, "run", "job", "--store", url, "--", "sh", "-c", "exit 3").clean(t, 3)
	if r := cli(t, "lease", "ls", "node", "--store", url); !strings.Contains(r.out, "node/"+a) {
		t.Errorf("lease ls: got %q, want the lease of %s", r.out, a)
	}
	cli(t, "migrate", url).want(t, exitUsage, "on the server's side")
	cli(t, "server", "--store", url).want(t, exitUsage, "needs the database itself")

	// Drain: the reason is mandatory, and the end is exactly when nothing is left.
	tenure("nodes", "drain", a).want(t, exitUsage, "--reason is mandatory")
	tenure("nodes", "cordon", a).want(t, exitUsage, "--reason is mandatory")
	tenure("nodes", "drain", a, "--reason", "upgrade", "--wait-for", "300ms").wantLast(t, exitNotDrained, "gpu-1 (running)", "not drained within 300ms")
	tenure("nodes", "remove", a, "--reason", "x").want(t, exitConflict, "tenure nodes drain "+a+" --move", "tenure work stop", "(wrong_state)")
	drain := start(t, "nodes", "drain", a, "--reason", "upgrade", "--wait", "-o", "json", "--server", url)
	until(t, "a line with what is in the way", func() bool { return strings.Contains(drain.stderr(), "waiting for 1: gpu-1 (running)") })
	if drain.over() {
		t.Fatal("the drain is over with work left")
	}
	tenure("work", "stop", "gpu-1", "--reason", "enough").want(t, exitOK)
	r := drain.wait()
	if n := decode[api.Node](t, r); n.Intent != fleet.Drained || len(workOf(a)) != 0 {
		t.Errorf("drain: got %s with processes %v, want drained and none", n.Intent, workOf(a))
	}
	if lines := strings.Split(strings.TrimSpace(r.err), "\n"); len(lines) > 3 {
		t.Errorf("drain: got %d lines, want one for each change: %q", len(lines), r.err)
	}
	tenure("nodes", "remove", b).want(t, exitUsage, "--reason is mandatory")
	n = decode[api.Node](t, tenure("nodes", "get", a, "-o", "json"))
	if d := n.IntentMarks.Drain; d == nil || d.Reason != "upgrade" || d.Actor != userAtHost() {
		t.Errorf("drain: got %+v, want its reason and who wanted it", d)
	}
	tenure("nodes", "resume", a, "--what", "everything").want(t, exitUsage, "drain or all")
	tenure("nodes", "resume", a).want(t, exitOK)
	tenure("nodes", "cordon", b, "--reason", "disk").want(t, exitOK)
	kept := tenure("nodes", "resume", b)
	kept.want(t, exitOK)
	if want := b + ": still cordoned; to end the cordon too: tenure nodes resume " + b + " --what all\n"; kept.out != want {
		t.Errorf("resume of a cordon: got %q, want %q", kept.out, want)
	}
	until(t, "the cordon in the events that are followed", func() bool { return strings.Contains(follow.read("out"), "node_cordoned") })
	follow.signal(syscall.SIGINT)
	follow.wait().want(t, 130)

	// Ends in order.
	agentA.signal(syscall.SIGTERM)
	agentA.wait().wantLast(t, exitOK)
	until(t, a+" has given its lease back", func() bool {
		return decode[api.Node](t, tenure("nodes", "get", a, "-o", "json")).Lease.State == fleet.LeaseReleased
	})
	srv.signal(syscall.SIGTERM)
	srv.wait().wantLast(t, exitOK)
	tenure("nodes", "ls").want(t, exitUnavailable, url, "tenure up", "--server")
	cli(t, "lease", "ls", "--store", url).want(t, exitUnavailable, url)
}

// wantLast is want for a command that tells more than one line before its last.
func (r result) wantLast(t *testing.T, code int, parts ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("got exit code %d, want %d; stdout %q, stderr %q", r.code, code, r.out, r.err)
	}
	for _, part := range parts {
		if !strings.Contains(r.err, part) {
			t.Errorf("stderr: got %q, want it to hold %q", r.err, part)
		}
	}
}

// checkServer runs a fleet of one node in a store, with work, a drain and an end in
// order.
func checkServer(t *testing.T, store ...string) {
	t.Helper()
	srv, url := startServer(t, store...)
	node := unique("one")
	host := startAgent(t, url, node)
	eligible(t, node, "--server", url)
	at := []string{"--server=" + url}
	cli(t, append(at, "work", "submit", "short", "--", "true")...).want(t, exitOK)
	until(t, "the work ends", func() bool {
		return decode[api.Work](t, cli(t, append(at[:1:1], "work", "get", "short", "-o", "json")...)).State == fleet.Succeeded
	})
	cli(t, append(at[:1:1], "nodes", "drain", node, "--reason", "test", "--wait")...).wantLast(t, exitOK)
	for _, p := range []*program{host, srv} {
		p.signal(syscall.SIGTERM)
		r := p.wait()
		r.wantLast(t, exitOK)
		if strings.Contains(r.err, "level=ERROR") || strings.Contains(r.err, "permission") {
			t.Errorf("got %q, want no fault", r.err)
		}
	}
}

// A server keeps its fleet in Postgres as in SQLite.
func TestServerOnPostgres(t *testing.T) {
	t.Parallel()
	address := pgtest.Database(t)
	cli(t, "server", "--store", address).want(t, exitConfig, "tenure migrate")
	cli(t, "migrate", address).want(t, exitOK, "ready")
	checkServer(t, "--store", address)
}

// What has ended is not run again in silence: it is said, with what to do about it.
func TestSubmitEnded(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	node := unique("n")
	startAgent(t, url, node)
	eligible(t, node, "--server", url)
	tenure := func(args ...string) result { t.Helper(); return cli(t, append(args, "--server", url)...) }
	submit := func(more ...string) result {
		t.Helper()
		return cli(t, append(append([]string{"work", "submit", "once", "--server", url}, more...), "--", "true")...)
	}
	tenure("work", "remove", "once", "--reason", "x").want(t, exitNotFound, "once")
	if r := submit(); r.code != exitOK || !strings.HasSuffix(r.out, "token 1\n") {
		t.Fatalf("got %+v, want it placed", r)
	}
	until(t, "its end", func() bool { return strings.Contains(tenure("work", "get", "once").out, "succeeded") })
	submit().want(t, exitConflict, `"once"`, "ended already", "succeeded", "nothing was run", "tenure work remove once")
	submit("--movable").want(t, exitConflict, "another work item", "succeeded", "tenure work remove")
	if r := tenure("work", "remove", "once", "--reason", "again"); r.code != exitOK || r.out != "once: removed\n" {
		t.Errorf("remove: got %+v", r)
	}
	if r := submit(); r.code != exitOK || !strings.HasSuffix(r.out, "token 2\n") {
		t.Errorf("after it was removed: got %+v, want it placed with a larger token", r)
	}
	long := func() result {
		return cli(t, "work", "submit", "long", "--node", node, "--server", url, "--", "sleep", "600")
	}
	long().clean(t, exitOK)
	if r := tenure("work", "remove", "long", "--reason", "x"); r.code != exitConflict || !strings.Contains(r.err, "tenure work stop long") {
		t.Errorf("remove of what runs: got %+v, want how to end it", r)
	}
	if r := long(); r.code != exitOK || !strings.Contains(r.out, "it was there already") {
		t.Errorf("submitted twice: got %+v, want that nothing was changed", r)
	}
	tenure("work", "stop", "long", "--reason", "done").clean(t, exitOK)
	until(t, "the end of what runs", func() bool { return strings.Contains(tenure("work", "get", "long").out, "stopped") })
}

// A server says what it would run with, and runs nothing.
func TestPrintConfig(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "none.db")
	r := cli(t, "server", "--print-config", "--store", path, "--interval", "5s", "--takeover-every", "500ms")
	r.clean(t, exitOK)
	for _, want := range []string{
		"every 5s; a node is late", "within 10s to 16s", "50 at once, then 2 a second", "two rows a beat: 40, 400, 4000 a second", "5s (flag)", "15s", "720h0m0s (default)",
	} {
		if !strings.Contains(r.out, want) {
			t.Errorf("got %q, want %q in it", r.out, want)
		}
	}
	if exists(path) {
		t.Error("it made the store")
	}
	cli(t, "server", "--print-config", "--store", path, "--interval", "1m", "--node-ttl", "1m").want(t, exitUsage, "1m0s")
}

// Whoever asks for entries that the ledger does not keep any more is told so.
func TestEventsPruned(t *testing.T) {
	t.Parallel()
	path := fileStore(t)
	_, reg, closeDB, err := openFleet(t.Context(), location{kind: kindSQLite, target: path})
	if err != nil {
		t.Fatal(err)
	}
	defer closeDB()
	for range 6 {
		if v, err := reg.Append(t.Context(), registry.Fence{}, fleet.Event{Kind: fleet.EventSuspect, Node: "n1"}); err != nil || v.Code != "" {
			t.Fatal(v, err)
		}
	}
	if _, _, v, err := reg.Prune(t.Context(), registry.Fence{}, registry.Retention{MaxEvents: 2}); err != nil || v.Code != "" {
		t.Fatal(v, err)
	}
	_, url := startServer(t, "--store", path)
	until(t, "the server is ready", func() bool { return cli(t, "events", "--server", url).code == exitOK })
	const text = "events before 5 were dropped (retention 30d"
	for args, times := range map[string]int{"--after 2": 1, "--limit 2": 0, "--limit 3": 1, "--after 4": 0} {
		r := cli(t, append([]string{"events", "--server", url}, strings.Fields(args)...)...)
		if r.code != exitOK || strings.Count(r.out, text) != times || strings.Count(r.out, "node_suspect") != 2 {
			t.Errorf("events %s: got %d, %q, %q, want it said %d times, and two events", args, r.code, r.out, r.err, times)
		}
	}
	if page := decode[api.Events](t, cli(t, "events", "--server", url, "--after", "2", "-o", "json")); !page.Pruned || len(page.Events) != 2 {
		t.Errorf("got %+v, want it to say that some were dropped", page)
	}
	for format, want := range map[string]string{"table": "events_pruned", "json": `"kind":"events_pruned"`} {
		follow := start(t, "events", "--follow", "--after", "2", "--server", url, "-o", format)
		until(t, "the events", func() bool { return strings.Count(follow.read("out"), "node_suspect") == 2 })
		if out := follow.read("out"); strings.Count(out, text) != 1 || strings.Index(out, want) > strings.Index(out, "node_suspect") {
			t.Errorf("events --follow -o %s: got %q, want first that some were dropped", format, out)
		}
	}
}

// A store that has only leases serves them, and says what a server would miss.
func TestLeasesWithoutFleet(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "old.db")
	_, closeStore, err := openAt(t.Context(), location{kind: kindSQLite, target: path, own: true}) // makes the lease tables
	if err != nil {
		t.Fatal(err)
	}
	closeStore()
	run(t, "run", "a", "--store", path, "--", "true").clean(t, exitOK)
	if r := cli(t, "doctor", path); !strings.Contains(r.out, "no_fleet") || !strings.Contains(r.out, "no fleet here yet") || strings.Contains(r.out, "no such table") || !strings.Contains(r.out, "tenure migrate --store sqlite:"+path) {
		t.Errorf("doctor: got %d, %q, %q, want the finding no_fleet and its next step", r.code, r.out, r.err)
	}
	cli(t, "server", "--store", path, "--listen", "127.0.0.1:0").want(t, exitConfig, "tenure migrate --store sqlite:"+path)
	cli(t, "migrate", path).want(t, exitOK)
	if r := cli(t, "doctor", path); strings.Contains(r.out, "no_fleet") {
		t.Errorf("doctor: got %q, want no finding no_fleet", r.out)
	}
}

// Two processes under one name: the one that is replaced ends with its own code.
func TestAgentReplaced(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	node := unique("twin")
	first := startAgent(t, url, node)
	eligible(t, node, "--server", url)
	inUse := t.TempDir()
	other := start(t, "agent", "--server", url, "--node", unique("x"), "--state-dir", inUse)
	until(t, "the state directory is taken", func() bool { return strings.Contains(other.stderr(), "incarnation") })
	run(t, "agent", "--server", url, "--node", node, "--state-dir", inUse).wantLast(t, exitNotAcquired, inUse, "--state-dir")

	first.signal(syscall.SIGSTOP)
	until(t, "the lease lapses", func() bool {
		return decode[api.Node](t, cli(t, "nodes", "get", node, "-o", "json", "--server", url)).Fenced
	})
	second := startAgent(t, url, node)
	eligible(t, node, "--server", url)
	first.signal(syscall.SIGCONT)
	first.wait().wantLast(t, exitReplaced, node, "--node of its own")
	if second.over() {
		t.Errorf("the second agent ended: %q", second.finished.err)
	}
}

// P1, P7: an agent that takes the name of its node with another state directory, while
// the former one's work lives on, starts it under a token of its own, and what
// happened is in the ledger.
func TestOtherStateDirRunsUnderNewToken(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	node, marks := unique("twin"), filepath.Join(t.TempDir(), "marks")
	first := startAgent(t, url, node)
	eligible(t, node, "--server", url)
	cli(t, "work", "submit", "pin", "--server", url, "--env", "MARKS="+marks, "--", "sh", "-c", `echo "$$ $TENURE_TOKEN" >>"$MARKS"; while :; do sleep 1; done`).want(t, exitOK)
	read := func() []string {
		text, _ := os.ReadFile(marks)
		return strings.Fields(string(text))
	}
	running := func(token string) func() bool {
		return func() bool {
			w := decode[api.Work](t, cli(t, "work", "get", "pin", "-o", "json", "--server", url))
			return w.State == fleet.Running && w.Token.String() == token
		}
	}
	until(t, "the work", running("1"))
	first.signal(syscall.SIGSTOP)
	until(t, "the lease lapses", func() bool {
		return decode[api.Node](t, cli(t, "nodes", "get", node, "-o", "json", "--server", url)).Fenced
	})
	startAgent(t, url, node)
	until(t, "another copy", func() bool { return len(read()) == 4 })
	got := read()
	pid, _ := strconv.Atoi(got[0])
	if got[1] != "1" || got[3] != "2" || !slices.Contains(workOf(node), pid) {
		t.Errorf("got pids and tokens %v, want token 1 and, beside it, 2", got)
	}
	until(t, "the report of it", running("2"))
	events := cli(t, "events", "--work", "pin", "--server", url)
	events.want(t, exitOK)
	if !strings.Contains(events.out, string(fleet.EventRestarted)) {
		t.Errorf("got events %q, want %s among them", events.out, fleet.EventRestarted)
	}
	first.signal(syscall.SIGCONT)
	first.wait()
}

func TestFleetTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	cert := func(args ...string) result {
		return cli(t, append([]string{"cert"}, args...)...)
	}
	ca := []string{"--ca", in("ca.pem"), "--ca-key", in("ca-key.pem")}
	cert(append([]string{"server", "--host", "127.0.0.1"}, ca...)...).want(t, exitUsage, "ca.pem", "tenure cert ca")
	cert("ca", "--cert", in("ca.pem"), "--key", in("ca-key.pem")).want(t, exitOK)
	cert("ca", "--cert", in("ca.pem"), "--key", in("ca-key.pem")).want(t, exitUsage, "not overwritten")
	files := []string{"--cert", in("server.pem"), "--key", in("server-key.pem")}
	cert(append(append([]string{"server"}, ca...), files...)...).want(t, exitUsage, "host")
	cert(append(append([]string{"server", "--host", "127.0.0.1"}, ca...), files...)...).want(t, exitOK)

	node := unique("tls")
	write := func(name, text string) string {
		t.Helper()
		if err := os.WriteFile(in(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return in(name)
	}
	tokens := write("tokens", "viewer-viewer-viewer viewer\nagent-agent-agent-a agent "+node+"\noperator-operator-op operator\n")
	viewer, agentToken, operator := write("viewer", "viewer-viewer-viewer\n"), write("agent", "agent-agent-agent-a"), write("operator", "operator-operator-op")

	cli(t, "server", "--store", fileStore(t), "--listen", "0.0.0.0:0").want(t, exitUsage, "0.0.0.0:0", "--tls-cert", "--tokens-file")
	_, url := startServer(t, "--tls-cert", in("server.pem"), "--tls-key", in("server-key.pem"), "--tokens-file", tokens)
	if !strings.HasPrefix(url, "tenures://") {
		t.Fatalf("got %q, want tenures://", url)
	}
	at := []string{"--server=" + url, "--ca=" + in("ca.pem")}
	startAgent(t, url, node, "--ca", in("ca.pem"), "--token-file", agentToken)
	eligible(t, node, append(at[:2:2], "--token-file", viewer)...)

	cli(t, "nodes", "ls", "--server", url, "--token-file", viewer).want(t, exitUnavailable, "--ca")
	_, port, _ := strings.Cut(strings.TrimPrefix(url, "tenures://"), ":")
	cli(t, "nodes", "ls", "--server", "tenure://127.0.0.1:"+port, "--token-file", viewer, "--timeout", "3s").want(t, exitUnavailable, "speak TLS", "name it as tenures://127.0.0.1:"+port)
	cli(t, "nodes", "ls", "--server", "tenures://localhost:"+port, "--ca", in("ca.pem"), "--token-file", viewer, "--timeout", "3s").want(t, exitUnavailable, "its certificate is for 127.0.0.1:", "make a certificate for localhost")
	_, plain := startServer(t)
	cli(t, "nodes", "ls", "--server", strings.Replace(plain, "tenure:", "tenures:", 1), "--timeout", "3s").want(t, exitUnavailable, "speaks without TLS", "name it as "+plain)
	for file, mode := range map[string]os.FileMode{"ca.pem": 0o644, "server.pem": 0o644, "ca-key.pem": 0o600, "server-key.pem": 0o600} {
		if info, err := os.Stat(in(file)); err != nil || info.Mode() != mode {
			t.Errorf("%s: got %v, %v, want mode %v", file, info.Mode(), err, mode)
		}
	}
	cli(t, append(at[:2:2], "nodes", "ls")...).want(t, exitPermission, envToken, "--token-file")
	cordon := append([]string{"nodes", "cordon", node, "--reason", "x"}, at...)
	cli(t, append(cordon[:len(cordon):len(cordon)], "--token-file", viewer)...).want(t, exitPermission, "viewer")
	cli(t, append(cordon[:len(cordon):len(cordon)], "--token-file", operator)...).want(t, exitOK)
	other := start(t, "agent", "--server", url, "--node", unique("other"), "--state-dir", t.TempDir(), "--ca", in("ca.pem"), "--token-file", agentToken)
	other.wait().wantLast(t, exitPermission, "refused", "bound to node")

	withEnv := func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Env, envToken+"=operator-operator-op", envCA+"="+in("ca.pem"), "TENURE_STORE="+url)
	}
	r := startWith(t, withEnv, "run", "job", "--", "sh", "-c", `echo "$TENURE_TOKEN.$TENURE_SERVER_TOKEN.$TENURE_STORE"`).wait()
	r.clean(t, exitOK)
	if r.out != "1..\n" {
		t.Errorf("a command under a lease: got %q, want its token and no credential", r.out)
	}
}

// A refusal has its code, in words and as JSON, and what helps.
func TestServerRefusals(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	until(t, "the server is ready", func() bool { return cli(t, "nodes", "ls", "--server", url).code == exitOK })
	for _, tc := range []struct {
		args string
		exit int
		code string
		text string
	}{
		{"nodes get nosuch", exitNotFound, "no_such_node", "tenure nodes ls"},
		{"work get nosuch", exitNotFound, "no_such_work", "tenure work ls"},
		{"work submit a --node nosuch -- true", exitNotFound, "no_such_node", "nosuch"},
		{"work submit a --node nosuch --queue -- true", exitNotFound, "no_such_node", "nosuch"},
	} {
		first, rest, dashed := strings.Cut(tc.args, " -- ")
		args := append(strings.Fields(first), "--server", url)
		command := []string{}
		if dashed {
			command = []string{"--", rest}
		}
		cli(t, append(args[:len(args):len(args)], command...)...).want(t, tc.exit, tc.text, "("+tc.code+")\n")
		r := cli(t, append(append(args, "-o", "json"), command...)...)
		r.want(t, tc.exit)
		e := decode[errorJSON](t, result{out: r.err})
		if e.Error.Code != tc.code || !strings.Contains(e.Error.Message, tc.text) {
			t.Errorf("%s: got %+v, want code %q and %q", tc.args, e, tc.code, tc.text)
		}
	}
}

func TestServerSettings(t *testing.T) {
	t.Parallel()
	store := fileStore(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, tc := range []struct {
		name  string
		args  []string
		parts []string
	}{
		{"suspect after the lease", []string{"--interval", "10s", "--suspect-after", "3", "--node-ttl", "30s"}, []string{"30s", "3 intervals of 10s", "node TTL 30s"}},
		{"interval above half the TTL", []string{"--interval", "10s", "--node-ttl", "15s"}, []string{"interval 10s", "node TTL 15s"}},
		{"reconcile above interval", []string{"--interval", "2s", "--reconcile", "3s"}, []string{"reconcile 3s", "interval 2s"}},
		{"late not before suspect", []string{"--late-after", "3"}, []string{"late after 3"}},
		{"brake", []string{"--brake-least", "2"}, []string{"--brake-least", `"2"`, "from 3 to"}},
		{"late after 0", []string{"--late-after", "0"}, []string{"--late-after", "from 1 to 1000"}},
		{"suspect after 0", []string{"--suspect-after", "0"}, []string{"--suspect-after", "from 2 to 1000"}},
		{"takeover burst 0", []string{"--takeover-burst", "0"}, []string{"--takeover-burst", "from 1 to"}},
		{"flap times 1", []string{"--flap-times", "1"}, []string{"--flap-times", "from 2 to 8"}},
		{"brake share 0", []string{"--brake-share", "0"}, []string{"--brake-share", "above 0 and at most 1"}},
		{"number in a file", []string{"--config", write("e.yaml", "suspect-after: 0\n")}, []string{`"suspect-after"`, `"0"`, "from 2"}},
		{"list for settings", []string{"--config", write("f.yaml", "- a\n")}, []string{"f.yaml", "settings by name"}},
		{"port", []string{"--listen", ":99999"}, []string{"--listen", "from 0 to 65535"}},
		{"range", []string{"--interval", "1ms"}, []string{"--interval", "from 50ms to 1h"}},
		{"probe", []string{"--probe", "db"}, []string{`"db"`, "NODE=URL", "tcp://"}},
		{"probe scheme", []string{"--probe", "db=ftp://x"}, []string{`"db"`, "http://"}},
		{"listen", []string{"--listen", "nowhere"}, []string{`"nowhere"`, "127.0.0.1:"}},
		{"key without certificate", []string{"--tls-key", "x"}, []string{"--tls-cert", "--tls-key"}},
		{"unknown key", []string{"--config", write("a.yaml", "intervall: 5s\n")}, []string{"a.yaml", `"intervall"`}},
		{"bad value", []string{"--config", write("b.yaml", "interval: soon\n")}, []string{"b.yaml", `"interval"`, `"soon"`, "from 50ms"}},
		{"no YAML", []string{"--config", write("c.yaml", "interval: [\n")}, []string{"c.yaml"}},
		{"nested", []string{"--config", write("d.json", `{"interval": {"a": {"b": 1}}}`)}, []string{"d.json", `"interval"`}},
		{"no file", []string{"--config", filepath.Join(dir, "none")}, []string{"none", "no such file"}},
		{"argument", []string{"x"}, []string{"x"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			cli(t, append([]string{"server", "--store", store}, tc.args...)...).want(t, exitUsage, tc.parts...)
		})
	}
	missing := filepath.Join(dir, "none.db")
	cli(t, "server", "--store", missing).want(t, exitConfig, missing, "tenure migrate --store sqlite:"+missing)
	taken, url := startServer(t)
	address := strings.TrimPrefix(url, "tenure://")
	cli(t, "server", "--store", store, "--listen", address).want(t, exitUnavailable, address, "--listen")
	if taken.over() {
		t.Error("the server that was there ended")
	}

	own := write("own.yaml", "store: "+fileStore(t)+"\nlisten: 127.0.0.1:0\nflap-times: 4\ntakeover-burst: 5\n")
	filed := start(t, "server", "--config", own)
	if got := servedURL(t, filed); strings.HasSuffix(got, ":7470") {
		t.Errorf("got %q, want the address of the file", got)
	}

	// A flag goes before the environment, and that before the file.
	file := write("good.yaml", "interval: 2s\nnode-ttl: 20s\nsuspect-after: 4\nprobe:\n  gone: tcp://127.0.0.1:1\n")
	p := startWith(t, func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Env, "TENURE_NODE_TTL=16s", "TENURE_INTERVAL=3s", "TENURE_CONFIG="+file)
	}, "server", "--store", store, "--listen", "127.0.0.1:0", "--interval", "1s")
	servedURL(t, p)
	until(t, "what the server runs with", func() bool { return strings.Contains(p.read("out"), "probe:") })
	for _, want := range []string{"interval: 1s (flag)", "node-ttl: 16s (environment)", "suspect-after: 4 (file)", "within 17s of a crash", "3 lost in a row are tolerated", "two rows a beat: 200, 2000, 20000 a second"} {
		if !strings.Contains(strings.Join(strings.Fields(p.read("out")), " "), want) {
			t.Errorf("got %q, want %q", p.read("out"), want)
		}
	}
}

func TestFleetUsage(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args  string
		parts []string
	}{
		{"nodes get", []string{"name the node: tenure nodes get NODE"}},
		{"nodes get a b", []string{"one node, not 2"}},
		{"nodes get a/b", []string{`"a/b"`, "beginning with a letter or digit"}},
		{"nodes get tenure://x", []string{"use --server"}},
		{"nodes ls --server ftp://x", []string{`"ftp://x"`, "tenure://HOST:PORT"}},
		{"nodes ls --server tenure://u:geheim@h:1", []string{"tenure://HOST:PORT", "xxxxx"}},
		{"nodes ls --server tenure://127.0.0.1:1 --token-file /nonexistent", []string{"/nonexistent", "no such file"}},
		{"nodes ls --server tenure://127.0.0.1:1 --token-file " + empty, []string{"is empty"}},
		{"nodes ls --server tenure://127.0.0.1:1 --ca " + empty, []string{"no certificate in PEM"}},
		{"nodes ls --server tenure://127.0.0.1:1 -o yaml", []string{"table or json"}},
		{"nodes drain a --reason x --wait-for 1", []string{`"1"`, "--wait-for", "units"}},
		{"work submit", []string{"name the work and its command"}},
		{"work submit a true", []string{"write -- between"}},
		{"work submit a/b -- true", []string{`"a/b"`}},
		{"work submit a --movable --on-loss keep -- true", []string{"on_loss", "stop"}},
		{"work submit a --movable --node n -- true", []string{"request.node", "could not move"}},
		{"work submit a --strategy best -- true", []string{"strategy", `"best"`}},
		{"work submit a --resource x -- true", []string{"x", "--resource"}},
		{"work submit a --env TENURE_X=1 -- true", []string{"TENURE_X"}},
		{"work submit a --stuck-after x -- true", []string{"--stuck-after", "units"}},
		{"work submit a --resource x=y -- true", []string{"--resource", "whole number"}},
		{"events --kind nosuch", []string{`"nosuch"`, "node_joined", "work_takeover"}},
		{"events --limit x", []string{"--limit", "whole number"}},
		{"work stop a", []string{"--reason is mandatory"}},
		{"work move", []string{"name the work: tenure work move WORK --reason WHY"}},
		{"why", []string{"name the node or work item: tenure why NODE|WORK"}},
		{"events --limit 0", []string{"--limit 0", "from 1 to 1000"}},
		{"events --after -1", []string{"--after -1"}},
		{"brake confirm", []string{"--reason is mandatory"}},
		{"agent --node a/b", []string{`node "a/b"`}},
		{"agent --node a --capacity slots=many", []string{"--capacity"}},
		{"agent --node a --capacity slots=-1", []string{"capacity", "-1"}},
		{"agent --node a --label =x", []string{"label"}},
		{"up --keep", []string{"--keep goes with --demo"}},
		{"up --demo --listen 127.0.0.1:1", []string{"leave out --listen"}},
		{"server --store tenure://127.0.0.1:1 x", []string{"x"}},
		{"doctor tenure://u:geheim@h:1", []string{"tenure://u:xxxxx@h:1", "tenure://HOST:PORT"}},
		{"doctor tenure://", []string{"tenure://HOST:PORT"}},
		{"cert server", []string{"host"}},
	} {
		t.Run(tc.args, func(t *testing.T) {
			t.Parallel()
			r := cli(t, strings.Fields(tc.args)...)
			if tc.args == "cert server" { // the authority is looked for first
				return
			}
			r.want(t, exitUsage, tc.parts...)
			if r.out != "" || strings.Contains(r.err, "geheim") {
				t.Errorf("got %q, %q; want nothing on standard output and no password", r.out, r.err)
			}
		})
	}
}

func TestEnvName(t *testing.T) {
	t.Parallel()
	cli(t, "work", "submit", "a", "--env", "A B=1", "--", "true").want(t, exitUsage, `"A B"`, "without spaces")
}

func TestParseServers(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"tenure://a:1":                "tenure://a:1",
		"tenure://a:1,b:2":            "tenure://a:1 tenure://b:2",
		"tenures://a:1,b:2":           "tenures://a:1 tenures://b:2",
		"tenure://a:1,tenures://b:2":  "tenure://a:1 tenures://b:2",
		"127.0.0.1:7470":              "tenure://127.0.0.1:7470",
		"https://a:1/base,https://b:": "https://a:1/base https://b:",
	} {
		if got, err := parseServers(s); err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: got %q, %v, want %q", s, got, err, want)
		}
	}
	for _, s := range []string{"", ",", "tenure://", "tenure://a:1,", "tenure://a:1?x=y", "tenure://u@a:1"} {
		if got, err := parseServers(s); err == nil {
			t.Errorf("%q: got %q, want a refusal", s, got)
		}
	}
}
