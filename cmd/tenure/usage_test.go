package main

import (
	"strings"
	"testing"
	"time"
)

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args  string
		parts []string
	}{
		{"nosuch", []string{`"nosuch"`, "tenure --help"}},
		{"lease nosuch", []string{`"nosuch"`, "tenure lease --help"}},
		{"lease get", []string{"name the lease: tenure lease get NAME", "tenure lease get --help"}},
		{"lease get a b", []string{"one lease, not 2"}},
		{"lease watch", []string{"name the lease: tenure lease watch NAME"}},
		{"lease history", []string{"name the lease: tenure lease history NAME"}},
		{"lease revoke", []string{"name the lease: tenure lease revoke NAME --reason WHY"}},
		{"lease handoff", []string{"name the lease: tenure lease handoff NAME --to HOLDER"}},
		{"lease get postgres://u:geheim@h/d", []string{`"postgres://u:xxxxx@h/d"`, "use --store"}},
		{"lease ls postgres://u:geheim@h/d", []string{`"postgres://u:xxxxx@h/d"`, "use --store"}},
		{"lease raise-floor postgres://u:geheim@h/d --to 3", []string{"use --store"}},
		{"run postgres://u:geheim-and-so-on-for-very-many-more-characters-than-fit@h/d -- true", []string{"postgres://u:xxxxx…"}},
		{"version postgres://u:geheim@h/d", []string{"postgres://u:xxxxx@h/d"}},
		{"migrate x --store y", []string{"name the store once"}},
		{"help bogus", []string{`no help on "bogus"`, `(see "tenure --help")`}},
		{"help lease bogus", []string{`no help on "lease bogus"`}},
		{"completion tcsh", []string{`"tcsh"`}},
		{"doctor /dev/null", []string{"no regular file", "name one"}},
		{"doctor /dev", []string{"is a directory", "/dev/tenure.db"}},
		{"doctor postgres://u:geheim@h", []string{"store postgres://u:xxxxx@h", "names no database", "postgres://USER@HOST/NAME", "tenure --help"}},
		{"lease get a --nosuch", []string{"--nosuch"}},
		{"lease get a -o yaml", []string{"yaml", "--output", "table or json"}},
		{"lease get /a", []string{`name "/a"`, "beginning with a letter or digit"}},
		{"lease get a//b", []string{`name "a//b"`, "empty"}},
		{"lease watch a%2Fb", []string{`name "a%2Fb"`}},
		{"lease ls a%", []string{`prefix "a%"`}},
		{"lease get a --timeout 10", []string{`"10"`, "--timeout", "units", "from 100ms to 1h"}},
		{"events --before 5 --follow", []string{"--before and --follow"}},
		{"events --before -1", []string{"--before -1"}},
		{"lease history a --limit -1", []string{"limit -1", "0 or more"}},
		{"lease revoke a", []string{"reason"}},
		{"lease revoke a --reason x", []string{"--token", "tenure lease get a"}},
		{"lease revoke a --reason x --token 0", []string{`"0"`, "--token", "1 to 9223372036854775807"}},
		{"lease revoke a --reason x --token 1.5", []string{`"1.5"`, "whole number"}},
		{"lease handoff a --reason x --token 1", []string{`"to"`}},
		{"lease handoff a --reason x --token 1 --to /b", []string{`holder "/b"`}},
		{"lease raise-floor --to 3", []string{"NAME or --all"}},
		{"lease raise-floor a --all --to 3", []string{"NAME or --all"}},
		{"lease raise-floor a", []string{`"to"`}},
		{"lease raise-floor a --to 9223372036854775807", []string{`floor "9223372036854775807"`, "from 1 to"}},
		{"lease clean --idle 1s", []string{`"1s"`, "--idle", "from 1m to"}},
		{"doctor a b", []string{"at most 1 arg"}},
		{"doctor memory:", []string{`store "memory:"`, "one process"}},
		{"doctor :memory:", []string{`store ":memory:"`, "one process"}},
		{"doctor mysql://u:geheim@h/x", []string{"mysql://u:xxxxx@h/x", "sqlite:PATH", `(see "tenure --help")`}},
		{"doctor postgres:", []string{"postgres://USER@HOST:PORT/NAME"}},
		{"doctor postgres://h:port/x", []string{"store", "postgres://USER@HOST:PORT/NAME"}},
		{"doctor sqlite:", []string{"path", "missing"}},
		{"doctor sqlite://x", []string{"sqlite:///PATH"}},
		{"doctor /", []string{"path", "missing"}},
		{"version x", []string{"unknown command"}},
	} {
		t.Run(tc.args, func(t *testing.T) {
			t.Parallel()
			r := cli(t, strings.Fields(tc.args)...)
			r.want(t, exitUsage, tc.parts...)
			if r.out != "" {
				t.Errorf("stdout: got %q, want nothing", r.out)
			}
			if strings.Contains(r.err, "geheim") {
				t.Errorf("stderr shows a password: %q", r.err)
			}
		})
	}
}

// C72: each duration is taken exactly or refused with field, value and range.
func TestDurations(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]time.Duration{
		"10s": 10 * time.Second, "5m": 5 * time.Minute, "1h30m": 90 * time.Minute, "500ms": 500 * time.Millisecond,
		"1.5s": 1500 * time.Millisecond, "0.001s": time.Millisecond, "24h": 24 * time.Hour, "1ms": time.Millisecond,
	} {
		got := time.Duration(0)
		f := durationFlag{&got, time.Millisecond, 24 * time.Hour}
		if err := f.Set(s); err != nil || got != want {
			t.Errorf("%q: got %s, %v, want %s", s, got, err, want)
		}
	}
	for _, s := range []string{
		"-1", "0", "1", "1e3", "1125899906842624", "9007199254740992", "4611686018427387904", "9223372036854775807", "1e308", "1.5", "10",
		"PT10S", "null", "", " 10s", "10s ", "10 s", "-1s", "+1s", "0s", "0.5ms", "1.5ms", "1.000000001ms", "1.0001s", "1us", "1ns", "1d", "24h1ms", "9223372036854775807s",
		"2562047h47m16.855s", "999999999999h", "1e3s", "٣s", "1s\n", "∞",
	} {
		got := 42 * time.Second
		f := durationFlag{&got, time.Millisecond, 24 * time.Hour}
		err := f.Set(s)
		if err == nil || got != 42*time.Second {
			t.Errorf("%q: got %s, %v, want a refusal", s, got, err)
		} else if !strings.Contains(err.Error(), "from 1ms to 24h") {
			t.Errorf("%q: got %q, want the range in it", s, err)
		}
	}
}

func FuzzDuration(f *testing.F) {
	f.Add("1h30m")
	f.Add("9223372036854775807s")
	f.Fuzz(func(t *testing.T, s string) {
		d, err := parseDuration(s)
		if err != nil {
			return
		}
		if d < 0 || d%time.Millisecond != 0 {
			t.Fatalf("%q: got %d ns", s, d)
		}
		if again, err := parseDuration(shortDuration(d)); d >= time.Millisecond && (err != nil || again != d) {
			t.Fatalf("%q: got %s, which reads as %s, %v", s, shortDuration(d), again, err)
		}
	})
}

func TestLocate(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"/var/x.db":                               "sqlite:/var/x.db",
		"sqlite:/var/x.db":                        "sqlite:/var/x.db",
		"sqlite:///var/x.db":                      "sqlite:/var/x.db",
		"SQLITE:/var/x.db":                        "sqlite:/var/x.db",
		"/var/a b?c#d%20.db":                      "sqlite:/var/a b?c#d%20.db",
		"postgres://u:p@h/d":                      "postgres://u:xxxxx@h/d",
		"postgresql://h/d":                        "postgresql://h/d",
		"POSTGRES://h/d":                          "postgres://h/d",
		"postgres:///d?host=s":                    "postgres:///d?host=s",
		"postgres://h/d?password=p&sslpassword=q": "postgres://h/d?password=xxxxx&sslpassword=xxxxx",
	} {
		loc, err := locate(s)
		if loc.kind == kindPostgres && !strings.HasPrefix(loc.target, "postgres") { // what pgx knows as a URL
			t.Errorf("%q: got target %q", s, loc.target)
		}
		if err != nil || loc.String() != want {
			t.Errorf("%q: got %s, %v, want %s", s, loc, err, want)
		}
	}
}

func TestOwnFile(t *testing.T) {
	t.Parallel()
	env := func(pairs ...string) func(string) string {
		return func(key string) string {
			for i := 0; i < len(pairs); i += 2 {
				if pairs[i] == key {
					return pairs[i+1]
				}
			}
			return ""
		}
	}
	for _, tc := range []struct {
		uid  int
		env  func(string) string
		want string
	}{
		{0, env("HOME", "/root", "XDG_STATE_HOME", "/x"), "/var/lib/tenure/tenure.db"},
		{1000, env("HOME", "/home/a"), "/home/a/.local/state/tenure/tenure.db"},
		{1000, env("HOME", "/home/a", "XDG_STATE_HOME", "/x"), "/x/tenure/tenure.db"},
		{1000, env("HOME", "/home/a", "XDG_STATE_HOME", "rel"), "/home/a/.local/state/tenure/tenure.db"},
		{1000, env(), ""},
	} {
		got, err := ownFile(tc.uid, tc.env)
		if got != tc.want || (err != nil) != (tc.want == "") {
			t.Errorf("uid %d: got %q, %v, want %q", tc.uid, got, err, tc.want)
		}
	}
}

// Own codes are distinct and clear of what shells use for themselves.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	seen := map[int]bool{}
	for _, c := range exitCodes {
		if seen[c.code] {
			t.Errorf("code %d stands twice", c.code)
		}
		seen[c.code] = true
		own := c.code >= 64 && c.code < 126
		if shared := c.code == exitOK || c.code == exitNotExec || c.code == exitNoCommand; !own && !shared {
			t.Errorf("code %d is not between 64 and 125", c.code)
		}
	}
	for code, exit := range codeExits {
		if !seen[exit] {
			t.Errorf("%s: exit code %d is not in the table", code, exit)
		}
	}
}

// A URL that lost its scheme still holds a password.
func TestPasswordWithoutScheme(t *testing.T) {
	t.Parallel()
	r := cli(t, "lease", "ls", "--store", "admin:geheim@db/x")
	if r.code != exitUsage || strings.Contains(r.err, "geheim") || !strings.Contains(r.err, "admin:xxxxx@db/x") {
		t.Errorf("got %d, %q", r.code, r.err)
	}
}
