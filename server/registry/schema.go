package registry

import (
	"cmp"
	"context"
	"embed"
	"fmt"
	"io/fs"
	"time"

	"github.com/tenurehq/tenure/store"
)

// The migrations are plain files that are applied in order, each once, like those
// of the lease stores. One that was released is never changed.
//
//go:embed migrations
var migrations embed.FS

// Version is the version of the tables that this package needs.
const Version = 4

// Migrate makes the tables and views or brings them to this package's version,
// in one transaction. The lease tables must be there. It returns an error
// matching store.ErrSchema if they are not, or if the fleet's are of a later
// version.
func (r *Registry) Migrate(ctx context.Context) error {
	return r.transact(ctx, "migrate", migrating, func(t *tx) (bool, error) {
		if found, err := t.hasTable("tenure_lease"); err != nil {
			return false, err
		} else if !found {
			return false, fmt.Errorf("%w: the lease tables are not there: run the lease store's Migrate first", store.ErrSchema)
		}
		found, err := t.hasTable("fleet_schema")
		if err != nil {
			return false, err
		}
		if !found {
			if _, err := t.exec("CREATE TABLE {s}fleet_schema (version INTEGER PRIMARY KEY)"); err != nil {
				return false, err
			}
		}
		present, err := t.version()
		if err != nil {
			return false, err
		}
		if present > Version {
			return false, t.tooNew(present)
		}
		files, err := fs.Glob(migrations, "migrations/"+string(t.name)+"/*.sql") // sorted, and numbered from 1
		if err != nil {
			return false, err
		}
		for i, file := range files[present:] {
			text, err := migrations.ReadFile(file)
			if err != nil {
				return false, err
			}
			if _, err := t.conn.ExecContext(t.ctx, t.migration(string(text))); err != nil {
				return false, fmt.Errorf("%s: %w", file, err)
			}
			if _, err := t.exec("INSERT INTO {s}fleet_schema (version) VALUES ($1)", int64(present+i+1)); err != nil {
				return false, err
			}
		}
		return true, nil
	})
}

func (t *tx) hasTable(name string) (bool, error) {
	var n int
	var err error
	if t.name == Postgres {
		err = t.row("SELECT count(*) FROM pg_tables WHERE schemaname = $1 AND tablename = $2", t.schema, name).Scan(&n)
	} else {
		err = t.row("SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = $1", name).Scan(&n)
	}
	return n > 0, err
}

func (t *tx) version() (version int, err error) {
	err = t.row("SELECT coalesce(max(version), 0) FROM {s}fleet_schema").Scan(&version)
	return version, err
}

func (t *tx) tooNew(present int) error {
	return fmt.Errorf("%w: the fleet's tables are of version %d, this program knows %d: use a newer program", store.ErrSchema, present, Version)
}

// readColumns are statements that read nothing from what Check wants to find.
var readColumns = []string{
	"SELECT " + nodeColumns + " FROM " + nodeTables + " LIMIT 0",
	"SELECT replaced, capacity, intent_state, ready, lapse_token, changed FROM {s}fleet_node LIMIT 0",
	"SELECT " + workColumns + ", resources, stuck_after_us, lease_token FROM {s}fleet_work w LIMIT 0",
	"SELECT " + eventColumns + " FROM {s}fleet_event LIMIT 0",
	"SELECT " + takenColumns + " FROM {s}fleet_takeover LIMIT 0",
	"SELECT seq, domain, what, actor, reason, at_us FROM {s}fleet_brake_order LIMIT 0",
	"SELECT suspect_us, brake, brake_us, pruned FROM {s}fleet_single LIMIT 0",
	"SELECT token FROM {s}fleet_floor LIMIT 0",
}

// ErrNoFleet reports a database that has no fleet's tables. It matches store.ErrSchema.
var ErrNoFleet = fmt.Errorf("%w: no fleet here yet: run: tenure migrate", store.ErrSchema)

// Check reports whether the tables are as this package needs them, with an error
// matching store.ErrSchema that names the next step: ErrNoFleet if there are none. It
// changes nothing.
func (r *Registry) Check(ctx context.Context) error {
	return r.read(ctx, "check", func(t *tx) error {
		if found, err := t.hasTable("fleet_schema"); err != nil || !found {
			return cmp.Or(err, ErrNoFleet)
		}
		present, err := t.version()
		if err != nil {
			return err
		}
		if present > Version {
			return t.tooNew(present)
		}
		if present < Version {
			return fmt.Errorf("%w: the fleet's tables are of version %d, this program needs %d: run: tenure migrate", store.ErrSchema, present, Version)
		}
		for _, statement := range readColumns {
			if err := t.each(func(scanner) error { return nil }, statement); err != nil {
				return err
			}
		}
		return nil
	})
}

// SetSuspect tells the view tenure_nodes after which silence a node counts as
// stale there; 30 s until then. Nothing else reads it.
func (r *Registry) SetSuspect(ctx context.Context, after time.Duration) error {
	return r.transact(ctx, "set the suspect time", writing, func(t *tx) (bool, error) {
		_, err := t.exec("UPDATE {s}fleet_single SET suspect_us = $1 WHERE suspect_us <> $1", after.Microseconds())
		return true, err
	})
}
