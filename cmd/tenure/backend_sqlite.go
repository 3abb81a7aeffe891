package main

import (
	"context"
	"database/sql"
	"fmt"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/tenurehq/tenure/store/sqlite"
)

// connectSQLite opens the file at path, which need not exist yet.
func connectSQLite(_ context.Context, path string) (backend, closeFunc, error) {
	db, err := sql.Open("sqlite", sqlite.ModerncDSN(path))
	if err != nil {
		return nil, nil, fmt.Errorf("open: %w", err)
	}
	st, err := sqlite.New(db, sqlite.Config{})
	if err != nil {
		db.Close()
		return nil, nil, err
	}
	return st, func() {
		_ = st.Close() // the answers were given; what was acknowledged is synced
		db.Close()
	}, nil
}
