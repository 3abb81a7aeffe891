package main

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestFetchReadOnlyRights: a role that may do nothing is told a GRANT, and that one
// GRANT suffices to fetch with --read-only.
func TestFetchReadOnlyRights(t *testing.T) {
	t.Parallel()
	address := serverStore(t)
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	do := func(statement string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	out, place, got := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "got")
	if err := os.WriteFile(filepath.Join(out, "a.csv"), []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	cli(t, "publish", "export", out, "--target", place, "--store", address).want(t, exitOK)

	role := fmt.Sprintf("reader_%d", time.Now().UnixNano())
	do("CREATE ROLE " + role + " LOGIN PASSWORD 'x'")
	defer do("DROP OWNED BY " + role + "; DROP ROLE " + role)
	fetch := func() result {
		return cli(t, "fetch", "export", got, "--read-only", "--store", with(t, address, func(u *url.URL) { u.User = url.UserPassword(role, "x") }))
	}
	r := fetch()
	r.want(t, exitPermission, "--read-only alone GRANT SELECT ON")
	grant := regexp.MustCompile(`--read-only alone (GRANT SELECT ON [^;]*);`).FindStringSubmatch(r.err)
	if grant == nil || strings.ContainsAny(strings.TrimPrefix(grant[1], "GRANT SELECT"), "()") {
		t.Fatalf("got %q, want a statement to run", r.err)
	}
	do(grant[1])
	fetch().want(t, exitOK)
	if b, err := os.ReadFile(filepath.Join(got, "a.csv")); err != nil || string(b) != "1" {
		t.Errorf("got %q, error %v", b, err)
	}
}
