package main

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/tenurehq/tenure/server"
	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store/postgres"
)

// leastConns is how many connections the pool of one process may grow to if the
// URL does not say (pool_max_conns): enough for a server, which uses several at
// once whatever the number of processors.
const leastConns = 16

// postgresBackend is a Postgres database with the leases and, if it has them,
// the fleet.
type postgresBackend struct {
	*postgres.Store
	db *sql.DB // over the same pool
}

// Fleet implements fleetBackend.
func (b *postgresBackend) Fleet() (*registry.Registry, error) {
	return registry.New(b.db, registry.Config{Dialect: registry.Postgres})
}

// refusals reads the guarded tables of applications, for the metrics of a server.
func (b *postgresBackend) refusals(ctx context.Context) ([]server.TableRefusals, error) {
	guarded, err := b.Guarded(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]server.TableRefusals, len(guarded))
	for i, g := range guarded {
		all[i] = server.TableRefusals{Table: g.Table, Guarding: g.Enabled, Refused: g.Refused}
	}
	return all, nil
}

// connectPostgres prepares connections to the server at url. None is made
// before the first request.
func connectPostgres(ctx context.Context, url string) (backend, closeFunc, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, nil, badStore("store URL: %w", err)
	}
	if cfg.ConnConfig.Database == "" {
		return nil, nil, badStore("store %s: names no database, and the user's name is not taken for one: write postgres://USER@HOST/NAME", location{kind: kindPostgres, target: url})
	}
	if !strings.Contains(url, "pool_max_conns") {
		cfg.MaxConns = max(cfg.MaxConns, leastConns)
	}
	cfg.ConnConfig.RuntimeParams["application_name"] = "tenure"
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("connect: %w", err)
	}
	st, err := postgres.New(pool, postgres.Config{})
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	db := stdlib.OpenDBFromPool(pool)
	return &postgresBackend{st, db}, func() { st.Close(); db.Close(); closePool(pool) }, nil
}

// closePool ends the connections of pool, but waits only shortly for a server
// that does not answer: pgx gives each connection 15 s to be closed in order.
func closePool(pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() {
		pool.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(time.Second):
	}
}
