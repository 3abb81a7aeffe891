package postgres

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
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
		advice = strings.TrimPrefix(class.Error(), "store: ") + ": " + causes(err)
	}
	return &refusal{text: "postgres: " + what + ": " + advice, class: class, cause: err}
}

// migrateFailure is failure for Migrate, which needs other rights than the rest.
func (s *Store) migrateFailure(err error) error {
	cfg := s.pool.Config().ConnConfig
	pg, ok := serverError(err)
	if !ok || pg.Code != "42501" {
		return failure("migrate", cfg, err)
	}
	return &refusal{
		text: fmt.Sprintf("postgres: migrate: user %q may not create or change tenure's tables (%s): run it as a role that may, or: GRANT CREATE ON SCHEMA %s TO %s;",
			cfg.User, pg.Message, pgx.Identifier{s.schema}.Sanitize(), pgx.Identifier{cfg.User}.Sanitize()),
		class: store.ErrPermission, cause: err,
	}
}

// causes returns the lines of err, in which pgx tells of each address and each
// way that it tried, as one line that says each thing once.
func causes(err error) string {
	var lines []string
	for line := range strings.Lines(err.Error()) {
		line = strings.Join(strings.Fields(line), " ")
		if line != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.Replace(strings.Join(lines, "; "), ":; ", ": ", 1)
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
		return store.ErrUnavailable, fmt.Sprintf("cannot connect to %s (%s): check the URL, and that the server runs and lets this host in", server, causes(err))
	}
	return store.ErrUnavailable, ""
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// grants are the statements that give a user what it lacks: the use of the
// schema, if that is what the server's message names, else all that leases need. If
// it lacks what every command reads first, they begin with what suffices to read
// what is published.
func grants(user, message string) string {
	to := pgx.Identifier{user}.Sanitize()
	if schema, ok := strings.CutPrefix(message, "permission denied for schema "); ok {
		return "GRANT USAGE ON SCHEMA " + pgx.Identifier{schema}.Sanitize() + " TO " + to + ";"
	}
	fetch := ""
	if strings.HasSuffix(message, " tenure_schema") || strings.HasSuffix(message, " tenure_floor") {
		fetch = "for tenure fetch --read-only alone GRANT SELECT ON tenure_schema, tenure_floor, tenure_publication_schema, tenure_publication, tenure_publication_attempt TO " + to +
			"; for leases "
	}
	return fetch + "GRANT SELECT ON tenure_schema TO " + to +
		"; GRANT SELECT, INSERT, UPDATE, DELETE ON tenure_lease TO " + to +
		"; GRANT SELECT, INSERT, DELETE ON tenure_term TO " + to +
		"; GRANT SELECT, INSERT ON tenure_slot TO " + to +
		"; GRANT SELECT, UPDATE ON tenure_floor TO " + to + ";"
}

func classifyServer(pg *pgconn.PgError, server, database, user string) (class error, advice string) {
	switch pg.Code {
	case "28P01":
		return store.ErrPermission, fmt.Sprintf("%s refused the password of user %q: correct it in the URL or in PGPASSWORD", server, user)
	case "28000":
		return store.ErrPermission, fmt.Sprintf("%s does not let user %q in (%s): use another user, or have pg_hba.conf allow this one", server, user, pg.Message)
	case "42501":
		return store.ErrPermission, fmt.Sprintf("user %q may not (%s): grant it its rights: %s", user, pg.Message, grants(user, pg.Message))
	case "3D000":
		return store.ErrUnavailable, fmt.Sprintf("database %q does not exist on %s: create it, or correct the URL", database, server)
	case "25006":
		return store.ErrReadOnly, fmt.Sprintf("%s accepts no writes (%s): connect to the primary, or set default_transaction_read_only off", server, pg.Message)
	case "42704": // settings that the URL passes on; nothing else here names an object of that kind
		return store.ErrInvalid, fmt.Sprintf("the URL holds a setting that neither the client nor %s knows (%s): correct the URL", server, pg.Message)
	case "42P01", "42883", "42703", "3F000":
		return store.ErrSchema, fmt.Sprintf("database %q has not the tables or functions of this version (%s): run: tenure migrate", database, pg.Message)
	case "22P05":
		return store.ErrInvalid, fmt.Sprintf("database %q cannot hold this text in its encoding (%s): use a database in UTF8, or plain ASCII", database, pg.Message)
	case codeLockTimeout, codeDeadlock, codeSerialization:
		return store.ErrBusy, ""
	}
	return store.ErrUnavailable, ""
}
