package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/store/postgres"
)

// server is a PostgreSQL server of this run.
type server struct {
	pg        *pgtest.Server
	admin     *pgxpool.Pool // on a database in which nothing is measured
	process   int           // the postmaster's pid
	databases atomic.Int64
}

// starting keeps the list of servers right while parts run together.
var starting sync.Mutex

// serve starts a server with the defaults of initdb, but for the given settings.
func (b *bench) serve(ctx context.Context, settings ...string) (*server, error) {
	pg, err := pgtest.New(pgtest.Options{Settings: append([]string{"max_connections=400"}, settings...)})
	if err != nil {
		return nil, err
	}
	s := &server{pg: pg}
	starting.Lock()
	b.servers = append(b.servers, s)
	starting.Unlock()
	if s.admin, err = pgxpool.New(ctx, s.url("postgres")); err != nil {
		return nil, err
	}
	var data string
	if err := s.admin.QueryRow(ctx, "SHOW data_directory").Scan(&data); err != nil {
		return nil, err
	}
	lock, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return nil, err
	}
	first, _, _ := strings.Cut(string(lock), "\n")
	s.process, err = strconv.Atoi(first)
	return s, err
}

func (s *server) close() {
	if s.admin != nil {
		s.admin.Close()
	}
	s.pg.Stop()
}

func (s *server) url(database string) string {
	return "postgres://postgres@" + s.pg.Addr() + "/" + database + "?sslmode=disable"
}

// database makes an empty database and returns its name.
func (s *server) database(ctx context.Context) (string, error) {
	name := fmt.Sprintf("b%d", s.databases.Add(1))
	_, err := s.admin.Exec(ctx, "CREATE DATABASE "+name)
	return name, err
}

// leases makes a database with tenure's tables and returns its name.
func (s *server) leases(ctx context.Context) (string, error) {
	name, err := s.database(ctx)
	if err != nil {
		return "", err
	}
	st, err := openPostgres(ctx, s.url(name), nil)
	if err != nil {
		return "", err
	}
	defer st.close()
	return name, st.Migrate(ctx)
}

// settings describes the server for the document.
func (s *server) settings(ctx context.Context) (string, error) {
	var b strings.Builder
	for _, name := range []string{"fsync", "synchronous_commit", "full_page_writes", "wal_sync_method", "shared_buffers", "max_wal_size", "autovacuum", "max_connections"} {
		var value string
		if err := s.admin.QueryRow(ctx, "SELECT current_setting($1)", name).Scan(&value); err != nil {
			return "", err
		}
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s %s", name, value)
	}
	return b.String(), nil
}

// version is the server's.
func (s *server) version(ctx context.Context) (version string, err error) {
	err = s.admin.QueryRow(ctx, "SHOW server_version").Scan(&version)
	return version, err
}

// activity is what a server counted for one database.
type activity struct {
	commits int64 // transactions
	updated int64 // rows
}

// activity is asked for in another database, so that asking is not counted.
func (s *server) activity(ctx context.Context, database string) (a activity, err error) {
	err = s.admin.QueryRow(ctx, "SELECT xact_commit + xact_rollback, tup_updated + tup_inserted + tup_deleted FROM pg_stat_database WHERE datname = $1", database).
		Scan(&a.commits, &a.updated)
	return a, err
}

// wal is how much of the log was ever inserted, in bytes.
func (s *server) wal(ctx context.Context) (position int64, err error) {
	err = s.admin.QueryRow(ctx, "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").Scan(&position)
	return position, err
}

// tick is the unit of /proc/PID/stat: USER_HZ is 100 on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// cpu is what all of the server's processes have used, those that have ended
// included: backends, WAL writer, checkpointer, autovacuum.
func (s *server) cpu() (time.Duration, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	var ticks int64
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue // it has ended since
		}
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:])) // a name may hold spaces
		const parent, user, system, endedUser, endedSystem = 1, 11, 12, 13, 14
		if len(f) <= endedSystem {
			continue
		}
		number := func(i int) int64 { n, _ := strconv.ParseInt(f[i], 10, 64); return n } // the kernel writes numbers
		switch {
		case pid == s.process:
			ticks += number(user) + number(system) + number(endedUser) + number(endedSystem)
		case number(parent) == int64(s.process):
			ticks += number(user) + number(system)
		}
	}
	return time.Duration(ticks) * tick, nil
}

// leaseStore is a store with the pool that it was made on.
type leaseStore struct {
	*postgres.Store
	pool *pgxpool.Pool
}

// openPostgres returns a store on a pool of its own, which dials by dial unless that is nil.
func openPostgres(ctx context.Context, url string, dial pgconn.DialFunc) (*leaseStore, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 2 // there are many stores
	if dial != nil {
		cfg.ConnConfig.DialFunc = dial
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	st, err := postgres.New(pool, postgres.Config{})
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &leaseStore{Store: st, pool: pool}, nil
}

func (s *leaseStore) close() {
	s.Close()
	s.pool.Close()
}
