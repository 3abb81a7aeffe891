package postgres_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/postgres"
)

// refuses checks what each kind of request answers, and that it is one line
// that says what it should.
func refuses(t *testing.T, s *postgres.Store, grants []store.Grant, want error, says ...string) {
	t.Helper()
	_, acquire := s.Acquire(bounded(t), request("another"))
	for i := range grants {
		grants[i].Attempt = store.NewAttempt()
	}
	_, renew := s.Renew(bounded(t), grants)
	_, release := s.Release(bounded(t), grants)
	for what, err := range map[string]error{"Acquire": acquire, "Renew": renew, "Release": release} {
		if !errors.Is(err, want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got error %v, want one line matching %q", what, err, want)
			continue
		}
		for _, text := range says {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: got error %v, want it to say %q", what, err, text)
			}
		}
	}
}

func anyGrant() []store.Grant {
	return []store.Grant{{Name: "job", Token: 1, TTL: time.Minute, Known: []store.Attempt{store.NewAttempt()}}}
}

// TestC09Refusals: what is refused for good has a code of its own, on a
// connection that stays in use.
func TestC09Refusals(t *testing.T) {
	t.Parallel()
	t.Run("permission", func(t *testing.T) {
		t.Parallel()
		url := pgtest.Database(t)
		admin := openPool(t, url)
		role := fmt.Sprintf("poor_%d", time.Now().UnixNano())
		exec(t, admin, "CREATE ROLE "+role+" LOGIN PASSWORD 'x'")
		exec(t, admin, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
		s := open(t, openPool(t, url, func(c *pgxpool.Config) { c.ConnConfig.User, c.ConnConfig.Password = role, "x" }), postgres.Config{})
		err := s.Migrate(bounded(t))
		if want := `GRANT CREATE ON SCHEMA "public" TO "` + role + `";`; !errors.Is(err, store.ErrPermission) || !strings.Contains(err.Error(), want) {
			t.Errorf("Migrate: got error %v, want it to say %s", err, want)
		}
		if err := open(t, admin, postgres.Config{}).Migrate(bounded(t)); err != nil {
			t.Fatal(err)
		}
		exec(t, admin, "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO "+role)
		grants := []store.Grant{hold(t, s, request("job"))}
		renewAll(t, s, grants)
		exec(t, admin, "REVOKE UPDATE ON tenure_lease FROM "+role)
		refuses(t, s, grants, store.ErrPermission, role, `GRANT SELECT, INSERT, UPDATE, DELETE ON tenure_lease`, `TO "`+role+`"`)
		if !hasFinding(t, s, "rights") {
			t.Error("Diagnose does not name the missing right")
		}
		exec(t, admin, "GRANT UPDATE ON tenure_lease TO "+role)
		renewAll(t, s, grants)
		exec(t, admin, "DROP OWNED BY "+role+"; DROP ROLE "+role)
	})
	t.Run("read_only", func(t *testing.T) {
		t.Parallel()
		url := pgtest.Database(t)
		if err := open(t, openPool(t, url), postgres.Config{}).Migrate(bounded(t)); err != nil {
			t.Fatal(err)
		}
		s := open(t, openPool(t, url, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on" }), postgres.Config{})
		refuses(t, s, anyGrant(), store.ErrReadOnly, "primary")
		if !hasFinding(t, s, "read_only") {
			t.Error("Diagnose does not say that transactions are read-only")
		}
	})
	t.Run("schema", func(t *testing.T) {
		t.Parallel()
		s, pool := fresh(t)
		grants := []store.Grant{hold(t, s, request("job"))}
		exec(t, pool, "DROP TABLE tenure_lease CASCADE")
		refuses(t, s, grants, store.ErrSchema, "run: tenure migrate")
	})
	t.Run("database", func(t *testing.T) {
		t.Parallel()
		url := pgtest.Database(t)
		s := open(t, openPool(t, url, func(c *pgxpool.Config) { c.ConnConfig.Database = "nowhere" }), postgres.Config{})
		refuses(t, s, anyGrant(), store.ErrUnavailable, `database "nowhere" does not exist`, "create it")
	})
	t.Run("table_locked", func(t *testing.T) {
		t.Parallel()
		_, pool := fresh(t)
		s := open(t, pool, postgres.Config{TakeoverWait: 50 * time.Millisecond})
		tx := begin(t, pool, pgx.ReadCommitted)
		exec(t, tx, "LOCK TABLE tenure_lease IN ACCESS EXCLUSIVE MODE")
		refuses(t, s, anyGrant(), store.ErrBusy, fmt.Sprint("pid ", tx.Conn().PgConn().PID()))
	})
	t.Run("password", func(t *testing.T) {
		t.Parallel()
		url := fakeServer(t, nil)
		s := open(t, openPool(t, url), postgres.Config{})
		refuses(t, s, anyGrant(), store.ErrPermission, `user "app"`, "PGPASSWORD")
		_, err := s.Get(bounded(t), "job")
		if strings.Contains(fmt.Sprint(err), "hunter2") {
			t.Errorf("the error shows the password: %v", err)
		}
	})
	t.Run("nobody_listens", func(t *testing.T) {
		t.Parallel()
		// With and without TLS: two tries, and one line all the same.
		s := open(t, openPool(t, "postgres://app@127.0.0.1:1/none?sslmode=prefer"), postgres.Config{})
		refuses(t, s, anyGrant(), store.ErrUnavailable, "127.0.0.1:1", "check the URL")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.Get(ctx, "job"); !errors.Is(err, context.Canceled) {
			t.Errorf("with a cancelled context: got error %v", err)
		}
	})
	for name, valid := range map[string][2]time.Duration{
		"certificate_expired":       {-48 * time.Hour, -24 * time.Hour},
		"certificate_not_valid_yet": {24 * time.Hour, 48 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from, to := time.Now().Add(valid[0]), time.Now().Add(valid[1])
			cert, file := certificate(t, from, to)
			s := open(t, openPool(t, fakeServer(t, &cert)+"?sslmode=verify-full&sslrootcert="+file), postgres.Config{})
			refuses(t, s, anyGrant(), store.ErrUnavailable,
				"valid from "+from.UTC().Format("2006-01-02"), "to "+to.UTC().Format("2006-01-02"), "this host's clock shows "+time.Now().UTC().Format("2006-01-02"))
		})
	}
}

// TestKilledServer: after kill -9 and a restart the term goes on, over fresh
// connections, and a watch has ended.
func TestKilledServer(t *testing.T) {
	t.Parallel()
	srv := pgtest.Start(t, pgtest.Options{})
	s := open(t, openPool(t, srv.Database(t)), postgres.Config{})
	if err := s.Migrate(bounded(t)); err != nil {
		t.Fatal(err)
	}
	grants := []store.Grant{hold(t, s, request("job"))}
	renewAll(t, s, grants)
	events, err := s.Watch(bounded(t), "job")
	if err != nil {
		t.Fatal(err)
	}
	srv.Kill()
	grants[0].Attempt = store.NewAttempt()
	if _, err := s.Renew(bounded(t), grants); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("renewal at a dead server: got error %v, want one matching %q", err, store.ErrUnavailable)
	}
	grants[0].Known = append(grants[0].Known, grants[0].Attempt)
	closes(t, events)
	srv.Restart(t)
	renewAll(t, s, grants)

	srv.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	grants[0].Attempt = store.NewAttempt()
	if _, err := s.Renew(ctx, grants); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("renewal at a stopped server: got error %v, want one matching %q", err, store.ErrUnavailable)
	}
	grants[0].Known = append(grants[0].Known, grants[0].Attempt)
	srv.Resume()
	// The server may still be at the renewal that was given up.
	eventually(t, "the term goes on", func() bool {
		grants[0].Attempt = store.NewAttempt()
		results, err := s.Renew(bounded(t), grants)
		if err != nil || results[0].Err != nil && !errors.Is(results[0].Err, store.ErrBusy) {
			t.Fatal(err, results)
		}
		return results[0].Err == nil
	})
}

// TestStandby: a standby decides nothing, not even that a lease is held, and
// answers no read as if it knew.
func TestStandby(t *testing.T) {
	t.Parallel()
	srv := pgtest.Start(t, pgtest.Options{})
	s := open(t, openPool(t, srv.Database(t)), postgres.Config{})
	if err := s.Migrate(bounded(t)); err != nil {
		t.Fatal(err)
	}
	grants := []store.Grant{hold(t, s, request("job"))}
	srv.Halt()
	if err := os.WriteFile(filepath.Join(srv.Data(), "standby.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	srv.Restart(t)
	_, _ = s.Get(bounded(t), "job") // the pool's old connection has ended
	refuses(t, s, grants, store.ErrReadOnly, "standby", "primary")
	if _, err := s.Acquire(bounded(t), request("job")); !errors.Is(err, store.ErrReadOnly) {
		t.Errorf("Acquire of a held lease: got error %v, want one matching %q", err, store.ErrReadOnly)
	}
	if _, err := s.Get(bounded(t), "job"); !errors.Is(err, store.ErrReadOnly) {
		t.Errorf("Get: got error %v, want one matching %q", err, store.ErrReadOnly)
	}
	for _, err := range s.List(bounded(t), "") {
		if !errors.Is(err, store.ErrReadOnly) {
			t.Errorf("List: got error %v, want one matching %q", err, store.ErrReadOnly)
		}
	}
	if !hasFinding(t, s, "standby") {
		t.Error("Diagnose does not name the standby")
	}
}

// TestDoctor: settings that weaken a promise are named.
func TestDoctor(t *testing.T) {
	t.Parallel()
	srv := pgtest.Start(t, pgtest.Options{StepClock: true, Settings: []string{
		"fsync=off", "full_page_writes=off", "autovacuum=off", "synchronous_commit=off", "max_prepared_transactions=2",
	}})
	url := srv.Database(t)
	pool := openPool(t, url)
	s := open(t, pool, postgres.Config{})
	if err := s.Migrate(bounded(t)); err != nil {
		t.Fatal(err)
	}
	srv.StepClock(t, time.Hour)
	found, err := s.Diagnose(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]store.Severity)
	for _, f := range found {
		if f.Text == "" || f.Severity != store.Info && f.Fix == "" {
			t.Errorf("finding %+v has no text or no next step", f)
		}
		got[f.Code] = f.Severity
	}
	want := map[string]store.Severity{
		"fsync_off": store.Broken, "full_page_writes_off": store.Warning, "autovacuum_off": store.Warning, "synchronous_commit": store.Info,
		"no_standby": store.Info, "prepared_transactions_possible": store.Info, "clock_difference": store.Warning,
	}
	for code, severity := range want {
		if got[code] != severity {
			t.Errorf("finding %q: got severity %q, want %q", code, got[code], severity)
		}
	}
	for code := range got {
		if want[code] == "" {
			t.Errorf("finding %q was not expected", code)
		}
	}
	healthy, _ := fresh(t)
	if found, err = healthy.Diagnose(bounded(t)); err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if f.Severity != store.Info {
			t.Errorf("a server with its defaults: %+v", f)
		}
	}
}

// fakeServer accepts connections and refuses every password. With a certificate
// it offers TLS first. It returns its URL.
func fakeServer(t *testing.T, cert *tls.Certificate) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			refuse(conn, cert)
		}
	}()
	return "postgres://app:hunter2@" + l.Addr().String() + "/db"
}

func refuse(conn net.Conn, cert *tls.Certificate) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(limit)) // a pipe of our own
	for {
		backend := pgproto3.NewBackend(conn, conn)
		m, err := backend.ReceiveStartupMessage()
		if err != nil {
			return
		}
		switch m.(type) {
		case *pgproto3.SSLRequest:
			if cert == nil {
				if _, err := conn.Write([]byte("N")); err != nil {
					return
				}
				continue
			}
			if _, err := conn.Write([]byte("S")); err != nil {
				return
			}
			_ = tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{*cert}}).Handshake() // refused by the client
			return
		case *pgproto3.StartupMessage:
			backend.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "28P01", Message: `password authentication failed for user "app"`})
			_ = backend.Flush() // the client may have gone
			return
		}
	}
}

func certificate(t *testing.T, from, to time.Time) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "db"}, NotBefore: from, NotAfter: to,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, file
}
