//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

// sampled reads the values of one lease, by the names of their metrics, from an
// exposition.
func sampled(t *testing.T, text []byte, lease string) map[string]float64 {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return valuesOf(families, lease)
}

// conventional holds an exposition to the conventions of Prometheus, by promtool too
// if that is here.
func conventional(t *testing.T, text []byte) {
	t.Helper()
	if problems, err := promlint.New(bytes.NewReader(text)).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
	tool, err := exec.LookPath("promtool")
	if err != nil {
		t.Log("promtool is not here; its library was asked")
		return
	}
	cmd := exec.CommandContext(t.Context(), tool, "check", "metrics")
	cmd.Stdin = bytes.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool check metrics: %v: %s", err, out)
	}
}

func valuesOf(families map[string]*dto.MetricFamily, lease string) map[string]float64 {
	values := map[string]float64{}
	for name, f := range families {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if l.GetName() == "lease" && l.GetValue() == lease {
					values[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
				}
			}
		}
	}
	return values
}

// gateway is a Pushgateway that keeps the last push to each result.
type gateway struct {
	*httptest.Server
	mu     sync.Mutex
	groups map[string]map[string]float64
	broken bool
}

func newGateway(t *testing.T, lease string) *gateway {
	t.Helper()
	g := &gateway{groups: map[string]map[string]float64{}}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		families := map[string]*dto.MetricFamily{}
		for d := expfmt.NewDecoder(r.Body, expfmt.ResponseFormat(r.Header)); ; {
			var f dto.MetricFamily
			if err := d.Decode(&f); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Errorf("push: %v", err)
				break
			}
			families[f.GetName()] = &f
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.broken {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		// A group is a set of labels: their order in the path is another each time.
		labels := strings.Split(strings.TrimPrefix(r.URL.Path, "/metrics/"), "/")
		for i := 0; i+1 < len(labels); i += 2 {
			if r.Method == http.MethodPut && labels[i] == "result" {
				g.groups[labels[i+1]] = valuesOf(families, lease)
			}
		}
	}))
	t.Cleanup(g.Close)
	return g
}

func (g *gateway) group(result string) map[string]float64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.groups[result])
}

// TestRunPushesInTurn: what a run pushes at its end comes after what it pushed before,
// however long that is under way, or the gateway would keep the older.
func TestRunPushesInTurn(t *testing.T) {
	t.Parallel()
	var busy, passed atomic.Bool
	slow, another := make(chan struct{}, 1), make(chan struct{}, 100)
	g := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body) // what is broken off is an older push too
		if !bytes.Contains(text, []byte("tenure_lease_token")) || !busy.CompareAndSwap(false, true) {
			if busy.Load() {
				another <- struct{}{}
			}
			return
		}
		slow <- struct{}{}
		select {
		case <-another:
			passed.Store(true)
		case <-time.After(time.Second):
		}
		busy.Store(false)
	}))
	defer g.Close()
	finish := filepath.Join(t.TempDir(), "finish")
	p := start(t, "run", "job", "--store", fileStore(t), "--metrics-push", g.URL, "--", "sh", "-c", "while [ ! -e "+finish+" ]; do sleep 0.02; done")
	<-slow
	if err := os.WriteFile(finish, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p.wait().clean(t, exitOK)
	if passed.Load() {
		t.Error("the last push came while an older one was under way")
	}
}

// TestRunMetrics: what a run shows while it waits, runs and has ended, in a file and
// at a gateway.
func TestRunMetrics(t *testing.T) {
	t.Parallel()
	path, file, finish := fileStore(t), filepath.Join(t.TempDir(), "job.prom"), filepath.Join(t.TempDir(), "finish")
	g := newGateway(t, "job")
	args := func(more ...string) []string {
		return append([]string{"run", "job", "--store", path, "--metrics-textfile", file, "--metrics-push", g.URL}, more...)
	}
	read := func() map[string]float64 {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil
		}
		return sampled(t, text, "job")
	}
	ended := func(what string, values map[string]float64, code float64, success bool) {
		t.Helper()
		_, token := values["tenure_lease_token"]
		_, succeeded := values[successes]
		if held, ok := values["tenure_lease_held"]; !ok || held != 0 || values["tenure_run_exit_code"] != code || values["tenure_run_end_timestamp_seconds"] == 0 || token || succeeded != success {
			t.Errorf("%s: got %v, want that nothing is held and the code %v", what, values, code)
		}
	}

	// Not acquired.
	theirs := acquire(t, path, "job", "other")
	run(t, args("--no-wait", "--", "true")...).want(t, exitNotAcquired)
	ended("not acquired, file", read(), exitNotAcquired, false)
	ended("not acquired, gateway", g.group("last"), exitNotAcquired, false)
	release(t, path, theirs)

	// Running.
	p := start(t, args("--", "sh", "-c", "while [ ! -e "+finish+" ]; do sleep 0.02; done")...)
	for what, values := range map[string]func() map[string]float64{"file": read, "gateway": func() map[string]float64 { return g.group("last") }} {
		until(t, what+" shows that it is held", func() bool { return values()["tenure_lease_held"] == 1 })
		v := values()
		now := float64(time.Now().Unix())
		if _, over := v["tenure_run_exit_code"]; over || v["tenure_lease_token"] != 2 || v["tenure_lease_acquired_total"] != 1 ||
			v["tenure_lease_trusted_until_timestamp_seconds"] < now || v["tenure_lease_trusted_until_timestamp_seconds"] > now+30 || v["tenure_run_start_timestamp_seconds"] > now+1 {
			t.Errorf("running, %s: got %v", what, v)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	conventional(t, text)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("file: %v %v, want one that another user may read", info.Mode(), err)
	}
	if err := os.WriteFile(finish, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p.wait().clean(t, exitOK)
	ended("succeeded, file", read(), 0, true)
	ended("succeeded, gateway", g.group("last"), 0, true)
	success := read()[successes]
	if got := g.group("success"); len(got) != 1 || got[successes] == 0 {
		t.Errorf("success: the gateway has %v, want when that was", got)
	}

	// Somebody else has it: a success of nobody's, also where the caller is not to be told.
	theirs = acquire(t, path, "job", "other")
	run(t, args("--no-wait", "--skip-ok", "--success-within", "26h", "--", "true")...).clean(t, exitOK)
	release(t, path, theirs)
	ended("skipped, file", read(), exitNotAcquired, true)
	if v := read(); v[successes] != success || v["tenure_run_success_within_seconds"] != 26*3600 {
		t.Errorf("skipped: got %v, want the last success %v, and within which time one has to be", v, success)
	}

	// A later failure leaves the last success, and a gateway that does not work no trace
	// in the code.
	g.mu.Lock()
	g.broken = true
	g.mu.Unlock()
	r := run(t, args("--", "sh", "-c", "exit 7")...)
	if r.code != 7 || strings.Count(r.err, "metrics gateway") != 1 {
		t.Errorf("got %d, %q, want the command's code and one line about the gateway", r.code, r.err)
	}
	ended("failed", read(), 7, true)
	if got := read()[successes]; got != success {
		t.Errorf("after a failure: the last success is %v, want %v", got, success)
	}
	if left, _ := filepath.Glob(filepath.Dir(file) + "/*"); len(left) != 1 {
		t.Errorf("beside the file there is something left: %q", left)
	}

	cli(t, args("--metrics-textfile", "job.txt", "--", "true")...).want(t, exitUsage, "--metrics-textfile", ".prom")
	cli(t, args("--metrics-textfile", "/nowhere/job.prom", "--", "true")...).want(t, exitUsage, "metrics file", "/nowhere/job.prom")
	cli(t, "run", "job", "--store", path, "--success-within", "1h", "--", "true").want(t, exitUsage, "--success-within", "--metrics-textfile")
	cli(t, args("--metrics-push", "ftp://x", "--", "true")...).want(t, exitUsage, "--metrics-push", "Pushgateway")
	cli(t, "agent", "--metrics-addr", "192.0.2.1:80").want(t, exitUsage, "--metrics-addr", "127.0.0.1:7471")
}

// TestServerShowsRefusals: what a guarded table of an application refuses is a metric
// of the servers over that database.
func TestServerShowsRefusals(t *testing.T) {
	t.Parallel()
	address := serverStore(t)
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	exec := func(statement string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	exec("CREATE TABLE jobs (id int PRIMARY KEY, status text); INSERT INTO jobs VALUES (1, 'running')")
	for _, verb := range [][]string{{"install"}, {"guard", "jobs", "--add-columns"}} {
		cli(t, append(append([]string{"fence"}, verb...), "--store", address)...).want(t, exitOK)
	}
	exec("UPDATE jobs SET status = 'done'") // states no token, and changes nothing
	_, url := startServer(t, "--store", address)
	until(t, "the refusal in the metrics", func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.Replace(url, "tenure://", "http://", 1)+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return strings.Contains(string(text), `tenure_table_refusals_total{reason="not_stated",table="public.jobs"} 1`) &&
			strings.Contains(string(text), `tenure_table_guarded{table="public.jobs"} 1`)
	})
}

// TestC77RunTextfile reads the file ten times a second while a runner loses its lease
// without contact and wins it again: at no time is it held by a value that should not
// be believed, and the command does not run while it is not held.
func TestC77RunTextfile(t *testing.T) {
	t.Parallel()
	srv, url := startServer(t)
	dir := t.TempDir()
	file, log := filepath.Join(dir, "job.prom"), filepath.Join(dir, "log")
	p := start(t, append([]string{"run", "job", "--store", url, "--ttl", "3s", "--on-loss", "again", "--metrics-textfile", file}, attentive(log)...)...)
	expectLines(t, log, "run 1")
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	// watch reads until over says so. While a value is shown as held its time must not be
	// over, but for the tenth of a second in which the file is written.
	watch := func(what string, over func(map[string]float64) bool) {
		t.Helper()
		for limit := time.Now().Add(patience); ; <-tick.C {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			v := sampled(t, text, "job")
			late := float64(time.Now().UnixMilli())/1e3 - v["tenure_lease_trusted_until_timestamp_seconds"]
			if v["tenure_lease_held"] == 1 && late > 0.1 {
				t.Fatalf("%s: held is 1 %.3f s after the trust was over", what, late)
			}
			if over(v) {
				return
			}
			if time.Now().After(limit) {
				t.Fatalf("%s: not in time; got %v", what, v)
			}
		}
	}
	seen := 0
	watch("held", func(v map[string]float64) bool {
		seen++
		return seen > 15 && v["tenure_lease_held"] == 1
	})
	srv.signal(syscall.SIGSTOP)
	watch("cut off", func(v map[string]float64) bool { return v["tenure_lease_held"] == 0 })
	watch("cut off for longer", func(v map[string]float64) bool {
		if _, ok := v["tenure_lease_confirmed_age_seconds"]; ok || v["tenure_lease_held"] != 0 {
			t.Fatalf("lost: got %v, want that it is not held and nothing else", v)
		}
		seen++
		return seen > 25
	})
	srv.signal(syscall.SIGCONT)
	watch("held again", func(v map[string]float64) bool { return v["tenure_lease_held"] == 1 })
	watch("counted", func(v map[string]float64) bool { return v["tenure_lease_acquired_total"] == 2 })
	until(t, "the second run", func() bool { return slices.Contains(lines(log), "run 2") })
	p.signal(syscall.SIGTERM)
	p.wait()
	watch("ended", func(v map[string]float64) bool {
		_, over := v["tenure_run_exit_code"]
		return over && v["tenure_lease_held"] == 0
	})
}

// TestC77Agent asks three surfaces ten times a second through the life of a node's
// lease: the metrics and the readiness of its agent, and the server. The first two say
// the same; and what the agent holds is never over for the server.
func TestC77Agent(t *testing.T) {
	t.Parallel()
	srv, url := startServer(t)
	node := unique("n")
	lease := fleet.LeaseName(node)
	c, err := api.NewClient(api.Config{Servers: []string{url}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	st := api.NewStore(c)
	attempt := store.NewAttempt()
	theirs, err := st.Acquire(t.Context(), store.Request{Name: lease, Holder: "other", TTL: time.Hour, Attempt: attempt})
	if err != nil {
		t.Fatal(err)
	}
	p := startAgent(t, url, node, "--metrics-addr", "127.0.0.1:0")
	address := ""
	until(t, "the address of the metrics", func() bool {
		_, rest, ok := strings.Cut(p.stderr(), "msg=metrics address=")
		address, _, _ = strings.Cut(rest, "\n")
		return ok && strings.Contains(rest, "\n")
	})
	ask := func(path string) (status int, body []byte) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+strings.TrimSpace(address)+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, nil
		}
		defer resp.Body.Close()
		body, _ = io.ReadAll(resp.Body)
		return resp.StatusCode, body
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	apart := 0 // samples in a row in which the two surfaces of the agent differ
	watch := func(what string, over func(v map[string]float64) bool) {
		t.Helper()
		for limit := time.Now().Add(patience); ; <-tick.C {
			status, text := ask("/metrics")
			ready, _ := ask("/readyz")
			if status != http.StatusOK {
				t.Fatalf("%s: metrics: status %d", what, status)
			}
			v := sampled(t, text, lease)
			if apart++; (v["tenure_lease_held"] == 1) == (ready == http.StatusOK) {
				apart = 0
			} else if apart > 1 {
				t.Fatalf("%s: held is %v, and the status of readiness %d", what, v["tenure_lease_held"], ready)
			}
			brief, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			rec, err := st.Get(brief, lease)
			cancel()
			// Read after the metrics: a term that the agent gave back meanwhile is no fault.
			if err == nil && v["tenure_lease_held"] == 1 && rec.Status == store.Lapsed {
				t.Fatalf("%s: the agent holds what is over for the server: %+v", what, rec)
			}
			if over(v) {
				return
			}
			if time.Now().After(limit) {
				t.Fatalf("%s: not in time; got %v\n%s", what, v, p.stderr())
			}
		}
	}
	seen := 0
	watch("not acquired", func(v map[string]float64) bool {
		if v["tenure_lease_held"] != 0 || len(v) != 3 {
			t.Fatalf("not acquired: got %v", v)
		}
		seen++
		return seen > 5
	})
	if _, err := st.Release(t.Context(), []store.Grant{{Name: lease, Token: theirs.Token, TTL: time.Hour, Attempt: store.NewAttempt(), Known: []store.Attempt{attempt}}}); err != nil {
		t.Fatal(err)
	}
	watch("acquired", func(v map[string]float64) bool {
		return v["tenure_lease_held"] == 1 && v["tenure_lease_acquired_total"] == 1
	})
	watch("held", func(map[string]float64) bool { // over some renewals
		seen++
		return seen > 20
	})
	srv.signal(syscall.SIGSTOP)
	oldest := 0.0
	watch("cut off", func(v map[string]float64) bool {
		oldest = max(oldest, v["tenure_lease_confirmed_age_seconds"])
		return v["tenure_lease_held"] == 0
	})
	if oldest < 4 || oldest > 4.8 { // of a TTL of 6 s, less the margin
		t.Errorf("the last confirmation was %v s old when the lease was lost, want some 4.8", oldest)
	}
	srv.signal(syscall.SIGCONT)
	watch("acquired again", func(v map[string]float64) bool {
		return v["tenure_lease_held"] == 1 && v["tenure_lease_acquired_total"] == 2
	})
	_, text := ask("/metrics")
	conventional(t, text)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.Replace(url, "tenure://", "http://", 1)+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	served, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("metrics of the server: %d, %v", resp.StatusCode, err)
	}
	conventional(t, served)
	for _, want := range []string{
		"tenure_build_info{", "tenure_agent_work 0", "tenure_agent_fenced 0", `tenure_agent_events_total{code="no_contact",kind="lease_lost"} 1`,
		`tenure_keeper_renewals_total{code="ok"}`, "tenure_keeper_renewal_duration_seconds_count", "go_goroutines",
	} {
		if !strings.Contains(string(text), "\n"+want) {
			t.Errorf("metrics: no %s in\n%s", want, text)
		}
	}
	if status, _ := ask("/livez"); status != http.StatusOK {
		t.Errorf("livez: status %d", status)
	}
	p.signal(syscall.SIGTERM)
	p.wait()
	if status, _ := ask("/metrics"); status != 0 {
		t.Errorf("metrics of an agent that ended: status %d", status)
	}
	rec, err := st.Get(t.Context(), lease)
	if err != nil || rec.Status == store.Held {
		t.Errorf("after the end: got %s, %v, want that it is not held", fmt.Sprint(rec.Status), err)
	}
}
