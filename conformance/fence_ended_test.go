//go:build linux

package conformance_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/sqlite"
)

// TestInGuardOfAnEndedTerm: a term that was released or revoked is refused before
// the next one is granted.
func TestInGuardOfAnEndedTerm(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "leases.db")
	st := migrated(t, path, sqlite.Config{})
	db := openSQLite(t, path)
	for name, end := range map[string]func(rec store.Record){
		"released": func(rec store.Record) { release(t, st, rec) },
		"revoked": func(rec store.Record) {
			if err := st.Revoke(t.Context(), rec.Name, rec.Token, store.Revocation{Why: "test"}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		rec := acquire(t, st, job(name, "a"))
		end(rec)
		err := sqlite.InGuard(t.Context(), db, name, rec.Token, time.Minute, func(context.Context, *sql.Tx) error { return nil })
		if stale, ok := errors.AsType[*fence.StaleError](err); !ok || stale.Current != 0 {
			t.Errorf("%s: got %v, want a stale token without a next one", name, err)
		}
	}
}
