package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"strconv"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// migrations make the tables, one version a step. A step that was released is
// never changed; a new one is added.
var migrations = []string{
	`
CREATE TABLE tenure_lease (
	name         TEXT PRIMARY KEY,
	token        INTEGER NOT NULL,  -- 0: no term yet
	floor        INTEGER NOT NULL,  -- the next token is larger than this too
	revision     INTEGER NOT NULL,  -- counts writes
	attempt      TEXT NOT NULL,     -- of the holder's last write
	domain       TEXT NOT NULL,     -- of the columns in _ns: which boot of which kernel
	ttl_ns       INTEGER NOT NULL,
	expires_ns   INTEGER NOT NULL,  -- boot clock
	renewed_us   INTEGER NOT NULL,
	acquired_us  INTEGER NOT NULL,
	ended_us     INTEGER NOT NULL,  -- 0: not released
	hold_ns      INTEGER NOT NULL,  -- end of the min-hold, 0: none
	hold_us      INTEGER NOT NULL,
	reserved_ns  INTEGER NOT NULL,  -- end of the reservation, 0: none
	reserved_us  INTEGER NOT NULL,
	reserved_for TEXT NOT NULL,
	handoff_to   TEXT NOT NULL,     -- of the revocation: who gets the reservation
	revoked      INTEGER NOT NULL,
	why          TEXT NOT NULL,
	revoked_by   TEXT NOT NULL,
	holder       TEXT NOT NULL,
	meta         TEXT NOT NULL,     -- JSON, '' for none
	UNIQUE (name, token)
) STRICT, WITHOUT ROWID;

-- A row says that a term of another domain has been watched since until_ns
-- minus its TTL, by the boot clock of domain, and was not written by its holder.
CREATE TABLE tenure_observed (
	name     TEXT NOT NULL,
	domain   TEXT NOT NULL,
	attempt  TEXT NOT NULL,  -- of the lease when it was first seen
	until_ns INTEGER NOT NULL,
	PRIMARY KEY (name, domain)
) STRICT, WITHOUT ROWID;

CREATE TABLE tenure_term (
	name        TEXT NOT NULL,
	token       INTEGER NOT NULL,
	holder      TEXT NOT NULL,
	acquired_at TEXT NOT NULL,
	ended_at    TEXT NOT NULL,  -- '' until the end was written
	end         TEXT NOT NULL,  -- '', released, expired, revoked, replaced
	why         TEXT NOT NULL,
	PRIMARY KEY (name, token)
) STRICT, WITHOUT ROWID;

CREATE TABLE tenure_slot (
	name    TEXT NOT NULL,
	slot    TEXT NOT NULL,
	token   INTEGER NOT NULL,
	holder  TEXT NOT NULL,
	done_at TEXT NOT NULL,
	PRIMARY KEY (name, slot)
) STRICT, WITHOUT ROWID;

CREATE VIEW tenure_leases AS SELECT
	name, token, holder,
	CASE WHEN token = 0 THEN 'unheld' WHEN ended_us <> 0 THEN 'released' WHEN revoked THEN 'revoked' ELSE 'open' END AS state,
	strftime('%Y-%m-%dT%H:%M:%fZ', acquired_us / 1e6, 'unixepoch') AS acquired_at,
	strftime('%Y-%m-%dT%H:%M:%fZ', renewed_us / 1e6, 'unixepoch') AS renewed_at,
	strftime('%Y-%m-%dT%H:%M:%fZ', renewed_us / 1e6 + ttl_ns / 1e9, 'unixepoch') AS expires_at,
	CASE WHEN ended_us <> 0 THEN strftime('%Y-%m-%dT%H:%M:%fZ', ended_us / 1e6, 'unixepoch') END AS ended_at,
	ttl_ns / 1e9 AS ttl_s, floor, why, revoked_by, meta
FROM tenure_lease ORDER BY name;
`,
}

// columns are what Check wants to find.
var columns = map[string]string{
	"tenure_lease":    leaseColumns,
	"tenure_observed": "name, domain, attempt, until_ns",
	"tenure_term":     "name, token, holder, acquired_at, ended_at, end, why",
	"tenure_slot":     "name, slot, token, holder, done_at",
}

// meta is the content of tenure_meta: "schema" (version), "host" (machine id),
// "domain" (the last one written in), "inode" (of the file when it was made or
// adopted) and "floor" (of names without a record).
type meta map[string]string

type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func readMeta(ctx context.Context, q querier) (meta, error) {
	rows, err := q.QueryContext(ctx, "SELECT key, value FROM tenure_meta")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	m := meta{}
	for rows.Next() {
		var key, value string
		if err := rows.Scan(&key, &value); err != nil {
			return nil, err
		}
		m[key] = value
	}
	return m, rows.Err()
}

// judgeMeta refuses tables of another version and a file of another host.
func (s *Store) judgeMeta(m meta) error {
	if err := s.judgeSchema(m); err != nil {
		return err
	}
	if s.copied(m) {
		return fmt.Errorf("sqlite: %w: %q was last used by the host with machine id %q and this is %q: if it is to be used here and no longer there, adopt it by raising the floor of all names (tenure lease raise-floor)", store.ErrCopied, s.path, m["host"], s.host.ID)
	}
	return nil
}

func (s *Store) judgeSchema(m meta) error {
	version := m["schema"]
	if version == strconv.Itoa(len(migrations)) {
		return nil
	}
	next := "run: tenure migrate"
	if n, err := strconv.Atoi(version); err == nil && n > len(migrations) {
		next = "use a newer tenure"
	}
	return fmt.Errorf("sqlite: %w: the tables in %q are of version %q, this program needs %d: %s", store.ErrSchema, s.path, version, len(migrations), next)
}

func (s *Store) copied(m meta) bool {
	return m["host"] != "" && s.host.ID != "" && m["host"] != s.host.ID && !sameBoot(m["domain"], s.host.Domain)
}

// id returns the machine id to keep in the file: one that is known is not
// forgotten because a process without one comes by, nor replaced while
// containers with ids of their own share a boot.
func (h Host) id(m meta) string {
	if h.ID == "" || m["host"] != "" && sameBoot(m["domain"], h.Domain) {
		return m["host"]
	}
	return h.ID
}

// Migrate makes the tables or brings them to this version, in one transaction.
// It may run in several processes at once, and again. Besides the errors of any
// write it returns one matching store.ErrSchema if the tables are newer than
// this program. The database must be in WAL mode already.
func (s *Store) Migrate(ctx context.Context) error {
	var refused error
	err := s.write(ctx, "migrate", true, func(tx *transaction) error {
		refused = nil
		if err := tx.exec("CREATE TABLE IF NOT EXISTS tenure_meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID"); err != nil {
			return err
		}
		m, err := readMeta(context.Background(), tx)
		if err != nil {
			return err
		}
		have, _ := strconv.Atoi(m["schema"])
		if have >= len(migrations) || s.copied(m) {
			refused = s.judgeMeta(m)
			return nil
		}
		for _, step := range migrations[have:] {
			if _, err := tx.w.conn.ExecContext(context.Background(), step); err != nil {
				return err
			}
		}
		set := map[string]string{"schema": strconv.Itoa(len(migrations))}
		if have == 0 {
			maps.Copy(set, map[string]string{"host": s.host.ID, "domain": s.host.Domain, "inode": fileIdentity(s.path), "floor": "0"})
		}
		return tx.setMeta(set)
	})
	if err != nil {
		return err
	}
	return refused
}

// Check returns nil if the store can be used: WAL, synchronous, the tables, their
// version and this host. It changes nothing. The error names the next step and
// matches store.ErrSchema, store.ErrCopied or what the database answered.
func (s *Store) Check(ctx context.Context) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return s.classify("check", err)
	}
	defer conn.Close()
	if err := checkConnection(ctx, conn); err != nil {
		return s.classify("check", err)
	}
	m, err := readMeta(ctx, conn)
	if err != nil {
		return s.classify("check", err)
	}
	if err := s.judgeMeta(m); err != nil {
		return err
	}
	for table, names := range columns {
		rows, err := conn.QueryContext(ctx, "SELECT "+names+" FROM "+table+" LIMIT 0")
		if err != nil {
			return s.classify("check", err)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return s.classify("check", err)
		}
	}
	return nil
}

// adoptionGap is how many tokens Adopt leaves for terms that may have been
// granted elsewhere since the copy was made: one a second for 31 years.
const adoptionGap = 1_000_000_000

// Adopt makes this host the one that uses the file: it raises the floor of all
// names by a thousand million above the largest token, so that no token granted
// elsewhere since the copy was made comes again, which ends every open term as
// if revoked, and it begins to watch the open terms. The caller must have seen
// to it that nobody uses the original any more. It can be called at any time,
// also after a restore from a backup.
func (s *Store) Adopt(ctx context.Context) error {
	return s.raiseAll(ctx, "adopt", func(largest int64) (int64, error) {
		floor := largest + adoptionGap
		return floor, store.CheckFloor("", fence.Token(floor))
	})
}

// raiseAll raises every floor to what choose answers for the largest token in
// the file. Since it is the explicit decision to go on with a copied file, it is
// made on one too, if the floor lies above every token in it.
func (s *Store) raiseAll(ctx context.Context, doing string, choose func(largest int64) (int64, error)) error {
	var refused error
	err := s.write(ctx, doing, true, func(tx *transaction) error {
		m, err := readMeta(context.Background(), tx)
		if err != nil {
			return err
		}
		var largest int64
		err = scanOne(tx, "SELECT coalesce(max(max(token, floor)), 0) FROM tenure_lease", &largest)
		if err != nil {
			return err
		}
		if refused = s.judgeSchema(m); refused != nil {
			return nil
		}
		largest = max(largest, m.floor())
		floor, err := choose(largest)
		copied := s.copied(m)
		if refused = err; refused == nil && copied && floor <= largest {
			refused = fmt.Errorf("%w (to a floor above %d, the largest token in it)", s.judgeMeta(m), largest)
		}
		if refused != nil {
			return nil
		}
		rows, err := s.loadRows(context.Background(), tx, selectLeases)
		if err != nil {
			return err
		}
		for _, r := range rows {
			if err := s.raise(tx, r, floor); err != nil {
				return err
			}
		}
		if floor > m.floor() {
			if err := tx.setMeta(map[string]string{"floor": strconv.FormatInt(floor, 10)}); err != nil {
				return err
			}
		}
		if !copied && doing != "adopt" {
			return nil
		}
		if err := tx.exec(watchAll, s.host.Domain, s.now().boot); err != nil {
			return err
		}
		return tx.setMeta(map[string]string{"host": s.host.ID, "domain": s.host.Domain, "inode": fileIdentity(s.path)})
	})
	if err != nil {
		return err
	}
	return refused
}

// scanOne reads the one value that query answers.
func scanOne(tx *transaction, query string, into any, args ...any) error {
	rows, err := tx.query(query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	if rows.Next() {
		if err := rows.Scan(into); err != nil {
			return err
		}
	}
	return rows.Err()
}
