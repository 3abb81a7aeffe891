package server

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server/leasehttp"
)

// Role says what a credential may do.
type Role string

// The roles.
const (
	Viewer   Role = "viewer"   // read
	Agent    Role = "agent"    // read, and speak for one node: its beats, orders, work and lease
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

// of returns who sent a request. Without tokens everybody is an operator, as long
// as the request is for a name of this host: a page from elsewhere that has its own
// name resolve to loopback is not let in.
func (t Tokens) of(r *http.Request) (Identity, error) {
	if t == nil {
		if host := hostOf(r.Host); !loopback(host) {
			return Identity{}, api.Refuse(api.CodeForbidden, "without credentials this server answers to names of this host only, such as localhost, and not to %q", clip(host))
		}
		return Identity{Role: Operator}, nil
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	id, ok := t[sha256.Sum256([]byte(token))]
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return Identity{}, api.Refuse(api.CodeUnauthorized, "no valid bearer token: send one of the server's token file in the header Authorization")
	}
	return id, nil
}

func hostOf(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return strings.Trim(hostport, "[]")
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}

func clip(s string) string {
	const most = 64
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

type identityKey struct{}

func withIdentity(ctx context.Context, id Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, id)
}

// identity is who sent the request of ctx. Nobody has no role.
func identity(ctx context.Context) Identity {
	id, _ := ctx.Value(identityKey{}).(Identity)
	return id
}

// report is the access of what an agent says or asks of its own node, beside those
// of package leasehttp. The handler calls speaksFor.
const report = "report"

// allows returns why a role may not do what has an access; nil if it may. What an
// agent may is bound to its node by the handlers.
func (id Identity) allows(access any) error {
	switch access {
	case leasehttp.Read:
		if id.Role != "" {
			return nil
		}
	case leasehttp.Hold, report:
		if id.Role == Operator || id.Role == Agent {
			return nil
		}
	case leasehttp.Operate:
		if id.Role == Operator {
			return nil
		}
	}
	return api.Refuse(api.CodeForbidden, "the role %s may not do this", cmp.Or(id.Role, "of nobody"))
}

// speaksFor returns why a request may not speak for a node; nil if it may.
func (id Identity) speaksFor(node string) error {
	if id.Role == Operator || id.Role == Agent && id.Node == node {
		return nil
	}
	if id.Role == Agent {
		return api.Refuse(api.CodeForbidden, "this token is bound to node %q, and does not speak for %q", id.Node, clip(node))
	}
	return api.Refuse(api.CodeForbidden, "the role %s does not speak for a node", cmp.Or(id.Role, "of nobody"))
}
