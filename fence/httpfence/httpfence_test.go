package httpfence_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/fencetest"
	"github.com/tenurehq/tenure/fence/httpfence"
)

const limit = 30 * time.Second

// service is a guarded server that remembers what its handler was given.
type service struct {
	*httptest.Server
	mu     sync.Mutex
	bodies []string
}

func serve(t *testing.T, marks fence.Marks, cfg httpfence.Config) *service {
	t.Helper()
	s := &service{}
	s.Server = httptest.NewServer(httpfence.NewGuard(marks, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		resource, token, ok := httpfence.Token(r.Context())
		s.mu.Lock()
		s.bodies = append(s.bodies, string(body))
		s.mu.Unlock()
		fmt.Fprintf(w, "%s %s %v", resource, token, ok)
	}), cfg))
	t.Cleanup(s.Close)
	return s
}

func (s *service) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.bodies...)
}

// client is that of a holder.
func client(s *service, resource string, token fence.Token) *http.Client {
	return &http.Client{Transport: &httpfence.Transport{
		Resource: resource, TokenFunc: func() (fence.Token, bool) { return token, true }, Base: s.Client().Transport,
	}}
}

func post(t *testing.T, c *http.Client, url, body string) (*http.Response, string) {
	t.Helper()
	resp, err := c.Post(url, "text/plain", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() // the answer is returned without it
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

// Tokens pass exactly, also where floating point would lose digits; a stale one
// gets the current one in the header and in JSON, as often as it asks, and its
// body reaches nobody.
func TestTokens(t *testing.T) {
	t.Parallel()
	tokens := []fence.Token{1, 2, 1<<53 - 1, 1 << 53, 1<<53 + 1, 1<<63 - 2, 1<<63 - 1}
	s := serve(t, fencetest.NewMemory(), httpfence.Config{})
	for i, token := range tokens {
		resp, body := post(t, client(s, "invoices", token), s.URL, "good") //nolint:bodyclose // post did
		if want := "invoices " + token.String() + " true"; resp.StatusCode != http.StatusOK || body != want || httpfence.Stale(resp) != nil {
			t.Fatalf("token %s: got %s %q, want %q", token, resp.Status, body, want)
		}
		if i == 0 {
			continue
		}
		for range 2 {
			old := tokens[i-1]
			resp, body := post(t, client(s, "invoices", old), s.URL, "stale") //nolint:bodyclose // post did
			var stale *fence.StaleError
			if err := httpfence.Stale(resp); !errors.As(err, &stale) || *stale != (fence.StaleError{Resource: "invoices", Token: old, Current: token}) {
				t.Errorf("token %s: got %v", old, err)
			}
			var p struct {
				Code                     string
				Status                   int
				Resource, Token, Current string
			}
			if err := json.Unmarshal([]byte(body), &p); err != nil || p.Code != httpfence.CodeStale || p.Status != 412 || p.Token != old.String() || p.Current != token.String() || p.Resource != "invoices" {
				t.Errorf("token %s: got %s (%v)", old, body, err)
			}
			if resp.StatusCode != http.StatusPreconditionFailed || resp.Header.Get(httpfence.TokenHeader) != token.String() || resp.Header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("token %s: got %s %v", old, resp.Status, resp.Header)
			}
		}
	}
	if got := s.seen(); len(got) != len(tokens) || strings.Contains(fmt.Sprint(got), "stale") {
		t.Errorf("the handler was given %q", got)
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	cfg := httpfence.Config{ResourceFunc: func(r *http.Request) string { return strings.TrimPrefix(r.URL.Path, "/") }}
	s := serve(t, fencetest.NewMemory(), cfg)
	for _, tc := range []struct {
		method, path string
		headers      []string
		status       int
		code         string
	}{
		{"POST", "/a", nil, 428, httpfence.CodeMissing},
		{"POST", "/a", []string{"Tenure-Token", "1"}, 400, httpfence.CodeInvalid},
		{"POST", "/a", []string{"Tenure-Resource", "a"}, 400, httpfence.CodeInvalid},
		{"POST", "/a", []string{"Tenure-Resource", "b", "Tenure-Token", "1"}, 400, httpfence.CodeInvalid},
		{"POST", "/a", []string{"Tenure-Resource", "a", "Tenure-Resource", "a", "Tenure-Token", "1"}, 400, httpfence.CodeInvalid},
		{"POST", "/a", []string{"Tenure-Resource", "a", "Tenure-Token", "1", "Tenure-Token", "9"}, 400, httpfence.CodeInvalid},
		{"POST", "/a", []string{"Tenure-Resource", "a", "Tenure-Token", "0"}, 400, httpfence.CodeInvalid},
		{"POST", "/a", []string{"Tenure-Resource", "a", "Tenure-Token", "1, 2"}, 400, httpfence.CodeInvalid},
		{"POST", "/a", []string{"Tenure-Resource", "a", "Tenure-Token", "9223372036854775808"}, 400, httpfence.CodeInvalid},
		{"DELETE", "/a", []string{"tenure-resource", "a", "tenure-token", "2"}, 200, ""},
		{"PATCH", "/a", []string{"Tenure-Resource", "a", "Tenure-Token", "1"}, 412, httpfence.CodeStale},
		{"GET", "/a", nil, 200, ""},
		{"HEAD", "/a", nil, 200, ""},
		{"POST", "/", nil, 200, ""}, // not guarded, says the service
	} {
		req, err := http.NewRequest(tc.method, s.URL+tc.path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(tc.headers); i += 2 {
			req.Header.Add(tc.headers[i], tc.headers[i+1])
		}
		resp, err := s.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != tc.status || tc.code != "" && !strings.Contains(string(body), `"code":"`+tc.code+`"`) {
			t.Errorf("%s %s %q: got %s %s, want %d %s", tc.method, tc.path, tc.headers, resp.Status, body, tc.status, tc.code)
		}
	}
	reads := serve(t, fencetest.NewMemory(), httpfence.Config{GuardReads: true})
	resp, err := reads.Client().Get(reads.URL)
	if err != nil || resp.StatusCode != http.StatusPreconditionRequired {
		t.Errorf("a guarded read without a token: got %v, %v", resp, err)
	}
	_ = resp.Body.Close()
}

// failing are marks that do not answer.
type failing struct{ fence.Marks }

func (failing) Raise(context.Context, string, fence.Token) (fence.Token, error) {
	return 0, errors.New("secret: no contact to db-7")
}

// If the marks cannot be asked nothing is written, and nothing is told of why.
func TestMarksFail(t *testing.T) {
	t.Parallel()
	s := serve(t, failing{}, httpfence.Config{})
	resp, body := post(t, client(s, "a", 1), s.URL, "x") //nolint:bodyclose // post did
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" || !strings.Contains(body, httpfence.CodeUnavailable) || strings.Contains(body, "secret") || len(s.seen()) != 0 {
		t.Errorf("got %s %s, the handler was given %q", resp.Status, body, s.seen())
	}
}

// A 412 of the service's own is not taken for a stale token.
func TestStaleIsNotAnyRefusal(t *testing.T) {
	t.Parallel()
	for _, resp := range []*http.Response{
		{StatusCode: 412, Header: http.Header{}},
		{StatusCode: 412, Header: http.Header{"Tenure-Token": {"x"}}},
		{StatusCode: 409, Header: http.Header{"Tenure-Token": {"1"}}},
		{StatusCode: 200, Header: http.Header{"Tenure-Token": {"1"}}},
	} {
		if err := httpfence.Stale(resp); err != nil {
			t.Errorf("%v: got %v", resp, err)
		}
	}
}

type closing struct {
	io.Reader
	closed atomic.Bool
}

func (c *closing) Close() error { c.closed.Store(true); return nil }

// Who may not act sends nothing, and the request of the caller stays as it was.
func TestTransport(t *testing.T) {
	t.Parallel()
	s := serve(t, fencetest.NewMemory(), httpfence.Config{})
	for want, tr := range map[error]*httpfence.Transport{
		httpfence.ErrNoRight: {Resource: "a", TokenFunc: func() (fence.Token, bool) { return 5, false }},
		fence.ErrMark:        {Resource: "a b", TokenFunc: func() (fence.Token, bool) { return 5, true }},
	} {
		body := &closing{Reader: strings.NewReader("x")}
		req, _ := http.NewRequest(http.MethodPost, s.URL, body)
		if _, err := tr.RoundTrip(req); !errors.Is(err, want) { //nolint:bodyclose // there is no answer
			t.Errorf("got %v, want %v", err, want)
		}
		if !body.closed.Load() {
			t.Error("the body was left open")
		}
	}
	req, _ := http.NewRequest(http.MethodPost, s.URL, strings.NewReader("x"))
	req.Header.Set(httpfence.TokenHeader, "1") // of an earlier hop
	resp, err := client(s, "a", 7).Transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if string(got) != "a 7 true" || req.Header.Get(httpfence.TokenHeader) != "1" || req.Header.Get(httpfence.ResourceHeader) != "" {
		t.Errorf("got %s, and the caller's request has %v", got, req.Header)
	}
}

// When a newer term's handler begins, no older one is at work: it was told to stop
// and has returned. The older one's next request is refused.
func TestOlderHandlerEndsFirst(t *testing.T) {
	t.Parallel()
	begun, told, let := make(chan struct{}), make(chan error, 1), make(chan struct{})
	var working atomic.Int32
	marks := fencetest.NewMemory()
	g := httpfence.NewGuard(marks, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if working.Add(1) != 1 {
			t.Error("two terms are at work")
		}
		defer working.Add(-1)
		if _, token, _ := httpfence.Token(r.Context()); token != 5 {
			return
		}
		close(begun)
		<-r.Context().Done()
		told <- context.Cause(r.Context())
		<-let
	}), httpfence.Config{})
	send := func(ctx context.Context, token string) int {
		r := httptest.NewRequestWithContext(ctx, "POST", "/", http.NoBody)
		r.Header.Set(httpfence.ResourceHeader, "a")
		r.Header.Set(httpfence.TokenHeader, token)
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		return w.Code
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	old := make(chan int, 1)
	go func() { old <- send(ctx, "5") }()
	<-begun
	short, stop := context.WithCancel(ctx)
	next := make(chan int, 1)
	go func() { next <- send(short, "6") }()
	var stale *fence.StaleError
	if err := <-told; !errors.As(err, &stale) || stale.Token != 5 || stale.Current != 6 {
		t.Fatalf("the old handler was told %v", err)
	}
	stop() // it does not stop in time for this one
	if got := <-next; got != http.StatusServiceUnavailable {
		t.Errorf("a newer term's request that gave up: got %d, want 503", got)
	}
	if got := send(ctx, "5"); got != http.StatusPreconditionFailed {
		t.Errorf("the old term meanwhile: got %d, want 412", got)
	}
	go func() { next <- send(ctx, "6") }()
	select {
	case got := <-next:
		close(let)
		t.Fatalf("the newer term did not wait: %d", got)
	case <-time.After(20 * time.Millisecond):
	}
	close(let)
	if got := <-next; got != http.StatusOK {
		t.Errorf("the newer term: got %d", got)
	}
	<-old
}

// slow are marks whose answer to token 5 comes late.
type slow struct {
	*fencetest.Memory
	decided, let chan struct{}
}

func (s slow) Raise(ctx context.Context, resource string, token fence.Token) (fence.Token, error) {
	current, err := s.Memory.Raise(ctx, resource, token)
	if token == 5 {
		close(s.decided)
		<-s.let
	}
	return current, err
}

// A request that the marks accepted, and whose handler has not begun when a newer
// term comes, does not begin.
func TestAcceptedAndOvertaken(t *testing.T) {
	t.Parallel()
	marks := slow{fencetest.NewMemory(), make(chan struct{}), make(chan struct{})}
	var handled atomic.Value
	g := httpfence.NewGuard(marks, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, token, _ := httpfence.Token(r.Context())
		handled.Store(token)
	}), httpfence.Config{})
	send := func(token string) int {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/", http.NoBody)
		r.Header.Set(httpfence.ResourceHeader, "a")
		r.Header.Set(httpfence.TokenHeader, token)
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		return w.Code
	}
	old, next := make(chan int, 1), make(chan int, 1)
	go func() { old <- send("5") }()
	<-marks.decided
	go func() { next <- send("6") }()
	for start := time.Now(); time.Since(start) < limit; { // until 6 has raised the mark and waits
		if _, err := marks.Memory.Raise(t.Context(), "a", 4); errors.Is(err, fence.ErrStale) && strings.Contains(err.Error(), "6 is current") {
			break
		}
		select {
		case <-time.After(time.Millisecond):
		case <-t.Context().Done():
		}
	}
	select {
	case got := <-next:
		close(marks.let)
		t.Fatalf("the newer term did not wait for the older request: %d", got)
	case <-time.After(20 * time.Millisecond):
	}
	close(marks.let)
	if got := <-old; got != http.StatusPreconditionFailed {
		t.Errorf("the older request: got %d, want 412", got)
	}
	if got := <-next; got != http.StatusOK || handled.Load() != fence.Token(6) {
		t.Errorf("the newer request: got %d, handled %v", got, handled.Load())
	}
}

// 100 writers of different terms: the handler sees tokens that never go back.
func TestParallel(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var last fence.Token
	handled := map[fence.Token]bool{}
	s := httptest.NewServer(httpfence.NewGuard(fencetest.NewMemory(), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, token, _ := httpfence.Token(r.Context())
		mu.Lock()
		defer mu.Unlock()
		if token < last {
			t.Errorf("token %s after %s", token, last)
		}
		last, handled[token] = token, true
	}), httpfence.Config{}))
	defer s.Close()
	var wg sync.WaitGroup
	var unclear atomic.Int32
	for i := range 100 {
		token := fence.Token(1<<53 + i)
		wg.Go(func() {
			c := &http.Client{Transport: &httpfence.Transport{Resource: "a", TokenFunc: func() (fence.Token, bool) { return token, true }}}
			resp, err := c.Post(s.URL, "", http.NoBody)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			mu.Lock()
			did := handled[token]
			mu.Unlock()
			if stale := httpfence.Stale(resp) != nil; stale == did {
				unclear.Add(1)
			}
		})
	}
	wg.Wait()
	if n := unclear.Load(); n > 0 || !handled[1<<53+99] {
		t.Errorf("%d answers do not match what was done; the newest was done: %v", n, handled[1<<53+99])
	}
}
