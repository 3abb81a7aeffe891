package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
)

const (
	eventColumns = "seq, at_us, kind, node, work, token, code, actor, text, fields"
	takenColumns = "seq, work, actor, from_node, from_token, to_node, to_token, lease_token, lease_state, progress, silence_us, suspect_us, lapse_us, recorded_us, started_us, redirected_us"
)

// append adds an event, and sets its Seq and At.
func (t *tx) append(e *fleet.Event) error {
	fields := ""
	if e.Fields != nil {
		var err error
		if fields, err = encode("fields", e.Fields); err != nil {
			return err
		}
	}
	e.At = instant(t.wall)
	return t.row("INSERT INTO {s}fleet_event (at_us, kind, node, work, token, code, actor, text, fields) VALUES ({now}, $1, $2, $3, $4, $5, $6, $7, $8) RETURNING seq",
		string(e.Kind), e.Node, e.Work, int64(e.Token), string(e.Code), e.Actor, e.Text, fields).Scan(&e.Seq)
}

// Append adds events to the ledger and returns the last of them in the verdict;
// their Seq and At are set by it.
func (r *Registry) Append(ctx context.Context, f Fence, events ...fleet.Event) (Verdict, error) {
	if len(events) == 0 {
		return Verdict{}, nil
	}
	return r.decide(ctx, "append to the ledger", f, "", func(t *tx) (Verdict, error) {
		var v Verdict
		for _, e := range events {
			if err := t.append(&e); err != nil {
				return Verdict{}, err
			}
			v.Event = e
		}
		return v, nil
	})
}

// Suspected returns which of some nodes are suspect by the ledger: it has told of none
// that it is heard again, or has joined, since it told that.
func (r *Registry) Suspected(ctx context.Context, nodes []string) ([]string, error) {
	var suspected []string
	err := r.read(ctx, "read who is suspect", func(t *tx) error {
		return t.each(func(row scanner) error {
			var id string
			err := row.Scan(&id)
			suspected = append(suspected, id)
			return err
		}, "SELECT a.value FROM "+t.rows("$1")+" WHERE $2 = (SELECT e.kind FROM {s}fleet_event e WHERE e.node <> '' AND e.node = a.value AND e.kind IN ($2, $3, $4) ORDER BY e.seq DESC LIMIT 1)",
			t.list(nodes), string(fleet.EventSuspect), string(fleet.EventAlive), string(fleet.EventJoined))
	})
	return suspected, err
}

// where collects conditions and their parameters.
type where struct {
	conditions []string
	args       []any
}

func (w *where) add(condition string, arg any) {
	w.args = append(w.args, arg)
	w.conditions = append(w.conditions, strings.ReplaceAll(condition, "?", fmt.Sprintf("$%d", len(w.args))))
}

// before keeps what has a smaller seq than an entry; 0 keeps all.
func (w *where) before(seq int64) {
	if seq > 0 {
		w.add("seq < ?", seq)
	}
}

// page returns a query in order of seq, or for the last rows backwards.
func (w *where) page(columns, table string, n int, last bool) string {
	order := " ORDER BY seq"
	if last {
		order += " DESC"
	}
	w.args = append(w.args, limit(n))
	return "SELECT " + columns + " FROM {s}" + table + " WHERE " + strings.Join(w.conditions, " AND ") + order + fmt.Sprintf(" LIMIT $%d", len(w.args))
}

// ledgerMask keeps a Seq in the second number of an advisory lock.
const ledgerMask = 1<<31 - 1

// announce holds, to the end of a writing transaction on Postgres, an advisory
// lock that is numbered by the last Seq that anybody has drawn. What the
// transaction draws is larger. Nobody waits for these locks: complete reads them.
func (t *tx) announce() string {
	return fmt.Sprintf("SELECT pg_advisory_xact_lock_shared(%d, (CASE WHEN is_called THEN last_value ELSE 0 END & %d)::int) FROM {s}fleet_event_seq_seq", t.space("ledger"), ledgerMask)
}

// complete returns the Seq up to which the ledger is complete: what will be
// committed later has a larger one.
//
// On Postgres transactions may commit in another order than they drew. A writer
// that was not seen here announced itself after last was read, so it draws more
// than last; one that was seen draws more than it announced; and one that has
// ended is visible to the statements that follow, since Postgres gives up locks
// after a commit is visible.
func (t *tx) complete() (int64, error) {
	if t.name == SQLite {
		return 1<<63 - 1, nil
	}
	var last int64
	if err := t.row("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {s}fleet_event_seq_seq").Scan(&last); err != nil {
		return 0, err
	}
	bound := last
	return bound, t.each(func(row scanner) error {
		var announced int64
		err := row.Scan(&announced)
		bound = min(bound, last-(last-announced)&ledgerMask)
		return err
	}, `SELECT objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND classid = ($1::int)::oid
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, int64(t.space("ledger")))
}

// Events returns the entries of EventPage.
func (r *Registry) Events(ctx context.Context, f EventFilter) ([]fleet.Event, error) {
	p, err := r.EventPage(ctx, f)
	return p.Events, err
}

// EventPage returns entries of the ledger in order of Seq. An event that was
// returned has no earlier one that is still to come. An event that was committed
// is held back while a transaction of the fleet is open that was begun before it,
// on Postgres.
func (r *Registry) EventPage(ctx context.Context, f EventFilter) (EventPage, error) {
	var w where
	w.add("seq > ?", f.After)
	w.before(f.Before)
	if f.Node != "" {
		w.add("node <> '' AND node = ?", f.Node)
	}
	if f.Work != "" {
		w.add("work <> '' AND work = ?", f.Work)
	}
	if f.Kind != "" {
		w.add("kind = ?", string(f.Kind))
	}
	var p EventPage
	err := r.read(ctx, "read events", func(t *tx) error {
		bound, err := t.complete()
		if err != nil {
			return err
		}
		w.add("seq <= ?", bound)
		err = t.each(func(row scanner) error {
			var e fleet.Event
			var at, token int64
			var fields string
			if err := row.Scan(&e.Seq, &at, (*string)(&e.Kind), &e.Node, &e.Work, &token, (*string)(&e.Code), &e.Actor, &e.Text, &fields); err != nil {
				return err
			}
			e.At, e.Token = instant(at), fence.Token(token)
			p.Events = append(p.Events, e)
			if fields == "" {
				return nil
			}
			last := &p.Events[len(p.Events)-1]
			if e.Kind == fleet.EventTakeover {
				last.Fields = &fleet.Evidence{}
				return json.Unmarshal([]byte(fields), last.Fields)
			}
			return json.Unmarshal([]byte(fields), &last.Fields)
		}, w.page(eventColumns, "fleet_event", f.Limit, f.Last), w.args...)
		if err != nil {
			return err
		}
		// After the entries, so that none is missing that the mark does not tell of.
		return t.row("SELECT pruned FROM {s}fleet_single").Scan(&p.Pruned)
	})
	if f.Last {
		slices.Reverse(p.Events)
	}
	return p, err
}

// Taken is one takeover of the ledger. Evidence.To is "" while nobody has the
// item.
type Taken struct {
	Seq   int64
	Work  string
	Actor string
	fleet.Evidence
}

// TakeoverFilter chooses takeovers.
type TakeoverFilter struct {
	After  int64  // Seq
	Before int64  // Seq; 0 for no bound
	Work   string // "" for all
	Node   string // that lost or got it; "" for all
	Limit  int    // 0: 1,000
	Last   bool   // the newest Limit, still in order of Seq
}

// Takeovers returns takeovers in order of Seq.
func (r *Registry) Takeovers(ctx context.Context, f TakeoverFilter) ([]Taken, error) {
	var w where
	w.add("seq > ?", f.After)
	w.before(f.Before)
	if f.Work != "" {
		w.add("work = ?", f.Work)
	}
	if f.Node != "" {
		w.add("(from_node = ? OR to_node = ?)", f.Node)
	}
	var all []Taken
	err := r.read(ctx, "read takeovers", func(t *tx) error {
		return t.each(func(row scanner) error {
			var k Taken
			var from, to, lease, silence, suspect, lapse, recorded, started, redirected int64
			if err := row.Scan(&k.Seq, &k.Work, &k.Actor, &k.From, &from, &k.To, &to, &lease, (*string)(&k.LeaseState), &k.Progress, &silence, &suspect, &lapse, &recorded, &started, &redirected); err != nil {
				return err
			}
			k.FromToken, k.ToToken, k.LeaseToken = fence.Token(from), fence.Token(to), fence.Token(lease)
			k.Silence, k.Suspect, k.Lapse, k.Recorded, k.Started, k.Redirected = instant(silence), instant(suspect), instant(lapse), instant(recorded), instant(started), instant(redirected)
			all = append(all, k)
			return nil
		}, w.page(takenColumns, "fleet_takeover", f.Limit, f.Last), w.args...)
	})
	if f.Last {
		slices.Reverse(all)
	}
	return all, err
}

// MarkRedirected records when a lookup first answered the new owner of a
// takeover. Later calls change nothing.
func (r *Registry) MarkRedirected(ctx context.Context, work string, token fence.Token) error {
	return r.transact(ctx, "mark a takeover", writing, func(t *tx) (bool, error) {
		_, err := t.exec("UPDATE {s}fleet_takeover SET redirected_us = {now} WHERE work = $1 AND to_token = $2 AND redirected_us = 0", work, int64(token))
		return true, err
	})
}

// Retention says what Prune keeps. A zero age or number keeps all.
type Retention struct {
	Events    time.Duration // age of events
	Takeovers time.Duration // age of takeovers: rules of flapping ask about recent ones
	MaxEvents int64
	Ended     time.Duration // age of the end of work
	Removed   time.Duration // age of the removal of nodes
}

// PruneBatch is how many rows of a kind one Prune deletes at most: a transaction
// that holds up nobody for long.
const PruneBatch = 1000

// running are the takeovers k that are under way: recorded, and the item neither
// started by its new owner nor ended.
const running = `SELECT 1 FROM {s}fleet_takeover k JOIN {s}fleet_work w ON w.id = k.work
	WHERE k.started_us = 0 AND w.state NOT IN ('succeeded', 'failed', 'stopped') AND w.token = CASE WHEN k.to_token > 0 THEN k.to_token ELSE k.from_token END`

// Prune deletes, under a term, some of what a retention does not keep, oldest
// first, and says how many rows that were and whether there may be more: then call
// it again. The record of a takeover that is still under way is kept, and its event
// too, whatever their age. EventPage.Pruned says up to where events are missing. The
// tokens of items that come later begin above those of the deleted ones. The verdict's
// code is stale_token if the term is over.
func (r *Registry) Prune(ctx context.Context, f Fence, keep Retention) (deleted int64, more bool, _ Verdict, _ error) {
	v, err := r.decide(ctx, "prune", f, "", func(t *tx) (Verdict, error) {
		prune := func(table, key, condition string, arg int64) error {
			n, err := t.exec("DELETE FROM {s}"+table+" WHERE "+key+" IN (SELECT "+key+" FROM {s}"+table+" x WHERE "+condition+fmt.Sprintf(" ORDER BY %s LIMIT %d)", key, PruneBatch), arg)
			deleted, more = deleted+n, more || n == PruneBatch
			return err
		}
		var last int64 // event that was deleted
		pruneEvents := func(condition string, arg int64) error {
			var n int64
			err := t.each(func(row scanner) error {
				var seq int64
				err := row.Scan(&seq)
				n, last = n+1, max(last, seq)
				return err
			}, "DELETE FROM {s}fleet_event WHERE seq IN (SELECT seq FROM {s}fleet_event x WHERE "+condition+fmt.Sprintf(" ORDER BY seq LIMIT %d) RETURNING seq", PruneBatch), arg)
			deleted, more = deleted+n, more || n == PruneBatch
			return err
		}
		before := func(age time.Duration) int64 { return t.wall - age.Microseconds() }
		const settled = " AND NOT (x.kind = '" + string(fleet.EventTakeover) + "' AND EXISTS (" + running + " AND k.work = x.work AND k.to_token = x.token))"
		if keep.Ended > 0 {
			// The floor is raised first, so that nobody begins below it meanwhile.
			const ended = "state IN ('succeeded', 'failed', 'stopped') AND ended_us < $1"
			if _, err := t.exec("UPDATE {s}fleet_floor SET token = {greatest}(token, (SELECT coalesce(max(token), 0) FROM {s}fleet_work WHERE "+ended+"))", before(keep.Ended)); err != nil {
				return Verdict{}, err
			}
			if err := prune("fleet_work", "id", ended, before(keep.Ended)); err != nil {
				return Verdict{}, err
			}
		}
		if keep.Removed > 0 {
			if err := prune("fleet_node", "id", "removed_us > 0 AND removed_us < $1", before(keep.Removed)); err != nil {
				return Verdict{}, err
			}
		}
		if keep.Events > 0 {
			// Up to the first that is young enough, for which no index is needed: the order
			// of numbers is that of time, as long as the database's clock is not set back.
			const old = "seq < coalesce((SELECT seq FROM {s}fleet_event WHERE at_us >= $1 ORDER BY seq LIMIT 1), 9223372036854775807)"
			if err := pruneEvents(old+settled, before(keep.Events)); err != nil {
				return Verdict{}, err
			}
		}
		if keep.Takeovers > 0 {
			if err := prune("fleet_takeover", "seq", "recorded_us < $1 AND NOT EXISTS ("+running+" AND k.seq = x.seq)", before(keep.Takeovers)); err != nil {
				return Verdict{}, err
			}
		}
		if keep.MaxEvents > 0 {
			if err := pruneEvents("seq <= (SELECT max(seq) FROM {s}fleet_event) - $1"+settled, keep.MaxEvents); err != nil {
				return Verdict{}, err
			}
		}
		if last > 0 {
			if _, err := t.exec("UPDATE {s}fleet_single SET pruned = {greatest}(pruned, $1)", last); err != nil {
				return Verdict{}, err
			}
		}
		return Verdict{}, nil
	})
	if err != nil || v.Code != "" {
		deleted, more = 0, false
	}
	return deleted, more, v, err
}
