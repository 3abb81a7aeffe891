package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/cmd/tenure/loadgen"
	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store"
)

func newBench(con console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure a server under a simulated fleet",
		Args:  cobra.NoArgs,
		RunE:  helpOnly,
	}
	cmd.AddCommand(newBenchFleet(con), newBenchPart())
	return cmd
}

// newBenchPart is what "bench fleet" starts: a replica, or nodes.
func newBenchPart() *cobra.Command {
	cmd := &cobra.Command{
		Use:    "part",
		Short:  "Be a process of \"bench fleet\", which writes its orders to standard input",
		Args:   cobra.NoArgs,
		Hidden: true,
	}
	cmd.RunE = daemon(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		return loadgen.Play(ctx, cmd.InOrStdin(), cmd.OutOrStdout(), openBench)
	})
	return cmd
}

// openBench opens a database that prepareBench has set up.
func openBench(ctx context.Context, database string) (store.Store, *registry.Registry, func(), error) {
	loc, err := locate(database)
	if err != nil {
		return nil, nil, nil, err
	}
	st, reg, closeDB, err := openFleet(ctx, loc)
	if err != nil {
		return nil, nil, nil, err
	}
	return st, reg, closeDB, nil
}

func newBenchFleet(con console) *cobra.Command {
	var cfg loadgen.Config
	var quiet bool
	cmd := &cobra.Command{
		Use:   "fleet",
		Short: "Measure beats, detection and memory of a server with many simulated nodes",
		Long: `Start a server and simulated nodes on this host, each in processes of their own, and
measure them: every node holds its own lease, and beats with a renewal on a
connection that is kept open, or behind a relay that sends the beats of --relay nodes
in one body. Then some nodes are killed, to see how long that takes to show, and with
--restart the server is killed and started again under the load.

The database is a new SQLite file in the temporary directory, which is removed at the
end, or the empty one that --store names: a database that holds leases is refused, and
what was written stays there. TENURE_STORE is not read.

A process may open as many files as "ulimit -n" says: more connections than that need
several replicas, or a relay. Each of the measures that need /proc needs Linux.

` + durationHelp,
		Example: `  tenure bench fleet
  tenure bench fleet --store postgres://tenure@localhost/bench --kill 200 --restart
  tenure bench fleet --nodes 100000 --interval 10s --relay 100 -o json`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&cfg.Nodes, "nodes", 10_000, "simulated nodes")
	addDuration(flags, &cfg.Interval, "interval", 5*time.Second, 50*time.Millisecond, time.Hour, "between two beats of a node")
	flags.IntVar(&cfg.SuspectAfter, "suspect-after", 3, "missed beats until a node is suspect")
	addDuration(flags, &cfg.NodeTTL, "node-ttl", 0, 100*time.Millisecond, 24*time.Hour, "life of a node's lease (default six intervals)")
	flags.IntVar(&cfg.Relay, "relay", 1, "nodes whose beats share a body and a connection")
	flags.IntVar(&cfg.Replicas, "replicas", 1, "servers over the one database; connections are spread over them")
	addDuration(flags, &cfg.Duration, "duration", 30*time.Second, 100*time.Millisecond, 24*time.Hour, "of the time in which nothing but beats happens")
	flags.IntVar(&cfg.Kill, "kill", 100, "nodes to kill after that; with --restart, as many more while the server is down")
	flags.BoolVar(&cfg.Restart, "restart", false, "at the end, kill each server with SIGKILL and start it again")
	flags.StringVar(&cfg.Profile, "profile", "", "write profiles of the first server to the files PROFILE-join, PROFILE-steady and PROFILE-heap, for go tool pprof")
	flags.BoolVarP(&quiet, "quiet", "q", false, "show no progress")
	out := addFormat(cmd)
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		done, err := prepareBench(ctx, cmd, &cfg)
		if err != nil {
			return err
		}
		defer done()
		self, err := os.Executable()
		if err != nil {
			return err
		}
		cfg.Part = func() *exec.Cmd {
			part := exec.Command(self, "bench", "part") //nolint:noctx // ends with its input, in order
			part.Args[0] = os.Args[0]
			part.Stderr = cmd.ErrOrStderr()
			return part
		}
		if !quiet {
			cfg.Progress = showProgress(cmd.ErrOrStderr(), con.interactive)
		}
		report, err := loadgen.Run(ctx, cfg)
		if err != nil {
			return benchError(err, report)
		}
		if *out == asJSON {
			return printJSON(cmd.OutOrStdout(), report)
		}
		return benchTable(cmd.OutOrStdout(), report)
	})
	return cmd
}

// prepareBench sets up the database of a run. The function that it returns
// removes what is temporary.
func prepareBench(ctx context.Context, cmd *cobra.Command, cfg *loadgen.Config) (done func(), err error) {
	done = func() {}
	loc := location{kind: kindSQLite}
	if name, _ := cmd.Flags().GetString("store"); cmd.Flags().Changed("store") && name != string(kindSQLite) {
		if loc, err = locate(name); err != nil {
			return nil, err
		}
		if loc.kind == kindTenure {
			return nil, failf(exitUsage, "store %s: a server is started here and needs the database itself: name a SQLite file or a postgres:// URL", loc)
		}
	} else {
		dir, err := os.MkdirTemp("", "tenure-bench-")
		if err != nil {
			return nil, failf(exitPermission, "temporary directory: %w", err)
		}
		done = func() { os.RemoveAll(dir) }
		loc.target = filepath.Join(dir, "tenure.db")
	}
	defer func() {
		if err != nil {
			done()
		}
	}()
	cfg.Name = loc.String()
	if loc.kind == kindSQLite {
		cfg.Database, cfg.SQLite = string(kindSQLite)+":"+loc.target, loc.target
	} else {
		cfg.Database, cfg.Postgres = loc.target, loc.target
	}
	st, closeStore, _, err := openUnchecked(ctx, loc, true)
	if err != nil {
		return nil, err
	}
	defer closeStore()
	if err := st.Migrate(ctx); err != nil {
		return nil, explain(loc, err)
	}
	if err := migrateFleet(ctx, st); err != nil {
		return nil, explain(loc, err)
	}
	for rec, err := range st.List(ctx, "") {
		if err != nil {
			return nil, explain(loc, err)
		}
		return nil, failf(exitConfig, "store %s: holds the lease %q; a benchmark needs an empty database of its own", loc, rec.Name)
	}
	return done, nil
}

func benchError(err error, report *loadgen.Report) error {
	if errors.Is(err, loadgen.ErrConfig) {
		return failf(exitUsage, "%s", strings.TrimPrefix(err.Error(), loadgen.ErrConfig.Error()+": "))
	}
	if errors.Is(err, loadgen.ErrBroke) {
		text := strings.TrimPrefix(err.Error(), "loadgen: ")
		if report != nil && len(report.Trouble) > 0 {
			text += "; first trouble: " + report.Trouble[0]
		}
		return failf(exitUnavailable, "%s", text)
	}
	return err
}

// showProgress returns a function that draws a bar on a terminal, and elsewhere
// writes a line for each stage.
func showProgress(w io.Writer, terminal bool) func(stage string, done, of int) {
	const width = 30
	var stage string
	var drawn time.Time
	return func(now string, done, of int) {
		finished := done >= of
		switch {
		case !terminal && now != stage:
			fmt.Fprintf(w, "%s %s\n", time.Now().Format(time.TimeOnly), now)
		case terminal && (now != stage || finished || time.Since(drawn) > 100*time.Millisecond):
			if now != stage && stage != "" {
				fmt.Fprintln(w)
			}
			full := width * min(done, of) / max(of, 1)
			fmt.Fprintf(w, "\r%-30s [%s%s] %3d%%", now, strings.Repeat("#", full), strings.Repeat(".", width-full), 100*min(done, of)/max(of, 1))
			drawn = time.Now()
		}
		stage = now
	}
}

// benchTable prints a report for people.
func benchTable(w io.Writer, r *loadgen.Report) error {
	s, st, m := &r.Settings, &r.Steady, &r.Memory
	ms := func(n int64) string { return shortDuration(time.Duration(n) * time.Millisecond) }
	times := func(d loadgen.Spread) string {
		return fmt.Sprintf("p50 %s, p99 %s, most %s", benchTime(d.P50), benchTime(d.P99), benchTime(d.Most))
	}
	known := func(format string, v float64) string {
		if v < 0 {
			return "not known"
		}
		return fmt.Sprintf(format, v)
	}
	mib := func(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
	database := "in the server's"
	if st.DatabaseUS >= 0 {
		database = fmt.Sprintf("%.1f µs a beat, %.3f cores", st.DatabaseUS, st.DatabaseCores)
	} else if !strings.HasPrefix(s.Database, string(kindSQLite)) {
		database = "not known: it is not on this host"
	}
	rows := [][2]string{
		{"fleet", fmt.Sprintf("%d nodes every %s, suspect after %s, node lease %s", s.Nodes, ms(s.IntervalMS), ms(s.SuspectAfterMS), ms(s.NodeTTLMS))},
		{"connections", fmt.Sprintf("%d, %d beats in a body, to %d servers", s.Connections, s.Relay, s.Replicas)},
		{"database", s.Database},
		{"acquire and join", fmt.Sprintf("%s, %.0f nodes a second, %.0f µs of server CPU a node", ms(r.Join.MS), r.Join.PerSec, r.Join.ServerUS)},
		{"beats", fmt.Sprintf("%.0f a second of %.0f due, for %.1f s; load %.2f", st.BeatsPerSec, st.DuePerSec, st.Seconds, st.Load)},
		{"server CPU", fmt.Sprintf("%.1f µs a beat, %.3f cores", st.ServerUS, st.ServerCores)},
		{"database CPU", database},
		{"database writes", fmt.Sprintf("%s commits a second, rows a second %s (%s a beat), log %s B a second",
			known("%.1f", st.CommitsPerSec), known("%.0f", st.RowsPerSec), known("%.2f", st.RowsPerBeat), known("%.0f", st.LogPerSec))},
		{"written by the server", fmt.Sprintf("%.0f B a second", st.WrittenPerSec)},
		{"memory", fmt.Sprintf("%s resident, %.0f B a node more than empty; live heap %s, %.0f B a node; stacks %s", mib(m.RSS), m.PerNode, mib(int64(m.Live)), m.LivePerNode, mib(int64(m.Stacks)))},
		{"replies", times(st.Reply)},
		{"generator", fmt.Sprintf("%.1f µs of CPU a beat; late by %s", st.GeneratorUS, times(st.GeneratorLate))},
	}
	if d := r.Detection; d != nil {
		rows = append(rows, [2]string{"killed nodes", detectionLine(d, times)})
	}
	if re := r.Restart; re != nil {
		rows = append(rows, [2]string{"restart", fmt.Sprintf("down for %s; %d beats without an answer, %d false suspicions", ms(re.DownMS), re.Lost, re.FalseSuspicions)})
		if re.Gap != nil {
			rows = append(rows, [2]string{"killed in the gap", detectionLine(re.Gap, times)})
		}
	}
	rows = append(rows,
		[2]string{"false suspicions", fmt.Sprint(len(r.FalseSuspicions))},
		[2]string{"lapses", fmt.Sprint(r.Lapses)},
		[2]string{"refused", cmp.Or(refusals(r.Refused), "none")},
	)
	for _, t := range r.Trouble {
		rows = append(rows, [2]string{"trouble", oneLine(t)})
	}
	return pairs(w, rows)
}

func detectionLine(d *loadgen.Detection, times func(loadgen.Spread) string) string {
	return fmt.Sprintf("%d, of which %d became suspect everywhere: %s after their death", d.Killed, d.Detected, times(d.Time))
}

func benchTime(ms float64) string {
	switch {
	case ms >= 1000:
		return fmt.Sprintf("%.2f s", ms/1000)
	case ms >= 10:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.2f ms", ms)
}

func refusals(counts map[string]int) string {
	var list []string
	for code, n := range counts {
		list = append(list, fmt.Sprintf("%s %d", code, n))
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}
