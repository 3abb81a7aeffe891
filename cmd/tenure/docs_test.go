package main

import (
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenurehq/tenure/internal/pgtest"
)

// generated compares the part of a document between its two markers with what
// the program says, and writes it with -update.
func generated(t *testing.T, path, marker, want string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := fmt.Sprintf("<!-- %s: begin -->\n", marker), fmt.Sprintf("<!-- %s: end -->\n", marker)
	before, rest, ok := strings.Cut(string(text), begin)
	got, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s: the markers %q and %q are missing", path, begin, end)
	}
	if got == want {
		return
	}
	if !*update {
		was, is := firstDifference(got, want)
		t.Errorf("%s: the part %q is stale: run \"make generate\"; got, at first\n%s\nwant\n%s", path, marker, was, is)
		return
	}
	if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// firstDifference returns the first line of each text that the other does not have
// in its place.
func firstDifference(a, b string) (string, string) {
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(as), len(bs)) {
		if as[i] != bs[i] {
			return as[i], bs[i]
		}
	}
	return strings.Join(as[min(len(as), len(bs)):], "\n"), strings.Join(bs[min(len(as), len(bs)):], "\n")
}

func TestStoresTable(t *testing.T) {
	r := cli(t, "doctor", "--table")
	r.want(t, exitOK)
	generated(t, "../../docs/STORES.md", "guarantees", r.out)
}

func TestExitTable(t *testing.T) {
	var b strings.Builder
	b.WriteString("| Code | Meaning |\n|---|---|\n")
	for _, c := range exitCodes {
		fmt.Fprintf(&b, "| %d | %s |\n", c.code, c.meaning)
	}
	generated(t, "../../README.md", "exit codes", b.String())
}

// The rights that docs/STORES.md grants are enough, for each of its two roles.
func TestDocumentedRights(t *testing.T) {
	t.Parallel()
	admin := pgtest.Database(t)
	text, err := os.ReadFile("../../docs/STORES.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) != 3 {
		t.Fatalf("got %d blocks of SQL, want those of the schema's owner and of migrator, for jobs and for a server", len(blocks))
	}
	unique := fmt.Sprint("_", time.Now().UnixNano())
	do := func(address, statements string) {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(t.Context())
		statements = strings.NewReplacer("migrator", "migrator"+unique, "app;", "app"+unique+";", "app LOGIN", "app"+unique+" LOGIN").Replace(statements)
		if _, err := conn.Exec(t.Context(), statements); err != nil {
			t.Fatal(err)
		}
	}
	as := func(role string) string {
		return with(t, admin, func(u *url.URL) { u.User = url.UserPassword(role+unique, "x") })
	}
	do(admin, "CREATE ROLE migrator LOGIN PASSWORD 'x'; CREATE ROLE app LOGIN PASSWORD 'x'; REVOKE ALL ON SCHEMA public FROM PUBLIC;")
	cli(t, "migrate", as("migrator")).want(t, exitPermission, `GRANT CREATE ON SCHEMA "public"`)
	do(admin, blocks[0][1])
	cli(t, "migrate", as("migrator")).want(t, exitOK, "ready")
	cli(t, "lease", "ls", "--store", as("app")).want(t, exitPermission, "GRANT SELECT ON tenure_schema")
	do(as("migrator"), blocks[1][1])

	app := []string{"--store", as("app")}
	run(t, "run", "a", "--slot", "x", app[0], app[1], "--", "true").want(t, exitOK)
	run(t, "run", "a", "--slot", "x", app[0], app[1], "--", "true").want(t, exitSlotDone)
	for _, command := range []string{"lease history a", "lease raise-floor a --to 7", "lease raise-floor --all --to 9", "lease clean --idle 1m", "lease ls"} {
		cli(t, append(strings.Fields(command), app...)...).want(t, exitOK)
	}
	run(t, "run", "a", app[0], app[1], "--", "true").want(t, exitOK)
	if r := cli(t, append([]string{"doctor"}, app...)...); strings.Contains(r.out, "GRANT") || !strings.Contains(r.out, "SEVERITY") {
		t.Errorf("doctor: got %d, %q, %q, want no right missing", r.code, r.out, r.err)
	}
	cli(t, "server", app[0], app[1], "--listen", "127.0.0.1:0").want(t, exitPermission, "fleet_")
	do(as("migrator"), blocks[2][1])
	checkServer(t, app...)
	do(admin, "DROP OWNED BY migrator CASCADE; DROP OWNED BY app; DROP ROLE migrator; DROP ROLE app;")
}
