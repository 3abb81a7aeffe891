package postgres

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// pgx tries each address with TLS and without, and tells of each try.
func TestCauses(t *testing.T) {
	t.Parallel()
	err := errors.New("failed to connect to `user=u database=x`:\n\t127.0.0.1:1: dial tcp 127.0.0.1:1: refused\n\t127.0.0.1:1: dial tcp 127.0.0.1:1: refused\n\t[::1]:1: dial tcp [::1]:1: refused")
	want := "failed to connect to `user=u database=x`: 127.0.0.1:1: dial tcp 127.0.0.1:1: refused; [::1]:1: dial tcp [::1]:1: refused"
	if got := causes(err); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A missing right comes with the statement that grants it.
func TestGrants(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		"permission denied for schema jobs":       `GRANT USAGE ON SCHEMA "jobs" TO "a""b";`,
		"permission denied for table tenure_term": `GRANT SELECT ON tenure_schema TO "a""b"; GRANT SELECT, INSERT, UPDATE, DELETE ON tenure_lease TO "a""b"; GRANT SELECT, INSERT, DELETE ON tenure_term TO "a""b"; GRANT SELECT, INSERT ON tenure_slot TO "a""b"; GRANT SELECT, UPDATE ON tenure_floor TO "a""b";`,
	} {
		_, advice := classifyServer(&pgconn.PgError{Code: "42501", Message: message}, "h:5432", "d", `a"b`)
		if len(advice) < len(want) || advice[len(advice)-len(want):] != want {
			t.Errorf("%s: got %q, want it to end in %q", message, advice, want)
		}
	}
}
