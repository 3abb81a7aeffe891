package browsertest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server"
	"github.com/tenurehq/tenure/store"
)

// hostile are strings that others may have chosen (C75).
var hostile = []string{
	`<img src=x onerror=alert(1)>`, `'`, `"`, "a\r\nX-Evil: 1", "\u202etxet", "\x1b[31mred", `{{.Title}}`, "a\\\nb", `</script><script>alert(2)</script>`, `" onmouseover="alert(3)`,
}

// populate makes a fleet of 500 nodes, some of them in each kind of trouble.
func populate(b *bed) {
	t := b.t
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ttl := b.Config().NodeTTL
	ready := fleet.Readiness{Ready: true}
	zone := func(z string) map[string]string { return map[string]string{"zone": z, "note": hostile[0]} }
	for _, z := range []string{"a", "b", "c"} {
		b.join(ttl, fleet.Facts{Labels: zone(z), Readiness: ready}, ids("web-"+z, 142)...)
	}
	good := b.join(ttl, fleet.Facts{Labels: zone("a"), Readiness: ready, Config: hostile[1], Features: []string{"gpu"}}, ids("db", 28)...)
	lost := b.join(3*time.Second, fleet.Facts{Labels: zone("a"), Readiness: ready}, ids("lost", 10)...)
	mute := b.join(10*time.Minute, fleet.Facts{Labels: zone("b"), Readiness: ready}, ids("mute", 10)...)
	barred := b.join(3*time.Second, fleet.Facts{Labels: zone("c"), Readiness: ready}, ids("barred", 8)...)
	for i, text := range hostile {
		b.join(ttl, fleet.Facts{Labels: zone("c"), Readiness: fleet.Readiness{Reason: "disk_full", Text: text}, Address: text}, fmt.Sprintf("odd-%03d", i))
	}
	drained := b.join(ttl, fleet.Facts{Labels: zone("b"), Readiness: ready}, ids("old", 10)...)

	for i, n := range good[:12] {
		spec := fleet.Spec{ID: fmt.Sprintf("train-%03d", i), Command: []string{"train", hostile[i%len(hostile)]}, StuckAfterMS: 1000, Request: fleet.Request{Resources: fleet.Resources{"memory_mb": 50}}}
		b.run(n, spec, fmt.Sprintf("step %d of 100", i))
	}
	for i, n := range drained {
		b.run(n, fleet.Spec{ID: fmt.Sprintf("guest-%03d", i), Command: []string{"vm"}}, hostile[i%len(hostile)])
		_, err := b.api.Drain(t.Context(), n.beat.Node, api.DrainRequest{Actor: hostile[0], Reason: hostile[i%len(hostile)]})
		if err != nil {
			_, err = b.api.Drain(t.Context(), n.beat.Node, api.DrainRequest{Actor: "ann", Reason: "maintenance " + n.beat.Node})
		}
		check(err)
	}
	movers := fleet.Facts{Labels: map[string]string{"zone": "a", "pool": "movers"}, Readiness: ready}
	mover := b.join(3*time.Second, movers, "mover-000")
	b.run(mover[0], fleet.Spec{ID: "moves", Command: []string{"sleep", "9"}, Movable: true, Request: fleet.Request{Labels: map[string]string{"pool": "movers"}}}, "5")
	b.join(ttl, movers, "spare-000")
	lost = append(lost, mover...)
	b.run(lost[1], fleet.Spec{ID: "pinned", Command: []string{"sleep", "9"}}, "")
	for i := range 30 {
		_, err := b.api.Submit(t.Context(), api.SubmitRequest{Spec: fleet.Spec{ID: fmt.Sprintf("waits-%03d", i), Command: []string{"x"}, Request: fleet.Request{Labels: map[string]string{"zone": "nowhere"}}}, Queue: true})
		check(err)
	}
	for i, holder := range []string{"host-1/41", "host-2/77", "host-3/9", "host-1/41"} {
		attempt := store.NewAttempt()
		rec, err := b.lease.Acquire(t.Context(), store.Request{Name: "job/nightly", Holder: holder, TTL: time.Hour, Attempt: attempt, Meta: map[string]string{"note": hostile[i]}})
		check(err)
		if i == 2 {
			check(b.lease.Revoke(t.Context(), rec.Name, rec.Token, store.Revocation{Why: hostile[0], By: "ann", Now: true}))
		}
		if i < 2 {
			results, err := b.lease.Release(t.Context(), []store.Grant{{Name: rec.Name, Token: rec.Token, Attempt: store.NewAttempt(), Known: []store.Attempt{attempt}}})
			check(err)
			check(results[0].Err)
		}
	}
	b.until("the first reports", func() bool { return b.state(t, "train-000") == fleet.Running && b.state(t, "moves") == fleet.Running })
	b.set(lost, func(n *node) { n.silent = true })
	b.set(mute, func(n *node) { n.silent = true })
	b.set(barred, func(n *node) { n.bare = true })
	var f *api.Fleet
	defer func() {
		if t.Failed() {
			t.Logf("the fleet: %+v", f)
		}
	}()
	b.until("the states", func() bool {
		var err error
		f, err = b.api.Fleet(t.Context())
		check(err)
		return f.Stale >= 20 && f.Fenced >= 18 && f.Draining == 10 && f.Stuck >= 12 && f.Nodes == 500
	})
}

func (b *bed) state(t testing.TB, work string) fleet.WorkState {
	w, err := b.api.Work(t.Context(), work)
	if err != nil {
		t.Fatal(err)
	}
	return w.State
}

// pagesToTest are all kinds of page, and what each must say.
var pagesToTest = []struct{ name, path, says string }{
	{"fleet", "/ui/", "may get new work"},
	{"fleet-stale", "/ui/?is=stale&sort=id", "lost-000"},
	{"node", "/ui/nodes/db-001", "Heartbeats and suspicion"},
	{"node-lost", "/ui/nodes/lost-000", "lease_lapsed"},
	{"node-draining", "/ui/nodes/old-000", "What the drain waits for"},
	{"node-odd", "/ui/nodes/odd-000", "disk_full"},
	{"leases", "/ui/leases", "job/nightly"},
	{"leases-job", "/ui/leases?prefix=job/", "1 of 4 terms"},
	{"lease", "/ui/lease?name=job/nightly", "Who held it when"},
	{"revoke", "/ui/lease/revoke?name=job/nightly&token=4", "to confirm"},
	{"work", "/ui/work", "train-000"},
	{"work-stuck", "/ui/work?stuck=true", "train-011"},
	{"work-item", "/ui/work/train-001", "Command"},
	{"work-moves", "/ui/work/moves", "movable"},
	{"why", "/ui/why?name=lost-000", "clears when"},
	{"events", "/ui/events", "node_joined"},
	{"events-first", "/ui/events?after=1", "Those after 1."},
	{"brake", "/ui/brake", "No brake is engaged"},
	{"missing", "/ui/nodes/nobody", "Not found"},
}

// TestPages shows every kind of page of a fleet of 500 nodes, wide and light, and
// narrow and dark: it says what it has to, fits in, complains of nothing, is made of
// no element that others wrote (C75), and axe finds nothing serious.
func TestPages(t *testing.T) {
	b := newBed(t, server.Config{Interval: 2 * time.Second, NodeTTL: 30 * time.Second}, nil, "")
	br := newBrowser(t)
	populate(b)
	for _, p := range pagesToTest {
		t.Run(p.name, func(t *testing.T) {
			br := br.of(t)
			for _, look := range []struct {
				name          string
				width, height int64
				dark          bool
			}{{"1440", 1440, 900, false}, {"390-dark", 390, 844, true}} {
				br.size(look.width, look.height, look.dark)
				if look.name == "1440" {
					br.open(b.url + p.path)
					br.until("what the page says", fmt.Sprintf("document.body.innerText.includes(%q)", p.says))
				}
				if eval[int](br, "document.querySelectorAll('.chart').length") > 0 {
					br.until("the charts", "document.querySelectorAll('.chart canvas').length >= 1")
					br.legends(look.name)
				}
				if over := eval[int](br, "document.documentElement.scrollWidth - innerWidth"); over > 0 {
					t.Errorf("%s: the page is %d px too wide", look.name, over)
				}
				br.shoot(p.name + "-" + look.name)
				br.axe(look.name)
			}
			if foreign := eval[int](br, "document.querySelectorAll('img, script:not([src]), iframe, [onmouseover], [onerror], a[href^=\"javascript:\"]').length"); foreign > 0 {
				t.Errorf("%d elements were made of what others wrote", foreign)
			}
			if eval[bool](br, `/[\u202a-\u202e\u001b\r]/.test(document.documentElement.outerHTML)`) {
				t.Error("a character that acts on others is in the page")
			}
			if p.path != "/ui/nodes/nobody" { // whose status the browser notes
				br.quiet()
			}
		})
	}
}

// TestLive brings a page up to date while somebody looks at it, and leaves alone
// what that person does there.
func TestLive(t *testing.T) {
	b := newBed(t, server.Config{Interval: 500 * time.Millisecond, NodeTTL: 5 * time.Minute}, nil, "")
	br := newBrowser(t)
	nodes := b.join(b.Config().NodeTTL, fleet.Facts{Readiness: fleet.Readiness{Ready: true}}, ids("n", 6)...)
	br.open(b.url + "/ui/?sort=id")
	br.until("six nodes", "document.querySelectorAll('.nodes tbody tr').length === 6")
	eval[bool](br, "document.querySelector('#filter input[name=match]').value = 'typed'; document.querySelector('#node-n-002 a').focus(); window.mine = document.getElementById('node-n-002'); true")
	b.set(nodes[2:3], func(n *node) { n.silent = true })
	br.until("the silent node", "document.getElementById('node-n-002').innerText.includes('stale')")
	for what, expression := range map[string]string{
		"the row is the same element": "window.mine === document.getElementById('node-n-002')",
		"it kept the focus":           "document.activeElement === document.querySelector('#node-n-002 a')",
		"what was typed is there":     "document.querySelector('#filter input[name=match]').value === 'typed'",
		"the chart was not made anew": "document.querySelectorAll('#chart-ages canvas').length === 1",
	} {
		if !eval[bool](br, expression) {
			t.Errorf("after a turn: not so: %s", what)
		}
	}
	b.set(nodes[2:3], func(n *node) { n.silent = false })
	br.until("the node again", "!document.getElementById('node-n-002').innerText.includes('stale')")

	// A chart has a beat more after a while.
	br.open(b.url + "/ui/nodes/n-000")
	br.until("the chart", "document.querySelectorAll('#chart-beats canvas').length === 1")
	const beats = "fetch('/ui/data/beats/n-000').then(r => r.json()).then(c => c.x.length)"
	few := eval[int](br, beats)
	br.until("more beats", fmt.Sprintf("%s.then(n => n > %d)", beats, few))
	br.until("how long renewals took", "fetch('/ui/data/renewals/n-000').then(r => r.json()).then(c => c.x.length > 2 && c.series[0].values.every(v => v > 0))")
	br.quiet()

	b.web.CloseClientConnections()
	b.web.Close()
	br.until("that the page says that it is old", "document.getElementById('status').innerText.includes('Not up to date') && document.documentElement.classList.contains('old')")
}

// TestActions does what an operator may, by the forms of the pages.
func TestActions(t *testing.T) {
	b := newBed(t, server.Config{Interval: 500 * time.Millisecond, NodeTTL: 5 * time.Minute}, nil, "")
	br := newBrowser(t)
	nodes := b.join(b.Config().NodeTTL, fleet.Facts{Readiness: fleet.Readiness{Ready: true}}, ids("n", 3)...)
	token := b.run(nodes[0], fleet.Spec{ID: "w", Command: []string{"x"}}, "1 of 9")
	b.until("the item", func() bool { return b.state(t, "w") == fleet.Running })

	br.open(b.url + "/ui/nodes/n-000")
	br.fill("/ui/nodes/n-000/cordon", map[string]string{"actor": "ann"})
	if !eval[bool](br, `document.querySelector('form[action$="/cordon"] [name=reason]').matches(':invalid')`) {
		t.Error("a cordon without a reason was sent")
	}
	br.fill("/ui/nodes/n-000/cordon", map[string]string{"actor": "ann", "reason": `<b id="evil">disk</b>`})
	br.says(`<b id="evil">disk</b>`)
	br.says("operator ann")
	br.fill("/ui/nodes/n-000/drain", map[string]string{"actor": "ann", "reason": "replace the disk", "deadline": "2h"})
	br.says("What the drain waits for")
	br.says("replace the disk")
	br.until("the blocker", "document.querySelector('section[aria-labelledby=blockers]').innerText.includes('w')")
	b.mu.Lock()
	nodes[0].beat.Work = append(nodes[0].beat.Work, api.WorkReport{Work: "w", Token: token, Lease: nodes[0].beat.Renew.Token, State: fleet.Succeeded})
	b.mu.Unlock()
	br.says("Nothing is left on it")
	br.says("drained")
	br.fill("/ui/nodes/n-000/resume", map[string]string{"actor": "ann", "reason": "done", "what": "all"})
	br.says("may get new work")

	br.open(b.url + "/ui/lease?name=node/n-001")
	eval[bool](br, "document.querySelector('a.grave').click(); true")
	br.says("Revoke token 1 of node/n-001?")
	br.fill("/ui/lease/revoke", map[string]string{"actor": "ann", "reason": "stolen", "confirm": "node/n-002"})
	br.says("write the name of the lease to confirm")
	br.open(b.url + "/ui/lease/revoke?name=node/n-001&token=1")
	br.fill("/ui/lease/revoke", map[string]string{"actor": "ann", "reason": "stolen", "confirm": "node/n-001"})
	br.says("by ann: stolen")
	rec, err := b.lease.Get(t.Context(), "node/n-001")
	if err != nil || !rec.Revoked {
		t.Errorf("the lease after it was revoked: %+v, %v", rec, err)
	}
	br.open(b.url + "/ui/nodes/n-001")
	br.says("lease_revoked")

	b.run(nodes[2], fleet.Spec{ID: "w2", Command: []string{"x"}}, "10 of 99")
	b.until("the item", func() bool { return b.state(t, "w2") == fleet.Running })
	br.open(b.url + "/ui/work/w2")
	br.says("10 of 99")
	b.report(nodes[2], "w2", 1, fleet.Running, "50 of 99")
	br.says("a second")
	br.fill("/ui/work/w2/stop", map[string]string{"actor": "ann", "reason": "enough"})
	br.says("stopping")
	br.open(b.url + "/ui/why?name=w2")
	br.says("work_stopping")
	if b.state(t, "w2") != fleet.Stopping {
		t.Errorf("w2 is %s, want stopping", b.state(t, "w2"))
	}
	br.mu.Lock()
	br.complaints.complaints = nil // refusals have a status that the browser notes
	br.mu.Unlock()
}

// TestBrake says first that the brake is engaged, and takes an operator's word.
func TestBrake(t *testing.T) {
	b := newBed(t, server.Config{Interval: 500 * time.Millisecond, NodeTTL: 5 * time.Minute}, nil, "")
	br := newBrowser(t)
	nodes := b.join(b.Config().NodeTTL, fleet.Facts{Labels: map[string]string{"zone": "a"}, Readiness: fleet.Readiness{Ready: true}}, ids("n", 6)...)
	b.until("that all are watched", func() bool {
		f, err := b.api.Fleet(t.Context())
		return err == nil && f.Watching && f.Eligible == 6
	})
	br.open(b.url + "/ui/")
	b.set(nodes[:5], func(n *node) { n.silent = true })
	br.until("the banner, before all else", "document.querySelector('main > section').innerText.includes('The brake is engaged')")
	br.shoot("fleet-brake-1440")
	br.axe("banner")
	br.open(b.url + "/ui/brake")
	br.until("what is to be done", "document.body.innerText.includes('The loss is real')")
	br.shoot("brake-engaged-1440")
	br.axe("brake")
	br.fill("/ui/brake/confirm", map[string]string{"actor": "ann", "reason": "the rack burnt"})
	br.until("the word taken", "document.body.innerText.includes('the rack burnt')")
	brake, err := b.api.Brake(t.Context())
	if err != nil || len(brake.Domains) == 0 || brake.Domains[0].Confirmed == nil {
		t.Errorf("the brake after the word: %+v, %v", brake, err)
	}
	br.quiet()
}

// TestRelease lets an operator let the brake go, with a reason, and nobody else.
func TestRelease(t *testing.T) {
	tokens, err := server.ReadTokens(strings.NewReader("viewer-0123456789ab viewer\noperator-0123456789 operator\n"))
	if err != nil {
		t.Fatal(err)
	}
	b := newBed(t, server.Config{Interval: 500 * time.Millisecond, NodeTTL: 5 * time.Minute}, tokens, "operator-0123456789")
	br := newBrowser(t)
	nodes := b.join(b.Config().NodeTTL, fleet.Facts{Readiness: fleet.Readiness{Ready: true}}, ids("n", 6)...)
	b.until("that all are watched", func() bool {
		f, err := b.api.Fleet(t.Context())
		return err == nil && f.Watching && f.Eligible == 6
	})
	b.set(nodes[:5], func(n *node) { n.silent = true })
	brake := func() *api.Brake {
		t.Helper()
		b, err := b.api.Brake(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	b.until("the brake", func() bool { return brake().Engaged })

	const order = "fetch('/ui/brake/release', {method: 'POST', body: new URLSearchParams(%s)}).then(r => r.status)"
	br.open(b.url + "/ui/brake")
	br.login("viewer-0123456789ab")
	br.says("The brake is engaged.")
	if n := eval[int](br, "document.querySelectorAll('#main form').length"); n != 0 {
		t.Errorf("a viewer is shown %d forms of an operator", n)
	}
	if got := eval[int](br, fmt.Sprintf(order, "{domain: 'all', actor: 'eve', reason: 'because'}")); got != 403 {
		t.Errorf("a viewer's word: got %d, want 403", got)
	}
	eval[bool](br, `document.querySelector('form[action="/ui/logout"]').requestSubmit(); true`)
	br.until("the login", "location.pathname === '/ui/login'")
	br.open(b.url + "/ui/login?next=/ui/brake")
	br.login("operator-0123456789")
	br.says("Let the brake go")
	br.fill("/ui/brake/release", map[string]string{"actor": "ann"})
	if !eval[bool](br, `document.querySelector('form[action="/ui/brake/release"] [name=reason]')?.matches(':invalid') === true`) {
		t.Error("a release without a reason was sent")
	}
	if got := eval[int](br, fmt.Sprintf(order, "{domain: 'all', actor: 'ann', reason: ' '}")); got != 400 {
		t.Errorf("a release without a reason: got %d, want 400", got)
	}
	if !brake().Engaged {
		t.Error("the brake went without a reason")
	}
	br.fill("/ui/brake/release", map[string]string{"actor": "ann", "reason": `the <b id="evil">switch</b> is back`})
	br.says("No brake is engaged.")
	if brake().Engaged {
		t.Error("the brake is engaged after its release")
	}
	br.open(b.url + "/ui/events?kind=brake_released")
	br.says("by ann")
	events, err := b.api.Events(t.Context(), api.EventQuery{Kind: fleet.EventBrakeOff})
	if err != nil || len(events.Events) != 1 || events.Events[0].Actor != "ann" {
		t.Errorf("the ledger: got %+v, %v, want one release, by ann", events, err)
	}
	if eval[bool](br, "document.getElementById('evil') !== null") {
		t.Error("a reason made an element")
	}
}

// TestMove moves an item to another node, with a reason, and only one that may move.
func TestMove(t *testing.T) {
	b := newBed(t, server.Config{Interval: 500 * time.Millisecond, NodeTTL: 5 * time.Minute}, nil, "")
	br := newBrowser(t)
	nodes := map[string]*node{}
	for _, n := range b.join(b.Config().NodeTTL, fleet.Facts{Readiness: fleet.Readiness{Ready: true}}, ids("n", 2)...) {
		nodes[n.beat.Node] = n
	}
	b.until("that both are watched", func() bool {
		f, err := b.api.Fleet(t.Context())
		return err == nil && f.Eligible == 2
	})
	b.run(nodes["n-000"], fleet.Spec{ID: "stays", Command: []string{"x"}}, "")
	br.open(b.url + "/ui/work/stays")
	br.says("pinned: it waits for its node")
	if n := eval[int](br, `document.querySelectorAll('form[action$="/move"]').length`); n != 0 {
		t.Error("an item that may not move can be moved")
	}

	w, err := b.api.Submit(t.Context(), api.SubmitRequest{Spec: fleet.Spec{ID: "moves", Command: []string{"x"}, Movable: true}, Actor: "test"})
	if err != nil {
		t.Fatal(err)
	}
	from := w.Owner
	b.report(nodes[from], "moves", w.Token, fleet.Running, "1")
	b.until("the item", func() bool { return b.state(t, "moves") == fleet.Running })
	br.open(b.url + "/ui/work/moves")
	br.fill("/ui/work/moves/move", map[string]string{"actor": "ann"})
	if !eval[bool](br, `document.querySelector('form[action$="/move"] [name=reason]')?.matches(':invalid') === true`) {
		t.Error("a move without a reason was sent")
	}
	if got := eval[int](br, "fetch('/ui/work/moves/move', {method: 'POST', body: new URLSearchParams({actor: 'ann', reason: ''})}).then(r => r.status)"); got != 400 || b.state(t, "moves") != fleet.Running {
		t.Errorf("a move without a reason: got %d, and it is %s; want 400, and running", got, b.state(t, "moves"))
	}
	br.fill("/ui/work/moves/move", map[string]string{"actor": "ann", "reason": "the disk is slow"})
	br.says("stopping")
	br.says("to be moved: the disk is slow")
	b.report(nodes[from], "moves", w.Token, fleet.Stopped, "")
	b.until("another owner", func() bool {
		w, err := b.api.Work(t.Context(), "moves")
		if err != nil {
			t.Fatal(err)
		}
		return w.State == fleet.Placed && w.Owner != from
	})
	to := map[string]string{"n-000": "n-001", "n-001": "n-000"}[from]
	br.until("the other node", fmt.Sprintf("document.querySelector('.lead').innerText.includes('on %s')", to))
	br.says("by ann")
	br.mu.Lock()
	br.complaints.complaints = nil // a refusal has a status that the browser notes
	br.mu.Unlock()
}

// TestNobodyReconciles says so before all else, while it is so.
func TestNobodyReconciles(t *testing.T) {
	b := newBed(t, server.Config{Interval: 500 * time.Millisecond, NodeTTL: 5 * time.Minute, ReconcilerTTL: 30 * time.Second}, nil, "")
	br := newBrowser(t)
	br.open(b.url + "/ui/")
	br.says("reconciles, which is this replica")
	rec, err := b.lease.Get(t.Context(), server.ReconcilerLease)
	if err != nil {
		t.Fatal(err)
	}
	// Reserved for another, it comes back to nobody for a while.
	if err := b.lease.Revoke(t.Context(), rec.Name, rec.Token, store.Revocation{Why: "test", By: "ann", Now: true, HandoffTo: "somebody"}); err != nil {
		t.Fatal(err)
	}
	br.until("the banner, before all else", "document.querySelector('main > section').innerText.startsWith('Nobody reconciles since ')")
	br.says("The last one was " + rec.Holder)
	for _, look := range []struct {
		name          string
		width, height int64
		dark          bool
	}{{"1440", 1440, 900, false}, {"390-dark", 390, 844, true}} {
		br.size(look.width, look.height, look.dark)
		br.shoot("fleet-nobody-" + look.name)
		br.axe(look.name)
	}
	br.until("the end of the banner", "document.getElementById('reconciler') === null")
	br.says("reconciles, which is this replica")
	br.quiet()
}

// TestTooMany: a page that gets no stream, since too many have one, is kept up to date
// at a slower pace, says so, and gets one when there is room.
func TestTooMany(t *testing.T) {
	b := newBed(t, server.Config{Interval: 500 * time.Millisecond, NodeTTL: 5 * time.Minute}, nil, "")
	br := newBrowser(t)
	nodes := b.join(b.Config().NodeTTL, fleet.Facts{Readiness: fleet.Readiness{Ready: true}}, ids("n", 2)...)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var all sync.WaitGroup
	refused := false
	for i := 0; !refused && i < 1000; i++ {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.url+"/ui/live", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if refused = resp.StatusCode == http.StatusServiceUnavailable; refused {
			resp.Body.Close()
			continue
		}
		all.Go(func() { // reads, until it leaves
			defer resp.Body.Close()
			_, _ = io.Copy(io.Discard, resp.Body)
		})
	}
	if !refused {
		t.Fatal("nobody is ever refused")
	}
	br.open(b.url + "/ui/?sort=id")
	br.until("what the page says", "document.getElementById('status').innerText.includes('refreshed every')")
	br.size(390, 844, true)
	br.shoot("fleet-slow-390-dark")
	br.size(1440, 900, false)
	br.shoot("fleet-slow-1440")
	br.axe("slow")
	b.set(nodes[:1], func(n *node) { n.silent = true })
	br.until("the silent node", "document.getElementById('node-n-000').innerText.includes('stale')")
	if !eval[bool](br, "document.getElementById('status').innerText.includes('refreshed every')") {
		t.Error("the page does not say any more how it is kept up to date")
	}
	leave()
	all.Wait()
	br.until("the stream", "document.getElementById('status').innerText === ''")
	b.set(nodes[:1], func(n *node) { n.silent = false })
	br.until("the node again", "!document.getElementById('node-n-000').innerText.includes('stale')")
	if text := eval[string](br, "document.getElementById('status').innerText"); text != "" {
		t.Errorf("with the stream the page says %q", text)
	}
	br.quiet()
}

// TestLogin lets in who has a token, and lets them do what its role may.
func TestLogin(t *testing.T) {
	tokens, err := server.ReadTokens(strings.NewReader("viewer-0123456789ab viewer\noperator-0123456789 operator\n"))
	if err != nil {
		t.Fatal(err)
	}
	b := newBed(t, server.Config{}, tokens, "operator-0123456789")
	br := newBrowser(t)
	b.join(b.Config().NodeTTL, fleet.Facts{Readiness: fleet.Readiness{Ready: true}}, "n-000")
	br.open(b.url + "/ui/nodes/n-000")
	br.until("the login", "location.pathname === '/ui/login'")
	br.size(1440, 900, false)
	br.shoot("login-1440")
	br.axe("login")
	br.login("guess-0123456789ab")
	br.until("the refusal", "document.body.innerText.includes('not one of the server')")
	br.login("viewer-0123456789ab")
	br.until("the page that was asked for", "location.pathname === '/ui/nodes/n-000' && document.body.innerText.includes('Liveness')")
	if eval[bool](br, "document.cookie !== ''") {
		t.Error("a script can read the token")
	}
	if n := eval[int](br, "document.querySelectorAll('#forms').length"); n != 0 {
		t.Error("a viewer is shown the forms of an operator")
	}
	if got := eval[int](br, "fetch('/ui/nodes/n-000/cordon', {method: 'POST', body: new URLSearchParams({actor: 'a', reason: 'b'})}).then(r => r.status)"); got != 403 {
		t.Errorf("a viewer's order: got %d, want 403", got)
	}
	eval[bool](br, `document.querySelector('form[action="/ui/logout"]').requestSubmit(); true`)
	br.until("the end", "location.pathname === '/ui/login'")
	br.open(b.url + "/ui/login?next=https://example.com/ui/")
	if next := eval[string](br, "document.querySelector('input[name=next]').value"); next != "/ui/" {
		t.Errorf("after the login it leads to %q", next)
	}
	br.login("operator-0123456789")
	br.until("the fleet", "location.pathname === '/ui/'")
	br.open(b.url + "/ui/nodes/n-000")
	br.until("an operator's forms", "document.querySelectorAll('#forms form').length === 3")
}
