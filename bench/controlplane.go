package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// fleetReport is what "tenure bench fleet -o json" prints, as far as it is used here.
type fleetReport struct {
	Settings struct {
		Nodes       int `json:"nodes"`
		IntervalMS  int `json:"interval_ms"`
		Relay       int `json:"relay"`
		Connections int `json:"connections"`
	} `json:"settings"`
	Join struct {
		MS        int     `json:"ms"`
		PerSecond float64 `json:"nodes_per_second"`
	} `json:"join"`
	Steady struct {
		Load           float64    `json:"load_average"`
		BeatsPerSecond float64    `json:"beats_per_second"`
		ServerUS       float64    `json:"server_cpu_us_per_beat"`
		ServerCores    float64    `json:"server_cores"`
		GeneratorUS    float64    `json:"generator_cpu_us_per_beat"`
		DatabaseUS     float64    `json:"database_cpu_us_per_beat"`
		CommitsPerSec  float64    `json:"commits_per_second"`
		RowsPerBeat    float64    `json:"rows_per_beat"`
		LogPerSec      float64    `json:"log_bytes_per_second"`
		WrittenPerSec  float64    `json:"written_bytes_per_second"`
		Reply          fleetTimes `json:"reply"`
		Late           fleetTimes `json:"generator_late"`
	} `json:"steady"`
	Memory struct {
		RSS         int64   `json:"rss_bytes"`
		PerNode     float64 `json:"rss_bytes_per_node"`
		LivePerNode float64 `json:"live_heap_bytes_per_node"`
	} `json:"memory"`
	Detection *fleetDetection `json:"detection"`
	Restart   *struct {
		DownMS int             `json:"down_ms"`
		Gap    *fleetDetection `json:"killed_in_the_gap"`
	} `json:"restart"`
	FalseSuspicions []string       `json:"false_suspicions"`
	Refused         map[string]int `json:"refused"`
	Lapses          int            `json:"lapses"`

	database string
}

type fleetTimes struct {
	P50  float64 `json:"p50_ms"`
	P99  float64 `json:"p99_ms"`
	Most float64 `json:"max_ms"`
}

type fleetDetection struct {
	Killed   int        `json:"killed"`
	Detected int        `json:"detected"`
	Time     fleetTimes `json:"time"`
}

func (d *fleetDetection) String() string {
	if d == nil {
		return "–" // nobody was killed
	}
	return fmt.Sprintf("%.1f / %.1f / %.1f s (%d of %d)", d.Time.P50/1000, d.Time.P99/1000, d.Time.Most/1000, d.Detected, d.Killed)
}

// onPostgres says that a case needs a database of its own on a server of this run.
const onPostgres = "Postgres"

// fleetCase is one run of "tenure bench fleet".
type fleetCase struct {
	database string
	nodes    int
	interval time.Duration
	relay    int
	kill     int
	restart  bool
	replicas int
}

// controlPlane measures B7 to B10 with "tenure bench fleet".
func (b *bench) controlPlane(ctx context.Context) (section, error) {
	dir, err := os.MkdirTemp("", "bench-fleet-")
	if err != nil {
		return section{}, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "tenure")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "github.com/tenurehq/tenure/cmd/tenure")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return section{}, fmt.Errorf("build tenure: %w", err)
	}
	srv, err := b.serve(ctx)
	if err != nil {
		return section{}, err
	}
	measure := func(c fleetCase) (*fleetReport, error) { return b.fleetRun(ctx, program, srv, c) }
	nodes, interval, kill := b.fleetNodes, 5*time.Second, b.fleetNodes/50

	var reports []*fleetReport
	for _, c := range []fleetCase{
		{database: "SQLite", nodes: nodes, interval: interval, relay: 1, kill: kill, restart: true},
		{database: onPostgres, nodes: nodes, interval: interval, relay: 1, kill: kill, restart: true},
		{database: "SQLite", nodes: nodes, interval: interval, relay: 100},
		{database: onPostgres, nodes: nodes, interval: interval, relay: 100},
		{database: "SQLite", nodes: nodes, interval: interval * 2 / 5, relay: 1},
		{database: "SQLite", nodes: nodes, interval: interval / 10, relay: 100},
		{database: "SQLite", nodes: nodes / 10, interval: interval / 10, relay: 1},
	} {
		r, err := measure(c)
		if err != nil {
			return section{}, err
		}
		reports = append(reports, r)
	}
	large, err := b.largeFleets(measure)
	if err != nil {
		return section{}, err
	}
	return fleetSection(reports, large), nil
}

// largeFleets are measured if they are asked for: it takes long until they have joined.
func (b *bench) largeFleets(measure func(fleetCase) (*fleetReport, error)) (reports []*fleetReport, err error) {
	if !b.large {
		return nil, nil
	}
	for _, c := range []fleetCase{
		{database: "SQLite", nodes: 50_000, interval: 10 * time.Second, relay: 1, kill: 200, replicas: 3},
		{database: onPostgres, nodes: 50_000, interval: 10 * time.Second, relay: 1, kill: 200, replicas: 3},
		{database: "SQLite", nodes: 50_000, interval: 10 * time.Second, relay: 100, kill: 200},
		{database: "SQLite", nodes: 100_000, interval: 10 * time.Second, relay: 100, kill: 200},
		{database: onPostgres, nodes: 100_000, interval: 10 * time.Second, relay: 100, kill: 200},
	} {
		r, err := measure(c)
		if err != nil {
			return nil, err
		}
		reports = append(reports, r)
	}
	return reports, nil
}

func (b *bench) fleetRun(ctx context.Context, program string, srv *server, c fleetCase) (*fleetReport, error) {
	progress("B7–B10: %d nodes every %s on %s, %d in a body", c.nodes, c.interval, c.database, c.relay)
	store := "sqlite"
	if c.database == onPostgres {
		name, err := srv.database(ctx)
		if err != nil {
			return nil, err
		}
		store = srv.url(name)
	}
	args := []string{"bench", "fleet", "-q", "-o", "json", "--store", store, "--nodes", fmt.Sprint(c.nodes), "--interval", fmt.Sprintf("%dms", c.interval.Milliseconds()),
		"--relay", fmt.Sprint(c.relay), "--kill", fmt.Sprint(c.kill), "--duration", fmt.Sprintf("%dms", b.fleetTime.Milliseconds()), "--replicas", fmt.Sprint(max(c.replicas, 1))}
	if c.restart {
		args = append(args, "--restart")
	}
	var out, complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = &out, &complaint
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("tenure %s: %w: %s", strings.Join(args, " "), err, complaint.String())
	}
	r := &fleetReport{database: c.database}
	return r, json.Unmarshal(out.Bytes(), r)
}

// fleetSection writes down reports: the first two are of B8, the next two the same
// relayed, then two of more beats a second, single and relayed, and one of a tenth
// of the nodes that send as many beats as those of B8.
func fleetSection(reports, large []*fleetReport) section {
	sqlite, postgres, relayed, fast, fastRelayed, few := reports[0], reports[1], reports[2], reports[4], reports[5], reports[6]
	s := section{id: "fleet", how: []string{
		"By `tenure bench fleet`: a server and simulated nodes in processes of their own. Each node holds its own lease and sends a beat with a renewal, a fresh attempt in each, " +
			"on a connection that stays open, or through a relay, 100 in one body. Server CPU is all that the server's process used, divided by the beats that were answered; " +
			"on SQLite the database is in it. The database's CPU is that of all processes of the Postgres server. A node is suspect after three missed beats; node leases live for six intervals. " +
			"Killed nodes stop at random points of their interval, and detection counts from there to the server's own mark, with suspicion looked for each second. " +
			"The restart is a SIGKILL under the load, a pause of one interval in which as many nodes die again, and a start; a false suspicion is any of a node that lived.",
		"Server CPU a beat depends on how many beats a second come: while few do, each wakes the server for itself.",
	}}
	row := func(id, what, figure, peer, target string, v verdict) {
		s.rows = append(s.rows, row{id, what, figure, peer, target, v})
	}
	us := func(r *fleetReport) string {
		return fmt.Sprintf("%.1f µs at %s beats/s (%s, load %.1f)", r.Steady.ServerUS, count(r.Steady.BeatsPerSecond), r.database, r.Steady.Load)
	}
	row("b7", "server CPU a beat with its renewal, single", us(sqlite)+"; "+us(postgres)+"; "+us(fast), "51 µs for JSON decoding and a map alone, saturated", "≤ 45 µs", judge(fast.Steady.ServerUS <= 45))
	row("b7", "the same, 100 in a body", us(relayed)+"; "+us(reports[3])+"; "+us(fastRelayed), "8.4 µs", "≤ 4 µs", judge(fastRelayed.Steady.ServerUS <= 4))
	for _, r := range reports[:2] {
		mib := float64(r.Memory.RSS) / (1 << 20)
		row("b8", fmt.Sprintf("%s nodes at %d s on %s: server CPU, resident memory", thousands(r.Settings.Nodes), r.Settings.IntervalMS/1000, r.database),
			fmt.Sprintf("%.2f core, %.0f MiB", r.Steady.ServerCores, mib), "0.31 core, 291 MiB for JSON ingest alone", "≤ 0.3 core, ≤ 250 MiB", judge(r.Steady.ServerCores <= 0.3 && mib <= 250))
		row("b8", "detection of a killed node there, p50 / p99 / most", r.Detection.String(), "Nomad's own table: 210–410 s", "p99 ≤ 20 s", judge(r.Detection.Detected == r.Detection.Killed && r.Detection.Time.P99 <= 20_000))
		row("b8", "false suspicions there, over a restart too; lapses", fmt.Sprintf("%d; %d", len(r.FalseSuspicions), r.Lapses), "–", "0", judge(len(r.FalseSuspicions) == 0))
		if r.Restart != nil {
			row("b8", "detection of those killed while the server was down", r.Restart.Gap.String(), "–", "within 2 × 15 s", judge(r.Restart.Gap.Detected == r.Restart.Gap.Killed && r.Restart.Gap.Time.Most <= 30_000))
		}
	}
	biggest := relayed
	for _, r := range large {
		if r.Settings.Nodes >= biggest.Settings.Nodes {
			biggest = r
		}
	}
	row("b9", fmt.Sprintf("memory a node besides its connection, at %s nodes: live heap; resident", thousands(biggest.Settings.Nodes)),
		fmt.Sprintf("%s B; %s B", count(biggest.Memory.LivePerNode), count(biggest.Memory.PerNode)), "a timer of 138 B, a map entry, the object", "≤ 2 KiB at 100,000", judge(biggest.Memory.LivePerNode <= 2048))
	row("b9", "memory of a connection: live heap; resident", fmt.Sprintf("%s B; %s B", count(sqlite.Memory.LivePerNode-relayed.Memory.LivePerNode), count(sqlite.Memory.PerNode-relayed.Memory.PerNode)), "–", "–", noQuest)
	growth := sqlite.Steady.ServerUS / few.Steady.ServerUS
	row("b10", fmt.Sprintf("server CPU a beat with %s nodes ÷ with %s that send as many beats (%s)", thousands(sqlite.Settings.Nodes), thousands(few.Settings.Nodes), sqlite.database),
		fmt.Sprintf("%.2f × (%.1f ÷ %.1f µs)", growth, sqlite.Steady.ServerUS, few.Steady.ServerUS), "–", "≤ 1.5 ×", judge(growth <= 1.5))
	t := table{title: "All runs", header: []string{"database", "nodes", "every", "in a body", "joined/s", "beats/s", "load", "server µs a beat", "cores", "database µs a beat", "rows a beat", "commits/s", "log or file, MB/s", "resident MiB", "B a node, live", "reply p50 / p99 ms", "generator late p99 ms", "detection p50 / p99 / most", "false", "lapses"}}
	for _, r := range append(append([]*fleetReport{}, reports...), large...) {
		known := func(v float64) string {
			if v < 0 {
				return "–"
			}
			return count(v)
		}
		st := &r.Steady
		t.add(r.database, thousands(r.Settings.Nodes), short(time.Duration(r.Settings.IntervalMS)*time.Millisecond), fmt.Sprint(r.Settings.Relay), count(r.Join.PerSecond),
			count(st.BeatsPerSecond), fmt.Sprintf("%.1f", st.Load), count(st.ServerUS), fmt.Sprintf("%.3f", st.ServerCores), known(st.DatabaseUS), known(st.RowsPerBeat), known(st.CommitsPerSec),
			count(max(st.LogPerSec, st.WrittenPerSec)/1e6), count(float64(r.Memory.RSS)/(1<<20)), count(r.Memory.LivePerNode),
			count(st.Reply.P50)+" / "+count(st.Reply.P99), count(st.Late.P99), r.Detection.String(), fmt.Sprint(len(r.FalseSuspicions)), fmt.Sprint(r.Lapses))
	}
	s.tables = append(s.tables, t)
	return s
}
