package publish

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// Dialect says which database it is.
type Dialect string

// The databases.
const (
	SQLite   Dialect = "sqlite"
	Postgres Dialect = "postgres"
)

// GuardFunc makes a transaction one of the term that token numbers: it can commit
// only before the next term of name is granted. It returns *fence.StaleError if
// the token is not the current one. Those of store/sqlite and store/postgres do so.
type GuardFunc func(ctx context.Context, tx *sql.Tx, name string, token fence.Token) error

// Config holds what NewLedger needs to know.
type Config struct {
	Dialect Dialect
	// Schema is that of the lease tables on Postgres. Default "public".
	Schema string
	// Guard is that of the lease store in the same database.
	Guard GuardFunc
	// Options stand before the arguments of each statement, for a driver that
	// takes its own there: pgx.QueryExecModeExec, if a pooler in transaction mode
	// may lie between.
	Options []any
}

// Ledger keeps what is published, beside the leases. It is safe for concurrent
// use, by several processes too. Its errors name the step and match a sentinel of
// this package, of package fence or of package store; after any other error of a
// write its outcome is unknown, and each write can be repeated safely.
type Ledger struct {
	db      *sql.DB
	dialect Dialect
	schema  string
	guard   GuardFunc
	options []any
	marks   *strings.Replacer
	turn    chan struct{} // holds a value while a write of this process is under way; SQLite
}

var schemaRule = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,47}$`)

// NewLedger returns the ledger in db, which it never closes. For SQLite db is
// opened as for the lease store (write locks taken at BEGIN), on the same file.
// It reads and changes nothing. It returns an error matching store.ErrInvalid for
// a bad Config.
func NewLedger(db *sql.DB, cfg Config) (*Ledger, error) {
	cfg.Schema = cmp.Or(cfg.Schema, "public")
	switch {
	case cfg.Dialect != SQLite && cfg.Dialect != Postgres:
		return nil, &store.InvalidError{Field: "dialect", Value: string(cfg.Dialect), Rule: "sqlite or postgres"}
	case !schemaRule.MatchString(cfg.Schema):
		return nil, &store.InvalidError{Field: "schema", Value: cfg.Schema, Rule: "1 to 48 letters, digits and underscores, not beginning with a digit"}
	case cfg.Guard == nil:
		return nil, &store.InvalidError{Field: "guard", Value: "nil", Rule: "the lease store's own"}
	}
	return &Ledger{
		db: db, dialect: cfg.Dialect, schema: cfg.Schema, guard: cfg.Guard, options: cfg.Options,
		marks: marks(cfg.Dialect, cfg.Schema), turn: make(chan struct{}, 1),
	}, nil
}

// State says where an attempt stands.
type State string

// The states of an attempt.
const (
	Running  State = "running"  // not accepted, and it may still be
	Accepted State = "accepted" // published: the current set, or a retained one
	Dropped  State = "dropped"  // can not be accepted or read any more
)

// Entry is an attempt to publish. Instants are the database's clock.
type Entry struct {
	Name    string
	Attempt string      // TOKEN-NONCE; its objects lie below NAME/TOKEN-NONCE/
	Token   fence.Token // of the term that last went on with it
	State   State
	Current bool // it is what readers get
	Seq     int64
	Target  string // the bucket's URL, without credentials
	Digest  string // SHA-256 of the manifest
	Files   int
	Bytes   int64

	BeganAt, SeenAt, AcceptedAt, ReplacedAt, DroppedAt time.Time
}

// Publication is an entry with its manifest.
type Publication struct {
	Entry
	Manifest Manifest
}

const entryColumns = `a.name, a.attempt, a.token, a.state, p.attempt IS NOT NULL, a.seq, a.target, a.digest, a.files, a.bytes,
	a.began_us, a.seen_us, a.accepted_us, a.replaced_us, a.dropped_us`

const entryTables = ` FROM {s}tenure_publication_attempt a
	LEFT JOIN {s}tenure_publication p ON p.name = a.name AND p.attempt = a.attempt `

func scanEntry(s scanner, more ...any) (e Entry, err error) {
	var began, seen, accepted, replaced, dropped int64
	err = s.Scan(append([]any{
		&e.Name, &e.Attempt, &e.Token, &e.State, &e.Current, &e.Seq, &e.Target, &e.Digest, &e.Files, &e.Bytes,
		&began, &seen, &accepted, &replaced, &dropped,
	}, more...)...)
	e.BeganAt, e.SeenAt, e.AcceptedAt, e.ReplacedAt, e.DroppedAt = instant(began), instant(seen), instant(accepted), instant(replaced), instant(dropped)
	return e, err
}

func instant(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

func scanPublication(s scanner) (Publication, error) {
	var manifest string
	e, err := scanEntry(s, &manifest)
	if err != nil {
		return Publication{}, err
	}
	p := Publication{Entry: e}
	if e.State != Dropped {
		p.Manifest, err = readManifest(e, manifest)
	}
	return p, err
}

// readManifest reads the manifest of a record, and trusts neither: readers make
// files of what it names.
func readManifest(e Entry, text string) (m Manifest, err error) {
	sum := sha256.Sum256([]byte(text))
	switch {
	case !attemptDirectory.MatchString(e.Attempt):
		err = fmt.Errorf("%q is no attempt", e.Attempt)
	case hex.EncodeToString(sum[:]) != e.Digest:
		err = errors.New("its SHA-256 is another")
	default:
		if err = json.Unmarshal([]byte(text), &m); err == nil {
			err = m.Check()
		}
	}
	if err != nil {
		return Manifest{}, fmt.Errorf("the record of %q, attempt %q: %w: its list of files: %w", e.Name, e.Attempt, ErrDamaged, err)
	}
	return m, nil
}

// Current returns what is published under name, or an error matching ErrNone.
func (l *Ledger) Current(ctx context.Context, name string) (Publication, error) {
	return l.find(ctx, name, "")
}

// find returns the set of an attempt, or the current one.
func (l *Ledger) find(ctx context.Context, name, attempt string) (Publication, error) {
	if err := store.CheckName(name); err != nil {
		return Publication{}, err
	}
	where, args := "WHERE a.name = $1 AND p.name IS NOT NULL", []any{name}
	if attempt != "" {
		where, args = "WHERE a.name = $1 AND a.attempt = $2", []any{name, attempt}
	}
	p, err := scanPublication(l.one(ctx, "SELECT "+entryColumns+", a.manifest"+entryTables+where, args...))
	if err = foundReadable(p, err, name, attempt); err != nil {
		return Publication{}, failure("look up", err)
	}
	return p, nil
}

// foundReadable judges what a query for a set of readers gave.
func foundReadable(p Publication, err error, name, attempt string) error {
	switch {
	case errors.Is(err, sql.ErrNoRows) && attempt == "":
		return fmt.Errorf("%q: %w", name, ErrNone)
	case errors.Is(err, sql.ErrNoRows), err == nil && p.State == Running:
		return fmt.Errorf("%q, attempt %q: %w", name, attempt, ErrNone)
	case err == nil && p.State == Dropped:
		return fmt.Errorf("%q, attempt %s: %w", name, p.Attempt, ErrDropped)
	}
	return err
}

// History returns all attempts of name that the ledger knows, the latest first.
func (l *Ledger) History(ctx context.Context, name string) ([]Entry, error) {
	if err := store.CheckName(name); err != nil {
		return nil, err
	}
	var all []Entry
	err := l.each(ctx, func(s scanner) error {
		e, err := scanEntry(s)
		all = append(all, e)
		return err
	}, "SELECT "+entryColumns+entryTables+"WHERE a.name = $1 ORDER BY a.began_us DESC, a.attempt", name)
	if err != nil {
		return nil, failure("history", err)
	}
	return all, nil
}

// begin signs an attempt on, or goes on with an interrupted one of the same
// manifest and target.
func (l *Ledger) begin(ctx context.Context, name string, token fence.Token, target string, m Manifest) (Entry, error) {
	text, digest, err := m.encode()
	if err != nil {
		return Entry{}, err
	}
	nonce := nonce()
	var e Entry
	err = l.transact(ctx, "begin", func(t *tx) error {
		if err := t.guard(ctx, t.tx, name, token); err != nil {
			return err
		}
		var attempt string
		err := t.row(`SELECT attempt FROM {s}tenure_publication_attempt
			WHERE name = $1 AND digest = $2 AND target = $3 AND state = 'running' ORDER BY began_us DESC, attempt LIMIT 1{lock}`,
			name, digest, target).Scan(&attempt)
		switch {
		case err == nil:
			_, err = t.exec("UPDATE {s}tenure_publication_attempt SET token = $3, seen_us = {now} WHERE name = $1 AND attempt = $2",
				name, attempt, int64(token))
		case errors.Is(err, sql.ErrNoRows):
			attempt = token.String() + "-" + nonce
			_, err = t.exec(`INSERT INTO {s}tenure_publication_attempt (name, attempt, token, state, target, digest, manifest, files, bytes, began_us, seen_us)
				VALUES ($1, $2, $3, 'running', $4, $5, $6, $7, $8, {now}, {now})`,
				name, attempt, int64(token), target, digest, text, int64(len(m.Files)), m.Bytes())
		}
		if err != nil {
			return err
		}
		e, err = t.entry(name, attempt)
		return err
	})
	return e, err
}

// nonce returns what no other attempt or reader has.
func nonce() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // does not fail, by its documentation
	return hex.EncodeToString(b[:])
}

func (t *tx) entry(name, attempt string) (Entry, error) {
	return scanEntry(t.row("SELECT "+entryColumns+entryTables+"WHERE a.name = $1 AND a.attempt = $2", name, attempt))
}

// touch gives a sign of life of a running attempt. It returns *fence.StaleError
// if a later term has begun, or an error matching ErrDropped.
func (l *Ledger) touch(ctx context.Context, name, attempt string, token fence.Token) error {
	return l.transact(ctx, "sign of life", func(t *tx) error {
		n, err := t.exec(`UPDATE {s}tenure_publication_attempt SET seen_us = {now}
			WHERE name = $1 AND attempt = $2 AND state <> 'dropped'`, name, attempt)
		if err != nil {
			return err
		}
		var current fence.Token
		if err := t.row("SELECT coalesce(max(token), 0) FROM {s}tenure_lease WHERE name = $1", name).Scan(&current); err != nil {
			return err
		}
		if current > token {
			return &fence.StaleError{Resource: name, Token: token, Current: current}
		}
		if n == 0 {
			return fmt.Errorf("%q, attempt %s: %w", name, attempt, ErrDropped)
		}
		return nil
	})
}

// accept makes a running attempt what is published. The transaction is the
// guard's: it commits before the next term of name is granted, or not at all. To
// accept again under the same token changes nothing and tells what was accepted.
func (l *Ledger) accept(ctx context.Context, name, attempt string, token fence.Token) (Entry, error) {
	var e Entry
	err := l.transact(ctx, "accept", func(t *tx) error {
		if err := t.guard(ctx, t.tx, name, token); err != nil {
			return err
		}
		if err := t.durable(); err != nil {
			return err
		}
		var state State
		var began fence.Token
		err := t.row("SELECT state, token FROM {s}tenure_publication_attempt WHERE name = $1 AND attempt = $2{lock}", name, attempt).Scan(&state, &began)
		switch {
		case errors.Is(err, sql.ErrNoRows), err == nil && state == Dropped:
			return fmt.Errorf("%q, attempt %s: %w", name, attempt, ErrDropped)
		case err != nil:
			return err
		case state == Accepted && began == token:
			e, err = t.entry(name, attempt)
			return err
		case state == Accepted:
			return fmt.Errorf("%q, attempt %s: %w: token %s has published it", name, attempt, ErrDropped, began)
		}
		var seq int64
		err = t.row(`INSERT INTO {s}tenure_publication AS p (name, attempt, token, seq, accepted_us) VALUES ($1, $2, $3, 1, {now})
			ON CONFLICT (name) DO UPDATE SET attempt = excluded.attempt, token = excluded.token, seq = p.seq + 1, accepted_us = excluded.accepted_us
			RETURNING seq`, name, attempt, int64(token)).Scan(&seq)
		if err != nil {
			return err
		}
		if _, err := t.exec(`UPDATE {s}tenure_publication_attempt SET replaced_us = {now}
			WHERE name = $1 AND state = 'accepted' AND replaced_us = 0`, name); err != nil {
			return err
		}
		if _, err := t.exec(`UPDATE {s}tenure_publication_attempt SET state = 'accepted', token = $3, seq = $4, accepted_us = {now}, seen_us = {now}
			WHERE name = $1 AND attempt = $2`, name, attempt, int64(token), seq); err != nil {
			return err
		}
		e, err = t.entry(name, attempt)
		return err
	})
	return e, err
}

// drop gives up a running attempt, so that nobody goes on with it.
func (l *Ledger) drop(ctx context.Context, name, attempt string) error {
	return l.transact(ctx, "give up", func(t *tx) error {
		_, err := t.exec(`UPDATE {s}tenure_publication_attempt SET state = 'dropped', dropped_us = {now}, manifest = ''
			WHERE name = $1 AND attempt = $2 AND state = 'running'`, name, attempt)
		return err
	})
}

// note leaves or extends a reader's note on the set of an attempt ("" for the
// current one), and returns the set. It returns an error matching ErrNone or
// ErrDropped.
func (l *Ledger) note(ctx context.Context, name, attempt, reader string, ttl time.Duration) (Publication, error) {
	if err := store.CheckName(name); err != nil {
		return Publication{}, err
	}
	var p Publication
	err := l.transact(ctx, "leave a note", func(t *tx) error {
		wanted := attempt
		if wanted == "" {
			err := t.row("SELECT attempt FROM {s}tenure_publication WHERE name = $1", name).Scan(&wanted)
			if errors.Is(err, sql.ErrNoRows) {
				return fmt.Errorf("%q: %w", name, ErrNone)
			} else if err != nil {
				return err
			}
		}
		// A sweep locks this row before it looks for notes. The current set can have
		// been replaced since it was read, and dropped only if nothing retains it.
		var state State
		err := t.row("SELECT state FROM {s}tenure_publication_attempt WHERE name = $1 AND attempt = $2{share}", name, wanted).Scan(&state)
		if err == nil {
			p, err = scanPublication(t.row("SELECT "+entryColumns+", a.manifest"+entryTables+"WHERE a.name = $1 AND a.attempt = $2", name, wanted))
		}
		if err = foundReadable(p, err, name, wanted); err != nil {
			return err
		}
		_, err = t.exec(`INSERT INTO {s}tenure_publication_reader AS r (name, attempt, reader, expires_us) VALUES ($1, $2, $3, {now} + $4)
			ON CONFLICT (name, attempt, reader) DO UPDATE SET expires_us = excluded.expires_us`, name, wanted, reader, ttl.Microseconds())
		return err
	})
	return p, err
}

// forget takes a reader's note back.
func (l *Ledger) forget(ctx context.Context, name, attempt, reader string) error {
	return l.transact(ctx, "take the note back", func(t *tx) error {
		_, err := t.exec("DELETE FROM {s}tenure_publication_reader WHERE name = $1 AND attempt = $2 AND reader = $3", name, attempt, reader)
		return err
	})
}
