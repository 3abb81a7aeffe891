package dashboard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

const (
	maxTerms = 60 // of a chart
	maxLanes = 12
)

// bands show who held a lease when: a lane for each holder, and one for nobody.
type bands struct {
	From, To time.Time
	Lanes    []lane
	Terms    []term // newest first
	// Takeovers is how many of the terms began after another had lapsed, was revoked
	// or was replaced; Older says that there are earlier terms.
	Takeovers int
	Older     bool
}

// lane is the terms of one holder.
type lane struct {
	Holder string
	Nobody bool
	Bars   []bar
}

// bar is a stretch of a lane, in thousandths of its length.
type bar struct {
	From, Length int64
	Text         string
	End          string
}

// term is one holding, with the gap before it.
type term struct {
	api.Term
	Gap    time.Duration // in which nobody had it, before this term
	Cause  string        // how the term before it ended; "" for the first one that is known
	Lasted time.Duration
}

// readBands returns the past of a lease, nil if the store keeps none.
func readBands(ctx context.Context, leases *api.Store, rec *api.Record) (*bands, error) {
	var terms []api.Term
	older := false
	for t, err := range leases.History(ctx, rec.Name) {
		if errors.Is(err, store.ErrUnsupported) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if older = len(terms) == maxTerms; older {
			break
		}
		terms = append(terms, api.NewTerm(t))
	}
	return newBands(terms, rec.Now, older), nil
}

// newBands draws terms, newest first, up to now by the store's clock. A term that
// is not over is held.
func newBands(terms []api.Term, now time.Time, older bool) *bands {
	if len(terms) == 0 {
		return nil
	}
	b := &bands{From: terms[len(terms)-1].AcquiredAt, To: now, Older: older}
	whole := max(b.To.Sub(b.From), time.Millisecond)
	at := func(t time.Time) int64 { return min(max(int64(t.Sub(b.From))*1000/int64(whole), 0), 1000) }
	nobody := lane{Holder: "nobody", Nobody: true}
	var previous *api.Term
	for _, t := range slices.Backward(terms) {
		end := t.EndedAt
		if end.IsZero() {
			end = now
		}
		one := term{Term: t, Lasted: end.Sub(t.AcquiredAt)}
		if previous != nil {
			one.Cause = previous.End
			if one.Gap = max(t.AcquiredAt.Sub(previous.EndedAt), 0); one.Gap > 0 {
				nobody.Bars = append(nobody.Bars, gapBar(at(previous.EndedAt), at(t.AcquiredAt), one.Gap, previous.End))
			}
			if previous.End != "released" {
				b.Takeovers++
			}
		}
		b.Terms = append(b.Terms, one)
		from := at(t.AcquiredAt)
		b.lane(t.Holder).add(bar{
			From: from, Length: max(at(end)-from, 2), End: t.End,
			Text: fmt.Sprintf("%s, token %s, from %s for %s: %s", t.Holder, t.Token, when(t.AcquiredAt), span(one.Lasted), ended(t.End)),
		})
		previous = &t
	}
	if last := terms[0]; !last.EndedAt.IsZero() && now.After(last.EndedAt) {
		nobody.Bars = append(nobody.Bars, gapBar(at(last.EndedAt), 1000, now.Sub(last.EndedAt), last.End))
	}
	if len(nobody.Bars) > 0 {
		b.Lanes = append(b.Lanes, nobody)
	}
	slices.Reverse(b.Terms)
	return b
}

func gapBar(from, to int64, gap time.Duration, cause string) bar {
	return bar{From: from, Length: max(to-from, 2), End: "gap", Text: fmt.Sprintf("nobody for %s, after it was %s", span(gap), cause)}
}

// lane returns the lane of a holder. When there are many holders the last lane is
// of all others.
func (b *bands) lane(holder string) *lane {
	if i := slices.IndexFunc(b.Lanes, func(l lane) bool { return l.Holder == holder }); i >= 0 {
		return &b.Lanes[i]
	}
	if len(b.Lanes) == maxLanes-1 {
		holder = "others"
	}
	if len(b.Lanes) == maxLanes {
		return &b.Lanes[maxLanes-1]
	}
	b.Lanes = append(b.Lanes, lane{Holder: holder})
	return &b.Lanes[len(b.Lanes)-1]
}

func (l *lane) add(b bar) { l.Bars = append(l.Bars, b) }

func ended(how string) string {
	if how == "" {
		return "held"
	}
	return how
}

// leasesPage is a page of the leases, in order of name.
type leasesPage struct {
	Prefix, After string
	Leases        []leaseRow
	Next          string
}

// leaseRow is a lease as the table shows it. Past is nil if the store keeps none.
type leaseRow struct {
	api.Record
	Past *past
}

func (d *Dashboard) showLeases(ctx context.Context, q *question) (view, error) {
	p := leasesPage{Prefix: q.get("prefix"), After: q.get("after")}
	page, err := q.Leases(ctx, api.LeaseQuery{Prefix: p.Prefix, After: p.After, Limit: pageRows})
	if err != nil {
		return view{}, err
	}
	leases := api.NewStore(q.Client)
	for i := range page.Leases {
		row := leaseRow{Record: page.Leases[i]}
		if row.Past, err = d.pasts.of(ctx, leases, &row.Record); err != nil {
			return view{}, err
		}
		p.Leases = append(p.Leases, row)
	}
	if page.Next != "" {
		p.Next = link("/ui/leases", "prefix", p.Prefix, "after", page.Next)
	}
	return view{title: "Leases", template: "leases", data: p}, nil
}

// leasePage is one lease and its past.
type leasePage struct {
	Lease *api.Record
	Bands *bands
}

func showLease(ctx context.Context, q *question) (view, error) {
	p, err := readLease(ctx, q)
	if err != nil {
		return view{}, err
	}
	return view{title: "Lease " + p.Lease.Name, template: "lease", data: p}, nil
}

func readLease(ctx context.Context, q *question) (leasePage, error) {
	var p leasePage
	leases := api.NewStore(q.Client)
	rec, err := leases.Get(ctx, q.get("name"))
	if err != nil {
		return p, err
	}
	p.Lease = new(api.NewRecord(rec))
	p.Bands, err = readBands(ctx, leases, p.Lease)
	return p, err
}

// showRevoke asks once more before a term is ended.
func showRevoke(ctx context.Context, q *question) (view, error) {
	p, err := readLease(ctx, q)
	if err != nil {
		return view{}, err
	}
	if !q.viewer.Operator() {
		return view{}, api.Refuse(api.CodeForbidden, "The role %s may not revoke a lease.", q.viewer.Role)
	}
	if p.Lease.Status != store.Held || p.Lease.Token != tokenOf(q.get("token")) {
		return view{}, api.Refuse(store.CodeSuperseded, "Token %s is not the lease's any more. See how it stands now.", q.get("token"))
	}
	return view{title: "Revoke " + p.Lease.Name, template: "revoke", data: p}, nil
}

// tokenOf reads a token; 0, which is none, if it is not one.
func tokenOf(text string) fence.Token {
	t, err := fence.ParseToken(text)
	if err != nil {
		return 0
	}
	return t
}
