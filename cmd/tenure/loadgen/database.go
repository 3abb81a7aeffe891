package loadgen

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// writes is what a database did so far. A count that it does not keep is negative.
type writes struct {
	commits, rows, log int64
	cpu                time.Duration // of its own processes, if they are on this host
}

// meter reads what a database did.
type meter interface {
	read(ctx context.Context) (writes, error)
	close()
}

// sqliteMeter reads the counter of commits in the shared memory of a file in WAL
// mode ("iChange" at offset 8 of https://sqlite.org/walformat.html). SQLite works
// within the replica, so its CPU time is the replica's, and the bytes that the
// replica had written are its log and its pages.
type sqliteMeter struct{ path string }

func (m sqliteMeter) close() {}

func (m sqliteMeter) read(context.Context) (writes, error) {
	f, err := os.Open(m.path + "-shm")
	if err != nil {
		return writes{}, err
	}
	defer f.Close()
	var header [12]byte
	if _, err := f.ReadAt(header[:], 0); err != nil {
		return writes{}, err
	}
	return writes{commits: int64(binary.NativeEndian.Uint32(header[8:])), rows: -1, log: -1, cpu: -1}, nil
}

// postgresMeter asks the server, in transactions of its own, two for each reading.
type postgresMeter struct {
	conn   *pgx.Conn
	server int // the postmaster's pid, 0 if it is not on this host
}

func openPostgresMeter(ctx context.Context, url string) (*postgresMeter, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	m := &postgresMeter{conn: conn}
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", conn.PgConn().PID()))
	if err == nil && strings.HasPrefix(string(command), "postgres:") {
		m.server, _, _, err = procStat(int(conn.PgConn().PID()))
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return m, nil
}

func (m *postgresMeter) close() { _ = m.conn.Close(context.Background()) }

func (m *postgresMeter) read(ctx context.Context) (w writes, err error) {
	err = m.conn.QueryRow(ctx, `SELECT xact_commit, tup_updated + tup_inserted + tup_deleted, (pg_current_wal_insert_lsn() - '0/0')::bigint
		FROM pg_stat_database WHERE datname = current_database()`).Scan(&w.commits, &w.rows, &w.log)
	if err != nil {
		return w, err
	}
	w.cpu = -1
	if m.server != 0 {
		w.cpu, err = familyCPU(m.server)
	}
	return w, err
}
