package document_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/tenurehq/tenure/server"
	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store/sqlite"
)

// bed is a replica on a SQLite file of its own, served over HTTP.
type bed struct {
	t   *testing.T
	url string
}

func newBed(t *testing.T) *bed {
	t.Helper()
	fatal := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	db, err := sql.Open("sqlite", sqlite.ModerncDSN(filepath.Join(t.TempDir(), "tenure.db")))
	fatal(err)
	t.Cleanup(func() { db.Close() })
	st, err := sqlite.New(db, sqlite.Config{})
	fatal(err)
	t.Cleanup(func() { st.Close() })
	fatal(st.Migrate(t.Context()))
	host, err := sqlite.ThisHost()
	fatal(err)
	reg, err := registry.New(db, registry.Config{Dialect: registry.SQLite, Clock: registry.Clock{Domain: host.Domain, Boot: host.Boot, Wall: host.Wall}})
	fatal(err)
	fatal(reg.Migrate(t.Context()))
	s, err := server.New(st, reg, server.Config{})
	fatal(err)
	web := httptest.NewUnstartedServer(nil)
	web.Config = s.HTTPServer(s.Handler(server.HTTPConfig{Version: "1.2.3"}))
	web.Start()
	t.Cleanup(web.Close)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for bound := time.Now().Add(20 * time.Second); s.Ready() != nil; <-tick.C {
		if time.Now().After(bound) {
			t.Fatal(s.Ready())
		}
	}
	return &bed{t: t, url: web.URL}
}

// answered is an answer as it came.
type answered struct {
	status int
	header http.Header
	body   []byte
}

// send sends a request with anything as JSON for its body, or nil.
func (b *bed) send(method, path string, body any) answered {
	b.t.Helper()
	var reader io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			b.t.Fatal(err)
		}
		reader = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.url+path, reader)
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultTransport.RoundTrip(req) // follows no redirect
	if err != nil {
		b.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return answered{resp.StatusCode, resp.Header, text}
}

// must sends a request that is to be answered with 200, and decodes the answer.
func must[T any](b *bed, method, path string, body any) T {
	b.t.Helper()
	a := b.send(method, path, body)
	var out T
	if err := json.Unmarshal(a.body, &out); err != nil || a.status != http.StatusOK {
		b.t.Fatalf("%s %s: status %d: %s %v", method, path, a.status, a.body, err)
	}
	return out
}
