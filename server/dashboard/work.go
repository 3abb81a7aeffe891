package dashboard

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
)

// worksPage is a page of the work, in order of id.
type worksPage struct {
	State, Owner, After string
	Stuck               string // "true": only what is stuck
	Rows                []workRow
	Next                string
	States              []fleet.WorkState
}

// workRow is an item as the table shows it.
type workRow struct {
	api.Work
	Rate string
}

func (d *Dashboard) showWorks(ctx context.Context, q *question) (view, error) {
	p := worksPage{
		State: q.get("state"), Owner: q.get("owner"), Stuck: q.get("stuck"), After: q.get("after"),
		States: []fleet.WorkState{fleet.Pending, fleet.Placed, fleet.Running, fleet.Stopping, fleet.Succeeded, fleet.Failed, fleet.Stopped},
	}
	if p.Stuck != "" {
		p.Stuck = "true"
	}
	wq := api.WorkQuery{Owner: p.Owner, Stuck: p.Stuck != "", After: p.After, Limit: pageRows}
	if p.State != "" {
		wq.States = []fleet.WorkState{fleet.WorkState(p.State)}
	}
	page, err := q.Works(ctx, wq)
	if err != nil {
		return view{}, err
	}
	for _, w := range page.Work {
		p.Rows = append(p.Rows, workRow{w, d.rates.see(&w)})
	}
	if page.Next != "" {
		p.Next = link("/ui/work", "state", p.State, "owner", p.Owner, "stuck", p.Stuck, "after", page.Next)
	}
	return view{title: "Work", template: "works", data: p}, nil
}

// Command is what it runs, on one line that is cut when it is long.
func (w workRow) Command() string {
	const most = 80 // characters
	line := []rune(strings.Join(w.Work.Command, " "))
	if len(line) > most {
		return string(line[:most-1]) + "…"
	}
	return string(line)
}

// workPage is one item: who has it, how far it is, and how it came there.
type workPage struct {
	Why    *api.WorkWhy
	Work   *api.Work
	Rate   string
	Charts bool // the marker is a number, and has changed
	Taken  []takeover
	Events []fleet.Event
}

// takeover is an entry of the ledger with its phases in order.
type takeover struct {
	api.Takeover
	Phases []phase
}

type phase struct {
	Name, Text string
	At         time.Time
	After      time.Duration // since the phase before it; 0 for the first
}

func newTakeover(t api.Takeover) takeover {
	all := []phase{
		{"silence", "the last beat", t.Silence, 0}, {"suspect", "the detector's limit was passed", t.Suspect, 0},
		{"lapse", "the lease was over by the store's clock", t.Lapse, 0}, {"record", "the replacement was recorded", t.Recorded, 0},
		{"start", "its new owner started it", t.Started, 0}, {"redirect", "a lookup first answered the new owner", t.Redirected, 0},
	}
	out := takeover{Takeover: t}
	var last time.Time
	for _, p := range all {
		if !p.At.IsZero() {
			if !last.IsZero() {
				p.After = max(p.At.Sub(last), 0)
			}
			last = p.At
		}
		out.Phases = append(out.Phases, p)
	}
	return out
}

func (d *Dashboard) showWork(ctx context.Context, q *question) (view, error) {
	why, err := q.WhyWork(ctx, q.id())
	if err != nil {
		return view{}, err
	}
	p := workPage{Why: why, Work: &why.Work, Rate: d.rates.see(&why.Work), Events: slices.Clone(why.Events)}
	slices.Reverse(p.Events)
	p.Charts = len(d.rates.marks(workURL(why.Work.ID))) > 1
	taken, err := q.Takeovers(ctx, api.TakeoverQuery{Work: why.Work.ID, Last: true, Limit: 20})
	if err != nil {
		return view{}, err
	}
	for _, t := range slices.Backward(taken.Takeovers) {
		p.Taken = append(p.Taken, newTakeover(t))
	}
	return view{title: "Work " + why.Work.ID, template: "work", data: p}, nil
}

// whyPage is what "tenure why NAME" prints.
type whyPage struct {
	Name  string
	Node  *api.NodeWhy
	Work  *api.WorkWhy
	Lines []string
}

func showWhy(ctx context.Context, q *question) (view, error) {
	p := whyPage{Name: q.get("name")}
	v := view{title: "Why", template: "why"}
	if p.Name == "" {
		v.data = p
		return v, nil
	}
	has := func(err error, code fleet.Code) bool {
		refusal, ok := errors.AsType[*api.Error](err)
		return ok && refusal.Code == string(code)
	}
	var err error
	if p.Node, err = q.WhyNode(ctx, p.Name); err != nil && !has(err, fleet.CodeNoSuchNode) {
		return v, err
	}
	if p.Work, err = q.WhyWork(ctx, p.Name); err != nil && !has(err, fleet.CodeNoSuchWork) {
		return v, err
	}
	if p.Node != nil {
		p.Lines = p.Node.Lines()
	}
	if p.Work != nil {
		if p.Node != nil {
			p.Lines = append(p.Lines, "")
		}
		p.Lines = append(p.Lines, p.Work.Lines()...)
	}
	if p.Node == nil && p.Work == nil {
		v.status = 404
	}
	v.title, v.data = "Why "+p.Name, p
	return v, nil
}
