package main

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenurehq/tenure/store"
)

// TestFenceVerbs: a table is guarded, tells what it refused, and is as it was
// when the guard is removed; --dry-run prints what psql can run instead.
func TestFenceVerbs(t *testing.T) {
	t.Parallel()
	address := serverStore(t)
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	run := func(statement string) int64 {
		t.Helper()
		tag, err := conn.Exec(t.Context(), statement)
		if err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
		return tag.RowsAffected()
	}
	fence := func(args ...string) result {
		t.Helper()
		return cli(t, append(append([]string{"fence"}, args...), "--store", address)...)
	}
	run("CREATE TABLE jobs (id int PRIMARY KEY, status text); INSERT INTO jobs VALUES (1, 'running'), (2, 'running')")
	st, closeStore, err := openAt(t.Context(), location{kind: kindPostgres, target: address})
	if err != nil {
		t.Fatal(err)
	}
	_, err = st.Acquire(t.Context(), store.Request{Name: "worker/1", Holder: "a/1", TTL: time.Hour, Attempt: store.NewAttempt()})
	closeStore()
	if err != nil {
		t.Fatal(err)
	}

	fence("guard", "jobs", "--add-columns").want(t, exitConfig, "tenure fence install --store 'postgres://")
	fence("status").want(t, exitConfig, "tenure fence install")
	script := fence("install", "--dry-run")
	script.want(t, exitOK)
	fence("guard", "jobs", "--add-columns").want(t, exitConfig, "tenure fence install") // nothing was changed
	if psql, err := exec.LookPath("psql"); err == nil {
		cmd := exec.CommandContext(t.Context(), psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", address)
		cmd.Stdin = strings.NewReader(script.out)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("psql with what --dry-run printed: %v\n%s", err, out)
		}
	} else {
		fence("install").want(t, exitOK, "fence: add tenure_fence")
	}
	fence("install").want(t, exitOK, "nothing to do")

	fence("guard", "jobs").want(t, exitUsage, `"owner"`, "--add-columns")
	fence("guard", "nothing", "--add-columns").want(t, exitNotFound, `"nothing"`, "SCHEMA.TABLE")
	if r := fence("guard", "nothing", "--add-columns"); strings.Contains(r.err, "lease") {
		t.Errorf("a table that is not there: got %q, want no lease in it", r.err)
	}
	fence("guard", "other.public.jobs", "--add-columns").want(t, exitUsage, "in the database of the leases")
	fence("guard", "tenure_status", "--add-columns").want(t, exitConfig, "view")
	if r := fence("guard", "jobs", "--add-columns", "--dry-run"); r.code != exitOK || !strings.Contains(r.out, "CREATE INDEX CONCURRENTLY") || !strings.Contains(r.out, "CREATE TRIGGER") {
		t.Errorf("--dry-run: got code %d, output %q", r.code, r.out)
	}
	if n := run("UPDATE jobs SET status = 'queued' WHERE id = 2"); n != 1 {
		t.Errorf("after --dry-run: got %d rows changed, want 1", n)
	}
	fence("guard", "jobs", "--add-columns").want(t, exitOK, `add columns to "public"."jobs" and guard it`, "index the columns")
	fence("guard", "jobs", "--add-columns").want(t, exitOK, "nothing to do")
	if n := run("DELETE FROM jobs WHERE status = 'running'"); n != 0 {
		t.Errorf("a sweep that states nothing: got %d rows, want 0", n)
	}
	if n := run("SELECT tenure_fence('worker/1', 1); UPDATE jobs SET owner = 'worker/1' WHERE id = 1"); n != 1 {
		t.Errorf("a claim: got %d rows, want 1", n)
	}
	fence("remove").want(t, exitUnavailable, "public.jobs", "remove their guards first")
	r := fence("status", "-o", "json")
	r.want(t, exitOK)
	var status struct{ Tables []guardedJSON }
	if err := json.Unmarshal([]byte(r.out), &status); err != nil || len(status.Tables) != 1 || status.Tables[0].Table != "public.jobs" ||
		!status.Tables[0].Enabled || status.Tables[0].OnStale != "zero" || status.Tables[0].Refused["not_stated"] != 1 || status.Tables[0].Refused["stale"] != 0 {
		t.Errorf("status: got %s, error %v", r.out, err)
	}
	if r := fence("status"); r.code != exitOK || !strings.HasPrefix(r.out, "TABLE ") || !strings.Contains(r.out, "\npublic.jobs  zero      on     1 ") {
		t.Errorf("status: got code %d, output %q", r.code, r.out)
	}
	run("ALTER TABLE jobs RENAME COLUMN token TO term")
	if r := fence("status"); r.code != exitOK || !strings.Contains(r.out, "a column was renamed: guard it again") {
		t.Errorf("status of a table whose column was renamed: got code %d, output %q", r.code, r.out)
	}
	run("ALTER TABLE jobs RENAME COLUMN term TO token")
	fence("remove", "jobs", "--drop-columns").want(t, exitOK, "take the guard off", "drop the columns")
	fence("remove", "jobs").want(t, exitOK, "nothing to do")
	if n := run("DELETE FROM jobs WHERE status = 'running'"); n != 1 {
		t.Errorf("without the guard: got %d rows, want 1", n)
	}
	fence("remove").want(t, exitOK, "drop tenure_fence")
	fence("remove").want(t, exitOK, "nothing to do")
}

func TestFenceUsage(t *testing.T) {
	t.Parallel()
	cli(t, "fence", "guard", "--store", "postgres://h/d").want(t, exitUsage, "name one table: tenure fence guard TABLE")
	cli(t, "fence", "guard", "postgres://u:geheim@h/d").want(t, exitUsage, "use --store")
	cli(t, "fence", "remove", "--drop-columns", "--store", "postgres://h/d").want(t, exitUsage, "name it")
	cli(t, "fence", "guard", "jobs", "--store", fileStore(t)).want(t, exitConfig, "no Postgres database", "sqlite.InGuard")
}
