package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

const patient = 30 * time.Second

// replica is a server that answers as its function does, and counts.
type replica struct {
	*httptest.Server
	asked atomic.Int32
}

func newReplica(t *testing.T, serve http.HandlerFunc) *replica {
	t.Helper()
	r := &replica{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.asked.Add(1)
		serve(w, req)
	}))
	t.Cleanup(func() {
		r.CloseClientConnections()
		r.Close()
	})
	return r
}

func reply(w http.ResponseWriter, status int, v any) {
	kind := "application/json"
	if e, ok := v.(*api.Error); ok {
		status, kind, v = e.Status, api.ProblemType, e.Problem()
	}
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// never holds a request until its sender has gone.
func never(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

// gone returns the URL of a server that refuses connections.
func gone(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

func client(t *testing.T, cfg api.Config, servers ...string) *api.Client {
	t.Helper()
	cfg.Servers = servers
	c, err := api.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func nodeReply(w http.ResponseWriter, _ *http.Request) { reply(w, 200, api.Node{ID: "n1"}) }

// TestFailover: a replica that refuses, keeps silent, is not ready or is a
// proxy's page is passed over within the call, and not asked first again.
func TestFailover(t *testing.T) {
	t.Parallel()
	for what, serve := range map[string]http.HandlerFunc{
		"silent":    never,
		"not ready": func(w http.ResponseWriter, _ *http.Request) { reply(w, 0, api.Refuse(api.CodeNotReady, "loading")) },
		"page": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, "<h1>502</h1>")
		},
		"refused": nil,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			first := gone(t)
			var bad *replica
			if serve != nil {
				bad = newReplica(t, serve)
				first = bad.URL
			}
			good := newReplica(t, nodeReply)
			c := client(t, api.Config{AttemptTimeout: 200 * time.Millisecond}, first, good.URL)
			for range 3 {
				if n, err := c.Node(t.Context(), "n1"); err != nil || n.ID != "n1" {
					t.Fatalf("got %+v and error %v, want n1", n, err)
				}
			}
			if good.asked.Load() != 3 || bad != nil && bad.asked.Load() != 1 {
				t.Errorf("the good replica was asked %d times, want 3, and the other one once", good.asked.Load())
			}
		})
	}
}

// TestShare: a dead replica leaves the next one its share of the call's time.
func TestShare(t *testing.T) {
	t.Parallel()
	bad, good := newReplica(t, never), newReplica(t, nodeReply)
	c := client(t, api.Config{AttemptTimeout: patient}, bad.URL, good.URL)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := c.Node(ctx, "n1"); err != nil {
		t.Errorf("got error %v, want the answer of the second replica", err)
	}
}

// TestUnknownOutcome: what may have been applied is sent again only where the
// server recognises it.
func TestUnknownOutcome(t *testing.T) {
	t.Parallel()
	order := api.WorkOrder{Actor: "eve", Reason: "test"}
	for _, c := range []struct {
		what string
		asks int32 // both replicas together
		call func(context.Context, *api.Client) error
	}{
		{"Beat", 1, func(ctx context.Context, c *api.Client) error {
			_, err := c.Beat(ctx, &api.Beat{Node: "n1"})
			return err
		}},
		{"Beats", 1, func(ctx context.Context, c *api.Client) error {
			_, err := c.Beats(ctx, []api.Beat{{Node: "n1"}})
			return err
		}},
		{"StopWork", 1, func(ctx context.Context, c *api.Client) error { _, err := c.StopWork(ctx, "w1", order); return err }},
		{"MoveWork", 1, func(ctx context.Context, c *api.Client) error { _, err := c.MoveWork(ctx, "w1", order); return err }},
		{"RemoveNode", 1, func(ctx context.Context, c *api.Client) error {
			_, err := c.RemoveNode(ctx, "n1", "eve", "gone", false)
			return err
		}},
		{"ConfirmBrake", 1, func(ctx context.Context, c *api.Client) error {
			_, err := c.ConfirmBrake(ctx, api.BrakeRequest{})
			return err
		}},
		{"Cordon", 2, func(ctx context.Context, c *api.Client) error {
			_, err := c.Cordon(ctx, "n1", api.CordonRequest{})
			return err
		}},
		{"Progress", 2, func(ctx context.Context, c *api.Client) error {
			_, err := c.Progress(ctx, "w1", api.ProgressRequest{})
			return err
		}},
		{"Owner", 2, func(ctx context.Context, c *api.Client) error { _, err := c.Owner(ctx, "w1"); return err }},
		{"Submit", 2, func(ctx context.Context, c *api.Client) error {
			_, err := c.Submit(ctx, api.SubmitRequest{Spec: fleet.Spec{ID: "w1"}})
			return err
		}},
		{"Store.Renew", 1, func(ctx context.Context, c *api.Client) error {
			_, err := api.NewStore(c).Renew(ctx, []store.Grant{{Name: "a", Token: 1, TTL: time.Minute, Attempt: store.NewAttempt(), Known: []store.Attempt{store.NewAttempt()}}})
			return err
		}},
		{"Store.Get", 1, func(ctx context.Context, c *api.Client) error { _, err := api.NewStore(c).Get(ctx, "a"); return err }},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			a, b := newReplica(t, never), newReplica(t, never)
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			err := c.call(ctx, client(t, api.Config{AttemptTimeout: 50 * time.Millisecond}, a.URL, b.URL))
			if !errors.Is(err, store.ErrUnavailable) || store.Definite(err) {
				t.Errorf("got error %v, want one that leaves the outcome unknown", err)
			}
			if n := a.asked.Load() + b.asked.Load(); n != c.asks {
				t.Errorf("sent %d times, want %d", n, c.asks)
			}
			// Where nobody can have got it, the next replica does.
			if c.asks == 1 && !strings.HasPrefix(c.what, "Store") {
				b.asked.Store(0)
				_ = c.call(t.Context(), client(t, api.Config{AttemptTimeout: 50 * time.Millisecond}, gone(t), b.URL))
				if n := b.asked.Load(); n != 1 {
					t.Errorf("after a refused connection: sent %d times, want once", n)
				}
			}
		})
	}
}

// TestStoreNextReplica: a store sends a request once, and the next one elsewhere.
func TestStoreNextReplica(t *testing.T) {
	t.Parallel()
	good := newReplica(t, func(w http.ResponseWriter, _ *http.Request) {
		reply(w, 200, api.Record{Name: "a", Status: store.Released})
	})
	st := api.NewStore(client(t, api.Config{}, gone(t), good.URL))
	if _, err := st.Get(t.Context(), "a"); !errors.Is(err, store.ErrUnavailable) || good.asked.Load() != 0 {
		t.Errorf("got error %v with %d requests elsewhere, want no answer and none", err, good.asked.Load())
	}
	if rec, err := st.Get(t.Context(), "a"); err != nil || rec.Status != store.Released {
		t.Errorf("the call after it: got %+v and error %v", rec, err)
	}
}

// TestStorePatience: a store gives a slow answer all the time that its caller
// has, and no more than an attempt's where the caller has no end.
func TestStorePatience(t *testing.T) {
	t.Parallel()
	const attempt = 20 * time.Millisecond
	slow := newReplica(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(20 * attempt):
			reply(w, 200, api.Record{Name: "a", Status: store.Released})
		case <-r.Context().Done():
		}
	})
	st := api.NewStore(client(t, api.Config{AttemptTimeout: attempt}, slow.URL))
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	if _, err := st.Get(ctx, "a"); err != nil {
		t.Errorf("with time left: got error %v", err)
	}
	if _, err := st.Get(t.Context(), "a"); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("without a limit: got error %v, want no answer", err)
	}
}

// TestGarbled: whatever is no whole answer of a tenure server decides nothing.
func TestGarbled(t *testing.T) {
	t.Parallel()
	const ok, problem = "application/json", api.ProblemType
	for what, c := range map[string]struct {
		status     int
		kind, body string
		want       error
	}{
		"bad gateway":         {502, "text/html", "<h1>502</h1>", store.ErrUnavailable},
		"unavailable":         {503, "text/html", "<h1>503</h1>", store.ErrUnavailable},
		"gateway timeout":     {504, "text/plain", "", store.ErrUnavailable},
		"portal":              {200, "text/html", "<h1>Log in</h1>", store.ErrUnavailable},
		"redirect":            {302, "text/html", "", store.ErrUnavailable},
		"no content":          {204, "", "", store.ErrUnavailable},
		"foreign 404":         {404, "text/plain", "404 page not found", store.ErrUnavailable},
		"foreign JSON":        {409, ok, `{"code":"superseded","message":"x"}`, store.ErrUnavailable},
		"wrong status":        {404, problem, `{"code":"superseded","message":"x"}`, store.ErrUnavailable},
		"unknown code":        {409, problem, `{"code":"gone_fishing","message":"x"}`, store.ErrUnavailable},
		"cut problem":         {409, problem, `{"code":"superseded","mess`, store.ErrUnavailable},
		"nothing":             {200, ok, "", store.ErrUnavailable},
		"empty":               {200, ok, "{}", store.ErrUnavailable},
		"null":                {200, ok, "null", store.ErrUnavailable},
		"cut":                 {200, ok, `{"results":[{"code":"superseded"`, store.ErrUnavailable},
		"more after it":       {200, ok, `{"results":[{"code":"superseded"}]} {}`, store.ErrUnavailable},
		"fewer results":       {200, ok, `{"results":[]}`, store.ErrUnavailable},
		"more results":        {200, ok, `{"results":[{"code":"missing"},{"code":"missing"}]}`, store.ErrUnavailable},
		"another's record":    {200, ok, `{"results":[{"record":{"name":"b","status":"held"}}]}`, store.ErrUnavailable},
		"no record":           {200, ok, `{"results":[{}]}`, store.ErrUnavailable},
		"too much":            {200, ok, `{"results":[{"code":"missing","text":"` + strings.Repeat("x", 5000) + `"}]}`, store.ErrUnavailable},
		"fault":               {500, problem, `{"code":"fault","message":"x"}`, store.ErrUnavailable},
		"proxy's credential":  {401, "text/html", "", store.ErrPermission},
		"firewall":            {403, "text/html", "no", store.ErrPermission},
		"unauthorized":        {401, problem, `{"code":"unauthorized","message":"x"}`, store.ErrPermission},
		"forbidden":           {403, problem, `{"code":"forbidden","message":"x"}`, store.ErrPermission},
		"unsupported version": {404, problem, `{"code":"no_such_path","message":"x"}`, store.ErrUnsupported},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			srv := newReplica(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", c.kind)
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			})
			st := api.NewStore(client(t, api.Config{MaxBody: 4096}, srv.URL))
			_, err := st.Renew(t.Context(), []store.Grant{{Name: "a", Token: 1, TTL: time.Minute, Attempt: store.NewAttempt(), Known: []store.Attempt{store.NewAttempt()}}})
			if !errors.Is(err, c.want) || store.Definite(err) {
				t.Errorf("got error %v, want one matching %v", err, c.want)
			}
			if n := srv.asked.Load(); n != 1 {
				t.Errorf("sent %d times, want once", n)
			}
		})
	}
	// A body that is shorter than its head said.
	srv := newReplica(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", ok)
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, `{"nodes":[]}`)
	})
	if nodes, err := client(t, api.Config{}, srv.URL).Nodes(t.Context()); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a cut body: got %v and error %v, want no answer", nodes, err)
	}
	// What is not there is not "nothing".
	srv = newReplica(t, func(w http.ResponseWriter, _ *http.Request) { reply(w, 200, map[string]int{"revision": 9}) })
	if orders, err := client(t, api.Config{}, srv.URL).Orders(t.Context(), "n1", 8, 0); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("orders without work: got %+v and error %v, want no answer", orders, err)
	}
}

// TestSubmitRetries: no room is asked for again, four times, and then the counts
// say why.
func TestSubmitRetries(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var at []time.Time
	srv := newReplica(t, func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		at = append(at, time.Now())
		mu.Unlock()
		e := api.Refuse(fleet.CodeNoCapacity, "no node has room")
		e.Counts = map[fleet.Code]int{fleet.CodeDraining: 3}
		reply(w, 0, e)
	})
	_, err := client(t, api.Config{}, srv.URL).Submit(t.Context(), api.SubmitRequest{Spec: fleet.Spec{ID: "w1"}})
	refusal, ok := errors.AsType[*api.Error](err)
	if !ok || refusal.Code != string(fleet.CodeNoCapacity) || refusal.Counts[fleet.CodeDraining] != 3 {
		t.Errorf("got error %v, want no_capacity with its counts", err)
	}
	if len(at) != 5 {
		t.Fatalf("sent %d times, want 1 and 4 retries", len(at))
	}
	for i, least := 1, 125*time.Millisecond; i < 5; i, least = i+1, 2*least {
		if got := at[i].Sub(at[i-1]); got < least {
			t.Errorf("retry %d came after %s, want %s or more", i, got, least)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := client(t, api.Config{}, srv.URL).Submit(ctx, api.SubmitRequest{Spec: fleet.Spec{ID: "w1"}}); err == nil {
		t.Error("a submission whose context is over succeeded")
	}
}

// TestSubmitLostReply: an item that was stored by a try without an answer is
// found again, and one of somebody else's is not taken for it.
func TestSubmitLostReply(t *testing.T) {
	t.Parallel()
	for what, stored := range map[string]fleet.Spec{
		"own":   {ID: "w1", Command: []string{"true"}},
		"other": {ID: "w1", Command: []string{"false"}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			first := newReplica(t, never)
			second := newReplica(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					reply(w, 0, api.Refuse(fleet.CodeWorkExists, "it exists"))
					return
				}
				reply(w, 200, api.Work{Spec: stored, Owner: "n1", Token: 1})
			})
			req := api.SubmitRequest{Spec: fleet.Spec{ID: "w1", Command: []string{"true"}}}
			work, err := client(t, api.Config{AttemptTimeout: 100 * time.Millisecond}, first.URL, second.URL).Submit(t.Context(), req)
			if what == "own" && (err != nil || work.Owner != "n1") {
				t.Errorf("got %+v and error %v, want the stored item", work, err)
			}
			if what == "other" && err == nil {
				t.Errorf("got %+v, want work_exists", work)
			}
			if _, err := client(t, api.Config{}, second.URL).Submit(t.Context(), req); err == nil {
				t.Error("a second submission on purpose succeeded, want work_exists")
			}
		})
	}
}

// TestBeatsDoNotQueue: beats go out on a connection that nothing else uses,
// while every other request hangs.
func TestBeatsDoNotQueue(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	connections := map[string]bool{} // of beats
	hanging := make(chan struct{}, 1)
	srv := newReplica(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/beat" {
			hanging <- struct{}{}
			never(w, r)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		connections[r.RemoteAddr] = true
		reply(w, 200, api.BeatReply{Node: "n1"})
	})
	c := client(t, api.Config{AttemptTimeout: patient}, srv.URL)
	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	for range 20 {
		if _, err := c.Beat(t.Context(), &api.Beat{Node: "n1"}); err != nil {
			t.Errorf("got error %v", err)
		}
		asking.Go(func() { _, _ = c.Nodes(ctx) })
		<-hanging
	}
	if len(connections) != 1 {
		t.Errorf("beats took %d connections, want one of their own", len(connections))
	}
	cancel()
	asking.Wait()
}

// TestConfig: what cannot work, or would show a token, is refused at once.
func TestConfig(t *testing.T) {
	t.Parallel()
	for _, cfg := range []api.Config{
		{}, {Servers: []string{"localhost:7070"}}, {Servers: []string{"ftp://a"}}, {Servers: []string{"tenure://"}},
		{Servers: []string{"tenure://a?x=1"}}, {Servers: []string{"tenure://u:secret@a"}}, {Servers: []string{"tenure://a:7070"}, Token: "0123456789abcdef"},
		{Servers: []string{"tenure://localhost"}, Token: "two words"}, {Servers: []string{"tenure://localhost"}, AttemptTimeout: -1},
	} {
		_, err := api.NewClient(cfg)
		if !errors.Is(err, store.ErrInvalid) || strings.Contains(fmt.Sprint(err), "secret") {
			t.Errorf("%+v: got error %v, want it refused", cfg, err)
		}
	}
	for _, cfg := range []api.Config{
		{Servers: []string{"tenures://a:7070/"}, Token: "0123456789abcdef"}, {Servers: []string{"tenure://127.0.0.1:1", "http://[::1]:2"}, Token: "0123456789abcdef"},
	} {
		if c, err := api.NewClient(cfg); err != nil || len(c.Servers()) != len(cfg.Servers) {
			t.Errorf("%+v: got error %v", cfg, err)
		}
	}
	if got, err := api.ParseServers("tenures://a:1,b:2"); err != nil || len(got) != 2 || got[1] != "tenures://b:2" {
		t.Errorf("got %q and error %v, want two URLs", got, err)
	}
}

// TestTLS: a server is verified against the given authority only, and gets the token.
func TestTLS(t *testing.T) {
	t.Parallel()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer 0123456789abcdef" || r.ProtoMajor != 1 {
			reply(w, 0, api.Refuse(api.CodeUnauthorized, "no token, or HTTP/2"))
			return
		}
		nodeReply(w, r)
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // the handshake that fails on purpose
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	url := strings.Replace(srv.URL, "https://", "tenures://", 1)
	trusting := srv.Client().Transport.(*http.Transport).TLSClientConfig
	if _, err := client(t, api.Config{TLS: trusting, Token: "0123456789abcdef"}, url).Node(t.Context(), "n1"); err != nil {
		t.Errorf("got error %v", err)
	}
	if _, err := client(t, api.Config{Token: "0123456789abcdef"}, url).Node(t.Context(), "n1"); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("of an unknown authority: got error %v, want no contact", err)
	}
	if _, err := client(t, api.Config{TLS: trusting}, url).Node(t.Context(), "n1"); !errors.Is(err, store.ErrPermission) {
		t.Errorf("without a token: got error %v, want no permission", err)
	}
}

// TestFollowEvents: over streams that break and replicas that go, each event
// comes once, in order.
func TestFollowEvents(t *testing.T) {
	t.Parallel()
	const last = 30
	serve := func(w http.ResponseWriter, r *http.Request) {
		var after int64
		fmt.Sscan(r.URL.Query().Get("after"), &after)
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, ": open\n\n")
		for seq := max(after-1, 1); seq <= min(after+4, last); seq++ { // two are told twice
			fmt.Fprintf(w, "id: %d\ndata: {\"seq\":%d,\ndata: \"kind\":\"node_joined\"}\n\n", seq, seq)
		}
		fmt.Fprint(w, "data: {\"seq\":") // and then it is cut
	}
	a, b := newReplica(t, serve), newReplica(t, serve)
	var want int64
	for e, err := range client(t, api.Config{}, a.URL, gone(t), b.URL).FollowEvents(t.Context(), api.EventQuery{}) {
		if err != nil {
			t.Fatal(err)
		}
		if want++; e.Seq != want || e.Kind != fleet.EventJoined {
			t.Fatalf("got event %+v, want number %d", e, want)
		}
		if want == last {
			break
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for e, err := range client(t, api.Config{}, gone(t)).FollowEvents(ctx, api.EventQuery{}) {
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got event %+v and error %v, want the context's", e, err)
		}
	}
	refusing := newReplica(t, func(w http.ResponseWriter, _ *http.Request) { reply(w, 0, api.Refuse(api.CodeForbidden, "no")) })
	for e, err := range client(t, api.Config{}, refusing.URL).FollowEvents(t.Context(), api.EventQuery{}) {
		if !errors.Is(err, store.ErrPermission) {
			t.Errorf("got event %+v and error %v, want no permission", e, err)
		}
	}
}
