package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"database/sql"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/store/sqlite"
)

// Each store that cannot be used gives one line that names it, what is wrong
// and what to do, and the exit code of that kind.
func TestBadSQLite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	foreign := filepath.Join(dir, "foreign.db")
	edit(t, foreign, "CREATE TABLE customers (id INTEGER)")
	later := fileStore(t)
	edit(t, later, "UPDATE tenure_meta SET value = '99' WHERE key = 'schema'")

	for _, tc := range []struct {
		what, path string
		code       int
		parts      []string
	}{
		{"no file", filepath.Join(dir, "none.db"), exitConfig, []string{"no such file", "tenure migrate --store"}},
		{"no directory", filepath.Join(dir, "none", "x.db"), exitConfig, []string{"no such file"}},
		{"a directory", dir, exitUsage, []string{"is a directory"}},
		{"a text", write("text.db", strings.Repeat("not a database\n", 100)), exitConfig, []string{"no SQLite database", "name another file"}},
		{"an empty file", write("empty.db", ""), exitConfig, []string{"tenure migrate --store"}},
		{"somebody else's database", foreign, exitConfig, []string{"run: tenure migrate --store"}},
		{"a later version", later, exitConfig, []string{"99", "newer tenure"}},
	} {
		for _, args := range []string{"lease ls", "lease get a", "lease revoke a --token 1 --reason x"} {
			t.Run(tc.what+"/"+args, func(t *testing.T) {
				t.Parallel()
				r := cli(t, append(strings.Fields(args), "--store", tc.path)...)
				r.want(t, tc.code, append(tc.parts, tc.path)...)
				for _, foreign := range []string{"Migrate", "store: ", "sqlite: "} {
					if strings.Contains(r.err, ": "+foreign) || strings.Contains(r.err, "run "+foreign) {
						t.Errorf("stderr: got %q, which holds %q", r.err, foreign)
					}
				}
				if tc.what == "a text" && strings.Contains(r.err, "migrate") {
					t.Errorf("stderr: got %q, which would have a text migrated", r.err)
				}
			})
		}
	}
	t.Run("nothing was made", func(t *testing.T) {
		t.Parallel()
		if _, err := os.Stat(filepath.Join(dir, "none.db")); !os.IsNotExist(err) {
			t.Errorf("none.db: got %v, want no such file", err)
		}
	})
}

// edit runs a statement on a SQLite file.
func edit(t *testing.T, path, statement string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// with returns address with its parts changed.
func with(t *testing.T, address string, change func(*url.URL)) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	change(u)
	return u.String()
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	address := pgtest.Database(t)
	cli(t, "lease", "ls", "--store", address).want(t, exitConfig, "store postgres://", "run: tenure migrate --store "+location{kind: kindPostgres, target: address}.argument()[len(" --store "):])
	if r := cli(t, "doctor", address); r.code != exitBroken || !strings.Contains(r.out, "run: tenure migrate --store") {
		t.Errorf("doctor: got %d, %q, %q", r.code, r.out, r.err)
	}
	cli(t, "migrate", address).want(t, exitOK, "ready")
	cli(t, "migrate", "--store", address).want(t, exitOK, "ready")
	cli(t, "lease", "ls", "--store", address).want(t, exitOK)
	cli(t, "lease", "get", "a", "--store", address).want(t, exitNotFound, `"a"`)
	if r := cli(t, "doctor", address, "-o", "json"); r.code == exitInternal || !strings.Contains(r.out, `"backend": "postgres"`) {
		t.Errorf("doctor: got %d, %q, %q", r.code, r.out, r.err)
	}

	readOnly := with(t, address, func(u *url.URL) {
		q := u.Query()
		q.Set("default_transaction_read_only", "on")
		u.RawQuery = q.Encode()
	})
	cli(t, "lease", "revoke", "a", "--token", "1", "--reason", "x", "--store", readOnly).want(t, exitPermission, "read-only")

	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "UPDATE tenure_schema SET version = 0 WHERE version = 1"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "DELETE FROM tenure_schema WHERE version > 0"); err != nil {
		t.Fatal(err)
	}
	cli(t, "lease", "ls", "--store", address).want(t, exitConfig, "version 0", "tenure migrate --store")
}

func TestPostgresUnusable(t *testing.T) {
	t.Parallel()
	server := pgtest.Database(t)
	closed := func() string { // a port that nobody listens on
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return l.Addr().String()
	}()
	for _, tc := range []struct {
		what, address string
		code          int
		parts         []string
	}{
		{"no database", with(t, server, func(u *url.URL) { u.Path = "/nosuch" }), exitUnavailable, []string{`"nosuch"`, "does not exist"}},
		{"no role", with(t, server, func(u *url.URL) { u.User = url.UserPassword("nosuch", "geheim") }), exitPermission, []string{"nosuch"}},
		{"no server", "postgres://u@" + closed + "/x?sslmode=prefer", exitUnavailable, []string{closed}},
		{"an expired certificate", expiredServer(t), exitUnavailable, []string{"valid from 2001-", "to 2002-", "clock"}},
	} {
		t.Run(tc.what, func(t *testing.T) {
			t.Parallel()
			r := cli(t, "lease", "ls", "--store", tc.address)
			r.want(t, tc.code, append(tc.parts, "store postgres://")...)
			if tc.what == "no server" && strings.Count(r.err, "connection refused") != 1 {
				t.Errorf("stderr: got %q, want the cause once", r.err)
			}
			if strings.Contains(r.err, "geheim") {
				t.Errorf("stderr shows a password: %q", r.err)
			}
		})
	}
}

// expiredServer answers as a Postgres server whose certificate is outside its
// validity, and returns the URL by which a client would trust it.
func expiredServer(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2002, 1, 1, 0, 0, 0, 0, time.UTC),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(t.TempDir(), "root.pem")
	if err := os.WriteFile(root, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				// The client's SSLRequest has 8 bytes; S says "go on with TLS".
				if _, err := io.ReadFull(conn, make([]byte, 8)); err != nil {
					return
				}
				if _, err := conn.Write([]byte("S")); err != nil {
					return
				}
				pair := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
				_ = tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{pair}}).Handshake() // the client ends it
			}()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return "postgres://u@localhost:" + port + "/x?sslmode=verify-full&sslrootcert=" + url.QueryEscape(root) + "&connect_timeout=5"
}

// refusing returns the URL of a server that refuses every password.
func refusing(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				back := pgproto3.NewBackend(conn, conn)
				if _, err := back.ReceiveStartupMessage(); err != nil {
					return
				}
				back.Send(&pgproto3.AuthenticationCleartextPassword{})
				if back.Flush() != nil || back.SetAuthType(pgproto3.AuthTypeCleartextPassword) != nil {
					return
				}
				if _, err := back.Receive(); err != nil {
					return
				}
				back.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "28P01", Message: `password authentication failed for user "u"`})
				_ = back.Flush() // the client has it or is gone
			}()
		}
	}()
	return "postgres://u:geheim@" + l.Addr().String() + "/x?sslmode=disable"
}

// A file that another host used is refused until somebody decides that it is to
// be used here: by adopting it, or by raising the floor of all names.
func TestCopiedFile(t *testing.T) {
	t.Parallel()
	if host, err := sqlite.ThisHost(); err != nil || host.ID == "" {
		t.Skipf("this host has no machine id (/etc/machine-id), so a copy cannot be told: %v", err)
	}
	for _, decide := range [][]string{{"migrate", "--adopt"}, {"lease", "raise-floor", "--all", "--to", "100"}} {
		t.Run(decide[0], func(t *testing.T) {
			t.Parallel()
			path := fileStore(t)
			release(t, path, acquire(t, path, "a", "host-1/1/a/b"))
			edit(t, path, "UPDATE tenure_meta SET value = 'another' WHERE key IN ('host', 'domain')")
			cli(t, "lease", "ls", "--store", path).want(t, exitConfig, path, `"another"`, "tenure migrate --adopt")
			cli(t, append(decide, "--store", path)...).want(t, exitOK)
			cli(t, "lease", "ls", "--store", path).want(t, exitOK)
			if g := acquire(t, path, "a", "host-2/1/a/b"); g.Token < 2 {
				t.Errorf("got token %s, want a larger one than before", g.Token)
			}
		})
	}
	address := pgtest.Database(t)
	cli(t, "migrate", "--adopt", "--store", address).want(t, exitUsage, "only a SQLite file")
}
