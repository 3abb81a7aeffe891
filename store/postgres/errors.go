package postgres

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tenurehq/tenure/store"
)

// SQLSTATEs, from PostgreSQL's appendix A.
const (
	codeLockTimeout   = "55P03"
	codeDeadlock      = "40P01"
	codeSerialization = "40001"
	codeStale         = "TN001" // raised by tenure_guard
)

func serverError(err error) (*pgconn.PgError, bool) { return errors.AsType[*pgconn.PgError](err) }

func isLockTimeout(err error) bool {
	pg, ok := serverError(err)
	return ok && pg.Code == codeLockTimeout
}

// failure gives err the class that package store knows it by, and one line
// that names the thing, the rule and the next step. cfg may be nil.
func failure(what string, cfg *pgx.ConnConfig, err error) error {
	class, advice := classify(cfg, err)
	if advice == "" {
		// pgx tells of several tries in several lines.
		advice = strings.TrimPrefix(class.Error(), "store: ") + ": " + strings.Join(strings.Fields(err.Error()), " ")
	}
	return &refusal{text: "postgres: " + what + ": " + advice, class: class, cause: err}
}

// refusal is an error of a class whose text is better than its cause's.
type refusal struct {
	text         string
	class, cause error
}

func (e *refusal) Error() string { return e.text }

func (e *refusal) Unwrap() []error { return []error{e.class, e.cause} }

func classify(cfg *pgx.ConnConfig, err error) (class error, advice string) {
	server, database, user := "the server", "", ""
	if cfg != nil {
		server, database, user = fmt.Sprintf("%s:%d", cfg.Host, cfg.Port), cfg.Database, cfg.User
	}
	if pg, ok := serverError(err); ok {
		return classifyServer(pg, server, database, user)
	}
	if bad, ok := errors.AsType[x509.CertificateInvalidError](err); ok && bad.Reason == x509.Expired {
		cert := bad.Cert
		return store.ErrUnavailable, fmt.Sprintf("the certificate of %s is valid from %s to %s, and this host's clock shows %s: set the clock right, or renew the certificate",
			server, stamp(cert.NotBefore), stamp(cert.NotAfter), stamp(time.Now()))
	}
	if bad, ok := errors.AsType[x509.HostnameError](err); ok {
		return store.ErrUnavailable, fmt.Sprintf("the certificate of %s is not for the host %q: connect by a name that it lists", server, bad.Host)
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return store.ErrUnavailable, fmt.Sprintf("the certificate of %s is signed by an authority that this host does not know: name its file in sslrootcert", server)
	}
	if text := err.Error(); strings.Contains(text, "remote error: tls: expired certificate") {
		return store.ErrPermission, fmt.Sprintf("%s says that this client's certificate is outside its validity, and this host's clock shows %s: renew the certificate, or set the server's clock right", server, stamp(time.Now()))
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return store.ErrUnavailable, fmt.Sprintf("cannot connect to %s (%s): check the URL, and that the server runs and lets this host in", server, strings.Join(strings.Fields(err.Error()), " "))
	}
	return store.ErrUnavailable, ""
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func classifyServer(pg *pgconn.PgError, server, database, user string) (class error, advice string) {
	switch pg.Code {
	case "28P01":
		return store.ErrPermission, fmt.Sprintf("%s refused the password of user %q: correct it in the URL or in PGPASSWORD", server, user)
	case "28000":
		return store.ErrPermission, fmt.Sprintf("%s does not let user %q in (%s): use another user, or have pg_hba.conf allow this one", server, user, pg.Message)
	case "42501":
		return store.ErrPermission, fmt.Sprintf("user %q may not (%s): grant it SELECT, INSERT, UPDATE and DELETE on the tenure_ tables and USAGE on their schema", user, pg.Message)
	case "3D000":
		return store.ErrUnavailable, fmt.Sprintf("database %q does not exist on %s: create it, or correct the URL", database, server)
	case "25006":
		return store.ErrReadOnly, fmt.Sprintf("%s accepts no writes (%s): connect to the primary, or set default_transaction_read_only off", server, pg.Message)
	case "42704": // settings that the URL passes on; nothing else here names an object of that kind
		return store.ErrInvalid, fmt.Sprintf("the URL holds a setting that neither the client nor %s knows (%s): correct the URL", server, pg.Message)
	case "42P01", "42883", "42703", "3F000":
		return store.ErrSchema, fmt.Sprintf("database %q has not the tables or functions of this version (%s): run Migrate, or see `tenure doctor`", database, pg.Message)
	case codeLockTimeout, codeDeadlock, codeSerialization:
		return store.ErrBusy, ""
	}
	return store.ErrUnavailable, ""
}
