package server

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/tenurehq/tenure/fleet"
)

// Role says what a credential may do. Each role may do what those before it in
// this list may, but an agent, which may speak for its own node only.
type Role string

// The roles.
const (
	Viewer   Role = "viewer"   // read
	Agent    Role = "agent"    // beat and report for one node, hold leases
	Operator Role = "operator" // everything
)

// Identity is who sent a request.
type Identity struct {
	Role Role
	Node string // of an agent
}

// Tokens are the credentials that a server takes, by their SHA-256: a copy of
// the process's memory does not hold them.
type Tokens map[[32]byte]Identity

// ReadTokens reads lines of "TOKEN ROLE [NODE]". Empty lines and those that
// begin with # are passed over. An error names the line, never the token.
func ReadTokens(r io.Reader) (Tokens, error) {
	tokens, lines := Tokens{}, bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) < 2 || len(fields) > 3 {
			return nil, fmt.Errorf("line %d: want TOKEN ROLE [NODE], got %d words", n, len(fields))
		}
		if len(fields[0]) < 16 {
			return nil, fmt.Errorf("line %d: the token has %d characters; it must have at least 16", n, len(fields[0]))
		}
		id := Identity{Role: Role(fields[1])}
		switch id.Role {
		case Viewer, Operator:
			if len(fields) == 3 {
				return nil, fmt.Errorf("line %d: role %s has no node", n, id.Role)
			}
		case Agent:
			if len(fields) == 2 {
				return nil, fmt.Errorf("line %d: role agent needs the name of its node", n)
			}
			if err := fleet.CheckID("node", fields[2]); err != nil {
				return nil, fmt.Errorf("line %d: %w", n, err)
			}
			id.Node = fields[2]
		default:
			return nil, fmt.Errorf("line %d: role %q; the roles are viewer, agent and operator", n, fields[1])
		}
		sum := sha256.Sum256([]byte(fields[0]))
		if _, ok := tokens[sum]; ok {
			return nil, fmt.Errorf("line %d: this token stands in the file twice", n)
		}
		tokens[sum] = id
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(tokens) == 0 {
		return nil, fmt.Errorf("no token in it; a line is TOKEN ROLE [NODE]")
	}
	return tokens, nil
}

type identityKey struct{}

// identify returns a handler that lets in who has a credential. Without tokens
// everybody is an operator: that is for a loopback listener alone.
func identify(tokens Tokens, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := Identity{Role: Operator}
		if tokens != nil && r.URL.Path != "/livez" && r.URL.Path != "/readyz" {
			scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
			known, ok := tokens[sha256.Sum256([]byte(token))]
			if !ok || !strings.EqualFold(scheme, "bearer") {
				w.Header().Set("WWW-Authenticate", `Bearer realm="tenure"`)
				writeProblem(w, http.StatusUnauthorized, "unauthenticated", "no valid bearer token; set TENURE_SERVER_TOKEN")
				return
			}
			id = known
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), identityKey{}, id)))
	})
}

func identity(ctx context.Context) Identity {
	id, _ := ctx.Value(identityKey{}).(Identity)
	return id
}
