package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/store"
)

// MinTTL is the shortest TTL that is granted: several commits on a slow disk.
const MinTTL = 50 * time.Millisecond

// Config holds what may be chosen. The zero Config is ready for use.
type Config struct {
	// Host says on which machine, and by which clock, the store runs. Fields
	// that are empty are taken from ThisHost. Set Host.ID where the system's
	// machine id is missing or not its own, as in many containers.
	Host Host

	// History is how many terms of a name are kept for History whatever their age.
	// Others are dropped when a new term starts, once they ended 30 days ago, or are
	// beyond the newest 10,000. Default 100, at most 10,000. Each costs about 150
	// bytes.
	History int
}

// Store is a store.Store in a SQLite file. It is safe for concurrent use, also
// by several processes of one host. Make one with New.
type Store struct {
	db      *sql.DB
	path    string // of the database file, absolute
	host    Host
	history int
	origin  time.Time   // what the clock's zero is shown as
	ready   atomic.Bool // the tables were found as expected and this host's
	reader  *reader
	file    identity
	writer  writer
	waker   waker
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Watcher   = (*Store)(nil)
	_ store.Historian = (*Store)(nil)
	_ store.Slotter   = (*Store)(nil)
	_ store.Cleaner   = (*Store)(nil)
	_ store.Doctor    = (*Store)(nil)
)

// New returns a store in the database that db opens. It starts nothing, changes
// nothing and never closes db. It reads where the file lies, and refuses one
// that several processes of this host cannot share safely, or a pool of one
// connection, with an error matching store.ErrUnsupported, and a bad Config with
// store.ErrInvalid.
func New(db *sql.DB, cfg Config) (*Store, error) {
	if cfg.History < 0 || cfg.History > 10_000 {
		return nil, &store.InvalidError{Field: "history", Value: fmt.Sprint(cfg.History), Rule: "from 0 (the default, 100) to 10000"}
	}
	if cfg.History == 0 {
		cfg.History = 100
	}
	if db.Stats().MaxOpenConnections == 1 {
		return nil, fmt.Errorf("sqlite: %w: the pool allows one connection and the store keeps one for writing: allow two or more (SetMaxOpenConns)", store.ErrUnsupported)
	}
	host, err := cfg.Host.complete()
	if err != nil {
		return nil, err
	}
	path, err := databaseFile(db)
	if err != nil {
		return nil, err
	}
	if name, shared := FileSystem(path); shared {
		return nil, fmt.Errorf("sqlite: %w: %q lies on a %s file system, where SQLite's locks cannot be relied on: use a local disk, or Postgres", store.ErrUnsupported, path, name)
	}
	if how := otherNames(path); how != "" {
		return nil, fmt.Errorf("sqlite: %w: %q %s: who opens it by another name has another WAL, and neither sees what the other holds: use one name, and mount its directory rather than the file", store.ErrUnsupported, path, how)
	}
	s := &Store{
		db: db, path: path, host: host, history: cfg.History,
		reader: newReader(db),
		origin: host.Wall().UTC().Round(0).Add(-host.Boot()),
	}
	s.writer.store = s
	s.file = identity{path: path, inode: fileIdentity(path)} // the one that db has just opened
	s.waker.store = s
	return s, nil
}

func databaseFile(db *sql.DB) (string, error) {
	var seq int
	var name string
	var path sql.NullString
	if err := db.QueryRowContext(context.Background(), "PRAGMA database_list").Scan(&seq, &name, &path); err != nil {
		return "", classify("open", err)
	}
	if path.String == "" {
		return "", fmt.Errorf("sqlite: %w: a database in memory has no other process to share with: use a file, or package store/memory", store.ErrUnsupported)
	}
	return path.String, nil
}

// Lost returns nil while the file at Path is the one that the store was made on,
// and otherwise an error matching store.ErrUnavailable, ever after: what is written
// to a file that was removed or replaced is lost. Whoever keeps tables of his own in
// the file asks in each transaction, after it has begun.
func (s *Store) Lost() error {
	if s.file.lost() {
		return fmt.Errorf("sqlite: %w", errGoneRead)
	}
	return nil
}

// Close ends all watches and gives the write connection back. Writes that wait
// for the file answer an error matching store.ErrUnavailable. It leaves db open.
func (s *Store) Close() error {
	s.waker.close()
	return errors.Join(s.writer.close(), s.reader.close())
}

// Path returns the file of the database.
func (s *Store) Path() string { return s.path }

// Features implements store.Store.
func (s *Store) Features() store.Features {
	return store.Features{
		Backend:      "sqlite",
		Clock:        store.ClockHost,
		MinTTL:       MinTTL,
		Granularity:  clockGranularity,
		BatchRenew:   true,
		Watch:        canWatch,
		JoinedFence:  true,
		Reach:        "one host",
		TokensReset:  "deleting the file, or restoring an older copy of it, unless the floor is raised before use",
		LosesWrites:  "a disk that acknowledges a sync it has not done, and then loses power",
		ClockCaution: clockCaution,
	}
}

// ModerncDSN returns the data source name for path with the driver
// modernc.org/sqlite (sql.Open("sqlite", …)): WAL, synchronous FULL, write
// locks taken at BEGIN, and a short wait when the file is busy, which the store
// repeats until the caller's context ends.
func ModerncDSN(path string) string {
	return fileURI(path) + "?_pragma=busy_timeout(200)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=fullfsync(1)&_txlock=immediate"
}

// MattnDSN returns the same for the driver github.com/mattn/go-sqlite3
// (sql.Open("sqlite3", …)).
func MattnDSN(path string) string {
	return fileURI(path) + "?_busy_timeout=200&_journal_mode=WAL&_synchronous=FULL&_txlock=immediate"
}

func fileURI(path string) string {
	return "file:" + strings.ReplaceAll((&url.URL{Path: path}).EscapedPath(), "?", "%3F")
}

// check is the first step of each operation that reads: it looks once that the
// tables are there, of this version, and of this host.
func (s *Store) check(ctx context.Context) error {
	if s.ready.Load() {
		return nil
	}
	var m meta
	err := s.read(ctx, "read the schema version", func() (err error) {
		m, err = readMeta(ctx, s.reader)
		return err
	})
	if err != nil {
		return err
	}
	if err := s.judgeMeta(m); err != nil {
		return err
	}
	s.ready.Store(true)
	return nil
}

// now reads the clock. What is shown moves with what decides, from the wall
// clock at New on: a step of the wall clock is no step of the store's clock.
func (s *Store) now() instant {
	boot := s.host.Boot()
	return instant{wall: s.origin.Add(boot), boot: int64(boot)}
}
