package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"
)

// maxReaders is how many connections read at a time: as many as a pool keeps
// idle unless it is told otherwise, so that none is opened for each read.
const maxReaders = 2

// reader reads outside transactions, by statements that are prepared once for
// each connection.
type reader struct {
	db   *sql.DB
	free chan struct{} // holds one value for each read that goes on

	mu         sync.Mutex
	statements map[string]*sql.Stmt
}

func newReader(db *sql.DB) *reader {
	return &reader{db: db, free: make(chan struct{}, maxReaders), statements: map[string]*sql.Stmt{}}
}

// QueryContext runs a query of this package.
func (r *reader) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	st, err := r.prepare(ctx, query)
	if err != nil {
		return nil, err
	}
	return st.QueryContext(ctx, args...)
}

func (r *reader) prepare(ctx context.Context, query string) (*sql.Stmt, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if st := r.statements[query]; st != nil {
		return st, nil
	}
	st, err := r.db.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	r.statements[query] = st
	return st, nil
}

func (r *reader) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	for _, st := range r.statements {
		err = errors.Join(err, st.Close())
	}
	clear(r.statements)
	return err
}

// read runs a query on one of few connections, again and again while the file
// is busy (a checkpoint or a recovery by another process) and ctx has time left.
func (s *Store) read(ctx context.Context, doing string, query func() error) error {
	select {
	case s.reader.free <- struct{}{}:
		defer func() { <-s.reader.free }()
	case <-ctx.Done():
		return fmt.Errorf("sqlite: %s: %w", doing, ctx.Err())
	}
	pause := time.Millisecond
	for {
		err := query()
		if s.file.lost() {
			err = errGoneRead
		}
		if err == nil || !isBusy(err) {
			return s.classify(doing, err)
		}
		select {
		case <-ctx.Done():
			return s.classify(doing, err)
		case <-time.After(pause):
			pause = min(2*pause, 25*time.Millisecond)
		}
	}
}
