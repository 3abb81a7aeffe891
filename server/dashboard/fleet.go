package dashboard

import (
	"context"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
)

// pageRows is how many rows a table has on one page.
const pageRows = 50

// fleetPage answers whether the fleet may be trusted, who may not act and why, and
// what happened.
type fleetPage struct {
	Fleet   *api.Fleet
	Brake   *api.Brake
	Filter  nodeFilter
	Rows    []nodeRow
	Matched int
	Pages   pager
	Events  []fleet.Event
	Orders  []order
}

// order is a column by which the table may be sorted.
type order struct {
	Name, Text string
}

// nodeFilter is what the URL of the page asks for.
type nodeFilter struct {
	Match, Is, Reason, Label, Sort string
	Page                           int
}

// Any reports whether some nodes are left out.
func (f nodeFilter) Any() bool { return f.Match+f.Is+f.Reason+f.Label != "" }

// With returns the URL of the page with another value of one part of the filter.
func (f nodeFilter) With(name, value string) string {
	f.Page = 0
	switch name {
	case "is":
		f.Is = value
	case "reason":
		f.Reason = value
	case "sort":
		f.Sort = value
	case "page":
		f.Page, _ = strconv.Atoi(value)
	}
	page := ""
	if f.Page > 1 {
		page = strconv.Itoa(f.Page)
	}
	return link("/ui/", "match", f.Match, "is", f.Is, "reason", f.Reason, "label", f.Label, "sort", f.Sort, "page", page)
}

// By returns the URL of the page in an order, or in the other direction if it has
// that order.
func (f nodeFilter) By(name string) string {
	if f.Sort == name || f.Sort == "" && name == api.ByAge {
		return f.With("sort", "-"+name)
	}
	return f.With("sort", name)
}

// Sorted is the value of aria-sort of a column.
func (f nodeFilter) Sorted(name string) string {
	down := map[bool]string{true: "descending", false: "ascending"}
	natural := name == api.ByID || name == api.ByLease // upwards
	switch f.Sort {
	case name:
		return down[!natural]
	case "-" + name:
		return down[natural]
	case "":
		if name == api.ByAge {
			return "descending"
		}
	}
	return "none"
}

// pager leads through the pages of a table.
type pager struct {
	Page, Last     int
	Previous, Next string // URLs; "" if there is none
}

// nodeRow is a node as the table shows it.
type nodeRow struct {
	api.Node
	LeaseShare int64 // of the TTL, in percent
	Use        use
	First      *fleet.Exclusion
	More       int // reasons beside the first
}

// use is the resource of a node that is used most.
type use struct {
	Name            string
	Taken, Capacity int64
}

// Share is what is taken, in percent.
func (u use) Share() int64 { return share(u.Taken, u.Capacity) }

// uses returns the resources of a node, the one that is used most first.
func uses(n *api.Node) []use {
	var all []use
	for name, capacity := range n.Facts.Capacity {
		all = append(all, use{name, max(n.Facts.Used[name], n.Reserved[name]), capacity})
	}
	slices.SortFunc(all, func(a, b use) int {
		if d := b.Share() - a.Share(); d != 0 {
			return int(d)
		}
		return strings.Compare(a.Name, b.Name)
	})
	return all
}

func newNodeRow(n api.Node, ttlMS int64) nodeRow {
	row := nodeRow{Node: n, LeaseShare: share(n.Lease.RemainingMS, ttlMS)}
	if all := uses(&n); len(all) > 0 {
		row.Use = all[0]
	}
	if len(n.Exclusions) > 0 {
		row.First, row.More = &n.Exclusions[0], len(n.Exclusions)-1
	}
	return row
}

func readFilter(q url.Values) nodeFilter {
	f := nodeFilter{Match: q.Get("match"), Is: q.Get("is"), Reason: q.Get("reason"), Label: q.Get("label"), Sort: q.Get("sort")}
	f.Page, _ = strconv.Atoi(q.Get("page"))
	f.Page = min(max(f.Page, 1), 1_000_000/pageRows)
	return f
}

func showFleet(ctx context.Context, q *question) (view, error) {
	p := fleetPage{Filter: readFilter(q.r.URL.Query()), Orders: []order{{api.ByAge, "oldest beat"}, {api.ByID, "name"}, {api.ByLease, "lease left"}, {api.ByWork, "most work"}, {api.ByStuck, "most stuck"}}}
	var err error
	if p.Fleet, err = q.Fleet(ctx); err != nil {
		return view{}, err
	}
	if p.Brake, err = q.Brake(ctx); err != nil {
		return view{}, err
	}
	f := &p.Filter
	nq := api.NodeQuery{Match: f.Match, Reason: fleet.Code(f.Reason), Label: f.Label, Sort: f.Sort, Offset: (f.Page - 1) * pageRows, Limit: pageRows}
	if f.Is != "" {
		nq.Is = strings.Split(f.Is, ",")
	}
	nodes, err := q.NodesWhere(ctx, nq)
	if err != nil {
		return view{}, err
	}
	p.Matched = nodes.Matched
	for _, n := range nodes.Nodes {
		p.Rows = append(p.Rows, newNodeRow(n, p.Fleet.NodeTTLMS))
	}
	p.Pages = pager{Page: f.Page, Last: max((nodes.Matched+pageRows-1)/pageRows, 1)}
	if f.Page > 1 {
		p.Pages.Previous = f.With("page", strconv.Itoa(f.Page-1))
	}
	if f.Page < p.Pages.Last {
		p.Pages.Next = f.With("page", strconv.Itoa(f.Page+1))
	}
	if p.Events, err = newest(ctx, q, api.EventQuery{Limit: 8}); err != nil {
		return view{}, err
	}
	return view{title: "Fleet", template: "fleet", data: p}, nil
}

// newest returns the newest events, the newest first.
func newest(ctx context.Context, q *question, eq api.EventQuery) ([]fleet.Event, error) {
	eq.Last = true
	page, err := q.Client.Events(ctx, eq)
	if err != nil {
		return nil, err
	}
	slices.Reverse(page.Events)
	return page.Events, nil
}

// brakePage says what is held back, and takes an operator's word on it.
type brakePage struct{ Brake *api.Brake }

func showBrake(ctx context.Context, q *question) (view, error) {
	b, err := q.Brake(ctx)
	if err != nil {
		return view{}, err
	}
	return view{title: "Brake", template: "brake", data: brakePage{b}}, nil
}

// ledgerRows is how many entries of the ledger a page has.
const ledgerRows = 200

// eventsPage is a page of the ledger, newest first: the last one, the one before an
// entry, or the one after an entry.
type eventsPage struct {
	Node, Work, Kind string
	Before, After    int64 // 0 if not asked for
	Events           []fleet.Event
	Pruned           string // says what was asked for and is kept no more; "" if nothing is
	Older, Newer     string // URLs; "" if there are none
}

// With returns the URL of another page of the same events.
func (p *eventsPage) With(name string, seq int64) string {
	return link("/ui/events", "node", p.Node, "work", p.Work, "kind", p.Kind, name, seq)
}

func showEvents(ctx context.Context, q *question) (view, error) {
	p := eventsPage{Node: q.get("node"), Work: q.get("work"), Kind: q.get("kind")}
	for name, into := range map[string]*int64{"before": &p.Before, "after": &p.After} {
		if text := q.get(name); text != "" {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil || n < 0 {
				return view{}, api.RefuseInvalid(name, text, "the number of an event")
			}
			*into = n
		}
	}
	eq := api.EventQuery{Node: p.Node, Work: p.Work, Kind: fleet.EventKind(p.Kind), Before: p.Before, After: p.After, Limit: ledgerRows, Last: p.After == 0}
	page, err := q.Client.Events(ctx, eq)
	if err != nil {
		return view{}, err
	}
	p.Events = page.Events
	if page.Pruned {
		p.Pruned = page.Text
	}
	full := len(p.Events) == ledgerRows
	if len(p.Events) > 0 && (full || p.After > 0) && !page.Pruned {
		p.Older = p.With("before", p.Events[0].Seq)
	}
	if p.After > 0 && full {
		p.Newer = p.With("after", page.Next)
	} else if p.Before > 0 && len(p.Events) > 0 {
		p.Newer = p.With("after", p.Events[len(p.Events)-1].Seq)
	}
	slices.Reverse(p.Events)
	return view{title: "Events", template: "events", data: &p}, nil
}
