package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// instant is one reading of the clock.
type instant struct {
	boot int64     // ns: decides
	wall time.Time // is shown
}

// row is a row of tenure_lease, joined with what was observed of it in this
// host's domain.
type row struct {
	name, attempt, domain           string
	token, floor, revision          int64
	ttl, expires                    int64 // ns
	renewed, acquired, ended        int64 // µs of the wall clock
	holdNs, holdUs                  int64
	reservedNs, reservedUs          int64
	reservedFor, handoffTo          string
	revoked                         bool
	why, revokedBy, holder, metaRaw string

	observed sql.NullInt64 // boot ns at which it lapses if its holder stays silent
}

const leaseColumns = "name, token, floor, revision, attempt, domain, ttl_ns, expires_ns, renewed_us, acquired_us, ended_us, hold_ns, hold_us, reserved_ns, reserved_us, reserved_for, handoff_to, revoked, why, revoked_by, holder, meta"

// selectLeases takes the domain as its first parameter.
const selectLeases = `
SELECT l.name, token, floor, revision, l.attempt, l.domain, ttl_ns, expires_ns, renewed_us, acquired_us, ended_us, hold_ns, hold_us, reserved_ns, reserved_us, reserved_for, handoff_to, revoked, why, revoked_by, holder, meta, until_ns
FROM tenure_lease l LEFT JOIN tenure_observed o ON o.name = l.name AND o.domain = ?1 AND o.attempt = l.attempt `

const (
	selectOne   = selectLeases + "WHERE l.name = ?2"
	selectNamed = selectLeases + "WHERE l.name IN (SELECT value FROM json_each(?2))"
	selectPage  = selectLeases + "WHERE l.name >= ?2 AND l.name < ?3 ORDER BY l.name LIMIT 256"

	upsertLease = "INSERT INTO tenure_lease (" + leaseColumns + `) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22)
ON CONFLICT (name) DO UPDATE SET token = ?2, floor = ?3, revision = ?4, attempt = ?5, domain = ?6, ttl_ns = ?7, expires_ns = ?8, renewed_us = ?9, acquired_us = ?10, ended_us = ?11,
	hold_ns = ?12, hold_us = ?13, reserved_ns = ?14, reserved_us = ?15, reserved_for = ?16, handoff_to = ?17, revoked = ?18, why = ?19, revoked_by = ?20, holder = ?21, meta = ?22`

	// watchAll notes each open term of another domain as seen in domain ?1 at
	// ?2, unless it was seen there before and not written since.
	watchAll = `INSERT INTO tenure_observed (name, domain, attempt, until_ns)
SELECT name, ?1, attempt, ?2 + ttl_ns FROM tenure_lease WHERE token > 0 AND ended_us = 0 AND (domain <> ?1 OR expires_ns - ttl_ns > ?2)
ON CONFLICT (name, domain) DO UPDATE SET attempt = excluded.attempt, until_ns = excluded.until_ns WHERE attempt <> excluded.attempt`

	watchOne = `INSERT INTO tenure_observed (name, domain, attempt, until_ns) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (name, domain) DO UPDATE SET attempt = excluded.attempt, until_ns = excluded.until_ns`
)

func scanRow(rows *sql.Rows) (*row, error) {
	var r row
	err := rows.Scan(&r.name, &r.token, &r.floor, &r.revision, &r.attempt, &r.domain, &r.ttl, &r.expires, &r.renewed, &r.acquired, &r.ended, &r.holdNs, &r.holdUs,
		&r.reservedNs, &r.reservedUs, &r.reservedFor, &r.handoffTo, &r.revoked, &r.why, &r.revokedBy, &r.holder, &r.metaRaw, &r.observed)
	return &r, err
}

// loadRows reads rows by one of the select statements.
func (s *Store) loadRows(ctx context.Context, q querier, query string, args ...any) ([]*row, error) {
	rows, err := q.QueryContext(ctx, query, append([]any{s.host.Domain}, args...)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []*row
	for rows.Next() {
		r, err := scanRow(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, rows.Err()
}

// loadRow returns the row of name, nil if there is none.
func (s *Store) loadRow(ctx context.Context, q querier, name string) (*row, error) {
	rows, err := s.loadRows(ctx, q, selectOne, name)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return rows[0], nil
}

// save writes r, with a new revision.
func (tx *transaction) save(r *row) error {
	r.revision++
	err := tx.exec(upsertLease, r.name, r.token, r.floor, r.revision, r.attempt, r.domain, r.ttl, r.expires, r.renewed, r.acquired, r.ended, r.holdNs, r.holdUs,
		r.reservedNs, r.reservedUs, r.reservedFor, r.handoffTo, r.revoked, r.why, r.revokedBy, r.holder, r.metaRaw)
	return err
}

// own reports whether the row's boot-clock columns can be read by this host's
// clock. A term that would have been renewed in the future was not written by
// this clock, whatever its domain says: a machine was restored from a snapshot.
func (r *row) own(domain string, at instant) bool {
	return r.domain == domain && r.expires-r.ttl <= at.boot
}

// watched reports whether a foreign row's observation counts.
func (r *row) watched(at instant) bool {
	return r.observed.Valid && r.observed.Int64-r.ttl <= at.boot
}

// left returns how long it is until an end written on both clocks: by the boot
// clock where that can be read, else by the wall clock and at most most.
func left(own bool, at instant, ns, us int64, most time.Duration) time.Duration {
	switch {
	case us == 0:
		return 0
	case own:
		return max(0, time.Duration(ns-at.boot))
	}
	return max(0, min(most, fromMicro(us).Sub(at.wall)))
}

func (r *row) holdLeft(own bool, at instant) time.Duration {
	return left(own, at, r.holdNs, r.holdUs, time.Duration(r.holdUs-r.acquired)*time.Microsecond)
}

func (r *row) reservedLeft(own bool, at instant) time.Duration {
	return left(own, at, r.reservedNs, r.reservedUs, store.HandoffTime(time.Duration(r.ttl)))
}

// record returns r as it stands at the instant. foreign says that its expiry
// cannot be judged by this host's clock but only by watching.
func (r *row) record(domain string, at instant) (rec store.Record, foreign bool) {
	own := r.own(domain, at)
	rec = store.Record{
		Name:     r.name,
		Holder:   r.holder,
		Token:    fence.Token(r.token),
		Floor:    fence.Token(r.floor),
		Revision: revision(r.token, r.revision),
		TTL:      time.Duration(r.ttl),
		Revoked:  r.revoked, Why: r.why, RevokedBy: r.revokedBy,
		Now: at.wall,
	}
	if r.token == 0 {
		rec.Status = store.Unheld
		return rec, false
	}
	_ = rec.Attempt.UnmarshalText([]byte(r.attempt)) // a damaged one recognises nobody
	rec.AcquiredAt, rec.RenewedAt = fromMicro(r.acquired), fromMicro(r.renewed)
	rec.ExpiresAt = rec.RenewedAt.Add(rec.TTL)
	if r.metaRaw != "" {
		_ = json.Unmarshal([]byte(r.metaRaw), &rec.Meta) // for people to read; damage to it must not cost the term
	}
	var expiry int64
	switch {
	case own:
		expiry = r.expires
	case r.watched(at):
		expiry = r.observed.Int64
	default:
		expiry = at.boot + r.ttl
	}
	switch remaining := min(time.Duration(expiry-at.boot), rec.TTL); {
	case r.ended != 0:
		rec.Status, rec.EndedAt = store.Released, fromMicro(r.ended)
	case remaining > 0:
		rec.Status, rec.Remaining = store.Held, remaining
	default:
		rec.Status = store.Lapsed
	}
	hold, reserved := r.holdLeft(own, at), r.reservedLeft(own, at)
	rec.Wait = max(hold, reserved)
	if hold == 0 && reserved > 0 {
		rec.ReservedFor = r.reservedFor
	}
	return rec, !own && r.ended == 0
}

// rebase rewrites what is left of the min-hold and the reservation into this
// host's domain, before a write that makes the row this domain's.
func (r *row) rebase(domain string, at instant) {
	own := r.own(domain, at)
	r.holdNs = at.boot + int64(r.holdLeft(own, at))
	r.reservedNs = at.boot + int64(r.reservedLeft(own, at))
	r.domain = domain
}

// extend lets the term live for ttl from now on.
func (r *row) extend(domain string, at instant, attempt store.Attempt, ttl time.Duration) {
	r.rebase(domain, at)
	r.attempt, r.ttl = attempt.String(), int64(ttl)
	r.expires, r.renewed = at.boot+int64(ttl), at.wall.UnixMicro()
}

// end ends the term now and begins the reservation for whom, if any.
func (r *row) end(domain string, at instant, whom string) {
	r.rebase(domain, at)
	r.expires, r.ended = at.boot, at.wall.UnixMicro()
	r.reservedFor, r.reservedNs, r.reservedUs = whom, 0, 0
	if whom != "" {
		d := store.HandoffTime(time.Duration(r.ttl))
		r.reservedNs, r.reservedUs = at.boot+int64(d), at.wall.Add(d).UnixMicro()
	}
}

// revision joins the token in, so that a record that was cleaned and made anew
// never shows a revision again.
func revision(token, n int64) store.Revision {
	return store.Revision(strconv.FormatInt(token, 10) + "." + strconv.FormatInt(n, 10))
}

func fromMicro(us int64) time.Time { return time.UnixMicro(us).UTC() }

// isoTime is the format of the columns in _at.
const isoTime = "2006-01-02T15:04:05.000000Z"

func iso(us int64) string { return fromMicro(us).Format(isoTime) }

func parseISO(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	return time.Parse(isoTime, s)
}

// renewBatch extends the terms listed in ?1 that store.JudgeRenew would let
// renew; ?2 is the boot clock, ?3 the wall clock, ?4 the domain. Each grant is
// one string, because SQLite parses nested JSON again for each field:
//
//	attempt (32) token (19) TTL in ns (14) length of the name (3) name known attempts (32 each)
const renewBatch = `
UPDATE tenure_lease SET attempt = substr(g.value, 1, 32), ttl_ns = CAST(substr(g.value, 52, 14) AS INTEGER),
	expires_ns = ?2 + CAST(substr(g.value, 52, 14) AS INTEGER), renewed_us = ?3, revision = revision + 1
FROM json_each(?1) AS g
WHERE name = substr(g.value, 69, CAST(substr(g.value, 66, 3) AS INTEGER)) AND token = CAST(substr(g.value, 33, 19) AS INTEGER)
	AND token > floor AND revoked = 0 AND ended_us = 0 AND domain = ?4 AND expires_ns > ?2 AND expires_ns - ttl_ns <= ?2
	AND (instr(substr(g.value, 69 + CAST(substr(g.value, 66, 3) AS INTEGER)), attempt) - 1) % 32 = 0`

// closeBatch and releaseBatch end the terms listed in ?1, each "attempt (32)
// name", which were judged already: terms of this domain that leave no
// reservation and were not revoked.
const (
	closeBatch = `
UPDATE tenure_term SET ended_at = ?2, end = 'released' FROM json_each(?1) AS g JOIN tenure_lease l ON l.name = substr(g.value, 33)
WHERE tenure_term.name = l.name AND tenure_term.token = l.token`
	releaseBatch = `
UPDATE tenure_lease SET attempt = substr(g.value, 1, 32), expires_ns = ?2, ended_us = ?3, reserved_for = '', reserved_ns = 0, reserved_us = 0, revision = revision + 1
FROM json_each(?1) AS g WHERE name = substr(g.value, 33)`
)

func appendGrant(b []byte, g *store.Grant) []byte {
	b = append(b, '"')
	b = appendHex(b, g.Attempt)
	b = appendPadded(b, int64(g.Token), 19)
	b = appendPadded(b, int64(g.TTL), 14)
	b = appendPadded(b, int64(len(g.Name)), 3)
	b = append(b, g.Name...) // no byte of a name needs escaping in JSON
	for _, k := range g.Known {
		b = appendHex(b, k)
	}
	return append(b, '"')
}

func appendHex(b []byte, a store.Attempt) []byte {
	const digits = "0123456789abcdef"
	for _, c := range a {
		b = append(b, digits[c>>4], digits[c&15])
	}
	return b
}

func appendPadded(b []byte, n int64, width int) []byte {
	var digits [20]byte
	d := strconv.AppendInt(digits[:0], n, 10)
	for range width - len(d) {
		b = append(b, '0')
	}
	return append(b, d...)
}

// names returns the names as a JSON array.
func names(grants []store.Grant) string {
	var b strings.Builder
	for i := range grants {
		b.WriteString(`,"` + grants[i].Name + `"`)
	}
	return "[" + b.String()[min(1, b.Len()):] + "]"
}

func encodeMeta(m map[string]string) string {
	if len(m) == 0 {
		return ""
	}
	b, _ := json.Marshal(m) // strings always marshal
	return string(b)
}

var errTokens = errors.New("sqlite: the tokens of this name are used up")

// nextToken returns the token of the next term.
func (r *row) nextToken() (int64, error) {
	last := max(r.token, r.floor)
	if last == 1<<63-1 {
		return 0, fmt.Errorf("%w: %q", errTokens, r.name)
	}
	return last + 1, nil
}
