package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/sqlite"
)

func TestWords(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"postgres://u:p@h/d":                            "postgres://u:xxxxx@h/d",
		"postgres://u:p@ss@h/d and ops@desk":            "postgres://u:xxxxx@h/d and ops@desk",
		`unknown command "postgres://u:a b\"c@h/d" for`: `unknown command "postgres://u:xxxxx@h/d" for`,
		`name "postgres://u:geheim…": a rule`:           `name "postgres://u:xxxxx…": a rule`,
		"postgres://h:5432/d: told by ops@desk":         "postgres://h:5432/d: told by ops@desk",
		"host=h password=p user=u":                      "host=h password=xxxxx user=u",
		`"postgres://h/d?sslPassword=p&x=y"`:            `"postgres://h/d?sslPassword=xxxxx&x=y"`,
		"acquire: store: sqlite: no\n answer":           "no answer",
		`revoke "a": store: term is over`:               `revoke "a": term is over`,
		"store sqlite:/x: postgres: refused":            "store sqlite:/x: refused",
	} {
		if got := words(s); got != want {
			t.Errorf("%q: got %q, want %q", s, got, want)
		}
	}
}

// A command that a message advises can be pasted into a shell, and holds no password.
func TestAdvisedCommand(t *testing.T) {
	t.Parallel()
	for want, loc := range map[string]location{
		"tenure migrate":                                            {kind: kindSQLite, target: "/x", own: true},
		`tenure migrate --store "$TENURE_STORE"`:                    {kind: kindPostgres, target: "postgres://u:p@h/d", fromEnv: true},
		"tenure migrate --store sqlite:/x":                          {kind: kindSQLite, target: "/x"},
		`tenure migrate --store 'sqlite:/a b'\''c'`:                 {kind: kindSQLite, target: "/a b'c"},
		"tenure migrate --store postgres://u@h/d":                   {kind: kindPostgres, target: "postgres://u:p@h/d"},
		"tenure migrate --store 'postgres://u@h/d?sslmode=disable'": {kind: kindPostgres, target: "postgres://u:p@h/d?sslmode=disable&sslpassword=p"},
	} {
		if got := loc.command("migrate"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if got := loc.complete("run: tenure migrate, then"); got != "run: "+want+", then" {
			t.Errorf("got %s, want %s in it", got, want)
		}
	}
}

// Only a command that has --timeout advises it.
func TestTimeoutAdvice(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r := cli(t, "lease", "ls", "--timeout", "200ms", "--store", "postgres://u@"+l.Addr().String()+"/x")
	r.want(t, exitUnavailable, "check the address", "allow more time with --timeout")
	var b strings.Builder
	late := fmt.Errorf("acquire: %w: %w", store.ErrUnavailable, context.DeadlineExceeded)
	report(&b, newRun(console{}), explain(location{kind: kindPostgres, target: "postgres://h/d"}, late))
	if strings.Contains(b.String(), "--timeout") || !strings.Contains(b.String(), "check the address") {
		t.Errorf("run: got %q, want no flag that it has not", b.String())
	}
}

// A file that this user cannot write is a finding.
func TestDoctorReadOnly(t *testing.T) {
	t.Parallel()
	path := fileStore(t)
	db, err := sql.Open("sqlite", sqlite.ModerncDSN(path)+"&mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	st, err := sqlite.New(db, sqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	findings, err := st.Diagnose(t.Context())
	if err != nil || !slices.ContainsFunc(findings, func(f store.Finding) bool { return f.Code == "read_only" && f.Severity == store.Broken }) {
		t.Errorf("got %v, %v, want a finding read_only", findings, err)
	}
	if err := severityExit(findings); !errors.As(err, new(*exitError)) {
		t.Errorf("got %v, want an exit code", err)
	}
	if r := cli(t, "doctor", path); strings.Contains(r.out, "read_only") || !strings.Contains(r.out, " KiB") {
		t.Errorf("a file that can be written: got %q", r.out)
	}
}

func TestVersionFlag(t *testing.T) {
	t.Parallel()
	if r, want := cli(t, "--version"), cli(t, "version"); r.code != exitOK || r.out != want.out {
		t.Errorf("got %d, %q, want what tenure version prints, %q", r.code, r.out, want.out)
	}
	if r := cli(t, "doctor", "-o", "json", "--store", fileStore(t)); !strings.Contains(r.out, `"granularity_ns": 1`) {
		t.Errorf("doctor: got %q, want granularity_ns", r.out)
	}
}
