package postgres

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// Statements are sent as text, in one message of the simple protocol: several
// statements of one message are one transaction, which a failure ends without
// another round trip, and nothing stays behind in the connection. Values are
// written so that no setting of the session changes what they mean.

// prelude states what a role or database may have set otherwise: the isolation
// level; the search path, so that no operator or function of somebody else's is
// taken for one of PostgreSQL's; and no compiling of plans that run for
// milliseconds.
const prelude = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL jit = off; "

// query runs statement in a transaction of its own, after the prelude, and
// returns the rows of its last statement. It bounds the wait for each lock.
func (s *Store) query(ctx context.Context, conn *pgconn.PgConn, statement string) ([]*row, error) {
	wait := s.wait
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)/2)
	}
	results, err := conn.Exec(ctx, fmt.Sprintf("%sSET LOCAL lock_timeout = %d; %s",
		prelude, max(wait.Milliseconds(), 1), statement)).ReadAll()
	if err != nil {
		return nil, err
	}
	values := results[len(results)-1].Rows
	rows := make([]*row, len(values))
	backing := make([]row, len(values))
	for i, v := range values {
		backing[i].columns = v
		rows[i] = &backing[i]
	}
	return rows, nil
}

// call is a statement that calls a function of the schema.
type call struct {
	strings.Builder
	arguments int
}

// text appends a string. Bytes that a quoted literal could take amiss, in any
// setting of standard_conforming_strings or the encoding, travel as hexadecimal.
func (c *call) text(s string) { c.next(); c.quote(s) }

func (c *call) quote(s string) {
	if plain(s) {
		c.WriteByte('\'')
		c.WriteString(s)
		c.WriteByte('\'')
		return
	}
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	c.WriteString("convert_from(decode('")
	c.WriteString(hex.EncodeToString([]byte(s)))
	c.WriteString("','hex'),'UTF8')")
}

func plain(s string) bool {
	for i := range len(s) {
		if b := s[i]; b < ' ' || b > '~' || b == '\'' || b == '\\' {
			return false
		}
	}
	return true
}

func (c *call) number(n int64) {
	c.next()
	// The cast settles which function is meant.
	c.WriteString(strconv.FormatInt(n, 10))
	c.WriteString("::bigint")
}

func (c *call) boolean(b bool) { c.next(); c.WriteString(strconv.FormatBool(b)) }

// texts appends an array of names, holders or attempts: strings that need no escape.
func (c *call) texts(n int, write func(b *strings.Builder, i int)) {
	c.next()
	c.WriteString("'{")
	for i := range n {
		if i > 0 {
			c.WriteByte(',')
		}
		c.WriteByte('"')
		write(&c.Builder, i)
		c.WriteByte('"')
	}
	c.WriteString("}'::text[]")
}

func (c *call) numbers(n int, value func(i int) int64) {
	c.next()
	c.WriteString("'{")
	for i := range n {
		if i > 0 {
			c.WriteByte(',')
		}
		c.WriteString(strconv.FormatInt(value(i), 10))
	}
	c.WriteString("}'::bigint[]")
}

func (c *call) next() {
	if c.arguments++; c.arguments > 1 {
		c.WriteByte(',')
	}
}

// attempts writes a list as the functions search it.
func attempts(b *strings.Builder, list []store.Attempt) {
	for i, a := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		var digits [2 * len(a)]byte
		hex.Encode(digits[:], a[:])
		b.Write(digits[:])
	}
}

func attemptList(list []store.Attempt) string {
	var b strings.Builder
	attempts(&b, list)
	return b.String()
}

// microseconds rounds up, so that no duration is shortened.
func microseconds(d time.Duration) int64 {
	return int64((d + time.Microsecond - 1) / time.Microsecond)
}

func instant(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// row reads the columns of one result in order. The first problem sticks.
type row struct {
	columns [][]byte
	err     error
}

func (r *row) take() []byte {
	if len(r.columns) == 0 {
		r.fail("too few columns")
		return nil
	}
	c := r.columns[0]
	r.columns = r.columns[1:]
	return c
}

func (r *row) fail(what string) {
	if r.err == nil {
		r.err = fmt.Errorf("postgres: unexpected answer: %s: %w", what, store.ErrSchema)
	}
}

// null reports whether the next column is null, without taking it.
func (r *row) null() bool { return len(r.columns) == 0 || r.columns[0] == nil }

func (r *row) text() string { return string(r.take()) }

func (r *row) boolean() bool { return string(r.take()) == "t" }

func (r *row) number() int64 {
	b := r.take()
	n, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil {
		r.fail(fmt.Sprintf("%q is not a number", b))
	}
	return n
}

// columns of a lease, in the order in which record reads them.
const columns = "name,token,floor,revision,holder,attempt,ttl_us,acquired_us,renewed_us,expires_us,ended_us," +
	"revoked,why,revoked_by,hold_until_us,reserved_for,reserved_until_us,meta"

// leaseColumns selects the columns of the composite lease.
var leaseColumns = "(lease)." + strings.ReplaceAll(columns, ",", ",(lease).")

// record reads a lease as it stands at the instant clock. It returns nil if
// all its columns are null: there is no such row.
func (r *row) record(clock int64) *store.Record {
	if r.null() {
		return nil
	}
	rec := &store.Record{
		Name:  r.text(),
		Token: fence.Token(r.number()),
		Floor: fence.Token(r.number()),
	}
	rec.Revision = store.Revision(rec.Token.String() + "." + r.text())
	rec.Holder = r.text()
	if attempt := r.take(); len(attempt) > 0 {
		if err := rec.Attempt.UnmarshalText(attempt); err != nil {
			r.fail(err.Error())
		}
	}
	rec.TTL = time.Duration(r.number()) * time.Microsecond
	rec.AcquiredAt = instant(r.number())
	rec.RenewedAt = instant(r.number())
	expires := r.number()
	rec.ExpiresAt = instant(expires)
	ended := r.number()
	rec.EndedAt = instant(ended)
	rec.Revoked = r.boolean()
	rec.Why = r.text()
	rec.RevokedBy = r.text()
	hold := r.number() - clock
	reservedFor := r.text()
	reserved := r.number() - clock
	rec.Now = instant(clock)
	switch {
	case rec.Token == 0:
		rec.Status = store.Unheld
	case ended > 0:
		rec.Status = store.Released
	case expires > clock:
		rec.Status = store.Held
		// More than the TTL is left if the clock was set back.
		rec.Remaining = min(time.Duration(expires-clock)*time.Microsecond, rec.TTL)
	default:
		rec.Status = store.Lapsed
	}
	rec.Wait = time.Duration(max(hold, reserved, 0)) * time.Microsecond
	if hold <= 0 && reserved > 0 {
		rec.ReservedFor = reservedFor
	}
	rec.Meta = r.meta()
	return rec
}

func (r *row) meta() map[string]string {
	text := r.take()
	if len(text) == 0 {
		return nil
	}
	var meta map[string]string
	if err := json.Unmarshal(text, &meta); err != nil {
		r.fail("meta: " + err.Error())
	}
	return meta
}
