package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store/sqlite"
)

// sqliteConns is how many connections to the file a process keeps. Opening one costs
// more than most statements do, and more at once than processors wait for each other.
const sqliteConns = 8

// sqliteBackend is a SQLite file with the leases and, if it has them, the fleet.
type sqliteBackend struct {
	*sqlite.Store
	db *sql.DB
}

// Fleet implements fleetBackend.
func (b *sqliteBackend) Fleet() (*registry.Registry, error) {
	host, err := sqlite.ThisHost()
	if err != nil {
		return nil, err
	}
	return registry.New(b.db, registry.Config{
		Dialect: registry.SQLite, Clock: registry.Clock{Domain: host.Domain, Boot: host.Boot, Wall: host.Wall}, Lost: b.Lost,
	})
}

// connectSQLite opens the file at path, which need not exist yet.
func connectSQLite(_ context.Context, path string) (backend, closeFunc, error) {
	db, err := sql.Open("sqlite", sqlite.ModerncDSN(path))
	if err != nil {
		return nil, nil, fmt.Errorf("open: %w", err)
	}
	db.SetMaxOpenConns(sqliteConns)
	db.SetMaxIdleConns(sqliteConns)
	st, err := sqlite.New(db, sqlite.Config{})
	if err != nil {
		db.Close()
		return nil, nil, err
	}
	return &sqliteBackend{st, db}, func() {
		_ = st.Close() // the answers were given; what was acknowledged is synced
		db.Close()
	}, nil
}

// unwritable says why this user cannot write the SQLite file at path, whose log
// SQLite keeps beside it, and what to do; "" if not for a cause that shows in the
// file system. readOnly: nobody can, as it is mounted.
func unwritable(path string) (why string, readOnly bool) {
	for _, at := range []struct{ what, path string }{{"the file", path}, {"the directory " + filepath.Dir(path), filepath.Dir(path)}} {
		switch err := unix.Access(at.path, unix.W_OK); {
		case errors.Is(err, unix.EROFS):
			return "is on a read-only file system: mount that writable, or name a file elsewhere with --store", true
		case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
			return "this user may not write " + at.what + ": SQLite needs to write the file and its directory; allow both, or name another file with --store", false
		}
	}
	return "", false
}
