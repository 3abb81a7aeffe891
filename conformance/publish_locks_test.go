//go:build linux

package conformance_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenurehq/tenure/fence/publish"
	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/store"
)

// TestSweepBesideReader: a sweep that waits for the set of a reader has locked none
// of the reader's notes, or each would wait for the other.
func TestSweepBesideReader(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b := newPublishBed(t, pgtest.Database(t), t.TempDir())
	files := taggedFiles("x")
	m, err := publish.Scan(ctx, files, nil)
	if err != nil {
		t.Fatal(err)
	}
	to, err := openPublishTarget(ctx, b.target)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	var sets []publish.Publication
	for range 2 {
		token, err := b.grant(ctx, "report", 0)
		if err != nil {
			t.Fatal(err)
		}
		p, err := publish.Publish(ctx, b.ledger, to, "report", token, m, files, publish.Transfer{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		sets = append(sets, p)
		if err := b.store.Revoke(ctx, "report", token, store.Revocation{Why: "next", By: "test", Now: true}); err != nil {
			t.Fatal(err)
		}
	}
	pool, err := pgxpool.New(ctx, b.database)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	// A reader of the replaced set whose note has expired is about to extend it.
	if _, err := pool.Exec(ctx, "INSERT INTO tenure_publication_reader VALUES ('report', $1, 'reader', 1)", sets[0].Attempt); err != nil {
		t.Fatal(err)
	}
	reader, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := reader.Exec(ctx, "SELECT FROM tenure_publication_attempt WHERE attempt = $1 FOR SHARE", sets[0].Attempt); err != nil {
		t.Fatal(err)
	}
	swept := make(chan error, 1)
	var done publish.Swept
	go func() {
		var err error
		done, err = publish.Sweep(ctx, b.ledger, openPublishTarget, "report", publish.SweepOptions{})
		swept <- err
	}()
	for waits := 0; waits == 0; {
		err := pool.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&waits)
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := reader.Exec(ctx, "SET LOCAL lock_timeout = '500ms'"); err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Exec(ctx, "UPDATE tenure_publication_reader SET expires_us = 9e18::bigint WHERE reader = 'reader'"); err != nil {
		t.Errorf("the reader's note, while a sweep waits: %v", err)
	}
	if err := reader.Commit(ctx); err != nil {
		t.Error(err)
	}
	if err := <-swept; err != nil || len(done.Dropped) != 0 {
		t.Errorf("the sweep: got %+v, error %v, want the set in use kept", done.Dropped, err)
	}
}
