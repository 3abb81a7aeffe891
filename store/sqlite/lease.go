package sqlite

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// Acquire implements store.Store. It looks first without the write lock, and
// takes that only if the term may start. A try that loses writes nothing, but
// for the note described in the package comment, once for each term of another
// domain.
func (s *Store) Acquire(ctx context.Context, req store.Request) (store.Record, error) {
	if err := req.Check(MinTTL); err != nil {
		return store.Record{}, err
	}
	if err := s.check(ctx); err != nil {
		return store.Record{}, err
	}
	var r *row
	err := s.read(ctx, "acquire", func() (err error) {
		r, err = s.loadRow(ctx, s.reader, req.Name)
		return err
	})
	if err != nil {
		return store.Record{}, err
	}
	at := s.now()
	if _, refusal := s.judge(r, &req, at); refusal != nil && !s.unwatched(r, at) {
		return store.Record{}, refusal
	}
	req.Known, req.Meta = slices.Clone(req.Known), maps.Clone(req.Meta) // the transaction may outlast the call
	if req.Replace != nil {
		req.Replace = &cloneGrants([]store.Grant{*req.Replace})[0]
	}
	var rec store.Record
	var refusal error
	err = s.write(ctx, "acquire", false, func(tx *transaction) (err error) {
		rec, refusal, err = s.acquire(tx, &req)
		return err
	})
	if err != nil {
		return store.Record{}, err
	}
	return rec, refusal
}

// unwatched reports whether r is an open term of another domain that nobody has
// begun to watch.
func (s *Store) unwatched(r *row, at instant) bool {
	return r != nil && r.token > 0 && r.ended == 0 && !r.own(s.host.Domain, at) && !r.watched(at)
}

// judge is store.JudgeAcquire on r. A term of another domain is neither
// continued nor replaced: nothing shows that it is unexpired.
func (s *Store) judge(r *row, req *store.Request, at instant) (store.Verdict, error) {
	if r == nil {
		return store.JudgeAcquire(nil, req)
	}
	rec, foreign := r.record(s.host.Domain, at)
	if !foreign {
		return store.JudgeAcquire(&rec, req)
	}
	newcomer := *req
	newcomer.Known, newcomer.Replace = nil, nil
	verdict, err := store.JudgeAcquire(&rec, &newcomer)
	var held *store.HeldError
	if errors.As(err, &held) && held.Reason == store.HeldByTerm {
		held.Reason = store.HeldMaybe
	}
	return verdict, err
}

func (s *Store) acquire(tx *transaction, req *store.Request) (rec store.Record, refusal, err error) {
	r, err := s.loadRow(context.Background(), tx, req.Name)
	if err != nil {
		return rec, nil, err
	}
	at := s.now() // after the write lock was taken
	verdict, refusal := s.judge(r, req, at)
	if refusal != nil && s.unwatched(r, at) {
		err := tx.exec(watchOne, r.name, s.host.Domain, r.attempt, at.boot+r.ttl)
		return rec, refusal, err
	}
	switch verdict {
	case store.Refuse:
		return rec, refusal, nil
	case store.Continue:
		r.extend(s.host.Domain, at, req.Attempt, req.TTL)
	case store.Start:
		if r == nil {
			floor, err := tx.unknownFloor()
			if err != nil {
				return rec, nil, err
			}
			r = &row{name: req.Name, floor: floor}
		}
		if err := s.start(tx, r, req, at); err != nil {
			if errors.Is(err, errTokens) {
				return rec, err, nil
			}
			return rec, nil, err
		}
	}
	if err := tx.save(r); err != nil {
		return rec, nil, err
	}
	rec, _ = r.record(s.host.Domain, at)
	return rec, nil, nil
}

// start makes r the first write of a new term.
func (s *Store) start(tx *transaction, r *row, req *store.Request, at instant) error {
	token, err := r.nextToken()
	if err != nil {
		return err
	}
	if r.token > 0 && r.ended == 0 {
		end, ended := "replaced", at.wall
		if old, _ := r.record(s.host.Domain, at); old.Status == store.Lapsed {
			end, ended = "expired", old.ExpiresAt
		}
		if err := tx.closeTerm(r, end, ended); err != nil {
			return err
		}
		if err := tx.exec("DELETE FROM tenure_observed WHERE name = ?1", r.name); err != nil {
			return err
		}
	}
	hold := max(r.holdLeft(r.own(s.host.Domain, at), at), req.MinHold) // that of a replaced term goes on
	*r = row{
		name: r.name, floor: r.floor, revision: r.revision, token: token,
		holder: req.Holder, metaRaw: encodeMeta(req.Meta), acquired: at.wall.UnixMicro(),
	}
	r.extend(s.host.Domain, at, req.Attempt, req.TTL)
	if hold > 0 {
		r.holdNs, r.holdUs = at.boot+int64(hold), at.wall.Add(hold).UnixMicro()
	}
	tx.wake = true
	return tx.openTerm(r, s.history)
}

// Renew implements store.Store: one statement for all grants that can be
// renewed, and a judgement for each of the others, in one transaction.
func (s *Store) Renew(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	for i := range grants {
		if err := grants[i].CheckRenew(MinTTL); err != nil {
			return nil, err
		}
	}
	return s.batch(ctx, "renew", grants, s.renew)
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	for i := range grants {
		if err := grants[i].CheckRelease(); err != nil {
			return nil, err
		}
	}
	return s.batch(ctx, "release", grants, s.release)
}

func (s *Store) batch(ctx context.Context, doing string, grants []store.Grant, run func(*transaction, []store.Grant) ([]store.Result, error)) ([]store.Result, error) {
	if len(grants) == 0 {
		return nil, nil
	}
	seen := make(map[string]struct{}, len(grants))
	for i := range grants {
		name := grants[i].Name
		if _, twice := seen[name]; twice {
			return nil, &store.InvalidError{Field: "name", Value: name, Rule: "once in one call"}
		}
		seen[name] = struct{}{}
	}
	if err := s.check(ctx); err != nil {
		return nil, err
	}
	grants = cloneGrants(grants) // the transaction may outlast the call
	var results []store.Result
	err := s.write(ctx, doing, false, func(tx *transaction) (err error) {
		results, err = run(tx, grants)
		return err
	})
	if err != nil {
		return nil, err
	}
	return results, nil
}

// cloneGrants copies grants and the attempts they list, in two allocations.
func cloneGrants(grants []store.Grant) []store.Grant {
	n := 0
	for i := range grants {
		n += len(grants[i].Known)
	}
	grants, known := slices.Clone(grants), make([]store.Attempt, 0, n)
	for i := range grants {
		from := len(known)
		known = append(known, grants[i].Known...)
		grants[i].Known = known[from:]
	}
	return grants
}

func (s *Store) renew(tx *transaction, grants []store.Grant) ([]store.Result, error) {
	results := make([]store.Result, len(grants))
	body := append(make([]byte, 0, len(grants)*140), '[')
	for i := range grants {
		if i > 0 {
			body = append(body, ',')
		}
		body = appendGrant(body, &grants[i])
	}
	now := s.now() // after the write lock was taken
	renewed, err := tx.change(renewBatch, string(append(body, ']')), now.boot, now.wall.UnixMicro(), s.host.Domain)
	if err != nil {
		return nil, err
	}
	if renewed == int64(len(grants)) {
		for i := range grants {
			results[i].Record = extended(&grants[i], now)
		}
		return results, nil
	}
	all := make([]int, len(grants))
	for i := range all {
		all[i] = i
	}
	return results, s.each(tx, grants, all, func(r *row, i int, at instant) error {
		g := &grants[i]
		if r.attempt == g.Attempt.String() && r.expires == now.boot+int64(g.TTL) { // written just now
			results[i].Record = extended(g, now)
			return nil
		}
		rec, foreign := r.record(s.host.Domain, at)
		if foreign && rec.Status == store.Held {
			rec.Status, rec.Remaining = store.Lapsed, 0 // nothing shows that it is unexpired
		}
		results[i].Record = rec
		if results[i].Err = store.JudgeRenew(&rec, g); results[i].Err != nil {
			return nil
		}
		r.extend(s.host.Domain, at, g.Attempt, g.TTL)
		err := tx.save(r)
		results[i].Record, _ = r.record(s.host.Domain, at)
		return err
	}, func(i int) { results[i].Err = store.ErrMissing })
}

// extended is the record of a term that was extended at an instant, as far as
// its holder does not know it already.
func extended(g *store.Grant, at instant) store.Record {
	renewed := fromMicro(at.wall.UnixMicro()) // as it is stored
	return store.Record{
		Name: g.Name, Status: store.Held, Token: g.Token, Attempt: g.Attempt, TTL: g.TTL, Remaining: g.TTL,
		RenewedAt: renewed, ExpiresAt: renewed.Add(g.TTL), Now: at.wall,
	}
}

// each reads the rows of the grants that which lists and calls found for each
// in order, or missing where there is no row.
func (s *Store) each(tx *transaction, grants []store.Grant, which []int, found func(r *row, i int, at instant) error, missing func(i int)) error {
	wanted := make([]store.Grant, len(which))
	for k, i := range which {
		wanted[k] = grants[i]
	}
	rows, err := s.loadRows(context.Background(), tx, selectNamed, names(wanted))
	if err != nil {
		return err
	}
	byName := make(map[string]*row, len(rows))
	for _, r := range rows {
		byName[r.name] = r
	}
	at := s.now() // after the write lock was taken
	for _, i := range which {
		r := byName[grants[i].Name]
		if r == nil {
			missing(i)
			continue
		}
		if err := found(r, i, at); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) release(tx *transaction, grants []store.Grant) ([]store.Result, error) {
	results := make([]store.Result, len(grants))
	all := make([]int, len(grants))
	for i := range all {
		all[i] = i
	}
	plain := []byte{'['}
	var now instant
	err := s.each(tx, grants, all, func(r *row, i int, at instant) error {
		g := &grants[i]
		rec, _ := r.record(s.host.Domain, at)
		results[i].Record = rec
		if results[i].Err = store.JudgeRelease(&rec, g); results[i].Err != nil || rec.Status == store.Released {
			return nil
		}
		whom := g.HandoffTo
		if r.handoffTo != "" {
			whom = r.handoffTo // an operator's choice stands
		}
		tx.wake = true
		now = at
		simple := whom == "" && !r.revoked && r.own(s.host.Domain, at)
		r.attempt = g.Attempt.String()
		r.end(s.host.Domain, at, whom)
		var err error
		if simple {
			r.revision++
			if len(plain) > 1 {
				plain = append(plain, ',')
			}
			plain = append(appendHex(append(plain, '"'), g.Attempt), r.name+`"`...)
		} else {
			err = errors.Join(tx.closeTerm(r, "released", at.wall), tx.save(r))
		}
		results[i].Record, _ = r.record(s.host.Domain, at)
		return err
	}, func(i int) { results[i].Err = store.ErrMissing })
	if err != nil || len(plain) == 1 {
		return results, err
	}
	list := string(append(plain, ']'))
	if err := tx.exec(closeBatch, list, iso(now.wall.UnixMicro())); err != nil {
		return results, err
	}
	err = tx.exec(releaseBatch, list, now.boot, now.wall.UnixMicro())
	return results, err
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, name string) (store.Record, error) {
	if err := store.CheckName(name); err != nil {
		return store.Record{}, err
	}
	if err := s.check(ctx); err != nil {
		return store.Record{}, err
	}
	var r *row
	err := s.read(ctx, "get", func() (err error) {
		r, err = s.loadRow(ctx, s.reader, name)
		return err
	})
	if err != nil {
		return store.Record{}, err
	}
	if r == nil {
		return store.Record{}, fmt.Errorf("sqlite: %w: %q", store.ErrNotFound, name)
	}
	rec, _ := r.record(s.host.Domain, s.now())
	return rec, nil
}

// List implements store.Store. It reads a page at a time, so that a slow caller
// holds no read transaction open.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[store.Record, error] {
	return func(yield func(store.Record, error) bool) {
		err := store.CheckPrefix(prefix)
		if err == nil {
			err = s.check(ctx)
		}
		for from := prefix; err == nil; {
			var page []*row
			err = s.read(ctx, "list", func() (err error) {
				page, err = s.loadRows(ctx, s.reader, selectPage, from, prefix+"\x7f") // no name has a byte that large
				return err
			})
			at := s.now()
			for _, r := range page {
				rec, _ := r.record(s.host.Domain, at)
				if !yield(rec, nil) {
					return
				}
				from = r.name + "\x00"
			}
			if err == nil && len(page) == 0 {
				return
			}
		}
		yield(store.Record{}, err)
	}
}

// Revoke implements store.Store.
func (s *Store) Revoke(ctx context.Context, name string, token fence.Token, rev store.Revocation) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	if err := rev.Check(); err != nil {
		return err
	}
	if err := s.check(ctx); err != nil {
		return err
	}
	var refusal error
	err := s.write(ctx, "revoke", false, func(tx *transaction) error {
		refusal = nil
		r, err := s.loadRow(context.Background(), tx, name)
		if err != nil {
			return err
		}
		if r == nil {
			refusal = fmt.Errorf("sqlite: %w: %q", store.ErrNotFound, name)
			return nil
		}
		at := s.now() // after the write lock was taken
		rec, _ := r.record(s.host.Domain, at)
		if rec.Status != store.Held || rec.Token != token {
			refusal = fmt.Errorf("sqlite: %w: %q has token %s and is %s", store.ErrSuperseded, name, rec.Token, rec.Status)
			return nil
		}
		r.revoked, r.why, r.revokedBy, r.handoffTo = true, rev.Why, rev.By, rev.HandoffTo
		if rev.Now {
			if err := tx.closeTerm(r, "revoked", at.wall); err != nil {
				return err
			}
			r.holdNs, r.holdUs = 0, 0
			r.end(s.host.Domain, at, rev.HandoffTo)
			tx.wake = true
		}
		return tx.save(r)
	})
	if err != nil {
		return err
	}
	return refusal
}

// RaiseFloor implements store.Store. With name "" and a floor above every token
// in the file it also adopts a file that was copied from another host; see Adopt.
func (s *Store) RaiseFloor(ctx context.Context, name string, floor fence.Token) error {
	if err := store.CheckFloor(name, floor); err != nil {
		return err
	}
	if name == "" {
		return s.raiseAll(ctx, "raise the floor", func(int64) (int64, error) { return int64(floor), nil })
	}
	if err := s.check(ctx); err != nil {
		return err
	}
	return s.write(ctx, "raise the floor", false, func(tx *transaction) error {
		r, err := s.loadRow(context.Background(), tx, name)
		if err != nil {
			return err
		}
		if r == nil {
			known, err := tx.unknownFloor()
			if err != nil {
				return err
			}
			r = &row{name: name, floor: known}
		}
		if int64(floor) <= r.floor {
			return nil
		}
		return s.raise(tx, r, int64(floor))
	})
}

// raise sets the floor of r, if that raises it. A held term at or below it is
// revoked.
func (s *Store) raise(tx *transaction, r *row, floor int64) error {
	if floor <= r.floor {
		return nil
	}
	rec, _ := r.record(s.host.Domain, s.now())
	if rec.Status == store.Held && r.token <= floor && !r.revoked {
		r.revoked, r.why = true, fmt.Sprintf("floor raised to %d", floor)
	}
	r.floor = floor
	return tx.save(r)
}
