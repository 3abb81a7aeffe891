package server

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
)

func TestBeatsKept(t *testing.T) {
	t.Parallel()
	if size := unsafe.Sizeof(beats{}); size > 128 {
		t.Errorf("the beats of a node take %d bytes, want 128 at most", size)
	}
	const interval = 10 * time.Second
	var b beats
	at, expiry := time.Hour, 2*time.Hour
	b.observe(at, expiry, interval)
	b.observe(at, expiry, interval)                           // nothing new
	b.observe(at+50*time.Millisecond, expiry, interval)       // the same, as the registry dates it
	b.observe(at+10*time.Second, expiry, interval)            // a beat whose renewal
	b.observe(at+10*time.Second, expiry+interval, interval)   // is answered later
	b.observe(at+60*time.Second, expiry+interval, interval)   // after a gap, and without one
	b.observe(at+5000*time.Second, expiry+interval, interval) // after a gap that is longer than is kept
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	marks := b.marks(now, at+5001*time.Second, interval)
	var got []string
	for _, m := range marks {
		got = append(got, fmt.Sprint((time.Duration(m.GapMS)*time.Millisecond).Round(100*time.Millisecond), " ", m.Renewed))
	}
	if want := []string{"0s true", "10s true", "50s false", "21m20s false"}; !slices.Equal(got, want) {
		t.Errorf("marks: got %q, want %q", got, want)
	}
	if last := marks[len(marks)-1].At; !last.Equal(now.Add(-time.Second)) {
		t.Errorf("newest beat: got %v, want a second before %v", last, now)
	}
	for i := range 3 * maxBeats {
		b.observe(at+time.Duration(6000+10*i)*time.Second, expiry, interval)
	}
	if n := len(b.marks(now, at, interval)); n != maxBeats {
		t.Errorf("after many beats %d are kept, want %d", n, maxBeats)
	}
}

func TestAges(t *testing.T) {
	t.Parallel()
	var nodes []fleet.Node
	for i := range 100 {
		nodes = append(nodes, fleet.Node{ID: fmt.Sprint(i), Age: time.Duration(i+1) * time.Second, Lease: fleet.Lease{State: fleet.LeaseHeld}, Liveness: fleet.Alive})
	}
	nodes[99].Liveness = fleet.Suspect
	nodes = append(nodes, fleet.Node{Age: 1000 * time.Hour, Lease: fleet.Lease{State: fleet.LeaseReleased}, Liveness: fleet.Suspect})
	got := ages(time.Time{}, nodes)
	want := api.AgeSample{P50MS: 50_000, P95MS: 95_000, P99MS: 99_000, MaxMS: 100_000, Nodes: 100, Stale: 1}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := ages(time.Time{}, nil); got != (api.AgeSample{}) {
		t.Errorf("of no nodes: got %+v, want nothing", got)
	}
}

func TestSamplesBounded(t *testing.T) {
	t.Parallel()
	var h history
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 4000 {
		h.sample(api.AgeSample{At: at.Add(time.Duration(i) * time.Second)})
	}
	if n := len(h.samples); n != maxSamples {
		t.Errorf("one a second: %d samples kept, want %d", n, maxSamples)
	}
	h.sample(api.AgeSample{At: at.Add(3 * time.Hour)})
	if n := len(h.samples); n != 1 {
		t.Errorf("after three hours: %d samples kept, want the newest", n)
	}
}

// TestNodesWhere asks for some of the nodes, by page.
func TestNodesWhere(t *testing.T) {
	t.Parallel()
	b := newBed(t, Config{Interval: time.Minute, NodeTTL: 10 * time.Minute}, HTTPConfig{})
	for i := range 5 {
		b.join(fmt.Sprintf("n%d", i))
	}
	must[api.Node](b, http.MethodPost, "/v1/nodes/n1/drain", api.DrainRequest{Actor: "ann", Reason: "disk"})
	must[api.Node](b, http.MethodPost, "/v1/nodes/n2/cordon", api.CordonRequest{Actor: "ann", Reason: "look"})
	for _, tc := range []struct {
		query   string
		want    string
		matched int
	}{
		{"sort=id&limit=2", "n0 n1", 5},
		{"sort=id&limit=2&offset=4", "n4", 5},
		{"sort=id&offset=9", "", 5},
		{"sort=-id&limit=1", "n4", 5},
		{"is=draining", "n1", 1},
		{"is=excluded&sort=id", "n1 n2", 2},
		{"is=eligible,draining", "", 0},
		{"reason=cordoned", "n2", 1},
		{"match=3", "n3", 1},
		{"label=zone=a&sort=id", "n0 n1 n2 n3 n4", 5},
		{"label=zone=b", "", 0},
	} {
		got := must[api.Nodes](b, http.MethodGet, "/v1/nodes?"+tc.query, nil)
		var ids []string
		for _, n := range got.Nodes {
			ids = append(ids, n.ID)
		}
		if strings.Join(ids, " ") != tc.want || got.Matched != tc.matched {
			t.Errorf("%s: got %q of %d, want %q of %d", tc.query, ids, got.Matched, tc.want, tc.matched)
		}
	}
	for _, bad := range []string{"is=good", "sort=colour", "reason=because", "label=zone", "limit=0", "authoritative=true&sort=id"} {
		if a := b.send(http.MethodGet, "/v1/nodes?"+bad, nil); a.status != http.StatusBadRequest {
			t.Errorf("%s: got %d %s, want 400", bad, a.status, a.body)
		}
	}
	f := must[api.Fleet](b, http.MethodGet, "/v1/fleet", nil)
	if f.Nodes != 5 || f.Eligible != 3 || f.Draining != 1 || len(f.Reasons) != 2 || f.Age.Nodes != 5 {
		t.Errorf("fleet: got %+v", f)
	}
	eventually(t, "a sample and a beat", func() bool {
		return len(must[api.Ages](b, http.MethodGet, "/v1/fleet/ages", nil).Samples) > 0 &&
			len(must[api.Timeline](b, http.MethodGet, "/v1/nodes/n0/timeline", nil).Beats) == 1
	})
	if a := b.send(http.MethodGet, "/v1/nodes/n9/timeline", nil); a.status != http.StatusNotFound {
		t.Errorf("timeline of a node that is not there: got %d, want 404", a.status)
	}
	if id := must[api.Identity](b, http.MethodGet, "/v1/whoami", nil); id.Role != string(Operator) {
		t.Errorf("whoami: got %+v, want an operator", id)
	}
}
