package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenurehq/tenure/store/postgres"
)

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
	return st, func() { st.Close(); closePool(pool) }, nil
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
