package main

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"github.com/tenurehq/tenure/store"
)

const hostile = "<img src=x onerror=alert(1)>'\"\r\nX-Fake: 1\x1b[31m\u202egnp.exe{{x}}\\\n\x00\x7f\xff"

// rawFree fails if s holds a rune that a terminal could act on.
func rawFree(t *testing.T, what, s string) {
	t.Helper()
	for _, bad := range []string{"\x1b", "\r", "\u202e", "\x00", "\x7f", "\xff"} {
		if strings.Contains(s, bad) {
			t.Errorf("%s: got %q, which holds %q raw", what, s, bad)
		}
	}
}

func TestLeaseGolden(t *testing.T) {
	t.Parallel()
	path := fileStore(t)
	release(t, path, acquire(t, path, "jobs/nightly", "host-1/4711/a/b"))
	acquire(t, path, "jobs/nightly", "host-2/12/a/b")
	acquire(t, path, "jobs/hourly", "host-1/4712/a/b")
	release(t, path, acquire(t, path, "other", "host-3/1/a/b"))
	cli(t, "lease", "revoke", "jobs/nightly", "--token", "2", "--reason", "wrong version", "--by", "ops@desk", "--store", path).want(t, exitOK,
		"jobs/nightly: token 2 is revoked", "when its holder has stopped")
	cli(t, "lease", "raise-floor", "other", "--to", "40", "--store", path).want(t, exitOK, "other: every later token is larger than 40")
	cli(t, "lease", "raise-floor", "other", "--to", "5", "--store", path).want(t, exitOK, "other: the floor is 40 already")

	for name, args := range map[string]string{
		"ls.txt":       "lease ls",
		"ls.json":      "lease ls jobs/ -o json",
		"get.txt":      "lease get jobs/nightly",
		"get.json":     "lease get jobs/nightly -o json",
		"free.json":    "lease get other -o json",
		"history.txt":  "lease history jobs/nightly",
		"history.json": "lease history jobs/nightly -o json",
		"none.json":    "lease ls nosuch -o json",
	} {
		r := cli(t, append(strings.Fields(args), "--store", path)...)
		r.want(t, exitOK)
		if r.err != "" {
			t.Errorf("%s: stderr: got %q, want nothing", args, r.err)
		}
		golden(t, name, r.out)
		if strings.HasSuffix(name, ".json") && !json.Valid([]byte(r.out)) {
			t.Errorf("%s: got %q, which is not JSON", args, r.out)
		}
	}
	for _, page := range []string{"--before=1", "--after=100"} {
		if r := cli(t, "lease", "history", "jobs/nightly", page, "-o", "json", "--store", path); r.code != exitOK || strings.Contains(r.out, `"token"`) {
			t.Errorf("history %s: got %d, %q, want no terms", page, r.code, r.out)
		}
	}
	cli(t, "lease", "history", "jobs/nightly", "--before=-1", "--store", path).want(t, exitUsage, "--before -1")
	if r := cli(t, "lease", "history", "jobs/nightly", "--limit", "1", "-o", "json", "--store", path); strings.Count(r.out, `"token"`) != 1 {
		t.Errorf("--limit 1: got %s", r.out)
	}
}

func TestLeaseNotFound(t *testing.T) {
	t.Parallel()
	path := fileStore(t)
	cli(t, "lease", "get", "nosuch", "--store", path).want(t, exitNotFound, `"nosuch"`, path, "tenure lease ls")
	cli(t, "lease", "history", "nosuch", "--store", path).want(t, exitNotFound, `"nosuch"`, "no such lease")
	cli(t, "lease", "revoke", "nosuch", "--token", "1", "--reason", "x", "--store", path).want(t, exitNotFound, `"nosuch"`)
}

func TestRevoke(t *testing.T) {
	t.Parallel()
	path := fileStore(t)
	g := acquire(t, path, "a", "host-1/1/a/b")

	r := cli(t, "lease", "revoke", "a", "--token", "7", "--reason", "x", "--store", path)
	r.want(t, exitConflict, `"a"`, "nothing was changed", "the current token is 1 (held)", "tenure lease get a --store sqlite:"+path)

	r = cliOn(t, "n\n", true, "lease", "revoke", "a", "--reason", "x", "--store", path)
	if r.code != exitUsage || !strings.Contains(r.err, "token 1, held by host-1/1/a/b? [y/N]") || !strings.Contains(r.err, "not confirmed") {
		t.Errorf("answer no: got %d, %q", r.code, r.err)
	}
	if got := cli(t, "lease", "get", "a", "--store", path).out; strings.Contains(got, "revoked") {
		t.Errorf("answer no: got %q, want an untouched lease", got)
	}

	r = cliOn(t, "y\n", true, "lease", "revoke", "a", "--reason", "x", "--now", "--store", path)
	r.want(t, exitOK, "token 1 is ended and the lease is free", "two may act")
	if r.out != "" {
		t.Errorf("stdout: got %q, want nothing", r.out)
	}

	r = cliOn(t, "y\n", true, "lease", "revoke", "a", "--reason", "x", "--store", path)
	r.want(t, exitConflict, "no term is held")

	if g2 := acquire(t, path, "a", "host-2/1/a/b"); g2.Token <= g.Token {
		t.Errorf("after revoke --now: got token %s, want more than %s", g2.Token, g.Token)
	}
}

func TestHandoff(t *testing.T) {
	t.Parallel()
	path := fileStore(t)
	acquire(t, path, "a", "host-1/1/a/b")
	cli(t, "lease", "handoff", "a", "--to", "host-2", "--token", "1", "--reason", "update", "--store", path).want(t, exitOK,
		"token 1 is revoked", "reserved for host-2 for 10s")
}

func TestClean(t *testing.T) {
	t.Parallel()
	path := fileStore(t)
	release(t, path, acquire(t, path, "a", "host-1/1/a/b"))
	r := cli(t, "lease", "clean", "-o", "json", "--store", path)
	r.want(t, exitOK)
	golden(t, "clean.json", r.out)
}

// C75: nothing that somebody chose for a reason or a holder acts on the terminal.
func TestHostileText(t *testing.T) {
	t.Parallel()
	path := fileStore(t)
	acquire(t, path, "a", "host-1/1/a/b")
	argument := strings.NewReplacer("\x00", "", "\xff", "").Replace(hostile) // cannot be in one; not UTF-8
	r := cli(t, "lease", "revoke", "a", "--token", "1", "--reason", argument, "--store", path)
	r.want(t, exitUsage, "reason", "control characters")
	rawFree(t, "a refused reason", r.err)
	reason := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, argument)
	cli(t, "lease", "revoke", "a", "--token", "1", "--reason", reason, "--by", reason, "--store", path).want(t, exitOK)
	for _, args := range []string{"lease get a", "lease get a -o json", "lease ls", "lease history a", "lease history a -o json"} {
		r := cli(t, append(strings.Fields(args), "--store", path)...)
		r.want(t, exitOK)
		rawFree(t, args, r.out)
		if !strings.HasSuffix(args, "json") {
			continue
		}
		if !json.Valid([]byte(r.out)) {
			t.Errorf("%s: got %q, which is not JSON", args, r.out)
		}
		quoted, _ := json.Marshal(reason)
		var want, got any
		_ = json.Unmarshal(quoted, &want)
		var doc map[string]any
		if err := json.Unmarshal([]byte(r.out), &doc); err != nil {
			t.Fatal(err)
		}
		if terms, ok := doc["terms"].([]any); ok {
			doc = terms[0].(map[string]any)
		}
		if got = doc["reason"]; got != want {
			t.Errorf("%s: got reason %q, want %q", args, got, want)
		}
	}

	for _, args := range [][]string{
		{"lease", "get", hostile}, {hostile}, {"lease", hostile}, {"doctor", hostile}, {"lease", "get", "a", "--timeout", hostile},
		{"lease", "get", "a", "-o", hostile}, {"lease", "get", "a", "--" + hostile}, {"doctor", "postgres://" + hostile + "@h/x"}, {"doctor", "x" + hostile + "://h"},
	} {
		r := cli(t, args...)
		r.want(t, exitUsage)
		rawFree(t, strings.Join(args, " "), r.err)
	}

	var b strings.Builder
	if err := table(&b, [][]string{{hostile, "\t"}, {"x", "y"}}); err != nil {
		t.Fatal(err)
	}
	rawFree(t, "table", b.String())
	if strings.Count(b.String(), "\n") != 2 {
		t.Errorf("table: got %q, want two lines", b.String())
	}
	b.Reset()
	if err := printJSONLine(&b, hostile+"\U000e0001"); err != nil || !strings.HasSuffix(b.String(), "\\udb40\\udc01\"\n") || !json.Valid([]byte(b.String())) {
		t.Errorf("JSON: got %q, %v", b.String(), err)
	}
	rawFree(t, "JSON", b.String())
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	path := fileStore(t)
	acquire(t, path, "jobs/nightly", "host-1/1/a/b")
	r := cli(t, "__complete", "--store", path, "lease", "get", "jo")
	if r.code != exitOK || !strings.HasPrefix(r.out, "jobs/nightly\theld\n") {
		t.Errorf("got %d, %q", r.code, r.out)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if r := cli(t, "completion", shell); r.code != exitOK || !strings.Contains(r.out, "tenure") {
			t.Errorf("%s: got %d, %q", shell, r.code, r.err)
		}
	}
	// A store that cannot be opened offers nothing and breaks nothing.
	if r := cli(t, "__complete", "--store", path+".nosuch", "lease", "get", ""); r.code != exitOK || !strings.HasPrefix(r.out, ":") {
		t.Errorf("no store: got %d, %q", r.code, r.out)
	}
}

// The codes of exit.go for each refusal and decision of a store.
func TestExitOfStoreErrors(t *testing.T) {
	t.Parallel()
	loc := location{kind: kindSQLite, target: "/x"}
	for err, want := range map[error]int{
		store.ErrHeld: exitNotAcquired, store.ErrSuperseded: exitConflict, store.ErrRevoked: exitConflict, store.ErrNotFound: exitNotFound,
		store.ErrSlotDone: exitSlotDone, store.ErrBusy: exitUnavailable, store.ErrUnavailable: exitUnavailable, store.ErrPermission: exitPermission,
		store.ErrReadOnly: exitPermission, store.ErrSchema: exitConfig, store.ErrCopied: exitConfig, store.ErrUnsupported: exitConfig, store.ErrInvalid: exitUsage,
	} {
		var b strings.Builder
		if got := report(&b, newVersion(), explain(loc, err)); got != want {
			t.Errorf("%v: got exit code %d, want %d", err, got, want)
		}
		if strings.Count(b.String(), "\n") != 1 {
			t.Errorf("%v: got %q, want one line", err, b.String())
		}
	}
}
