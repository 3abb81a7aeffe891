package browsertest

import (
	"fmt"
	"strings"
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
		if i < 3 {
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
	{"lease", "/ui/lease?name=job/nightly", "Who held it when"},
	{"revoke", "/ui/lease/revoke?name=job/nightly&token=4", "to confirm"},
	{"work", "/ui/work", "train-000"},
	{"work-item", "/ui/work/train-001", "Command"},
	{"work-moves", "/ui/work/moves", "movable"},
	{"why", "/ui/why?name=lost-000", "clears when"},
	{"events", "/ui/events", "node_joined"},
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

	// fill fills the fields of a form, and sends it.
	fill := func(form string, fields map[string]string) {
		t.Helper()
		script := fmt.Sprintf("(() => { const f = document.querySelector(%q);", `form[action="`+form+`"]`)
		for name, value := range fields {
			script += fmt.Sprintf("f.elements[%q].value = %q;", name, value)
		}
		eval[bool](br, script+"f.requestSubmit(); return true; })()")
	}
	says := func(what string) {
		t.Helper()
		br.until(what, fmt.Sprintf("document.readyState === 'complete' && document.body.innerText.includes(%q)", what))
	}

	br.open(b.url + "/ui/nodes/n-000")
	fill("/ui/nodes/n-000/cordon", map[string]string{"actor": "ann"})
	if !eval[bool](br, `document.querySelector('form[action$="/cordon"] [name=reason]').matches(':invalid')`) {
		t.Error("a cordon without a reason was sent")
	}
	fill("/ui/nodes/n-000/cordon", map[string]string{"actor": "ann", "reason": `<b id="evil">disk</b>`})
	says(`<b id="evil">disk</b>`)
	says("operator ann")
	fill("/ui/nodes/n-000/drain", map[string]string{"actor": "ann", "reason": "replace the disk", "deadline": "2h"})
	says("What the drain waits for")
	says("replace the disk")
	br.until("the blocker", "document.querySelector('section[aria-labelledby=blockers]').innerText.includes('w')")
	b.mu.Lock()
	nodes[0].beat.Work = append(nodes[0].beat.Work, api.WorkReport{Work: "w", Token: token, Lease: nodes[0].beat.Renew.Token, State: fleet.Succeeded})
	b.mu.Unlock()
	says("Nothing is left on it")
	says("drained")
	fill("/ui/nodes/n-000/resume", map[string]string{"actor": "ann", "reason": "done", "what": "all"})
	says("may get new work")

	br.open(b.url + "/ui/lease?name=node/n-001")
	eval[bool](br, "document.querySelector('a.grave').click(); true")
	says("Revoke token 1 of node/n-001?")
	fill("/ui/lease/revoke", map[string]string{"actor": "ann", "reason": "stolen", "confirm": "node/n-002"})
	says("write the name of the lease to confirm")
	br.open(b.url + "/ui/lease/revoke?name=node/n-001&token=1")
	fill("/ui/lease/revoke", map[string]string{"actor": "ann", "reason": "stolen", "confirm": "node/n-001"})
	says("by ann: stolen")
	rec, err := b.lease.Get(t.Context(), "node/n-001")
	if err != nil || !rec.Revoked {
		t.Errorf("the lease after it was revoked: %+v, %v", rec, err)
	}
	br.open(b.url + "/ui/nodes/n-001")
	says("lease_revoked")

	b.run(nodes[2], fleet.Spec{ID: "w2", Command: []string{"x"}}, "10 of 99")
	b.until("the item", func() bool { return b.state(t, "w2") == fleet.Running })
	br.open(b.url + "/ui/work/w2")
	says("10 of 99")
	b.report(nodes[2], "w2", 1, "50 of 99")
	says("a second")
	fill("/ui/work/w2/stop", map[string]string{"actor": "ann", "reason": "enough"})
	says("stopping")
	br.open(b.url + "/ui/why?name=w2")
	says("work_stopping")
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
	eval[bool](br, `(() => { const f = document.querySelector('form[action="/ui/brake/confirm"]'); f.elements.actor.value = "ann"; f.elements.reason.value = "the rack burnt"; f.requestSubmit(); return true; })()`)
	br.until("the word taken", "document.body.innerText.includes('the rack burnt')")
	brake, err := b.api.Brake(t.Context())
	if err != nil || len(brake.Domains) == 0 || brake.Domains[0].Confirmed == nil {
		t.Errorf("the brake after the word: %+v, %v", brake, err)
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
	login := func(token string) {
		t.Helper()
		eval[bool](br, fmt.Sprintf("document.querySelector('input[name=token]').value = %q; document.querySelector('form.stack').requestSubmit(); true", token))
	}
	login("guess-0123456789ab")
	br.until("the refusal", "document.body.innerText.includes('not one of the server')")
	login("viewer-0123456789ab")
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
	login("operator-0123456789")
	br.until("the fleet", "location.pathname === '/ui/'")
	br.open(b.url + "/ui/nodes/n-000")
	br.until("an operator's forms", "document.querySelectorAll('#forms form').length === 3")
}
