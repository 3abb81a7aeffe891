package postgres

import (
	"context"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
)

// dial opens a connection outside the pool, with the pool's settings and hooks.
func dial(ctx context.Context, pool *pgxpool.Pool, application string) (*pgx.Conn, error) {
	cfg := pool.Config()
	cc := cfg.ConnConfig
	if cfg.BeforeConnect != nil { // for instance, a password that is valid for minutes
		if err := cfg.BeforeConnect(ctx, cc); err != nil {
			return nil, err
		}
	}
	cc.RuntimeParams["application_name"] = application
	// The end of a context must interrupt a wait and leave the connection be.
	cc.BuildContextWatcherHandler = func(c *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: c.Conn()}
	}
	cc.DialFunc = keepAlive(cc.DialFunc)
	conn, err := pgx.ConnectConfig(ctx, cc)
	if err != nil {
		return nil, err
	}
	if cfg.AfterConnect != nil { // for instance, SET ROLE
		if err := cfg.AfterConnect(ctx, conn); err != nil {
			discard(conn)
			return nil, err
		}
	}
	return conn, nil
}

// keepAlive makes a connection that nobody answers on break within half a
// minute, though nothing is sent on it. An idle watch relies on it.
func keepAlive(dialFunc pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dialFunc(ctx, network, addr)
		if tcp, ok := conn.(*net.TCPConn); ok && err == nil {
			// A system that knows no such option keeps its own default.
			_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3})
		}
		return conn, err
	}
}

// line is one connection that is dialled when it is first needed and again
// after it failed. It serves one request at a time.
type line struct {
	free chan struct{} // holds a value while nobody uses conn
	conn *pgx.Conn     // nil if there is none
}

func newLine() line {
	free := make(chan struct{}, 1)
	free <- struct{}{}
	return line{free: free}
}

// do runs a statement. A connection on which a request failed in any other way
// than by the server's own answer is closed, and the next request has a fresh
// one: it may be a dead one that swallows everything.
func (l *line) do(ctx context.Context, s *Store, what, statement string) ([]*row, error) {
	select {
	case <-l.free:
		defer func() { l.free <- struct{}{} }()
	case <-ctx.Done():
		return nil, failure(what, nil, ctx.Err())
	}
	if l.conn == nil || l.conn.IsClosed() {
		conn, err := dial(ctx, s.pool, "tenure renew")
		if err != nil {
			return nil, failure(what, s.pool.Config().ConnConfig, err)
		}
		l.conn = conn
	}
	rows, err := s.query(ctx, l.conn.PgConn(), statement)
	if err != nil {
		if _, answered := serverError(err); !answered || ctx.Err() != nil {
			discard(l.conn)
			l.conn = nil
		}
		return nil, failure(what, s.pool.Config().ConnConfig, err)
	}
	return rows, nil
}

func (l *line) close() {
	<-l.free
	defer func() { l.free <- struct{}{} }()
	if l.conn != nil {
		discard(l.conn)
		l.conn = nil
	}
}
