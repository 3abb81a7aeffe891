//go:build linux

package main

import (
	"net/http"
	"strings"
	"testing"
)

// TestDashboard prints where the pages are, and serves them unless it is told not to.
func TestDashboard(t *testing.T) {
	t.Parallel()
	status := func(url string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	p, url := startServer(t)
	base := "http" + strings.TrimPrefix(url, "tenure")
	until(t, "where the pages are", func() bool { return strings.Contains(p.read("out"), base+"/ui/\n") })
	until(t, "a page", func() bool { return status(base+"/ui/work") == http.StatusOK })
	p, url = startServer(t, "--no-dashboard")
	base = "http" + strings.TrimPrefix(url, "tenure")
	if got := status(base + "/ui/work"); got != http.StatusNotFound || strings.Contains(p.read("out"), "/ui/") {
		t.Errorf("with --no-dashboard: got %d and %q, want 404 and no word of it", got, p.read("out"))
	}
	if got := status(base + "/v1/whoami"); got != http.StatusOK {
		t.Errorf("with --no-dashboard: /v1/whoami: got %d, want 200", got)
	}
}
