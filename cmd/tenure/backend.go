package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
)

const storeHelp = `The store is named by --store or TENURE_STORE:
  sqlite:PATH or PATH         a SQLite file; it protects this one machine
  postgres://USER@HOST/NAME   a Postgres database; it protects every machine that uses it
  tenure://HOST:PORT          the store of a tenure server, tenures:// over TLS; more of its
                              replicas follow as ,HOST:PORT. The credential is in
                              TENURE_SERVER_TOKEN, an authority of your own in TENURE_SERVER_CA
Without either it is a SQLite file of this user, $XDG_STATE_HOME/tenure/tenure.db or
~/.local/state/tenure/tenure.db, and /var/lib/tenure/tenure.db for root. That file
protects the jobs of one user on one machine: "tenure doctor" shows which file is used.`

// backend is a store as the command line opens it. Every backend's Store has
// these methods.
type backend interface {
	store.Store
	// Migrate creates or upgrades the tables.
	Migrate(ctx context.Context) error
	// Check says whether the tables are as this program expects.
	Check(ctx context.Context) error
}

// fleetBackend is a backend whose database holds the fleet's tables too.
type fleetBackend interface {
	backend
	// Fleet returns the registry in the same database.
	Fleet() (*registry.Registry, error)
}

// closeFunc closes what openStore opened. It does not fail and may be called once.
type closeFunc func()

// kind is a backend of this program.
type kind string

const (
	kindSQLite   kind = "sqlite"
	kindPostgres kind = "postgres"
	kindTenure   kind = "tenure" // of a server
)

// location says where a store is.
type location struct {
	kind kind
	// target is the file's path or the database's URL, with its password, or the
	// tenure server's.
	target string
	// fromEnv says that TENURE_STORE names it.
	fromEnv bool
	// own says that nobody named the store, so that the file is this program's
	// own to create and upgrade.
	own bool
}

// String names the store for people, without a password.
func (l location) String() string {
	switch l.kind {
	case kindTenure:
		return l.target
	case kindPostgres:
		u, err := url.Parse(l.target)
		if err != nil {
			return "postgres://…"
		}
		u.RawQuery = redact(u.RawQuery)
		return u.Redacted()
	}
	return string(kindSQLite) + ":" + l.target
}

// argument returns what names the store in a command for a shell, without a
// password: " --store …", or "" for the default file.
func (l location) argument() string {
	switch {
	case l.own:
		return ""
	case l.fromEnv:
		return ` --store "$TENURE_STORE"`
	}
	name := l.String()
	if u, err := url.Parse(l.target); l.kind == kindPostgres && err == nil {
		if u.User != nil {
			u.User = url.User(u.User.Username())
		}
		query := u.Query()
		for key := range query {
			if strings.Contains(strings.ToLower(key), "password") {
				query.Del(key)
			}
		}
		u.RawQuery = query.Encode()
		name = u.String()
	}
	return " --store " + shellWord(name)
}

// command returns a command of this program on this store, for a shell.
func (l location) command(what string) string { return "tenure " + what + l.argument() }

var storeCommand = regexp.MustCompile(`tenure (?:migrate|lease raise-floor|fence install)\b`)

// complete names the store in the commands that a store's own text advises: a
// store does not know by which name it was reached.
func (l location) complete(text string) string {
	return storeCommand.ReplaceAllStringFunc(text, func(c string) string { return c + l.argument() })
}

// errMemory says why a memory store is no use on the command line.
var errMemory = errors.New("a memory store lives in one process, so it cannot keep two commands apart; name a SQLite file or a postgres:// URL")

var schemeSyntax = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*:`)

// locate reads the name of a store. The switch in it is the only one from
// schemes to backends.
func locate(s string) (location, error) {
	bad := func(rule string) (location, error) {
		shown := s
		colon, at := strings.IndexByte(s, ':'), strings.LastIndexByte(s, '@')
		if !strings.Contains(s, "://") && colon >= 0 && colon < at { // a URL that lost its scheme
			shown = s[:colon] + ":xxxxx" + s[at:]
		} else if u, err := url.Parse(s); err == nil {
			shown = u.Redacted()
		} else if strings.Contains(s, "@") {
			shown = schemeSyntax.FindString(s) + "…"
		}
		return location{}, badStore("store %q: %s", shown, rule)
	}
	if escape(s) != s {
		return bad("holds a character that cannot be printed")
	}
	switch scheme := strings.ToLower(schemeSyntax.FindString(s)); scheme {
	case "":
		if s == ":memory:" {
			return bad(errMemory.Error())
		}
		return locateFile(s, s, bad)
	case "sqlite:":
		path := s[len(scheme):]
		if rest, ok := strings.CutPrefix(path, "//"); ok {
			if !strings.HasPrefix(rest, "/") {
				return bad("write sqlite:PATH, or sqlite:///PATH for an absolute path")
			}
			path = rest
		}
		if path == ":memory:" {
			return bad(errMemory.Error())
		}
		return locateFile(s, path, bad)
	case "postgres:", "postgresql:":
		u, err := url.Parse(s)
		if err != nil || u.Opaque != "" || (u.Host == "" && u.Query().Get("host") == "" && u.Path == "") {
			return bad("not a URL of the form postgres://USER@HOST:PORT/NAME (write / : @ ? # % in a user or password as %2F %3A %40 %3F %23 %25)")
		}
		return location{kind: kindPostgres, target: scheme + s[len(scheme):]}, nil
	case "tenure:", "tenures:":
		if _, err := parseServers(s); err != nil {
			return bad("not a URL of the form tenure://HOST:PORT or tenures://HOST:PORT, without a user, a path or a query (the credential is in TENURE_SERVER_TOKEN)")
		}
		return location{kind: kindTenure, target: s}, nil
	case "memory:":
		return bad(errMemory.Error())
	default:
		return bad("no such kind of store; use sqlite:PATH, a path (./" + filepath.Base(s) + " if the name holds a colon), postgres://USER@HOST/NAME or tenure://HOST:PORT")
	}
}

func locateFile(s, path string, bad func(string) (location, error)) (location, error) {
	if path == "" || strings.HasSuffix(path, "/") {
		return bad("the path of a SQLite file is missing")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return location{}, failf(exitInternal, "store %q: %w", s, err)
	}
	return location{kind: kindSQLite, target: abs}, nil
}

// ownFile returns the file of this user. env is os.Getenv. Root's file does not
// depend on the environment, so that cron and a shell use the same.
func ownFile(uid int, env func(string) string) (string, error) {
	if uid == 0 {
		return "/var/lib/tenure/tenure.db", nil
	}
	dir := env("XDG_STATE_HOME")
	if !filepath.IsAbs(dir) { // the XDG rule: a relative path is ignored
		home := env("HOME")
		if !filepath.IsAbs(home) {
			return "", failf(exitUsage, "no store: HOME %q is not an absolute path, so there is no place for the default SQLite file; give --store", home)
		}
		dir = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(dir, "tenure", "tenure.db"), nil
}

// storeWithheld is set for a command whose "tenure run" was given a store by
// name: what it calls must not fall back on the default store in silence.
const storeWithheld = "TENURE_STORE_WITHHELD"

// chosenStore returns the store that the command's flags or the environment name.
func chosenStore(cmd *cobra.Command) (location, error) {
	s, err := cmd.Flags().GetString("store")
	if err != nil {
		return location{}, err
	}
	if !cmd.Flags().Changed("store") {
		var set bool
		if s, set = os.LookupEnv("TENURE_STORE"); set && s == "" {
			return location{}, failf(exitUsage, "TENURE_STORE is set and empty: name a store in it, or unset it for the default one")
		}
		if !set && os.Getenv(storeWithheld) != "" {
			return location{}, failf(exitUsage, "no store: the \"tenure run\" that started this keeps its own to itself, as it may hold a password; give --store")
		}
		if s == "" {
			path, err := ownFile(os.Geteuid(), os.Getenv)
			return location{kind: kindSQLite, target: path, own: true}, err
		}
	}
	loc, err := locate(s)
	loc.fromEnv = !cmd.Flags().Changed("store")
	return loc, err
}

// takeStore lets the argument of a command name its store, as --store does.
func takeStore(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.Flags().Changed("store") {
		return failf(exitUsage, "name the store once: as an argument, or with --store")
	}
	return cmd.Flags().Set("store", args[0])
}

// openStore opens the chosen store and checks its tables. It creates and
// upgrades the default SQLite file. Every other store must have been set up by
// "tenure migrate". Errors carry an exit code and name the store.
func openStore(ctx context.Context, cmd *cobra.Command) (store.Store, closeFunc, error) {
	loc, err := chosenStore(cmd)
	if err != nil {
		return nil, nil, err
	}
	st, closeStore, err := openAt(ctx, loc)
	if err != nil {
		return nil, nil, err
	}
	return st, closeStore, nil
}

func openAt(ctx context.Context, loc location) (backend, closeFunc, error) {
	st, closeStore, fresh, err := openUnchecked(ctx, loc, false)
	if err != nil {
		return nil, nil, err
	}
	if fresh {
		err = st.Migrate(ctx)
	} else {
		err = st.Check(ctx)
	}
	if err != nil {
		closeStore()
		return nil, nil, explain(loc, err)
	}
	return st, closeStore, nil
}

// openUnchecked opens the store at loc without looking at its tables, and
// reports whether they are this program's to make.
func openUnchecked(ctx context.Context, loc location, create bool) (st backend, closeStore closeFunc, fresh bool, err error) {
	if fresh, err = prepareFile(loc, create); err != nil {
		return nil, nil, false, err
	}
	if st, closeStore, err = connect(ctx, loc); err != nil {
		return nil, nil, false, explain(loc, err)
	}
	return st, closeStore, fresh, nil
}

// prepareFile makes the directory of the default SQLite file, and reports
// whether the tables of a SQLite file are this program's to make: those of the
// default file and of one that is not there yet. It refuses a named file that
// is not there unless it may be made.
func prepareFile(loc location, create bool) (fresh bool, err error) {
	if loc.kind != kindSQLite {
		return false, nil
	}
	if loc.own {
		if err := os.MkdirAll(filepath.Dir(loc.target), 0o700); err != nil {
			return false, failf(exitPermission, "store %s: cannot make its directory: %w; give --store", loc, err)
		}
		return true, nil
	}
	info, err := os.Stat(loc.target)
	switch {
	case errors.Is(err, os.ErrNotExist) && !create:
		return false, failf(exitConfig, "store %s: no such file; run: %s", loc, loc.command("migrate"))
	case errors.Is(err, os.ErrNotExist):
		if dir := filepath.Dir(loc.target); !exists(dir) {
			return false, failf(exitConfig, "store %s: no such directory %s; make it first", loc, dir)
		}
		return true, nil
	case errors.Is(err, os.ErrPermission):
		return false, failf(exitPermission, "store %s: %w", loc, err)
	case err != nil:
		return false, failf(exitConfig, "store %s: %w", loc, err)
	case info.IsDir():
		return false, badStore("store %s: is a directory; name a file in it, such as %s", loc, filepath.Join(loc.target, "tenure.db"))
	case !info.Mode().IsRegular():
		return false, badStore("store %s: is no regular file; name one on a local disk, or one that is not there yet", loc)
	case info.Size() == 0 && create:
		return true, nil
	}
	return false, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// connect makes the store at loc ready for requests, without looking at its
// tables.
func connect(ctx context.Context, loc location) (backend, closeFunc, error) {
	switch loc.kind {
	case kindSQLite:
		return connectSQLite(ctx, loc.target)
	case kindPostgres:
		return connectPostgres(ctx, loc.target)
	case kindTenure:
		return connectTenure(loc.target)
	}
	return nil, nil, fmt.Errorf("no backend for %q", loc.kind)
}

// allFeatures returns what each backend says of itself. It asks no server.
func allFeatures(ctx context.Context) ([]store.Features, error) {
	dir, err := os.MkdirTemp("", "tenure-features-")
	if err != nil {
		return nil, fmt.Errorf("features: %w", err)
	}
	defer os.RemoveAll(dir)
	all := []store.Features{memory.New().Features()}
	for _, loc := range []location{
		{kind: kindSQLite, target: filepath.Join(dir, "tenure.db")},
		{kind: kindPostgres, target: "postgres://localhost/tenure"},
	} {
		st, closeStore, err := connect(ctx, loc)
		if err != nil {
			return nil, fmt.Errorf("features of %s: %w", loc.kind, err)
		}
		all = append(all, st.Features())
		closeStore()
	}
	return all, nil
}
