package main

import (
	"bytes"
	"context"
	"flag"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/store"
)

var update = flag.Bool("update", false, "write the golden files and the generated parts of the documentation")

func TestMain(m *testing.M) {
	playPart() // does not return if this process is not the test
	for _, name := range []string{"TENURE_STORE", envServer, envToken, envCA} {
		os.Unsetenv(name)
	}
	// Where HUP is ignored, as under nohup, processes that are started would ignore it, too.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	flag.Parse()
	if !given("test.parallel") { // most tests here wait for processes and clocks
		must(flag.Set("test.parallel", "16"))
	}
	os.Exit(pgtest.Main(m))
}

// given says whether a flag of the test binary was set by hand.
func given(name string) (yes bool) {
	flag.Visit(func(f *flag.Flag) { yes = yes || f.Name == name })
	return yes
}

// result is what a run of the command line gave.
type result struct {
	code     int
	out, err string
}

// cli runs the command line as main does.
func cli(t *testing.T, args ...string) result {
	t.Helper()
	return cliOn(t, "", false, args...)
}

// cliOn is cli with an input, which may stand for a terminal.
func cliOn(t *testing.T, in string, interactive bool, args ...string) result {
	t.Helper()
	var out, err bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	code := execute(ctx, args, console{in: strings.NewReader(in), out: &out, err: &err, interactive: interactive})
	return result{code, out.String(), err.String()}
}

// want fails unless r has this code and its standard error holds each of parts.
// An error must be one line without anything of Go's own.
func (r result) want(t *testing.T, code int, parts ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("got exit code %d, want %d; stdout %q, stderr %q", r.code, code, r.out, r.err)
	}
	for _, part := range parts {
		if !strings.Contains(r.err, part) {
			t.Errorf("stderr: got %q, want it to hold %q", r.err, part)
		}
	}
	if code != exitOK && r.err != "" && (strings.Count(r.err, "\n") != 1 || !strings.HasSuffix(r.err, "\n")) {
		t.Errorf("stderr: got %q, want one line", r.err)
	}
	for _, foreign := range []string{"goroutine", ".go:", "Usage:", "%!", "strconv.", " yaml: "} {
		if code != exitOK && strings.Contains(r.err, foreign) {
			t.Errorf("stderr: got %q, which holds %q", r.err, foreign)
		}
	}
}

// fileStore makes a SQLite store in a directory of its own and returns its path.
func fileStore(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "leases.db")
	cli(t, "migrate", "--store", path).want(t, exitOK)
	return path
}

// acquire starts a term in the store at path.
func acquire(t *testing.T, path, name, holder string) store.Grant {
	t.Helper()
	st, closeStore, err := openAt(t.Context(), location{kind: kindSQLite, target: path})
	if err != nil {
		t.Fatal(err)
	}
	defer closeStore()
	req := store.Request{Name: name, Holder: holder, TTL: time.Hour, Attempt: store.NewAttempt(), Meta: map[string]string{"command": "backup"}}
	r, err := st.Acquire(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return store.Grant{Name: name, Token: r.Token, TTL: time.Hour, Attempt: store.NewAttempt(), Known: []store.Attempt{req.Attempt}}
}

// release ends a term in the store at path.
func release(t *testing.T, path string, g store.Grant) {
	t.Helper()
	st, closeStore, err := openAt(t.Context(), location{kind: kindSQLite, target: path})
	if err != nil {
		t.Fatal(err)
	}
	defer closeStore()
	g.Attempt = store.NewAttempt()
	results, err := st.Release(t.Context(), []store.Grant{g})
	if err != nil || results[0].Err != nil {
		t.Fatal(err, results)
	}
}

var (
	anyInstant = regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`)
	anyLeft    = regexp.MustCompile(`("remaining_ms": )[1-9]\d*|\b59m[0-9.]+s|\b1h\b`)
	anyGap     = regexp.MustCompile(`([^ \n])  +`)
)

// golden compares got, with its instants and remaining times made equal, with
// the file testdata/name.
func golden(t *testing.T, name, got string) {
	t.Helper()
	got = anyInstant.ReplaceAllString(got, "INSTANT")
	got = anyLeft.ReplaceAllString(got, "${1}LEFT")
	got = anyGap.ReplaceAllString(got, "${1}  ") // widths depend on what was replaced
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", path, got, want)
	}
}
