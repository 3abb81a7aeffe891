package server

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

// numbers that are no duration of this interface, and those that are (C72).
var wrongNumbers = []string{
	"-1", "1e3", "1125899906842624", "9007199254740992", "4611686018427387904", "9223372036854775807", "9223372036854775808",
	"1e308", "1.5", `"10"`, `"10s"`, `"PT10S"`, `"5m"`, "true", "[]", "{}",
}

// TestNumbers is C72 over HTTP: each number of a body or a query is taken as it is
// or refused with 400, the field and the range.
func TestNumbers(t *testing.T) {
	t.Parallel()
	b := newBed(t, Config{}, HTTPConfig{})
	b.join("n1")
	attempt, other := store.NewAttempt(), store.NewAttempt()
	beat := func(field string) string {
		return `{"node":"n1","incarnation":"i-n1","seq":9,"facts_version":1,"orders":0,` + field + `}`
	}
	for _, f := range []struct{ path, body, field string }{
		{"/v1/nodes/n1/drain", `{"actor":"a","reason":"r","deadline_ms":%s}`, "deadline_ms"},
		{"/v1/work", `{"spec":{"id":"w","command":["a"],"grace_ms":%s}}`, "grace_ms"},
		{"/v1/work", `{"spec":{"id":"w","command":["a"],"stuck_after_ms":%s}}`, "stuck_after_ms"},
		{"/v1/work", `{"spec":{"id":"w","command":["a"],"request":{"resources":{"slots":%s}}}}`, "resources"},
		{"/v1/beat", beat(`"late_ms":%s`), "late_ms"},
		{"/v1/beat", beat(`"renew":{"token":"1","attempt":"` + attempt.String() + `","known":["` + other.String() + `"],"ttl_ms":%s}`), "ttl_ms"},
		{"/v1/leases/acquire", `{"name":"x","holder":"h","attempt":"` + attempt.String() + `","ttl_us":%s}`, "ttl_us"},
		{"/v1/leases/acquire", `{"name":"x","holder":"h","attempt":"` + attempt.String() + `","ttl_us":1000000,"min_hold_us":%s}`, "min_hold_us"},
		{"/v1/leases/clean", `{"idle_us":%s}`, "idle_us"},
	} {
		for _, n := range wrongNumbers {
			if f.field == "resources" && n == "9007199254740992" || f.field == "resources" && n == "1125899906842624" {
				continue // an amount may be larger than a duration, see fleet.MaxAmount
			}
			a := b.send("POST", f.path, fmt.Sprintf(f.body, n))
			p := a.problem(t)
			if a.status != 400 || p.Code != "invalid" || !strings.Contains(p.Field+p.Rule, f.field) && p.Field == "" || p.Rule == "" {
				t.Errorf("%s %s=%s: got %d %s, want 400 with the field and the rule", f.path, f.field, n, a.status, a.body)
			}
		}
	}
	for _, path := range []string{"/v1/nodes/n1/orders?wait_ms=", "/v1/nodes/n1/orders?after=", "/v1/work?limit=", "/v1/events?limit=", "/v1/events?after=", "/v1/leases?limit="} {
		for _, n := range []string{"-1", "1e3", "1.5", "10s", "5m", "", "18446744073709551616", "%20", "0x10"} {
			a := b.send("GET", path+n, nil)
			if p := a.problem(t); a.status != 400 || p.Field == "" || p.Rule == "" {
				t.Errorf("%s%s: got %d %s, want 400 with the field and the rule", path, n, a.status, a.body)
			}
		}
	}
	// What is taken is taken exactly.
	d := must[api.Node](b, "POST", "/v1/nodes/n1/drain", `{"actor":"a","reason":"r","deadline_ms":31622400000}`).IntentMarks.Drain
	if got := d.Deadline.Sub(d.At); got != 366*24*time.Hour {
		t.Errorf("the longest deadline: got %s, want 366 days", got)
	}
}

// TestStrictBodies: what is not asked for is refused.
func TestStrictBodies(t *testing.T) {
	t.Parallel()
	b := newBed(t, Config{}, HTTPConfig{})
	b.join("n1")
	steady := `"node":"n1","incarnation":"i-n1","seq":2,"facts_version":1,"orders":0`
	for _, r := range []struct{ path, body string }{
		{"/v1/beat", `{` + steady + `,"extra":1}`},
		{"/v1/beat", `{` + steady + `,"seq":3}`},
		{"/v1/beat", `{"NODE":"n1","incarnation":"i-n1","seq":2,"facts_version":1,"orders":0}`},
		{"/v1/beat", `{` + steady + `} {}`},
		{"/v1/beat", `{` + steady},
		{"/v1/beat", `[{` + steady + `}]`},
		{"/v1/beat", `null`},
		{"/v1/beat", ``},
		{"/v1/beat", `{"node":7,"incarnation":"i-n1","seq":2}`},
		{"/v1/beat", `{"node":"n1","incarnation":"i-n1","seq":-2}`},
		{"/v1/beat", `{"node":"n1","incarnation":"i-n1","seq":"2"}`},
		{"/v1/beat", `{"node":"n1","incarnation":"i-n1","seq":0}`},
		{"/v1/beat", `{"node":"n1","seq":2}`},
		{"/v1/beat", `{` + steady + `,"sent_at":"yesterday"}`},
		{"/v1/beat", "{" + steady + `,"doubts":["` + "\xff" + `"]}`},
		{"/v1/beat", `{` + steady + `,"renew":{"token":"-1","ttl_ms":60000,"attempt":"00","known":[]}}`},
		{"/v1/beats", `{"beats":{}}`},
		{"/v1/beats", `{"beats":null}`},
		{"/v1/beats", `{}`},
		{"/v1/beats", `null`},
		{"/v1/beats", `{"beats":[{` + steady + `,"extra":1}]}`},
		{"/v1/nodes/n1/cordon", `{"actor":"a","reason":"r","extra":1}`},
		{"/v1/nodes/n1/cordon", `{"actor":"a"}`},
		{"/v1/nodes/n1/cordon", `{"reason":"r"}`},
		{"/v1/nodes/n1/cordon", `{"actor":" ","reason":"r"}`},
		{"/v1/nodes/n1/drain", `{"actor":"a"}`},
		{"/v1/nodes/n1/resume", `{"what":"drain"}`},
		{"/v1/nodes/n1/resume", `{"actor":"a","what":"everything"}`},
		{"/v1/work", `{"spec":{"id":"w","command":["a"],"nodes":1}}`},
		{"/v1/work", `{"spec":{"id":"w"}}`},
		{"/v1/work/w/stop", `{"actor":"a"}`},
		{"/v1/brake/confirm", `{"domain":"all","actor":"a"}`},
	} {
		a := b.send("POST", r.path, r.body)
		if p := a.problem(t); a.status != 400 || p.Code != "invalid" {
			t.Errorf("%s %.80s: got %d %s, want 400 invalid", r.path, r.body, a.status, a.body)
		}
	}
	if r := must[api.BeatReplies](b, "POST", beatsPath, `{"beats":[]}`); r.Replies == nil || len(r.Replies) > 0 {
		t.Errorf("no beats: got %+v, want no replies", r)
	}
	if n := must[api.Node](b, "GET", "/v1/nodes/n1", nil); n.Intent != fleet.Active || n.Fenced {
		t.Errorf("the node after all that: got %+v, want it as it was", n)
	}
	for _, path := range []string{"/v1/nodes?all=1", "/v1/nodes?authoritative=yes", "/v1/nodes?authoritative=true&authoritative=true", "/v1/work?state=gone", "/v1/work?owner=a/b", "/v1/events?kind=a%20b", "/v1/events?node=%3Cscript%3E"} {
		if a := b.send("GET", path, nil); a.status != 400 {
			t.Errorf("%s: got %d %s, want 400", path, a.status, a.body)
		}
	}
}

// TestNames is C73 and C75 over HTTP: a name is taken byte by byte or refused with
// its rule, nothing is redirected, and no text of a request becomes a header.
func TestNames(t *testing.T) {
	t.Parallel()
	b := newBed(t, Config{}, HTTPConfig{})
	for _, name := range []string{
		"/a", "a//b", "a/../b", "a/b", "a b", "a\u00a0", "é", "e\u0301", "a ", "🦊", "", strings.Repeat("a", 196), strings.Repeat("a", 10_000),
		"a\x00", "a\nb", "a\u202eb", `<img src=x onerror=alert(1)>`, `'`, `"`, "a\r\nX-Evil: 1", "\x1b[31m", "{{x}}", "\\\n", ".", "..", "-a",
	} {
		escaped := url.PathEscape(name)
		for _, r := range []struct {
			method, path string
			body         any
		}{
			{"POST", "/v1/beat", api.Beat{Node: name, Incarnation: "i", Seq: 1}},
			{"POST", "/v1/beat", api.Beat{Node: "n", Incarnation: name, Seq: 1}},
			{"POST", "/v1/work", api.SubmitRequest{Spec: fleet.Spec{ID: name, Command: []string{"a"}}}},
			{"GET", "/v1/nodes/" + escaped, nil},
			{"POST", "/v1/nodes/" + escaped + "/cordon", api.CordonRequest{Actor: "a", Reason: "r"}},
			{"GET", "/v1/work/" + escaped + "/owner", nil},
		} {
			a := b.send(r.method, r.path, r.body)
			if a.status != 400 && a.status != 404 && a.status != 405 || a.header.Get("Location") != "" || a.header.Get("X-Evil") != "" {
				t.Errorf("%s %.60s with %.40q: got %d %.200s, want a refusal", r.method, r.path, name, a.status, a.body)
			}
			if p := a.problem(t); r.method == "POST" && !strings.Contains(r.path, "nodes") && (a.status != 400 || p.Rule == "") {
				t.Errorf("%s with %.40q: got %d %.200s, want 400 with the rule", r.path, name, a.status, a.body)
			}
		}
	}
	if nodes := must[api.Nodes](b, "GET", "/v1/nodes?authoritative=true", nil).Nodes; len(nodes) != 0 {
		t.Errorf("nodes after all that: got %v", nodes)
	}
	for _, name := range []string{"Job", "job", strings.Repeat("a", 195), "a.b_c-d:e@f+g"} {
		b.join(name)
		if n := must[api.Node](b, "GET", "/v1/nodes/"+url.PathEscape(name), nil); n.ID != name {
			t.Errorf("%q came back as %q", name, n.ID)
		}
	}
	for _, text := range []string{`<img src=x onerror=alert(1)>`, `it's "quoted" \ {{x}}`} {
		n := must[api.Node](b, "POST", "/v1/nodes/job/cordon", api.CordonRequest{Actor: text, Reason: text})
		if n.IntentMarks.Cordon.Reason != text {
			t.Errorf("reason: got %q, want %q", n.IntentMarks.Cordon.Reason, text)
		}
	}
	for _, text := range []string{"a\r\nX-Evil: 1", "\x1b[31m", "a\u202eb"} {
		if a := b.send("POST", "/v1/nodes/job/cordon", api.CordonRequest{Actor: "a", Reason: text}); a.status != 400 {
			t.Errorf("reason %q: got %d, want 400", text, a.status)
		}
	}
	if a := b.send("GET", "/metrics", nil); a.status != 200 || strings.Contains(string(a.body), "<img") {
		t.Errorf("metrics: got %d", a.status)
	}
}

// TestLimits: what is too much is refused with a reason, the lease is untouched,
// and memory stays bounded.
func TestLimits(t *testing.T) {
	t.Parallel()
	b := newBed(t, Config{}, HTTPConfig{})
	n1 := b.join("n1")
	before := must[api.Record](b, "GET", "/v1/leases/get?name=node/n1", nil)

	facts := func(f fleet.Facts) api.Beat {
		beat := n1.beat
		beat.Seq, beat.Facts, beat.FactsVersion, beat.Renew = n1.beat.Seq+1, &f, 2, nil
		return beat
	}
	labels := map[string]string{}
	for i := range 10_000 {
		labels[fmt.Sprintf("label-%d", i)] = "x"
	}
	reports := make([]api.WorkReport, maxBeatWork+1)
	for i := range reports {
		reports[i] = api.WorkReport{Work: "w", Token: 1, Lease: 1, State: fleet.Running}
	}
	many := n1.beat
	many.Seq, many.Work, many.Renew = n1.beat.Seq+1, reports, nil
	for what, beat := range map[string]api.Beat{
		"10,000 labels":      facts(fleet.Facts{Labels: labels}),
		"a huge label":       facts(fleet.Facts{Labels: map[string]string{"a": strings.Repeat("x", 100_000)}}),
		"a huge address":     facts(fleet.Facts{Address: strings.Repeat("x", 100_000)}),
		"many reports":       many,
		"a huge incarnation": {Node: "n1", Incarnation: strings.Repeat("x", 1000), Seq: 5},
	} {
		a := b.send("POST", "/v1/beat", beat)
		if p := a.problem(t); a.status != 400 || p.Field == "" || p.Rule == "" || len(a.body) > 2000 {
			t.Errorf("%s: got %d %.300s, want 400 with field and rule", what, a.status, a.body)
		}
	}
	for path, most := range map[string]int{"/v1/beat": maxBeat, "/v1/beats": maxRelay, "/v1/work": maxSubmit, "/v1/nodes/n1/cordon": 64 << 10} {
		a := b.send("POST", path, `{"x":"`+strings.Repeat("x", most)+`"}`)
		if p := a.problem(t); a.status != 413 || p.Code != api.CodeTooLarge {
			t.Errorf("%s with more than %d bytes: got %d %.200s, want 413", path, most, a.status, a.body)
		}
	}

	old := n1.beat
	old.Renew = nil
	if reply := must[api.BeatReply](b, "POST", "/v1/beat", old); reply.Code != fleet.CodeOldSequence || reply.Text == "" {
		t.Errorf("an old sequence: got %+v", reply)
	}
	other := n1.beat
	other.Seq, other.Incarnation = 99, "other"
	other.Renew = nil
	if reply := must[api.BeatReply](b, "POST", "/v1/beat", other); reply.Code != fleet.CodeDuplicateNode || reply.Text == "" {
		t.Errorf("another incarnation: got %+v", reply)
	}
	if n := must[api.Node](b, "GET", "/v1/nodes/n1", nil); n.Duplicate != "other" || n.Incarnation != "i-n1" {
		t.Errorf("the node: got %+v, want it shown as duplicate", n)
	}
	after := must[api.Record](b, "GET", "/v1/leases/get?name=node/n1", nil)
	if after.Token != before.Token || after.Revision != before.Revision || after.Attempt != before.Attempt {
		t.Errorf("lease: got %+v, want it untouched: %+v", after, before)
	}

	runtime.GC()
	var was, is runtime.MemStats
	runtime.ReadMemStats(&was)
	huge := `{"beats":[` + strings.Repeat(`{"node":"a b","incarnation":"i","seq":1,"facts_version":0,"orders":0},`, 50_000)
	huge = huge[:len(huge)-1] + `]}`
	for range 5 {
		replies := must[api.BeatReplies](b, "POST", "/v1/beats", huge)
		if len(replies.Replies) != 50_000 || replies.Replies[7].Code != "invalid" {
			t.Fatalf("got %d replies, the 8th %+v", len(replies.Replies), replies.Replies[7])
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&is)
	if grown := int64(is.HeapAlloc) - int64(was.HeapAlloc); grown > 64<<20 {
		t.Errorf("memory after 250,000 beats that were refused: %d MiB more", grown>>20)
	}
	if b.in.find("a b") != nil {
		t.Error("a beat that was refused left a slot")
	}
}

// TestSlowBody: a body that does not come ends with a refusal, and does not hold
// its connection.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	b := newIdleBed(t, Config{}, HTTPConfig{})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	web := b.HTTPServer(b.Handler(HTTPConfig{}))
	if web.ReadHeaderTimeout == 0 || web.ReadTimeout == 0 || web.WriteTimeout == 0 || web.IdleTimeout == 0 || web.MaxHeaderBytes == 0 {
		t.Errorf("server: got %+v, want every limit set", web)
	}
	web.ReadTimeout = 200 * time.Millisecond
	go func() { _ = web.Serve(ln) }()
	t.Cleanup(func() { web.Close() })
	b.run()
	for _, head := range []string{
		"POST /v1/beat HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{",
		"POST /v1/beats HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
		"POST /v1/beat HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
	} {
		conn, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, head); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		r := bufio.NewReader(conn)
		if strings.Contains(head, "Slow") {
			if _, err := io.ReadAll(r); err != nil {
				t.Errorf("a slow head: got %v, want the end of the connection", err)
			}
			continue
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("%.20s: %v", head, err)
		}
		defer resp.Body.Close()
		var p api.Problem
		if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || resp.StatusCode != http.StatusBadRequest || p.Code != "invalid" || p.Field != "body" {
			t.Errorf("%.20s: got %d %+v %v, want 400", head, resp.StatusCode, p, err)
		}
		if _, err := io.Copy(io.Discard, r); err != nil {
			t.Errorf("%.20s: got %v, want the end of the connection", head, err)
		}
	}
}
