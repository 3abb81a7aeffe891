package postgres

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"iter"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

var (
	_ store.Store     = (*Store)(nil)
	_ store.Watcher   = (*Store)(nil)
	_ store.Historian = (*Store)(nil)
	_ store.Slotter   = (*Store)(nil)
	_ store.Cleaner   = (*Store)(nil)
	_ store.Doctor    = (*Store)(nil)
)

const (
	minTTL = 50 * time.Millisecond
	// releaseMost bounds the rows of one Release statement: each may need an
	// advisory lock, and the server's table of locks has room for some 6,400.
	releaseMost = 1000
	listPage    = 500
)

// Config adjusts a Store. The zero Config is ready to use.
type Config struct {
	// Schema holds the tables. It must be an identifier of at most 48 letters,
	// digits and underscores. The default is "public".
	Schema string

	// TakeoverWait bounds how long a request waits for what somebody else has
	// locked: an Acquire for the commit of guarded transactions of the last term,
	// Revoke and RaiseFloor for whoever has the row. Renew and Release wait for no
	// row, but would for the whole table. Past it the error is a *store.BusyError
	// that names who is in the way. The default is 2 s. It bounds the wait for each
	// lock: an Acquire queues behind guarded transactions on one and then takes the
	// row, which others may have, so it can wait twice as long. A request whose
	// context ends sooner waits for a lock for at most half of the time that it has
	// left, so that it can still learn why.
	TakeoverWait time.Duration
}

// Store keeps leases in PostgreSQL. It is safe for concurrent use.
type Store struct {
	pool    *pgxpool.Pool
	schema  string // as given
	prefix  string // quoted, with a dot
	wait    time.Duration
	renewal line
	watch   hub
}

var schemaRule = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,47}$`)

// New returns a store on the pool's database. It sends nothing and starts
// nothing. The pool stays the caller's, who closes it after Close.
func New(pool *pgxpool.Pool, cfg Config) (*Store, error) {
	if pool == nil {
		return nil, &store.InvalidError{Field: "pool", Rule: "not nil"}
	}
	schema, err := checkSchema(cfg.Schema)
	if err != nil {
		return nil, err
	}
	if cfg.TakeoverWait < 0 || cfg.TakeoverWait > time.Hour {
		return nil, &store.InvalidError{Field: "takeover_wait", Value: cfg.TakeoverWait.String(), Rule: "from 0s (the default of 2s) to 1h"}
	}
	s := &Store{
		pool:    pool,
		schema:  schema,
		prefix:  `"` + schema + `".`,
		wait:    cmp.Or(cfg.TakeoverWait, 2*time.Second),
		renewal: newLine(),
	}
	s.watch.store = s
	return s, nil
}

func checkSchema(schema string) (string, error) {
	schema = cmp.Or(schema, "public")
	if !schemaRule.MatchString(schema) {
		return "", &store.InvalidError{Field: "schema", Value: schema, Rule: "1 to 48 letters, digits and underscores, not beginning with a digit"}
	}
	return schema, nil
}

// Close ends the connections that the Store made itself: those of renewals and
// of watches, whose channels close. It waits for a renewal in flight. The Store
// must not be used afterwards.
func (s *Store) Close() {
	s.watch.close()
	s.renewal.close()
}

// Features says what PostgreSQL can ensure.
func (s *Store) Features() store.Features {
	return store.Features{
		Backend:      "postgres",
		Clock:        store.ClockServer,
		MinTTL:       minTTL,
		Granularity:  time.Microsecond,
		BatchRenew:   true,
		Watch:        true,
		JoinedFence:  true,
		Reach:        "any host",
		TokensReset:  "dropping the tables, or restoring an older backup (then raise the floor)",
		LosesWrites:  "a failover to a standby that is not synchronous; a crash with fsync off",
		ClockCaution: "a forward step of the server's clock, or a failover to a server whose clock is ahead, ends terms early; a backward step delays takeovers",
	}
}

// space, guards and channel keep the schemas of one database apart: the first
// number of the advisory locks under which waiters are registered, that of those
// on which guarded transactions and takeovers queue, and where notifications are
// sent.
func (s *Store) space() int32 { return spaceOf("tenure " + s.schema) }

func (s *Store) guards() int32 { return spaceOf("tenure guards " + s.schema) }

func spaceOf(use string) int32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(use)) // never fails
	return int32(h.Sum32())
}

func (s *Store) channel() string { return "tenure " + s.schema }

// do runs a statement on a connection of the pool.
func (s *Store) do(ctx context.Context, what, statement string) ([]*row, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, failure(what, s.pool.Config().ConnConfig, err)
	}
	rows, err := s.query(ctx, conn.Conn().PgConn(), statement)
	if err != nil && ctx.Err() != nil {
		// Nobody knows what is still under way on it.
		discard(conn.Hijack())
	} else {
		conn.Release()
	}
	if err != nil {
		return nil, failure(what, s.pool.Config().ConnConfig, err)
	}
	return rows, nil
}

// one is do for a statement with one row.
func (s *Store) one(ctx context.Context, what, statement string) (*row, error) {
	rows, err := s.do(ctx, what, statement)
	if err != nil {
		return nil, err
	}
	if len(rows) != 1 {
		return nil, fmt.Errorf("postgres: %s: got %d rows, want 1: %w", what, len(rows), store.ErrSchema)
	}
	return rows[0], nil
}

// discard closes a connection whose state is unknown, without waiting for the
// other side.
func discard(conn *pgx.Conn) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = conn.Close(ctx) // it is given up whatever this says
}

// Acquire implements store.Store. If guarded transactions of the last term do
// not end within Config.TakeoverWait, it returns a *store.BusyError that names
// them.
func (s *Store) Acquire(ctx context.Context, req store.Request) (store.Record, error) {
	if err := req.Check(minTTL); err != nil {
		return store.Record{}, err
	}
	var c call
	c.WriteString("SELECT verdict,clock_us," + leaseColumns + " FROM " + s.prefix + "tenure_acquire(")
	c.text(req.Name)
	c.text(req.Holder)
	c.number(microseconds(req.TTL))
	c.text(req.Attempt.String())
	c.text(attemptList(req.Known))
	var replace store.Grant
	if req.Replace != nil {
		replace = *req.Replace
	}
	c.number(int64(replace.Token))
	c.text(attemptList(replace.Known))
	c.number(microseconds(req.MinHold))
	c.text(string(req.IfRevision))
	var notAfter int64
	if !req.ClockNotAfter.IsZero() {
		notAfter = max(req.ClockNotAfter.UnixMicro(), 1) // 0 is none
	}
	c.number(notAfter)
	meta := ""
	if len(req.Meta) > 0 {
		b, err := json.Marshal(req.Meta)
		if err != nil {
			return store.Record{}, fmt.Errorf("postgres: acquire: meta: %w", err)
		}
		meta = string(b)
	}
	c.text(meta)
	c.WriteString(")")

	r, err := s.one(ctx, "acquire", c.String())
	if err != nil {
		return store.Record{}, s.explain(ctx, req.Name, err)
	}
	verdict := r.text()
	if verdict == "missing" {
		return store.Record{}, store.ErrMissing
	}
	rec := r.record(r.number())
	if r.err != nil {
		return store.Record{}, r.err
	}
	switch verdict {
	case "":
		return *rec, nil
	case store.HeldByTerm, store.HeldChanged, store.HeldByMinHold, store.HeldReserved:
		return store.Record{}, &store.HeldError{Record: *rec, Remaining: max(rec.Remaining, rec.Wait), Reason: verdict}
	}
	return store.Record{}, decision(verdict)
}

// decision turns a verdict of a function into the error that it stands for.
func decision(verdict string) error {
	switch store.Code(verdict) {
	case "":
		return nil
	case store.CodeSuperseded:
		return store.ErrSuperseded
	case store.CodeExpired:
		return store.ErrExpired
	case store.CodeMissing:
		return store.ErrMissing
	case store.CodeRevoked:
		return store.ErrRevoked
	case store.CodeReleased:
		return store.ErrReleased
	case store.CodeNotFound:
		return store.ErrNotFound
	case store.CodeClockStep:
		return store.ErrClockStep
	}
	return fmt.Errorf("postgres: verdict %q is of another version: %w", verdict, store.ErrSchema)
}

// explain adds to a lock timeout who is in the way. It asks after the fact, so
// it can name nobody if they have ended since.
func (s *Store) explain(ctx context.Context, name string, err error) error {
	if !isLockTimeout(err) {
		return err
	}
	var c call
	c.WriteString("SELECT * FROM " + s.prefix + "tenure_blockers(")
	c.text(name)
	c.WriteString(")")
	busy := &store.BusyError{Name: name}
	rows, _ := s.do(ctx, "find who has the lease locked", c.String()) // that it is busy matters more than by whom
	for _, r := range rows {
		busy.Blockers = append(busy.Blockers, r.text())
	}
	return busy
}

// Renew implements store.Store: one statement on a connection that is used for
// nothing else, whatever the number of grants. A name may occur once in them.
// After a timeout or a broken connection the next call dials a fresh one.
func (s *Store) Renew(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	order, err := inOrder(grants, func(g *store.Grant) error { return g.CheckRenew(minTTL) })
	if err != nil || len(grants) == 0 {
		return nil, err
	}
	var c call
	c.WriteString("SELECT i,verdict,clock_us," + leaseColumns + " FROM " + s.prefix + "tenure_renew(")
	c.grants(order)
	c.numbers(len(order), func(i int) int64 { return microseconds(order[i].TTL) })
	c.sent(order)
	c.WriteString(")")
	rows, err := s.renewal.do(ctx, s, "renew", c.String())
	if err != nil {
		return nil, s.explain(ctx, "", err)
	}
	return renewals(order, rows)
}

// renewals reads the answer of tenure_renew.
func renewals(order []indexed, rows []*row) ([]store.Result, error) {
	results := make([]store.Result, len(order))
	for k, r := range rows {
		i, verdict, clock := r.number(), r.text(), r.number()
		if r.err != nil {
			return nil, r.err
		}
		if (k == 0) != (i == 0) || i > int64(len(order)) {
			return nil, fmt.Errorf("postgres: an answer to no grant: %w", store.ErrSchema)
		}
		if k == 0 {
			for _, o := range order {
				results[o.at].Record = extended(clock, o.Grant)
			}
			continue
		}
		o := order[i-1]
		if verdict == "" {
			results[o.at].Record = extended(clock, o.Grant)
			continue
		}
		result := &results[o.at]
		*result = store.Result{Err: decision(verdict)}
		if verdict == string(store.CodeBusy) {
			result.Err = &store.BusyError{Name: o.Name}
		}
		if rec := r.record(clock); rec != nil {
			result.Record = *rec
		}
		if r.err != nil {
			return nil, r.err
		}
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("postgres: no answer to %d grants: %w", len(order), store.ErrSchema)
	}
	return results, nil
}

// extended is the record of a term that was extended by the instant clock, as
// far as its holder does not know it already.
func extended(clock int64, g *store.Grant) store.Record {
	// The database counts in microseconds, so a TTL may have been rounded up.
	ttl := time.Duration(microseconds(g.TTL)) * time.Microsecond
	return store.Record{
		Name: g.Name, Status: store.Held, Token: g.Token, Attempt: g.Attempt, TTL: ttl, Remaining: ttl,
		RenewedAt: instant(clock), ExpiresAt: instant(clock).Add(ttl), Now: instant(clock),
	}
}

// Release implements store.Store. A name may occur once in the grants.
func (s *Store) Release(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	order, err := inOrder(grants, (*store.Grant).CheckRelease)
	if err != nil || len(grants) == 0 {
		return nil, err
	}
	results := make([]store.Result, len(grants))
	for part := range slices.Chunk(order, releaseMost) {
		var c call
		c.WriteString("SELECT i,verdict,clock_us," + leaseColumns + " FROM " + s.prefix + "tenure_release(")
		c.grants(part)
		c.sent(part)
		c.texts(len(part), func(b *strings.Builder, i int) { b.WriteString(part[i].HandoffTo) })
		c.number(microseconds(store.MaxHandoff))
		c.WriteString(")")
		rows, err := s.do(ctx, "release", c.String())
		if err != nil {
			return nil, s.explain(ctx, "", err)
		}
		if err := collect(results, part, rows); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// indexed is a grant and its place in the call.
type indexed struct {
	*store.Grant
	at int
}

// inOrder checks the grants and returns them in byte order of their names: the
// one order in which every batch locks rows.
func inOrder(grants []store.Grant, check func(*store.Grant) error) ([]indexed, error) {
	order := make([]indexed, len(grants))
	for i := range grants {
		if err := check(&grants[i]); err != nil {
			return nil, err
		}
		order[i] = indexed{&grants[i], i}
	}
	slices.SortFunc(order, func(a, b indexed) int { return strings.Compare(a.Name, b.Name) })
	for i := 1; i < len(order); i++ {
		if order[i].Name == order[i-1].Name {
			return nil, &store.InvalidError{Field: "name", Value: order[i].Name, Rule: "once in one call"}
		}
	}
	return order, nil
}

func (c *call) grants(order []indexed) {
	c.texts(len(order), func(b *strings.Builder, i int) { b.WriteString(order[i].Name) })
	c.numbers(len(order), func(i int) int64 { return int64(order[i].Token) })
}

func (c *call) sent(order []indexed) {
	c.texts(len(order), func(b *strings.Builder, i int) { attempts(b, []store.Attempt{order[i].Attempt}) })
	c.texts(len(order), func(b *strings.Builder, i int) { attempts(b, order[i].Known) })
}

// collect puts the answers to order into results.
func collect(results []store.Result, order []indexed, rows []*row) error {
	if len(rows) != len(order) {
		return fmt.Errorf("postgres: got %d answers to %d grants: %w", len(rows), len(order), store.ErrSchema)
	}
	for _, r := range rows {
		i := r.number() - 1
		if i < 0 || i >= int64(len(order)) {
			return fmt.Errorf("postgres: an answer to no grant: %w", store.ErrSchema)
		}
		verdict := r.text()
		rec := r.record(r.number())
		if r.err != nil {
			return r.err
		}
		result := &results[order[i].at]
		if rec != nil {
			result.Record = *rec
		}
		if verdict == string(store.CodeBusy) {
			result.Err = &store.BusyError{Name: order[i].Name}
			continue
		}
		result.Err = decision(verdict)
	}
	return nil
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, name string) (store.Record, error) {
	if err := store.CheckName(name); err != nil {
		return store.Record{}, err
	}
	var c call
	c.WriteString("name=")
	c.quote(name)
	records, err := s.read(ctx, "get", c.String())
	if err != nil {
		return store.Record{}, err
	}
	if len(records) == 0 {
		return store.Record{}, store.ErrNotFound
	}
	return records[0], nil
}

// read returns the leases that a condition selects, as they stand now.
func (s *Store) read(ctx context.Context, what, condition string) ([]store.Record, error) {
	rows, err := s.do(ctx, what, s.authoritative()+"SELECT "+s.prefix+"tenure_clock(),"+columns+" FROM "+s.prefix+"tenure_lease WHERE "+condition)
	if err != nil {
		return nil, err
	}
	records := make([]store.Record, 0, len(rows))
	for _, r := range rows {
		rec := r.record(r.number())
		if r.err != nil {
			return nil, r.err
		}
		records = append(records, *rec)
	}
	return records, nil
}

// authoritative makes a read fail on a standby, which may not know of a grant.
func (s *Store) authoritative() string {
	return "SELECT " + s.prefix + "tenure_begin(); "
}

// List implements store.Store. It reads 500 records a request and holds no
// connection while the caller has the record.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[store.Record, error] {
	return func(yield func(store.Record, error) bool) {
		if err := store.CheckPrefix(prefix); err != nil {
			yield(store.Record{}, err)
			return
		}
		for last := ""; ; {
			var c call
			// "~" is larger than any byte of a name.
			c.WriteString("name>=")
			c.quote(prefix)
			c.WriteString(" AND name<")
			c.quote(prefix + "~")
			c.WriteString(" AND name>")
			c.quote(last)
			fmt.Fprintf(&c, " ORDER BY name LIMIT %d", listPage)
			records, err := s.read(ctx, "list", c.String())
			if err != nil {
				yield(store.Record{}, err)
				return
			}
			for _, rec := range records {
				if !yield(rec, nil) {
					return
				}
			}
			if len(records) < listPage {
				return
			}
			last = records[len(records)-1].Name
		}
	}
}

// Revoke implements store.Store. A second Revoke of a term replaces the reason
// and the handoff of the first.
func (s *Store) Revoke(ctx context.Context, name string, token fence.Token, rev store.Revocation) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	if err := rev.Check(); err != nil {
		return err
	}
	var c call
	c.WriteString("SELECT " + s.prefix + "tenure_revoke(")
	c.text(name)
	c.number(int64(token))
	c.text(rev.Why)
	c.text(rev.By)
	c.boolean(rev.Now)
	c.text(rev.HandoffTo)
	c.number(microseconds(store.MaxHandoff))
	c.WriteString(")")
	r, err := s.one(ctx, "revoke", c.String())
	if err != nil {
		return s.explain(ctx, name, err)
	}
	return decision(r.text())
}

// RaiseFloor implements store.Store. For all names it writes every record
// whose floor is smaller, in one transaction.
func (s *Store) RaiseFloor(ctx context.Context, name string, floor fence.Token) error {
	if err := store.CheckFloor(name, floor); err != nil {
		return err
	}
	var c call
	c.WriteString("SELECT " + s.prefix + "tenure_raise_floor(")
	c.text(name)
	c.number(int64(floor))
	c.WriteString(")")
	if _, err := s.one(ctx, "raise the floor", c.String()); err != nil {
		return s.explain(ctx, name, err)
	}
	return nil
}
