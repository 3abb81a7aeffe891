package loadgen_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the driver of sqlite.ModerncDSN

	"github.com/tenurehq/tenure/cmd/tenure/loadgen"
	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/sqlite"
)

// partEnv makes the test binary a part of a run.
const partEnv = "TENURE_TEST_LOADGEN_PART"

func TestMain(m *testing.M) {
	if os.Getenv(partEnv) != "" {
		if err := loadgen.Play(context.Background(), os.Stdin, os.Stdout, open); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func openBoth(path string) (*sqlite.Store, *registry.Registry, *sql.DB, error) {
	db, err := sql.Open("sqlite", sqlite.ModerncDSN(path))
	if err != nil {
		return nil, nil, nil, err
	}
	st, err := sqlite.New(db, sqlite.Config{})
	if err != nil {
		return nil, nil, nil, err
	}
	host, err := sqlite.ThisHost()
	if err != nil {
		return nil, nil, nil, err
	}
	reg, err := registry.New(db, registry.Config{Dialect: registry.SQLite, Clock: registry.Clock{Domain: host.Domain, Boot: host.Boot, Wall: host.Wall}})
	return st, reg, db, err
}

func open(_ context.Context, path string) (store.Store, *registry.Registry, func(), error) {
	st, reg, db, err := openBoth(path)
	return st, reg, func() { _ = st.Close(); db.Close() }, err
}

// config is a run of seconds on a database of its own.
func config(t *testing.T) loadgen.Config {
	t.Helper()
	if _, err := os.Stat("/proc/self/io"); err != nil {
		t.Skip("needs the /proc of Linux")
	}
	path := filepath.Join(t.TempDir(), "tenure.db")
	st, reg, db, err := openBoth(path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	defer func() { _ = st.Close() }()
	if err := st.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := reg.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return loadgen.Config{
		Database: path, Name: "test", SQLite: path,
		Nodes: 50, Interval: 250 * time.Millisecond, SuspectAfter: 6, NodeTTL: 20 * time.Second, Duration: time.Second,
		Part: func() *exec.Cmd {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), partEnv+"=1")
			return cmd
		},
	}
}

// check looks at what must hold on any machine, however slow. A process that did
// not run for as long as it takes to be suspected deserves the suspicion.
func check(t *testing.T, cfg loadgen.Config, r *loadgen.Report) {
	t.Helper()
	s := &r.Steady
	if s.BeatsPerSec <= 0 || s.ServerUS <= 0 || s.CommitsPerSec <= 0 || s.Reply.P50 <= 0 || s.Reply.P50 > s.Reply.P99 || s.Reply.P99 > s.Reply.Most {
		t.Errorf("steady: got %+v", *s)
	}
	if r.Memory.RSS <= 0 || r.Memory.Live == 0 || r.Join.PerSec <= 0 {
		t.Errorf("got memory %+v and join %+v", r.Memory, r.Join)
	}
	for code := range r.Refused {
		if code != "renewal busy" && code != "renewal no_contact" {
			t.Errorf("refused: got %v, want none", r.Refused)
		}
	}
	suspect := float64(time.Duration(cfg.SuspectAfter) * cfg.Interval / time.Millisecond)
	if len(r.FalseSuspicions) > 0 && s.GeneratorLate.Most < suspect/3 {
		t.Errorf("false suspicions: got %q, want none; trouble %q", r.FalseSuspicions, r.Trouble)
	}
	if d := r.Detection; d == nil || d.Killed != cfg.Kill || d.Detected != d.Killed || d.Time.P50 < suspect-float64(cfg.Interval/time.Millisecond)-100 {
		t.Errorf("detection: got %+v, want %d found, not before they were silent for %g ms", d, cfg.Kill, suspect)
	}
}

func TestSingle(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	cfg.Kill, cfg.Restart = 5, true
	cfg.Profile = filepath.Join(t.TempDir(), "profile")
	stages := map[string]bool{}
	cfg.Progress = func(stage string, done, of int) {
		stages[stage] = true
		if done < 0 || done > of {
			t.Errorf("%s: %d of %d", stage, done, of)
		}
	}
	r, err := loadgen.Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err, r.Trouble)
	}
	check(t, cfg, r)
	if re := r.Restart; re == nil || re.DownMS < cfg.Interval.Milliseconds() || re.Gap.Detected != cfg.Kill {
		t.Errorf("restart: got %+v, want all %d that were killed in the gap", re, cfg.Kill)
	} else if re.Lost == 0 {
		t.Errorf("restart: got no beat without an answer, so that the server was not away")
	}
	if !stages["acquire and join"] || !stages["measure beats"] {
		t.Errorf("progress: got %v", stages)
	}
	for _, stage := range []string{"-join", "-steady", "-heap"} {
		if info, err := os.Stat(cfg.Profile + stage); err != nil || info.Size() == 0 {
			t.Errorf("profile: %v", err)
		}
	}
}

func TestRelayed(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	cfg.Relay, cfg.Replicas, cfg.Kill = 10, 2, 5
	r, err := loadgen.Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err, r.Trouble)
	}
	check(t, cfg, r)
	if r.Settings.Connections != 5 {
		t.Errorf("connections: got %d, want 5", r.Settings.Connections)
	}
}

func TestRefusedSettings(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*loadgen.Config){
		"nodes 0":          func(c *loadgen.Config) { c.Nodes = 0 },
		"interval -1ns":    func(c *loadgen.Config) { c.Interval = -1 },
		"at most half":     func(c *loadgen.Config) { c.Kill = 26 },
		"replicas, or rel": func(c *loadgen.Config) { c.Nodes = 1 << 30 },
	} {
		cfg := config(t)
		change(&cfg)
		if _, err := loadgen.Run(t.Context(), cfg); !errors.Is(err, loadgen.ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want ErrConfig with %q", err, want)
		}
	}
}
