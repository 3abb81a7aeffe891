//go:build linux

package conformance_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/store/sqlite"
)

const (
	actEvery   = 5 * time.Millisecond
	writeEvery = 50 * time.Millisecond
)

// guardTable is the table that work of the fleet writes to. Each write that was made leaves a row of guard_log, in order.
type guardTable struct {
	Driver, DSN string
}

func sqliteGuard(path string) guardTable { return guardTable{"sqlite", sqlite.ModerncDSN(path)} }

func (g guardTable) open() (*sql.DB, error) {
	db, err := sql.Open(g.Driver, g.DSN)
	if err == nil {
		db.SetMaxOpenConns(2)
	}
	return db, err
}

func (g guardTable) create(ctx context.Context, db *sql.DB) error {
	serial := "INTEGER PRIMARY KEY AUTOINCREMENT"
	if g.Driver == "pgx" {
		serial = "bigserial PRIMARY KEY"
	}
	for _, statement := range []string{
		"CREATE TABLE guard (item TEXT PRIMARY KEY, token BIGINT NOT NULL, value BIGINT NOT NULL)",
		"CREATE TABLE guard_log (seq " + serial + ", item TEXT NOT NULL, token BIGINT NOT NULL, pid BIGINT NOT NULL)",
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// write adds one to an item's value if no later owner has written, and returns how
// many rows it changed. Without the fence it is what anybody might write.
func (g guardTable) write(ctx context.Context, db *sql.DB, item string, token fence.Token, fenced bool) (rows int, err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	begin := "BEGIN"
	if g.Driver == "sqlite" {
		begin = "BEGIN IMMEDIATE"
	}
	if _, err := conn.ExecContext(ctx, begin); err != nil {
		return 0, err
	}
	defer func() {
		end := "COMMIT"
		if err != nil {
			end = "ROLLBACK"
		}
		_, endErr := conn.ExecContext(context.WithoutCancel(ctx), end)
		err = errors.Join(err, endErr)
	}()
	if _, err := conn.ExecContext(ctx, "INSERT INTO guard VALUES ($1, 0, 0) ON CONFLICT DO NOTHING", item); err != nil {
		return 0, err
	}
	update := "UPDATE guard SET value = value + 1, token = $2 WHERE item = $1 AND token <= $2"
	if !fenced {
		update = "UPDATE guard SET value = value + 1, token = $2 WHERE item = $1"
	}
	res, err := conn.ExecContext(ctx, update, item, int64(token))
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	if err == nil && n > 0 {
		_, err = conn.ExecContext(ctx, "INSERT INTO guard_log (item, token, pid) VALUES ($1, $2, $3)", item, int64(token), os.Getpid())
	}
	return int(n), err
}

// made returns the tokens of the writes that were made, in order.
func (g guardTable) made(ctx context.Context, db *sql.DB, item string) (tokens []fence.Token, err error) {
	rows, err := db.QueryContext(ctx, "SELECT token FROM guard_log WHERE item = $1 ORDER BY seq", item)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var token int64
		if err := rows.Scan(&token); err != nil {
			return nil, err
		}
		tokens = append(tokens, fence.Token(token))
	}
	return tokens, rows.Err()
}

// fleetWorkConfig is what the work of a test is told.
type fleetWorkConfig struct {
	Guard    guardTable
	Logs     string // directory; each item has a file in it
	Unfenced bool
	Beside   int // the test's process, without which it ends
}

// playFleetWork acts and writes until it is ended.
func playFleetWork(config []byte) error {
	var cfg fleetWorkConfig
	if err := json.Unmarshal(config, &cfg); err != nil {
		return err
	}
	item := os.Getenv("TENURE_WORK")
	n, err := strconv.ParseInt(os.Getenv("TENURE_TOKEN"), 10, 64)
	if err != nil {
		return err
	}
	token := fence.Token(n)
	log, err := os.OpenFile(filepath.Join(cfg.Logs, item+".log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	db, err := cfg.Guard.open()
	if err != nil {
		return err
	}
	go func() {
		for tick := time.NewTicker(writeEvery); ; <-tick.C {
			from := clock.Boot()
			rows, err := cfg.Guard.write(context.Background(), db, item, token, !cfg.Unfenced)
			if err != nil {
				fmt.Fprintln(os.Stderr, "write:", err) // a busy file: the next turn writes
				continue
			}
			fmt.Fprintf(log, "write %d %d %d %d %d\n", from, clock.Boot(), os.Getpid(), token, rows)
		}
	}()
	parent := fmt.Sprintf("/proc/%d", cfg.Beside)
	for tick := time.NewTicker(actEvery); ; <-tick.C {
		if _, err := fmt.Fprintf(log, "act %d %d %d\n", clock.Boot(), os.Getpid(), token); err != nil {
			return err
		}
		if _, err := os.Stat(parent); err != nil {
			return nil
		}
	}
}
