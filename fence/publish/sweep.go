package publish

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"github.com/tenurehq/tenure/store"
)

const (
	// DefaultRetention is how long what was replaced, or left unfinished, is kept.
	DefaultRetention = 24 * time.Hour
	// silence is how long an attempt of the current term may give no sign of life
	// and count as running, if the retention is not longer.
	silence = time.Hour
	// remember is how long a dropped attempt keeps its row.
	remember = 90 * 24 * time.Hour
)

// SweepOptions adjust a sweep.
type SweepOptions struct {
	// Retention is how long a set is kept after it was replaced, and the objects of
	// an attempt whose term is over after its last sign of life; by the database's
	// clock. 0 keeps neither.
	Retention time.Duration
	// DryRun changes nothing and tells what would be dropped.
	DryRun bool
	// Removed is told of each object that was removed. It may be nil.
	Removed func(objects int, bytes int64)
}

// Swept tells what a sweep did.
type Swept struct {
	Dropped []Entry  // sets and attempts that nobody can read or accept any more
	Objects int      // removed, also of what earlier sweeps dropped
	Bytes   int64    // of them
	Aborted int      // uploads that were never finished, of what was dropped
	Kept    []Entry  // what is published, retained, in use or running
	Unknown []string // directories of attempts that the ledger does not know; left alone
	// Unseen is why a bucket's unfinished uploads could not be looked for, such as
	// a right that is missing; nil if they were. They harm nobody and cost room: a
	// rule of the bucket can end them too.
	Unseen error
}

var attemptDirectory = regexp.MustCompile(`^[1-9][0-9]{0,18}-[0-9a-f]{16}$`)

// Sweep drops the sets and attempts of name that are neither published nor
// retained, nor in use by a reader, nor running, and removes their objects. Any
// number may sweep at once, and one that was interrupted is continued by the next.
// It needs no lease: each drop is decided in one transaction.
func Sweep(ctx context.Context, l *Ledger, open OpenTargetFunc, name string, opts SweepOptions) (Swept, error) {
	var done Swept
	if opts.Retention < 0 {
		return done, &store.InvalidError{Field: "retention", Value: opts.Retention.String(), Rule: "0 or more"}
	}
	entries, err := l.History(ctx, name)
	if err != nil {
		return done, err
	}
	known := map[string]bool{}             // attempts
	dropped := map[string]map[string]int{} // by target, of their attempts the objects found
	for _, e := range entries {
		known[e.Attempt] = true
		if dropped[e.Target] == nil {
			dropped[e.Target] = map[string]int{}
		}
		if e.State != Dropped {
			gone, err := l.dropIdle(ctx, e, opts)
			if err != nil {
				return done, err
			}
			if !gone {
				done.Kept = append(done.Kept, e)
				continue
			}
			done.Dropped = append(done.Dropped, e)
		}
		dropped[e.Target][e.Attempt] = 0
	}
	if opts.DryRun {
		return done, nil
	}
	for url, attempts := range dropped {
		if err := sweepTarget(ctx, open, url, name, attempts, known, opts, &done); err != nil {
			return done, err
		}
	}
	slices.Sort(done.Unknown)
	for _, e := range entries {
		if n, ok := dropped[e.Target][e.Attempt]; ok && n == 0 {
			if err := l.forgetDropped(ctx, e); err != nil {
				return done, err
			}
		}
	}
	return done, nil
}

// sweepTarget removes the objects of dropped attempts from one target, and counts
// them in attempts.
func sweepTarget(ctx context.Context, open OpenTargetFunc, url, name string, attempts map[string]int, known map[string]bool, opts SweepOptions, done *Swept) error {
	target, err := open(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = target.Close() }() // each delete was acknowledged
	if target.Abort != nil {
		aborted, err := target.Abort(ctx, name+"/", func(key string) bool {
			attempt, _, _ := strings.Cut(strings.TrimPrefix(key, name+"/"), "/")
			_, gone := attempts[attempt]
			return gone
		})
		done.Aborted += aborted
		if err != nil {
			done.Unseen = bucketFailure("look for unfinished uploads", name+"/", err)
		}
	}
	dirs, err := directories(ctx, target.Bucket, name+"/")
	if err != nil {
		return err
	}
	for _, attempt := range dirs {
		if _, ok := attempts[attempt]; !ok {
			if !known[attempt] && attemptDirectory.MatchString(attempt) && !slices.Contains(done.Unknown, attempt) {
				done.Unknown = append(done.Unknown, attempt)
			}
			continue
		}
		objects, bytes, err := removeAll(ctx, target.Bucket, prefix(name, attempt), opts.Removed)
		attempts[attempt] += objects
		done.Objects += objects
		done.Bytes += bytes
		if err != nil {
			return err
		}
	}
	for attempt := range attempts { // also one that has directories and no object
		if target.Prune == nil {
			break
		}
		if err := target.Prune(prefix(name, attempt)); err != nil {
			return fmt.Errorf("publish: sweep: %w", err)
		}
	}
	return nil
}

// directories returns the names directly below a prefix that have objects below them.
func directories(ctx context.Context, bucket *blob.Bucket, below string) (names []string, err error) {
	all, err := listAll(ctx, bucket, &blob.ListOptions{Prefix: below, Delimiter: "/"})
	for _, o := range all {
		if o.IsDir {
			names = append(names, strings.TrimSuffix(strings.TrimPrefix(o.Key, below), "/"))
		}
	}
	return names, err
}

func removeAll(ctx context.Context, bucket *blob.Bucket, below string, told func(int, int64)) (objects int, bytes int64, err error) {
	all, err := listAll(ctx, bucket, &blob.ListOptions{Prefix: below})
	if err != nil {
		return 0, 0, err
	}
	for _, o := range all {
		bytes += o.Size
	}
	err = each(ctx, 2*DefaultParallel, all, func(ctx context.Context, o *blob.ListObject) error {
		err := bucket.Delete(ctx, o.Key)
		if err != nil && gcerrors.Code(err) != gcerrors.NotFound { // another sweep was there first
			return bucketFailure("delete", o.Key, err)
		}
		if told != nil {
			told(1, o.Size)
		}
		return nil
	})
	if err != nil {
		return 0, 0, err
	}
	return len(all), bytes, nil
}

// idle is what may be dropped: not current, past the retention, without a reader,
// and not running. $3 is the retention, $4 that of an attempt of the current term.
const idle = `name = $1 AND attempt = $2
	AND NOT EXISTS (SELECT 1 FROM {s}tenure_publication p WHERE p.name = $1 AND p.attempt = $2)
	AND NOT EXISTS (SELECT 1 FROM {s}tenure_publication_reader r WHERE r.name = $1 AND r.attempt = $2 AND r.expires_us > {now})
	AND (state = 'accepted' AND replaced_us > 0 AND replaced_us + $3 <= {now}
		OR state = 'running' AND seen_us + $3 <= {now}
			AND (token <> (SELECT coalesce(max(l.token), 0) FROM {s}tenure_lease l WHERE l.name = $1) OR seen_us + $4 <= {now}))`

// dropIdle drops the attempt if it may be dropped, and reports whether it is.
func (l *Ledger) dropIdle(ctx context.Context, e Entry, opts SweepOptions) (gone bool, err error) {
	args := []any{e.Name, e.Attempt, opts.Retention.Microseconds(), max(opts.Retention, silence).Microseconds()}
	if opts.DryRun {
		var n int
		if err := l.one(ctx, "SELECT count(*) FROM {s}tenure_publication_attempt WHERE "+idle, args...).Scan(&n); err != nil {
			return false, failure("sweep", err)
		}
		return n > 0, nil
	}
	err = l.transact(ctx, "sweep", func(t *tx) error {
		// First the lock and then, in a statement of its own, the look: a reader that
		// had the row before has left its note by then. Readers lock the row before
		// their note too, so nobody waits in a circle.
		var state State
		err := t.row("SELECT state FROM {s}tenure_publication_attempt WHERE name = $1 AND attempt = $2{lock}", e.Name, e.Attempt).Scan(&state)
		if err != nil {
			return err
		}
		if _, err := t.exec("DELETE FROM {s}tenure_publication_reader WHERE name = $1 AND attempt = $2 AND expires_us <= {now}", e.Name, e.Attempt); err != nil {
			return err
		}
		n, err := t.exec("UPDATE {s}tenure_publication_attempt SET state = 'dropped', dropped_us = {now}, manifest = '' WHERE "+idle, args...)
		gone = n > 0 || state == Dropped
		return err
	})
	return gone, err
}

// forgetDropped deletes the row of an attempt that was dropped long ago and whose
// objects are gone.
func (l *Ledger) forgetDropped(ctx context.Context, e Entry) error {
	if e.DroppedAt.IsZero() { // only now
		return nil
	}
	return l.transact(ctx, "sweep", func(t *tx) error {
		_, err := t.exec("DELETE FROM {s}tenure_publication_attempt WHERE name = $1 AND attempt = $2 AND state = 'dropped' AND dropped_us + $3 <= {now}",
			e.Name, e.Attempt, remember.Microseconds())
		return err
	})
}
