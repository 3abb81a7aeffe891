//go:build linux

package browsertest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server"
)

// TestCrowd prints what the page of a fleet of 10,000 nodes costs, and what 20 who
// watch it cost the server. The processor time is that of this process, in which
// the viewers and the agents are too; that of the agents is taken off.
func TestCrowd(t *testing.T) {
	if os.Getenv("TENURE_LONG") != "1" {
		t.Skip("it measures, for minutes; TENURE_LONG=1 runs it")
	}
	const nodes, viewers, window = 10_000, 20, 20 * time.Second
	b := newBed(t, server.Config{Interval: 10 * time.Second, NodeTTL: 5 * time.Minute}, nil, "")
	b.join(b.Config().NodeTTL, fleet.Facts{Labels: map[string]string{"zone": "a"}, Readiness: fleet.Readiness{Ready: true}}, ids("n", nodes)...)
	b.until("all nodes", func() bool {
		f, err := b.api.Fleet(t.Context())
		return err == nil && f.Eligible == nodes
	})
	for _, what := range []struct{ name, path, accept string }{
		{"page", "/ui/", ""}, {"page, compressed", "/ui/", "gzip"}, {"refresh", "/ui/", "gzip"}, {"chart", "/ui/data/ages", "gzip"}, {"node page", "/ui/nodes/n-5000", "gzip"},
	} {
		var times []time.Duration
		length := 0
		for range 11 {
			began := time.Now()
			length = fetched(t, b.url+what.path, what.accept, what.name == "refresh")
			times = append(times, time.Since(began))
			waitFor(t, 1100*time.Millisecond) // until nothing of it is kept
		}
		slices.Sort(times)
		t.Logf("%-16s %6d bytes, median %v, worst %v", what.name, length, times[5].Round(100*time.Microsecond), times[10].Round(100*time.Microsecond))
	}
	base := cpuOver(t, window)
	t.Logf("agents alone: %.1f %% of a core", base)
	for name, path := range map[string]func(i int) string{
		"of one page":              func(int) string { return "/ui/" },
		"of pages that all differ": func(i int) string { return fmt.Sprintf("/ui/?page=%d", i+1) },
	} {
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		var turns, bytes atomic.Int64
		for i := range viewers {
			all.Go(func() { watch(ctx, t, b.url, path(i), &turns, &bytes) })
		}
		waitFor(t, 3*time.Second)
		turns.Store(0)
		bytes.Store(0)
		cpu := cpuOver(t, window)
		t.Logf("%d viewers %s: %.1f %% of a core more, %.1f refreshes a second, %.0f kB a second", viewers, name, cpu-base,
			float64(turns.Load())/window.Seconds(), float64(bytes.Load())/1000/window.Seconds())
		stop()
		all.Wait()
	}
}

// watch is a viewer: it follows the turns, and fetches its page at each.
func watch(ctx context.Context, t *testing.T, url, path string, turns, bytes *atomic.Int64) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/ui/live", nil)
	if err != nil {
		t.Error(err)
		return
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		if ctx.Err() == nil {
			t.Error(err)
		}
		return
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if !strings.HasPrefix(lines.Text(), "event: tick") {
			continue
		}
		n, err := fetch(ctx, url+path, "gzip", true)
		if err != nil {
			if ctx.Err() == nil {
				t.Error(err)
			}
			return
		}
		turns.Add(1)
		bytes.Add(int64(n))
	}
}

func fetch(ctx context.Context, url, accept string, refresh bool) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Accept-Encoding", accept)
	if refresh {
		req.Header.Set("HX-Request", "true")
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: status %d", url, resp.StatusCode)
	}
	return int(n), err
}

func fetched(t *testing.T, url, accept string, refresh bool) int {
	t.Helper()
	n, err := fetch(t.Context(), url, accept, refresh)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// cpuOver is the processor time of this process over a while, in percent of a core.
func cpuOver(t *testing.T, d time.Duration) float64 {
	t.Helper()
	before := processorTime(t)
	waitFor(t, d)
	return 100 * float64(processorTime(t)-before) / float64(d)
}

func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func waitFor(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}
