//go:build unix

package pgtest_test

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func query(t *testing.T, url, statement string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "psql", "-X", "-A", "-t", "-d", url, "-c", statement)
	cmd.Env = append(os.Environ(), "PGCONNECT_TIMEOUT=2")
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func must(t *testing.T, url, statement string) string {
	t.Helper()
	out, err := query(t, url, statement)
	if err != nil {
		t.Fatalf("%s: %v: %s", statement, err, out)
	}
	return out
}

func TestDatabasesAreApart(t *testing.T) {
	t.Parallel()
	a, b := pgtest.Database(t), pgtest.Database(t)
	must(t, a, "CREATE TABLE x()")
	if got := must(t, b, "SELECT count(*) FROM pg_class WHERE relname = 'x'"); got != "0" {
		t.Errorf("tables named x in the other database: got %s, want 0", got)
	}
}

// TestExistingServer is not parallel: it sets the environment.
func TestExistingServer(t *testing.T) {
	srv := pgtest.Start(t, pgtest.Options{})
	admin := srv.Database(t)
	t.Setenv("TENURE_TEST_POSTGRES", admin)
	const made = "SELECT count(*) FROM pg_database WHERE datname LIKE 'tenure_test_%'"
	t.Run("use", func(t *testing.T) {
		must(t, pgtest.Database(t), "CREATE TABLE x()")
		if got := must(t, admin, made); got != "1" {
			t.Errorf("got %s databases on the existing server, want 1", got)
		}
	})
	if got := must(t, admin, made); got != "0" {
		t.Errorf("got %s databases after the test, want none", got)
	}
}

func TestKillKeepsCommits(t *testing.T) {
	t.Parallel()
	srv := pgtest.Start(t, pgtest.Options{})
	url := srv.Database(t)
	must(t, url, "CREATE TABLE x(n int)")
	must(t, url, "INSERT INTO x VALUES (7)")
	srv.Kill()
	if out, err := query(t, url, "SELECT 1"); err == nil {
		t.Errorf("a killed server answered %q", out)
	}
	srv.Restart(t)
	if got := must(t, url, "SELECT n FROM x"); got != "7" {
		t.Errorf("after the restart got %q, want 7", got)
	}
	srv.Pause()
	if out, err := query(t, url, "SELECT 1"); err == nil {
		t.Errorf("a paused server answered %q", out)
	}
	srv.Resume()
	must(t, url, "SELECT 1")
}

func TestStepClock(t *testing.T) {
	t.Parallel()
	srv := pgtest.Start(t, pgtest.Options{StepClock: true})
	url := srv.Database(t)
	for _, step := range []time.Duration{2 * time.Hour, -30 * time.Second} {
		srv.StepClock(t, step)
		shown, err := strconv.ParseInt(must(t, url, "SELECT floor(extract(epoch FROM clock_timestamp()))::bigint"), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if off := time.Until(time.Unix(shown, 0)) - step; off.Abs() > 10*time.Second {
			t.Errorf("after a step to %s the server's clock is off by another %s", step, off)
		}
	}
}
