package sqlite

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/tenurehq/tenure/store"
)

const (
	// keepTerms is for how long terms are kept after their end, and maxTerms how many of
	// a name at most.
	keepTerms = 30 * 24 * time.Hour
	maxTerms  = 10_000
	// boundEvery is once in how many terms their number is looked at, which reads them.
	boundEvery = 100
)

// openTerm adds the term that r begins to the history. Beyond the newest keep it
// drops what ended longer ago than keepTerms, up to the first that did not, and what
// is beyond maxTerms.
func (tx *transaction) openTerm(r *row, keep int) error {
	if err := tx.exec("INSERT INTO tenure_term (name, token, holder, acquired_at, ended_at, end, why) VALUES (?1, ?2, ?3, ?4, '', '', '')",
		r.name, r.token, r.holder, iso(r.acquired)); err != nil {
		return err
	}
	const beyond = "DELETE FROM tenure_term WHERE name = ?1 AND token <= (SELECT token FROM tenure_term WHERE name = ?1 ORDER BY token DESC LIMIT 1 OFFSET ?2)"
	err := tx.exec(beyond+" AND token < (SELECT token FROM tenure_term WHERE name = ?1 AND (ended_at = '' OR ended_at >= ?3) ORDER BY token LIMIT 1)",
		r.name, keep, iso(r.acquired-keepTerms.Microseconds()))
	if err != nil || r.token%boundEvery != 0 {
		return err
	}
	return tx.exec(beyond, r.name, maxTerms)
}

// closeTerm writes into the history how and when r's term ended; of a revoked
// one that it was revoked.
func (tx *transaction) closeTerm(r *row, end string, ended time.Time) error {
	if r.revoked {
		end = "revoked"
	}
	err := tx.exec("UPDATE tenure_term SET ended_at = ?3, end = ?4, why = ?5 WHERE name = ?1 AND token = ?2", r.name, r.token, iso(ended.UnixMicro()), end, r.why)
	return err
}

// History implements store.Historian. It yields the terms of the last 30 days, and at
// least the newest Config.History, but no more than 10,000 and none from before the
// last Clean that removed the record.
func (s *Store) History(ctx context.Context, name string) iter.Seq2[store.Term, error] {
	return func(yield func(store.Term, error) bool) {
		terms, err := s.terms(ctx, name)
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

func (s *Store) terms(ctx context.Context, name string) (terms []store.Term, err error) {
	if err := store.CheckName(name); err != nil {
		return nil, err
	}
	current, err := s.Get(ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	err = s.read(ctx, "history", func() error {
		terms = nil
		rows, err := s.reader.QueryContext(ctx, "SELECT token, holder, acquired_at, ended_at, end, why FROM tenure_term WHERE name = ?1 ORDER BY token DESC", name)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			t := store.Term{Name: name}
			var acquired, ended string
			if err := rows.Scan(&t.Token, &t.Holder, &acquired, &ended, &t.End, &t.Why); err != nil {
				return err
			}
			var err1, err2 error
			t.AcquiredAt, err1 = parseISO(acquired)
			t.EndedAt, err2 = parseISO(ended)
			if err := errors.Join(err1, err2); err != nil {
				return fmt.Errorf("term %s of %q: %w", t.Token, name, err)
			}
			terms = append(terms, t)
		}
		return rows.Err()
	})
	// Nobody writes the end of a term that lapsed until the next one starts.
	if len(terms) > 0 && terms[0].Token == current.Token && terms[0].End == "" && current.Status == store.Lapsed {
		terms[0].End, terms[0].EndedAt = "expired", current.ExpiresAt
		if current.Revoked {
			terms[0].End = "revoked"
		}
	}
	if len(terms) > 0 && terms[0].Token == current.Token {
		terms[0].Why = current.Why
	}
	return terms, err
}

// Done implements store.Slotter. Slots are kept for ever, also through Clean.
func (s *Store) Done(ctx context.Context, g store.Grant, slot string) error {
	if err := store.CheckSlot(slot); err != nil {
		return err
	}
	if err := g.CheckRelease(); err != nil {
		return err
	}
	if g.Token < 1 {
		return &store.InvalidError{Field: "token", Value: g.Token.String(), Rule: "1 or more"}
	}
	if err := s.check(ctx); err != nil {
		return err
	}
	g = cloneGrants([]store.Grant{g})[0] // the transaction may outlast the call
	var refusal error
	err := s.write(ctx, "done", false, func(tx *transaction) (err error) {
		refusal, err = s.done(tx, &g, slot)
		return err
	})
	if err != nil {
		return err
	}
	return refusal
}

func (s *Store) done(tx *transaction, g *store.Grant, slot string) (refusal, err error) {
	entry, err := readSlot(context.Background(), tx, g.Name, slot)
	if err != nil {
		return nil, err
	}
	if entry != nil {
		if entry.Token == g.Token {
			return nil, nil
		}
		return &store.SlotError{Slot: *entry}, nil
	}
	r, err := s.loadRow(context.Background(), tx, g.Name)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return store.ErrMissing, nil
	}
	at := s.now() // after the write lock was taken
	rec, foreign := r.record(s.host.Domain, at)
	if foreign {
		rec.Status = store.Lapsed
	}
	if refusal := store.JudgeRenew(&rec, g); refusal != nil {
		return refusal, nil
	}
	err = tx.exec("INSERT INTO tenure_slot (name, slot, token, holder, done_at) VALUES (?1, ?2, ?3, ?4, ?5)",
		g.Name, slot, r.token, r.holder, iso(at.wall.UnixMicro()))
	return nil, err
}

// Slot implements store.Slotter.
func (s *Store) Slot(ctx context.Context, name, slot string) (store.Slot, error) {
	if err := store.CheckName(name); err != nil {
		return store.Slot{}, err
	}
	if err := store.CheckSlot(slot); err != nil {
		return store.Slot{}, err
	}
	if err := s.check(ctx); err != nil {
		return store.Slot{}, err
	}
	var entry *store.Slot
	err := s.read(ctx, "slot", func() (err error) {
		entry, err = readSlot(ctx, s.reader, name, slot)
		return err
	})
	if err != nil {
		return store.Slot{}, err
	}
	if entry == nil {
		return store.Slot{}, fmt.Errorf("sqlite: %w: slot %q of %q", store.ErrNotFound, slot, name)
	}
	return *entry, nil
}

func readSlot(ctx context.Context, q querier, name, slot string) (*store.Slot, error) {
	rows, err := q.QueryContext(ctx, "SELECT token, holder, done_at FROM tenure_slot WHERE name = ?1 AND slot = ?2", name, slot)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	if !rows.Next() {
		return nil, rows.Err()
	}
	entry := store.Slot{Name: name, Slot: slot}
	var done string
	if err := rows.Scan(&entry.Token, &entry.Holder, &done); err != nil {
		return nil, err
	}
	entry.DoneAt, err = parseISO(done)
	return &entry, err
}

// Clean implements store.Cleaner. It removes the terms of a removed record from
// the history too, and keeps records with a min-hold or a reservation running.
// A term of another domain must have been watched first, as for Acquire.
func (s *Store) Clean(ctx context.Context, idle time.Duration) (int, error) {
	if idle < 0 {
		return 0, &store.InvalidError{Field: "idle", Value: idle.String(), Rule: "0s or more"}
	}
	if err := s.check(ctx); err != nil {
		return 0, err
	}
	removed := 0
	err := s.write(ctx, "clean", false, func(tx *transaction) (err error) {
		removed, err = s.clean(tx, idle)
		return err
	})
	if err != nil {
		return 0, err
	}
	return removed, nil
}

func (s *Store) clean(tx *transaction, idle time.Duration) (int, error) {
	rows, err := s.loadRows(context.Background(), tx, selectLeases+"WHERE token > 0")
	if err != nil {
		return 0, err
	}
	floor, err := tx.unknownFloor()
	if err != nil {
		return 0, err
	}
	removed := 0
	at := s.now() // after the write lock was taken
	for _, r := range rows {
		rec, _ := r.record(s.host.Domain, at)
		if rec.Status == store.Held || rec.Wait > 0 || r.idle(s.host.Domain, at) < idle {
			continue
		}
		for _, table := range []string{"tenure_lease", "tenure_term", "tenure_observed"} {
			if err := tx.exec("DELETE FROM "+table+" WHERE name = ?1", r.name); err != nil {
				return 0, err
			}
		}
		floor = max(floor, r.token, r.floor)
		removed++
	}
	if removed == 0 {
		return 0, nil
	}
	return removed, tx.setMeta(map[string]string{"floor": strconv.FormatInt(floor, 10)})
}

// idle returns how long ago the term that r shows ended.
func (r *row) idle(domain string, at instant) time.Duration {
	switch {
	case r.own(domain, at):
		return time.Duration(at.boot - r.expires) // a release moved it to its time
	case r.ended != 0:
		return at.wall.Sub(fromMicro(r.ended))
	case r.watched(at):
		return time.Duration(at.boot - r.observed.Int64)
	}
	return -1
}
