package postgres_test

import (
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/postgres"
	"github.com/tenurehq/tenure/store/storetest"
)

// pooler is a transaction-mode connection pooler: a client has a server
// connection from a Query or Parse to the end of that transaction, and then
// likely another one. As real ones do, it makes up the process ids that clients
// see and resets nothing in between.
type pooler struct {
	listener net.Listener
	url      string
	servers  chan *pgconn.HijackedConn // a queue, so that each transaction gets the next
	running  sync.WaitGroup
	mu       sync.Mutex
	clients  map[net.Conn]struct{}
}

func newPooler(t *testing.T, url string, servers int) *pooler {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &pooler{listener: l, url: url, servers: make(chan *pgconn.HijackedConn, servers), clients: make(map[net.Conn]struct{})}
	for range servers {
		conn, err := pgconn.Connect(bounded(t), url)
		if err != nil {
			t.Fatal(err)
		}
		hijacked, err := conn.Hijack()
		if err != nil {
			t.Fatal(err)
		}
		p.servers <- hijacked
	}
	p.running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			p.clients[client] = struct{}{}
			p.mu.Unlock()
			p.running.Go(func() {
				defer func() {
					p.mu.Lock()
					delete(p.clients, client)
					p.mu.Unlock()
					_ = client.Close() // the client has gone
				}()
				p.serve(client)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.mu.Lock()
		for client := range p.clients {
			_ = client.Close()
		}
		p.mu.Unlock()
		p.running.Wait()
		close(p.servers)
		for s := range p.servers {
			_ = s.Conn.Close()
		}
	})
	return p
}

func (p *pooler) serve(client net.Conn) {
	backend := pgproto3.NewBackend(client, client)
	for started := false; !started; {
		switch m, err := backend.ReceiveStartupMessage(); m.(type) {
		case *pgproto3.SSLRequest, *pgproto3.GSSEncRequest:
			if _, err := client.Write([]byte("N")); err != nil {
				return
			}
		case *pgproto3.StartupMessage:
			started = true
		default: // a cancel request, for a process that this pooler made up
			_ = err
			return
		}
	}
	backend.Send(&pgproto3.AuthenticationOk{})
	backend.Send(&pgproto3.ParameterStatus{Name: "server_version", Value: "15.0"})
	backend.Send(&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
	backend.Send(&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"})
	backend.Send(&pgproto3.BackendKeyData{ProcessID: 0x7ffffff0, SecretKey: []byte{0, 0, 0, 1}})
	backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if backend.Flush() != nil {
		return
	}
	for {
		m, err := backend.Receive()
		if err != nil {
			return
		}
		if _, over := m.(*pgproto3.Terminate); over {
			return
		}
		server, open := <-p.servers
		if !open {
			return
		}
		again := p.transaction(backend, server, m)
		p.servers <- server
		if !again {
			return
		}
	}
}

// transaction passes messages between a client and a server until the server
// is outside a transaction. It returns false when the client has gone; what it
// left open is rolled back.
func (p *pooler) transaction(client *pgproto3.Backend, server *pgconn.HijackedConn, first pgproto3.FrontendMessage) bool {
	gone, status := false, byte('I')
	for m := first; ; {
		server.Frontend.Send(m)
		if err := server.Frontend.Flush(); err != nil {
			return false
		}
		switch m.(type) {
		case *pgproto3.Query, *pgproto3.Sync:
			for done := false; !done; {
				reply, err := server.Frontend.Receive()
				if err != nil {
					return false
				}
				if ready, ok := reply.(*pgproto3.ReadyForQuery); ok {
					done, status = true, ready.TxStatus
				}
				if !gone {
					client.Send(reply)
					gone = done && client.Flush() != nil
				}
			}
			if status == 'I' {
				return !gone
			}
		}
		var err error
		if !gone {
			if m, err = client.Receive(); err == nil {
				if _, over := m.(*pgproto3.Terminate); !over {
					continue
				}
			}
			gone = true
		}
		m = &pgproto3.Query{String: "ROLLBACK"}
	}
}

func throughPooler(p *pooler) func(*pgxpool.Config) {
	return func(c *pgxpool.Config) {
		addr := p.listener.Addr().(*net.TCPAddr)
		c.ConnConfig.Host, c.ConnConfig.Port = addr.IP.String(), uint16(addr.Port)
		c.MaxConns = 40
	}
}

// TestPoolerConformance is C35: the whole suite with more clients than server
// processes, each transaction on another one, and nothing left on them.
func TestPoolerConformance(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	p := newPooler(t, url, 4)
	s := open(t, openPool(t, url, throughPooler(p)), postgres.Config{})
	if err := s.Migrate(bounded(t)); err != nil {
		t.Fatal(err)
	}
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		return storetest.Harness{
			Store:  s,
			MinTTL: 200 * time.Millisecond,
			Second: func(t *testing.T) store.Store {
				return open(t, openPool(t, url, throughPooler(p)), postgres.Config{})
			},
		}
	})
	var locks, prepared int
	for range cap(p.servers) {
		server := <-p.servers
		conn, err := pgconn.Construct(server)
		if err != nil {
			t.Fatal(err)
		}
		results, err := conn.Exec(bounded(t), "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid(); SELECT 1 FROM pg_prepared_statements").ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		locks, prepared = locks+len(results[0].Rows), prepared+len(results[1].Rows)
		if server, err = conn.Hijack(); err != nil {
			t.Fatal(err)
		}
		p.servers <- server
	}
	if locks != 0 || prepared != 0 {
		t.Errorf("left behind the pooler: %d advisory locks and %d prepared statements, want none", locks, prepared)
	}
}

func TestPoolerIsNoticed(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	s := open(t, openPool(t, url, throughPooler(newPooler(t, url, 3))), postgres.Config{})
	if err := s.Migrate(bounded(t)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := s.Watch(bounded(t), "a"); !errors.Is(err, store.ErrUnsupported) {
			t.Errorf("Watch behind a pooler: got %v, want one matching %q", err, store.ErrUnsupported)
		}
	}
	if !hasFinding(t, s, "pooler") {
		t.Error("Diagnose does not name the pooler")
	}
}

func hasFinding(t *testing.T, s *postgres.Store, code string) bool {
	t.Helper()
	found, err := s.Diagnose(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if f.Code == code {
			return true
		}
	}
	return false
}
