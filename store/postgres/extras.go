package postgres

import (
	"context"
	"iter"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// History implements store.Historian. It yields the terms of the last 30 days, and at
// least the newest 100, but no more than 10,000 or a few more. They are dropped when a
// new term starts, and with the record.
func (s *Store) History(ctx context.Context, name string) iter.Seq2[store.Term, error] {
	return func(yield func(store.Term, error) bool) {
		terms, err := s.history(ctx, name)
		if err != nil {
			yield(store.Term{}, err)
			return
		}
		for _, t := range terms {
			if !yield(t, nil) {
				return
			}
		}
	}
}

// history reads the current or last term from the lease itself, so that the
// two cannot disagree, and those before it from tenure_term.
func (s *Store) history(ctx context.Context, name string) ([]store.Term, error) {
	if err := store.CheckName(name); err != nil {
		return nil, err
	}
	var c call
	c.WriteString(s.authoritative())
	c.WriteString("WITH at AS (SELECT " + s.prefix + "tenure_clock() AS us), asked AS (SELECT ")
	c.quote(name)
	c.WriteString(`::text AS name)
		SELECT token, holder, acquired_us,
			CASE WHEN ended_us > 0 THEN ended_us WHEN expires_us > at.us THEN 0 ELSE expires_us END,
			CASE WHEN ended_us = 0 AND expires_us > at.us THEN '' WHEN revoked THEN 'revoked' WHEN ended_us > 0 THEN 'released' ELSE 'expired' END,
			why
		FROM ` + s.prefix + `tenure_lease JOIN asked USING (name), at WHERE token > 0
		UNION ALL
		SELECT token, holder, acquired_us, ended_us, ended, why FROM ` + s.prefix + `tenure_term JOIN asked USING (name)
		ORDER BY 1 DESC`)
	rows, err := s.do(ctx, "history", c.String())
	if err != nil {
		return nil, err
	}
	terms := make([]store.Term, 0, len(rows))
	for _, r := range rows {
		t := store.Term{Name: name, Token: fence.Token(r.number()), Holder: r.text()}
		t.AcquiredAt, t.EndedAt = instant(r.number()), instant(r.number())
		t.End, t.Why = r.text(), r.text()
		if r.err != nil {
			return nil, r.err
		}
		terms = append(terms, t)
	}
	return terms, nil
}

// Done implements store.Slotter. It does not change the lease's record, and
// holds off a takeover until the slot is recorded.
func (s *Store) Done(ctx context.Context, g store.Grant, slot string) error {
	if err := g.CheckRelease(); err != nil {
		return err
	}
	if err := store.CheckSlot(slot); err != nil {
		return err
	}
	var c call
	c.WriteString("SELECT verdict,(done).token,(done).holder,(done).done_us FROM " + s.prefix + "tenure_done(")
	c.text(g.Name)
	c.number(int64(g.Token))
	c.text(attemptList(g.Known))
	c.text(slot)
	c.WriteString(")")
	r, err := s.one(ctx, "record a slot", c.String())
	if err != nil {
		return s.explain(ctx, g.Name, err)
	}
	verdict := r.text()
	if verdict != string(store.CodeSlotDone) {
		return decision(verdict)
	}
	done := r.slot(g.Name, slot)
	if r.err != nil {
		return r.err
	}
	return &store.SlotError{Slot: done}
}

func (r *row) slot(name, slot string) store.Slot {
	return store.Slot{Name: name, Slot: slot, Token: fence.Token(r.number()), Holder: r.text(), DoneAt: instant(r.number())}
}

// Slot implements store.Slotter.
func (s *Store) Slot(ctx context.Context, name, slot string) (store.Slot, error) {
	if err := store.CheckName(name); err != nil {
		return store.Slot{}, err
	}
	if err := store.CheckSlot(slot); err != nil {
		return store.Slot{}, err
	}
	var c call
	c.WriteString(s.authoritative() + "SELECT token,holder,done_us FROM " + s.prefix + "tenure_slot WHERE name=")
	c.quote(name)
	c.WriteString(" AND slot=")
	c.quote(slot)
	rows, err := s.do(ctx, "get a slot", c.String())
	if err != nil {
		return store.Slot{}, err
	}
	if len(rows) == 0 {
		return store.Slot{}, store.ErrNotFound
	}
	done := rows[0].slot(name, slot)
	return done, rows[0].err
}

// Clean implements store.Cleaner. It passes over records that somebody has
// locked, keeps slots, since a slot is done once for ever, and keeps names for
// which only a floor was set.
func (s *Store) Clean(ctx context.Context, idle time.Duration) (int, error) {
	if idle < 0 {
		return 0, &store.InvalidError{Field: "idle", Value: idle.String(), Rule: "0s or more"}
	}
	var c call
	c.WriteString("SELECT " + s.prefix + "tenure_clean(")
	c.number(microseconds(idle))
	c.WriteString(")")
	r, err := s.one(ctx, "clean", c.String())
	if err != nil {
		return 0, s.explain(ctx, "", err)
	}
	removed := int(r.number())
	return removed, r.err
}
