package main

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestRun measures what needs no server and looks at the document.
func TestRun(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "BENCHMARKS.md")
	if err := run(t.Context(), []string{"-short", "-only", "b6", "-out", out}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| B6 | `MayAct`, fast path |", "A rough run", "| Go | go", "## B6"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the document lacks %q:\n%s", want, b)
		}
	}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-only", "b7"}, {"-only", "b1,"}, {"b1"}, {"-no-such-flag"}} {
		if err := run(t.Context(), append([]string{"-out", filepath.Join(t.TempDir(), "x")}, args...)); err == nil {
			t.Errorf("%q: got no error", args)
		}
	}
	if parts, err := choose(""); err != nil || len(parts) != len(allParts) {
		t.Errorf("no choice: got %d parts and %v, want all", len(parts), err)
	}
	if parts, err := choose("B3"); err != nil || len(parts) != 2 {
		t.Errorf("b3: got %d parts and %v, want 2", len(parts), err)
	}
}

// TestFrontend feeds a conversation in pieces of every size.
func TestFrontend(t *testing.T) {
	t.Parallel()
	var all bytes.Buffer
	message := func(kind string, body string) {
		_, _ = io.WriteString(&all, kind)
		_ = binary.Write(&all, binary.BigEndian, uint32(4+len(body)))
		_, _ = io.WriteString(&all, body)
	}
	message("", "\x00\x03\x00\x00user\x00QQEE\x00\x00") // the start has no type
	message("Q", "SELECT 'QE'\x00")
	message("P", "\x00SELECT $1\x00\x00\x00")
	message("S", "")
	message("B", "QQQQ")
	message("E", "\x00\x00\x00\x00\x00")
	message("S", "")
	message("X", "")
	for size := 1; size <= all.Len(); size++ {
		var p frontend
		got := 0
		for rest := all.Bytes(); len(rest) > 0; {
			n := min(size, len(rest))
			got += p.feed(rest[:n])
			rest = rest[n:]
		}
		if got != 2 {
			t.Errorf("in pieces of %d bytes: got %d requests, want 2", size, got)
		}
	}
}

func TestFigures(t *testing.T) {
	t.Parallel()
	list := make([]time.Duration, 100)
	for i := range list {
		list[i] = time.Duration(100-i) * time.Millisecond
	}
	for q, want := range map[float64]int64{0: 1, 0.5: 50, 0.99: 99, 1: 100} {
		if got := quantile(list, q); got.Milliseconds() != want {
			t.Errorf("quantile %g: got %s, want %d ms", q, got, want)
		}
	}
	if got := median([]float64{}); got != 0 {
		t.Errorf("median of none: got %g, want 0", got)
	}
	for f, want := range map[float64]string{0: "0.00", 9.994: "9.99", 42.04: "42.0", 999.6: "1,000", 1234567: "1,234,567", 5001000: "5,001,000"} {
		if got := count(f); got != want {
			t.Errorf("count(%g): got %q, want %q", f, got, want)
		}
	}
	for d, want := range map[time.Duration]string{1500: "1.50 µs", 321 * time.Microsecond: "321 µs", 1234 * time.Microsecond: "1.23 ms", 12340 * time.Microsecond: "12.3 ms", 1234 * time.Millisecond: "1.23 s", 45 * time.Second: "45.0 s"} {
		if got := short(d); got != want {
			t.Errorf("short(%d): got %q, want %q", d, got, want)
		}
	}
}

// TestFleetSection holds the section to reports that a run could give.
func TestFleetSection(t *testing.T) {
	t.Parallel()
	of := func(name string, nodes int, us float64) *fleetReport {
		r := &fleetReport{database: name, Detection: &fleetDetection{Killed: 10, Detected: 10, Time: fleetTimes{P50: 12_000, P99: 16_000, Most: 16_100}}}
		r.Settings.Nodes, r.Settings.IntervalMS, r.Settings.Relay = nodes, 5000, 1
		r.Steady.ServerUS, r.Steady.DatabaseUS, r.Steady.RowsPerBeat = us, -1, -1
		return r
	}
	s := fleetSection([]*fleetReport{
		of("SQLite", 10_000, 60), of(onPostgres, 10_000, 50), of("SQLite", 10_000, 20), of(onPostgres, 10_000, 20),
		of("SQLite", 10_000, 44), of("SQLite", 10_000, 5), of("SQLite", 1_000, 30),
	}, []*fleetReport{of("SQLite", 100_000, 4)})
	verdicts := map[string][]verdict{}
	for _, r := range s.rows {
		verdicts[r.id] = append(verdicts[r.id], r.verdict)
	}
	if v := verdicts["b7"]; len(v) != 2 || v[0] != met || v[1] != missed {
		t.Errorf("b7: got %q, want the first met and the second not", v)
	}
	if v := verdicts["b10"]; len(v) != 1 || v[0] != missed {
		t.Errorf("b10: got %q, want it not met: twice the CPU", v)
	}
	doc := (&report{sections: []section{s}}).markdown()
	for _, want := range []string{"12.0 / 16.0 / 16.1 s (10 of 10)", "100,000", "## FLEET"} {
		if !strings.Contains(doc, want) {
			t.Errorf("the document lacks %q:\n%s", want, doc)
		}
	}
}
