package dashboard

import (
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
)

// fake is an interface that answers some paths with JSON.
func fake(answers map[string]string) http.Handler {
	mux := http.NewServeMux()
	for path, text := range answers {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, text)
		})
	}
	return mux
}

func answered(d http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w
}

func request(t *testing.T, method, target string, header ...string) *http.Request {
	r := httptest.NewRequestWithContext(t.Context(), method, "http://localhost"+target, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

func TestVisible(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain – „text“ 日本\n": "plain – „text“ 日本\n",
		"a\u202eb":            `a\u202eb`,
		"\x1b[31mred":         `\x1b[31mred`,
		"a\r\nb\tc":           `a\x0d` + "\nb" + `\x09c`,
		"\xff":                `\xff`,
		"\U000e0001":          `\U000e0001`,
		"\ufffd":              "\ufffd",
	} {
		if got := string(visible([]byte(in))); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestWords(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 340 * time.Millisecond: "0.3s", 9949 * time.Millisecond: "9.9s", 34 * time.Second: "34s", 59600 * time.Millisecond: "1m",
		5*time.Minute + 10*time.Second: "5m10s", 3*time.Hour + 5*time.Minute: "3h5m", 47*time.Hour + 59*time.Minute: "47h59m", 52 * time.Hour: "2d4h",
	} {
		if got := span(d); got != want {
			t.Errorf("span %v: got %q, want %q", d, got, want)
		}
	}
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", -1234: "-1,234", 1234567: "1,234,567"} {
		if got := count(n); got != want {
			t.Errorf("count %d: got %q, want %q", n, got, want)
		}
	}
}

// TestLocal leads nobody away after the login.
func TestLocal(t *testing.T) {
	t.Parallel()
	for next, want := range map[string]string{
		"/ui/nodes/n1?a=b": "/ui/nodes/n1?a=b", "": "/ui/", "/v1/nodes": "/ui/", "https://evil.example/ui/": "/ui/", "//evil.example/ui/": "/ui/",
		"/ui/\\evil": "/ui/", "/ui/a\r\nX: y": "/ui/", "javascript:alert(1)": "/ui/", "/ui/../v1": "/ui/",
	} {
		if got := local(next); got != want {
			t.Errorf("%q: got %q, want %q", next, got, want)
		}
	}
}

func TestBands(t *testing.T) {
	t.Parallel()
	at := func(s int) time.Time { return time.Date(2026, 1, 1, 0, 0, s, 0, time.UTC) }
	terms := []api.Term{ // newest first
		{Token: 4, Holder: "b", AcquiredAt: at(80)},
		{Token: 3, Holder: "a", AcquiredAt: at(50), EndedAt: at(80), End: "revoked"},
		{Token: 2, Holder: "b", AcquiredAt: at(30), EndedAt: at(40), End: "expired"},
		{Token: 1, Holder: "a", AcquiredAt: at(0), EndedAt: at(30), End: "released"},
	}
	b := newBands(terms, at(100), false)
	var got []string
	for _, l := range b.Lanes {
		for _, bar := range l.Bars {
			got = append(got, fmt.Sprint(l.Holder, " ", bar.From, "+", bar.Length, " ", ended(bar.End)))
		}
	}
	want := []string{"a 0+300 released", "a 500+300 revoked", "b 300+100 expired", "b 800+200 held", "nobody 400+100 gap"}
	if !slices.Equal(got, want) {
		t.Errorf("bars: got %q, want %q", got, want)
	}
	got = nil
	for _, one := range b.Terms {
		got = append(got, fmt.Sprint(one.Token, " ", one.Gap, " ", one.Cause))
	}
	if want := []string{"4 0s revoked", "3 10s expired", "2 0s released", "1 0s "}; !slices.Equal(got, want) || b.Takeovers != 2 {
		t.Errorf("terms: got %q and %d takeovers, want %q and 2", got, b.Takeovers, want)
	}
	if newBands(nil, at(0), false) != nil {
		t.Error("bands of no terms")
	}
	var many []api.Term
	for i := range 40 {
		many = append(many, api.Term{Holder: fmt.Sprint("h", i), AcquiredAt: at(40 - i), EndedAt: at(41 - i), End: "released"})
	}
	if n := len(newBands(many, at(41), true).Lanes); n != maxLanes {
		t.Errorf("of 40 holders: %d lanes, want %d", n, maxLanes)
	}
}

func TestRates(t *testing.T) {
	t.Parallel()
	var r rates
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	see := func(token fence.Token, progress string, s int) string {
		return r.see(&api.Work{Spec: fleet.Spec{ID: "w"}, Token: token, Progress: progress, ProgressAt: at.Add(time.Duration(s) * time.Second)})
	}
	for _, tc := range []struct {
		token    fence.Token
		progress string
		at       int
		want     string
	}{
		{1, "step 10 of 99", 0, ""}, {1, "step 10 of 99", 0, ""}, {1, "step 30 of 99", 10, "2 a second"}, {1, "step 31 of 99", 210, "6 a minute"},
		{2, "step 1 of 99", 220, ""}, {2, "no number", 230, ""}, {2, "2", 220 + 7200, "0.5 an hour"},
	} {
		if got := see(tc.token, tc.progress, tc.at); got != tc.want {
			t.Errorf("token %d, %q after %d s: got %q, want %q", tc.token, tc.progress, tc.at, got, tc.want)
		}
	}
	for i := range 2 * maxRated {
		r.see(&api.Work{Spec: fleet.Spec{ID: fmt.Sprint(i)}, Progress: "1", ProgressAt: at})
	}
	if n := len(r.items); n > maxRated {
		t.Errorf("%d items are remembered, want %d at most", n, maxRated)
	}
}

// TestCache makes a page once for all who want it, once a turn, for each role.
func TestCache(t *testing.T) {
	t.Parallel()
	var c cache
	var built atomic.Int64
	build := func() rendered { built.Add(1); return rendered{title: "x"} }
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if got := c.get(key{"/ui/", "viewer", 1}, build); got.title != "x" {
				t.Errorf("got %+v", got)
			}
		})
	}
	all.Wait()
	if n := built.Load(); n != 1 {
		t.Errorf("built %d times for 50 viewers, want once", n)
	}
	c.get(key{"/ui/", "operator", 1}, build)
	c.get(key{"/ui/", "viewer", 2}, build)
	if n := built.Load(); n != 3 {
		t.Errorf("for another role and another turn: built %d times in all, want 3", n)
	}
	for i := range 3 * maxKept {
		c.get(key{fmt.Sprint(i), "viewer", 2}, build)
	}
	if n := len(c.kept); n > maxKept {
		t.Errorf("%d pages are kept, want %d at most", n, maxKept)
	}
}

// TestInside speaks to a handler of the process as over a connection.
func TestInside(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		_, _ = io.WriteString(w, "first")
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Errorf("flush: %v", err)
		}
		<-r.Context().Done()
	})
	mux.HandleFunc("/host", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, r.Host)
	})
	mux.HandleFunc("/cut", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half")
		panic(http.ErrAbortHandler)
	})
	via := inside{mux, "viewer.example"}
	open := func(path string) *http.Response {
		t.Helper()
		resp, err := via.RoundTrip(request(t, http.MethodGet, path))
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	resp := open("/stream")
	first := make([]byte, 5)
	if _, err := io.ReadFull(resp.Body, first); err != nil || string(first) != "first" {
		t.Errorf("stream: got %q, %v", first, err)
	}
	resp.Body.Close()
	<-ended // the handler ends with its reader
	resp = open("/host")
	text, err := io.ReadAll(resp.Body)
	if resp.Body.Close(); err != nil || resp.StatusCode != http.StatusTeapot || string(text) != "viewer.example" {
		t.Errorf("host: got %d %q, %v", resp.StatusCode, text, err)
	}
	resp = open("/cut")
	_, err = io.ReadAll(resp.Body)
	if resp.Body.Close(); !errors.Is(err, errAborted) {
		t.Errorf("an answer that was cut off: got %v, want %v", err, errAborted)
	}
}

// TestLive starts with the first viewer, tells all of them, and ends with the last.
func TestLive(t *testing.T) {
	t.Parallel()
	following := make(chan context.Context, 8)
	mux := http.NewServeMux()
	mux.Handle("GET /v1/events", fake(map[string]string{"/v1/events": `{"events":[],"next":7}`}))
	mux.HandleFunc("GET /v1/events/stream", func(w http.ResponseWriter, r *http.Request) {
		if after := r.URL.Query().Get("after"); after != "7" {
			t.Errorf("follows after %q, want 7", after)
		}
		following <- r.Context()
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"seq\":8}\n\n")
		<-r.Context().Done()
	})
	d := New(Config{API: mux})
	c, err := d.client("localhost", "")
	if err != nil {
		t.Fatal(err)
	}
	one, _ := d.live.join(&viewer{client: c})
	two, _ := d.live.join(&viewer{client: c})
	began := time.Now()
	<-one
	<-two
	if took := time.Since(began); took >= Tick {
		t.Errorf("an event of the ledger was told after %v, want before the next tick", took)
	}
	stream := <-following
	d.live.leave(one)
	select {
	case <-stream.Done():
		t.Error("the stream ended although somebody watches")
	default:
	}
	d.live.leave(two)
	<-stream.Done()
	if len(following) != 0 {
		t.Error("the ledger is followed more than once")
	}
	for range maxViewers {
		d.live.join(&viewer{client: c})
	}
	if _, ok := d.live.join(&viewer{client: c}); ok {
		t.Errorf("more than %d viewers are let in", maxViewers)
	}
	for turns := range d.live.viewers {
		defer d.live.leave(turns)
	}
}

// TestGuards holds what is sent around every page, and who is let in.
func TestGuards(t *testing.T) {
	t.Parallel()
	d := New(Config{API: fake(map[string]string{
		"/v1/whoami": `{"role":"operator"}`, "/v1/brake": `{"engaged":false,"domains":[]}`, "/v1/nodes": `{"nodes":[]}`,
	})})
	w := answered(d, request(t, http.MethodGet, "/ui/brake"))
	if csp := w.Header().Get("Content-Security-Policy"); w.Code != http.StatusOK || !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
		t.Errorf("brake: got %d with policy %q", w.Code, csp)
	}
	if strings.Contains(w.Body.String(), "<script>") || strings.Contains(w.Body.String(), " style=") {
		t.Error("a script or a style stands in the page, which its policy forbids")
	}
	if w := answered(d, request(t, http.MethodGet, "/")); w.Code != http.StatusFound || w.Header().Get("Location") != "/ui/" {
		t.Errorf("/: got %d to %q", w.Code, w.Header().Get("Location"))
	}
	if w := answered(d, request(t, http.MethodGet, "/v1/nodes")); w.Body.String() != `{"nodes":[]}` || w.Header().Get("Content-Security-Policy") != "" {
		t.Errorf("/v1/nodes: got %q", w.Body)
	}
	for _, header := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Origin", "https://evil.example"}, {"Sec-Fetch-Site", "same-site"}} {
		if w := answered(d, request(t, http.MethodPost, "/ui/nodes/n1/cordon", header...)); w.Code != http.StatusForbidden {
			t.Errorf("an order from a page with %q: got %d, want 403", header, w.Code)
		}
	}
	if w := answered(d, request(t, http.MethodGet, "/ui/nothing")); w.Code != http.StatusNotFound {
		t.Errorf("/ui/nothing: got %d, want 404", w.Code)
	}
	for name := range d.assets {
		w := answered(d, request(t, http.MethodGet, assetPath(name), "Accept-Encoding", "gzip"))
		if w.Code != http.StatusOK || w.Header().Get("Content-Type") == "" || !strings.Contains(w.Header().Get("Cache-Control"), "immutable") {
			t.Errorf("%s: got %d %v", name, w.Code, w.Header())
		}
	}
	for _, tc := range []struct {
		host   string
		secure bool
	}{{"localhost:7470", false}, {"127.0.0.1", false}, {"[::1]:7470", false}, {"tenure.example", true}, {"127.0.0.1.evil.example", true}} {
		r := request(t, http.MethodPost, "/ui/login")
		r.Host = tc.host
		if c := d.cookie(r, "x", 0); c.Secure != tc.secure || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/ui/" {
			t.Errorf("cookie for %s: %+v", tc.host, c)
		}
	}
}

// TestDenied leads those without a valid token to the login, and gives nothing away.
func TestDenied(t *testing.T) {
	t.Parallel()
	d := New(Config{API: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", api.ProblemType)
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"code":"unauthorized","message":"no valid bearer token"}`)
	})})
	w := answered(d, request(t, http.MethodGet, "/ui/nodes/n1?x=y"))
	if to := w.Header().Get("Location"); w.Code != http.StatusSeeOther || to != "/ui/login?next=%2Fui%2Fnodes%2Fn1%3Fx%3Dy" {
		t.Errorf("a page: got %d to %q", w.Code, to)
	}
	if w := answered(d, request(t, http.MethodGet, "/ui/", "HX-Request", "true")); w.Code != http.StatusNoContent || w.Header().Get("HX-Redirect") != "/ui/login" {
		t.Errorf("a refresh: got %d %v", w.Code, w.Header())
	}
	for _, path := range []string{"/ui/live", "/ui/data/ages"} {
		if w := answered(d, request(t, http.MethodGet, path)); w.Code != http.StatusSeeOther {
			t.Errorf("%s: got %d, want the login", path, w.Code)
		}
	}
	if len(d.pages.kept) != 0 {
		t.Error("something was kept for nobody")
	}
}

// asked answers some paths with JSON, and notes the queries that it got for them.
type asked struct {
	mu      sync.Mutex
	answers map[string]string
	queries map[string][]string
}

func (a *asked) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.queries == nil {
		a.queries = map[string][]string{}
	}
	a.queries[r.URL.Path] = append(a.queries[r.URL.Path], r.URL.Query().Encode())
	text, ok := a.answers[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, text)
}

// plain is a page as its reader sees it, nearly: without tags, and with one space at a time.
func plain(page string) string {
	return strings.Join(strings.Fields(html.UnescapeString(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(page, ""))), " ")
}

// TestReconciler says first that nobody reconciles, since when, and that it fails.
func TestReconciler(t *testing.T) {
	t.Parallel()
	const brake = "The brake is engaged."
	for name, tc := range map[string]struct {
		reconciler string
		says       []string
		banner     bool
	}{
		"well":    {`{"status":"held","holder":"host-1/7","token":"4","since":"2026-01-01T10:00:00Z","here":true}`, []string{"host-1/7 reconciles, which is this replica, since"}, false},
		"lapsed":  {`{"status":"lapsed","holder":"host-1/7","token":"4","since":"2026-01-01T10:00:00Z"}`, []string{"Nobody reconciles since 2026-01-01 10:00:00 UTC.", "The last one was host-1/7, whose term with token 4 lapsed"}, true},
		"never":   {`{"status":"unheld"}`, []string{"Nobody reconciles, and nobody has yet."}, true},
		"revoked": {`{"status":"held","holder":"host-1/7","token":"4","revoked":true,"since":"2026-01-01T10:00:00Z"}`, []string{"The reconciler was revoked."}, true},
		"freed":   {`{"status":"released","holder":"host-1/7","token":"4","revoked":true,"since":"2026-01-01T10:00:00Z"}`, []string{"Nobody reconciles since 2026-01-01 10:00:00 UTC.", "whose term with token 4 was revoked"}, true},
		"unknown": {`{"error":"the disk is full"}`, []string{"Whether anybody reconciles is not known", "the disk is full"}, true},
		"failing": {`{"status":"held","holder":"host-1/7","token":"4","here":true,"since":"2026-01-01T10:00:00Z","failing":"a <b>table</b> is missing","failing_since":"2026-01-01T11:00:00Z"}`, []string{"The reconciler is failing since 2026-01-01 11:00:00 UTC.", "a <b>table</b> is missing"}, true},
		"failed":  {`{"status":"released","holder":"host-1/7","token":"4","since":"2026-01-01T10:00:00Z","failing":"no table","failing_since":"2026-01-01T09:00:00Z"}`, []string{"Nobody reconciles since", "Replica r failed at it since 2026-01-01 09:00:00 UTC: no table"}, true},
		"left":    {`{"status":"held","holder":"host-2/9","token":"5","since":"2026-01-01T10:00:00Z","failing":"no table","failing_since":"2026-01-01T09:00:00Z"}`, []string{"host-2/9 reconciles, since", "Before that this replica failed at it: no table"}, false},
	} {
		d := New(Config{API: &asked{answers: map[string]string{
			"/v1/whoami": `{"role":"viewer"}`, "/v1/fleet": `{"server":"r","reasons":[],"reconciler":` + tc.reconciler + `}`, "/v1/nodes": `{"nodes":[]}`, "/v1/events": `{"events":[]}`,
			"/v1/brake": `{"engaged":true,"domains":[{"domain":"all","engaged":true}]}`,
		}}})
		w := answered(d, request(t, http.MethodGet, "/ui/"))
		page := plain(w.Body.String())
		for _, says := range tc.says {
			if !strings.Contains(page, says) {
				t.Errorf("%s: the page does not say %q, but %.1500s", name, says, page)
			}
		}
		banner, after := strings.Index(w.Body.String(), `id="reconciler"`), strings.Index(w.Body.String(), brake)
		if (banner >= 0) != tc.banner || after < 0 || banner > after {
			t.Errorf("%s: a banner at %d, that of the brake at %d; want one %v, and first", name, banner, after, tc.banner)
		}
	}
}

// TestPasts: the list of leases tells takeovers, and asks for the terms of a lease
// again only when it has a new one.
func TestPasts(t *testing.T) {
	t.Parallel()
	lease := func(token string) string {
		return `{"leases":[{"name":"job","status":"held","holder":"c","token":"` + token + `","ttl_us":1000000,"remaining_us":1000000,"acquired_at":"2026-01-01T10:00:40Z","now":"2026-01-01T10:01:00Z"}]}`
	}
	a := &asked{answers: map[string]string{
		"/v1/whoami": `{"role":"viewer"}`, "/v1/leases": lease("3"),
		"/v1/leases/history": `{"name":"job","terms":[{"name":"job","token":"3","holder":"c","acquired_at":"2026-01-01T10:00:40Z"},
			{"name":"job","token":"2","holder":"b","acquired_at":"2026-01-01T10:00:10Z","ended_at":"2026-01-01T10:00:28Z","end":"expired"},
			{"name":"job","token":"1","holder":"a","acquired_at":"2026-01-01T10:00:00Z","ended_at":"2026-01-01T10:00:10Z","end":"released"}]}`,
	}}
	d := New(Config{API: a})
	for range 3 {
		w := answered(d, request(t, http.MethodGet, "/ui/leases"))
		if page := plain(w.Body.String()); !strings.Contains(page, "1 of 3 terms expired, then nobody for 12s") {
			t.Fatalf("got %s", page)
		}
		d.live.turn.Add(1)
	}
	if n := len(a.queries["/v1/leases/history"]); n != 1 {
		t.Errorf("asked for the terms %d times in one term, want once", n)
	}
	a.answers["/v1/leases"] = lease("4")
	answered(d, request(t, http.MethodGet, "/ui/leases"))
	if n := len(a.queries["/v1/leases/history"]); n != 2 {
		t.Errorf("asked for the terms %d times after a new one, want twice", n)
	}
	a.answers["/v1/leases"], a.answers["/v1/leases/history"] = lease("5"), `{"name":"job","terms":[]}`
	d.live.turn.Add(1)
	if page := plain(answered(d, request(t, http.MethodGet, "/ui/leases")).Body.String()); !strings.Contains(page, "not kept") {
		t.Errorf("without terms: got %s", page)
	}
}

// TestPruned says which entries are not kept any more, and leads through the ledger.
func TestPruned(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range ledgerRows {
		many = append(many, fmt.Sprintf(`{"seq":%d,"kind":"node_joined"}`, 501+i))
	}
	a := &asked{answers: map[string]string{"/v1/whoami": `{"role":"viewer"}`, "/v1/events": `{"events":[` + strings.Join(many, ",") + `],"next":700,"pruned":true,"text":"events before 501 were dropped"}`}}
	d := New(Config{API: a})
	page := answered(d, request(t, http.MethodGet, "/ui/events?after=20&node=n1")).Body.String()
	if says := plain(page); !strings.Contains(says, "events before 501 were dropped") || strings.Contains(page, "Older") || !strings.Contains(page, `href="/ui/events?after=700&amp;node=n1"`) {
		t.Errorf("after 20: got %s", says)
	}
	if got, want := a.queries["/v1/events"][0], "after=20&limit=200&node=n1"; got != want {
		t.Errorf("asked for %q, want %q", got, want)
	}
	a.answers["/v1/events"] = strings.Replace(a.answers["/v1/events"], `"pruned":true`, `"pruned":false`, 1)
	page = answered(d, request(t, http.MethodGet, "/ui/events?before=701")).Body.String()
	if strings.Contains(page, "dropped") || !strings.Contains(page, `href="/ui/events?before=501"`) || !strings.Contains(page, `href="/ui/events?after=700"`) {
		t.Errorf("before 701: got %s", plain(page))
	}
	if got, want := a.queries["/v1/events"][1], "before=701&last=true&limit=200"; got != want {
		t.Errorf("asked for %q, want %q", got, want)
	}
	if w := answered(d, request(t, http.MethodGet, "/ui/events?after=x")); w.Code != http.StatusBadRequest {
		t.Errorf("after x: got %d, want 400", w.Code)
	}
}

// TestWorks tells what an item is, and finds those that are stuck.
func TestWorks(t *testing.T) {
	t.Parallel()
	a := &asked{answers: map[string]string{"/v1/whoami": `{"role":"viewer"}`, "/v1/work": `{"work":[
		{"id":"w1","command":["train","--in","<i>"],"movable":true,"state":"running","token":"1","stuck":true,"submitted_at":"2026-01-01T10:00:00Z"},
		{"id":"w2","command":["` + strings.Repeat("ä", 100) + `"],"state":"running","token":"1","submitted_at":"2026-01-01T10:00:00Z"}],"next":"w2"}`}}
	page := answered(New(Config{API: a}), request(t, http.MethodGet, "/ui/work?owner=n1&stuck=true")).Body.String()
	says := plain(page)
	for _, want := range []string{"movable train --in <i>", "pinned " + strings.Repeat("ä", 79) + "…"} {
		if !strings.Contains(says, want) {
			t.Errorf("the page does not say %q, but %s", want, says)
		}
	}
	if want := `href="/ui/work?after=w2&amp;owner=n1&amp;stuck=true"`; !strings.Contains(page, want) {
		t.Errorf("the next page is not at %s", want)
	}
	if got, want := a.queries["/v1/work"][0], "limit=50&owner=n1&stuck=true"; got != want {
		t.Errorf("asked for %q, want %q", got, want)
	}
}

// TestCrowded refuses the stream to a viewer too many, who is shown the page all the same.
func TestCrowded(t *testing.T) {
	t.Parallel()
	d := New(Config{API: fake(map[string]string{"/v1/whoami": `{"role":"viewer"}`, "/v1/brake": `{"engaged":false,"domains":[]}`})})
	c, err := d.client("localhost", "")
	if err != nil {
		t.Fatal(err)
	}
	for range maxViewers {
		turns, ok := d.live.join(&viewer{client: c})
		if !ok {
			t.Fatal("too many already")
		}
		defer d.live.leave(turns)
	}
	w := answered(d, request(t, http.MethodGet, "/ui/live"))
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("the stream: got %d %v, want 503 with Retry-After", w.Code, w.Header())
	}
	if w := answered(d, request(t, http.MethodGet, "/ui/brake", "HX-Request", "true")); w.Code != http.StatusOK {
		t.Errorf("the page: got %d, want 200", w.Code)
	}
}
