package server

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

const tokenFile = `# who may what
viewer-token-0000 viewer

agent-token-n1-00 agent n1
operator-token-00 operator
`

func TestReadTokens(t *testing.T) {
	t.Parallel()
	tokens, err := ReadTokens(strings.NewReader(tokenFile))
	if err != nil || len(tokens) != 3 {
		t.Fatalf("got %d tokens, %v, want 3", len(tokens), err)
	}
	for _, wrong := range []string{
		"", "# nothing", "short viewer", "a-token-of-16-byt emperor", "a-token-of-16-byt", "a-token-of-16-byt viewer n1",
		"a-token-of-16-byt agent", "a-token-of-16-byt agent a/b", "a-token-of-16-byt agent n1 n2",
		"a-token-of-16-byt viewer\na-token-of-16-byt operator",
	} {
		if _, err := ReadTokens(strings.NewReader(wrong)); err == nil || strings.Contains(err.Error(), "a-token") {
			t.Errorf("%q: got %v, want an error that does not tell the token", wrong, err)
		}
	}
}

// TestRoles holds what each role may do, and each refusal.
func TestRoles(t *testing.T) {
	t.Parallel()
	tokens, err := ReadTokens(strings.NewReader(tokenFile))
	if err != nil {
		t.Fatal(err)
	}
	b := newBed(t, Config{}, HTTPConfig{Tokens: tokens})
	const viewer, agent, operator = "Bearer viewer-token-0000", "Bearer agent-token-n1-00", "bearer operator-token-00"
	b.join("n1", "Authorization", agent)
	b.join("n2", "Authorization", operator)

	for path, public := range map[string]bool{"/livez": true, "/readyz": true, "/metrics": false, "/v1/openapi.json": false, "/v1/nodes": false, "/nowhere": false} {
		a := b.send("GET", path, nil)
		if (a.status == 200) != public || !public && (a.status != 401 || a.problem(t).Code != api.CodeUnauthorized || a.header.Get("WWW-Authenticate") == "") {
			t.Errorf("%s without a token: got %d %s", path, a.status, a.body)
		}
	}
	for _, token := range []string{"Bearer nobody-knows-this-1", "Basic operator-token-00", "operator-token-00", "Bearer"} {
		if a := b.send("GET", "/v1/nodes", nil, "Authorization", token); a.status != 401 {
			t.Errorf("%q: got %d, want 401", token, a.status)
		}
	}

	acquire := func(name string) api.AcquireRequest {
		return api.NewAcquireRequest(store.Request{Name: name, Holder: "h", TTL: store.MaxTTL, Attempt: store.NewAttempt()})
	}
	grants := func(names ...string) api.RenewRequest {
		var r api.RenewRequest
		for _, name := range names {
			r.Grants = append(r.Grants, api.RenewGrant{Name: name, Token: 1, TTLUS: 60e6, Attempt: store.NewAttempt(), Known: []store.Attempt{store.NewAttempt()}})
		}
		return r
	}
	release := api.ReleaseRequest{Grants: []api.ReleaseGrant{{Name: "node/n2", Token: 1, Attempt: store.NewAttempt(), Known: []store.Attempt{store.NewAttempt()}}}}
	beat := func(node string) api.Beat { return api.Beat{Node: node, Incarnation: "i-" + node, Seq: 1} }
	cordon := api.CordonRequest{Actor: "ann", Reason: "r"}
	for _, r := range []struct {
		method, path string
		body         any
		may          string // which of v, a and o may
	}{
		{"GET", "/v1/nodes", nil, "vao"},
		{"GET", "/v1/nodes/n2", nil, "vao"},
		{"GET", "/v1/events", nil, "vao"},
		{"GET", "/v1/brake", nil, "vao"},
		{"GET", "/v1/config", nil, "vao"},
		{"GET", "/v1/leases", nil, "vao"},
		{"GET", "/metrics", nil, "vao"},
		{"GET", "/v1/nodes/n1/orders", nil, "ao"},
		{"GET", "/v1/nodes/n2/orders", nil, "o"},
		{"POST", "/v1/beat", beat("n1"), "ao"},
		{"POST", "/v1/beat", beat("n2"), "o"},
		{"POST", "/v1/beats", api.Beats{Beats: []api.Beat{beat("n1")}}, "ao"},
		{"POST", "/v1/beats", api.Beats{Beats: []api.Beat{beat("n1"), beat("n2")}}, "o"},
		{"POST", "/v1/beats", api.Beats{Beats: []api.Beat{}}, "o"},
		{"POST", "/v1/work/w/progress", api.ProgressRequest{Node: "n1", Token: 1, Lease: 1}, "ao"},
		{"POST", "/v1/work/w/progress", api.ProgressRequest{Node: "n2", Token: 1, Lease: 1}, "o"},
		{"DELETE", "/v1/work/w?actor=ann&reason=r", nil, "o"},
		{"POST", "/v1/leases/renew", grants("node/n1"), "ao"},
		{"POST", "/v1/leases/renew", grants("node/n1", "node/n2"), "o"},
		{"POST", "/v1/leases/release", release, "o"},
		{"POST", "/v1/leases/acquire", acquire("node/n3"), "o"},
		{"POST", "/v1/leases/acquire", acquire("tenure/x"), "o"},
		{"POST", "/v1/leases/done", api.DoneRequest{Name: "node/n2", Token: 1, Attempt: store.NewAttempt(), Known: []store.Attempt{store.NewAttempt()}, Slot: "s"}, "o"},
		{"POST", "/v1/leases/floor", api.FloorRequest{Name: "x", Floor: 2}, "o"},
		{"POST", "/v1/leases/clean", api.CleanRequest{IdleUS: 3600e6}, "o"},
		{"POST", "/v1/leases/revoke", api.RevokeRequest{Name: "x", Token: 1}, "o"},
		{"POST", "/v1/work", api.SubmitRequest{Spec: fleet.Spec{ID: "w9", Command: []string{"a"}}}, "o"},
		{"POST", "/v1/work/w/stop", api.WorkOrder{Actor: "a", Reason: "r"}, "o"},
		{"POST", "/v1/work/w/move", api.WorkOrder{Actor: "a", Reason: "r"}, "o"},
		{"POST", "/v1/nodes/n1/cordon", cordon, "o"},
		{"POST", "/v1/nodes/n1/drain", cordon, "o"},
		{"POST", "/v1/nodes/n1/resume", api.ResumeRequest{Actor: "a", What: "all"}, "o"},
		{"POST", "/v1/brake/confirm", api.BrakeRequest{Domain: "all", Actor: "a", Reason: "r"}, "o"},
		{"POST", "/v1/brake/release", api.BrakeRequest{Domain: "all", Actor: "a", Reason: "r"}, "o"},
		{"DELETE", "/v1/nodes/n2?actor=a&reason=r", nil, "o"},
	} {
		for who, token := range map[string]string{"v": viewer, "a": agent, "o": operator} {
			a := b.send(r.method, r.path, r.body, "Authorization", token)
			if may := strings.Contains(r.may, who); may != (a.status != 403) || !may && a.problem(t).Code != api.CodeForbidden || a.status == 401 {
				t.Errorf("%s %s by %s: got %d %.200s, may: %v", r.method, r.path, who, a.status, a.body, may)
			}
		}
	}
}

// TestLoopbackNames: without credentials a page of another site cannot reach the
// server by a name of its own that resolves to loopback.
func TestLoopbackNames(t *testing.T) {
	t.Parallel()
	b := newBed(t, Config{}, HTTPConfig{})
	for host, want := range map[string]int{"localhost": 200, "LOCALHOST:70": 200, "127.0.0.1": 200, "127.8.9.1:1": 200, "[::1]:70": 200, "evil.example": 403, "evil.example:80": 403, "10.0.0.1": 403, "127.0.0.1.evil.example": 403} {
		if a := b.send("GET", "/v1/nodes", nil, "Host", host); a.status != want {
			t.Errorf("Host %s: got %d, want %d", host, a.status, want)
		}
	}
	if a := b.send("POST", "/v1/nodes/n1/cordon", `{"actor":"a","reason":"r"}`, "Content-Type", "text/plain"); a.status != 415 {
		t.Errorf("a form that a page could send: got %d, want 415", a.status)
	}
}

func TestListen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := CreateCA(in("ca.pem"), in("ca.key")); err != nil {
		t.Fatal(err)
	}
	if err := CreateCert(in("ca.pem"), in("ca.key"), in("s.pem"), in("s.key"), []string{"localhost", "127.0.0.1", "::1"}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(in("tokens"), []byte(tokenFile), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ca.pem", "ca.key", "s.pem", "s.key"} {
		if info, err := os.Stat(in(name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v, want mode 600", name, info.Mode(), err)
		}
	}
	if err := CreateCA(in("ca.pem"), in("new.key")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second CA: got %v, want that it exists", err)
	}
	if _, err := os.Stat(in("new.key")); err == nil {
		t.Error("a second CA left its key")
	}
	if err := CreateCert(in("ca.pem"), in("s.key"), in("x.pem"), in("x.key"), []string{"a"}); err == nil {
		t.Error("a CA with the key of another: got no error")
	}
	for _, host := range []string{"", "a b", "a/b", "<script>"} {
		if err := CreateCert(in("ca.pem"), in("ca.key"), in("x.pem"), in("x.key"), []string{host}); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("host %q: got %v, want invalid", host, err)
		}
	}

	for _, wrong := range []ListenConfig{
		{Address: ":0"},
		{Address: "0.0.0.0:0"},
		{Address: "[::]:0", TokenFile: in("tokens")},
		{Address: "0.0.0.0:0", CertFile: in("s.pem"), KeyFile: in("s.key")},
		{Address: "192.0.2.1:0"},
	} {
		_, _, err := Listen(t.Context(), wrong)
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "--tls-cert") || !strings.Contains(err.Error(), "--tokens") {
			t.Errorf("%+v: got %v, want an error that names both flags", wrong, err)
		}
	}
	for _, wrong := range []ListenConfig{
		{Address: "nowhere"},
		{Address: "127.0.0.1:0", CertFile: in("s.pem")},
		{Address: "127.0.0.1:0", TokenFile: in("s.pem")},
		{Address: "127.0.0.1:0", CertFile: in("s.pem"), KeyFile: in("ca.key")},
	} {
		if _, _, err := Listen(t.Context(), wrong); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: got %v, want a refusal", wrong, err)
		}
	}
	ln, tokens, err := Listen(t.Context(), ListenConfig{Address: "127.0.0.1:0"})
	if err != nil || tokens != nil {
		t.Fatalf("loopback: got %v, %v", tokens, err)
	}
	ln.Close()

	ln, tokens, err = Listen(t.Context(), ListenConfig{Address: "0.0.0.0:0", CertFile: in("s.pem"), KeyFile: in("s.key"), TokenFile: in("tokens")})
	if err != nil || len(tokens) != 3 {
		t.Fatalf("all addresses with both: got %d tokens, %v", len(tokens), err)
	}
	b := newIdleBed(t, Config{}, HTTPConfig{})
	web := b.HTTPServer(b.Handler(HTTPConfig{Tokens: tokens}))
	go func() { _ = web.Serve(ln) }()
	t.Cleanup(func() { web.Close() })
	ca, err := os.ReadFile(in("ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer transport.CloseIdleConnections()
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	for _, host := range []string{"localhost", "127.0.0.1"} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+host+":"+port+"/v1/config", nil)
		req.Header.Set("Authorization", "Bearer viewer-token-0000")
		resp, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			t.Fatalf("%s: %v", host, err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: got %d", host, resp.StatusCode)
		}
	}
}
