package dashboard

import (
	"context"
	"time"

	"github.com/tenurehq/tenure/api"
)

// chart is what the script draws. X and the values are parallel; null is a gap.
type chart struct {
	X      []float64 `json:"x"` // Unix time in seconds
	Series []series  `json:"series"`
	// Limit draws a line across.
	Limit *limit `json:"limit,omitempty"`
	Log   bool   `json:"log,omitempty"`
	Unit  string `json:"unit"`
}

type series struct {
	Label  string     `json:"label"`
	Kind   string     `json:"kind"` // line, area or points
	Values []*float64 `json:"values"`
}

type limit struct {
	Label string  `json:"label"`
	Value float64 `json:"value"`
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// agesData is how old the last beats were over the last hour.
func agesData(ctx context.Context, q *question) (any, error) {
	ages, err := q.Ages(ctx)
	if err != nil {
		return nil, err
	}
	f, err := q.Fleet(ctx)
	if err != nil {
		return nil, err
	}
	c := chart{Unit: "s", Log: true, Limit: &limit{"suspect after", float64(f.SuspectMS) / 1000}, Series: []series{
		{Label: "max", Kind: "line"}, {Label: "p99", Kind: "line"}, {Label: "p95", Kind: "line"}, {Label: "p50", Kind: "line"},
	}}
	for _, s := range append(ages.Samples, f.Age) {
		c.X = append(c.X, seconds(s.At))
		for i, ms := range []int64{s.MaxMS, s.P99MS, s.P95MS, s.P50MS} {
			v := max(float64(ms), 1) / 1000 // an age of 0 has no place on this scale
			c.Series[i].Values = append(c.Series[i].Values, &v)
		}
	}
	return c, nil
}

// beatsData is the suspicion of a node over time: it rises while no beat comes, and
// falls to 0 with each.
func beatsData(ctx context.Context, q *question) (any, error) {
	t, err := q.Timeline(ctx, q.id())
	if err != nil {
		return nil, err
	}
	c := chart{Unit: "", Limit: &limit{"suspect", 1}, Series: []series{
		{Label: "suspicion", Kind: "area"}, {Label: "beats that renewed", Kind: "points"}, {Label: "beats that did not", Kind: "points"},
	}}
	add := func(at time.Time, level float64, beat *api.BeatMark) {
		c.X = append(c.X, seconds(at))
		var with, without *float64
		if beat != nil && beat.Renewed {
			with = &level
		} else if beat != nil {
			without = &level
		}
		for i, v := range []*float64{&level, with, without} {
			c.Series[i].Values = append(c.Series[i].Values, v)
		}
	}
	for i := range t.Beats {
		b := &t.Beats[i]
		if b.GapMS > 0 && i > 0 {
			add(b.At.Add(-time.Millisecond), float64(b.GapMS)/float64(max(t.LimitMS, 1)), nil)
		}
		add(b.At, 0, b)
	}
	if len(t.Beats) > 0 {
		add(t.At, t.Suspicion, nil)
	}
	return c, nil
}

// renewalsData is how long the renewals of a node took while somebody looked.
func (d *Dashboard) renewalsData(_ context.Context, q *question) (any, error) {
	c := chart{Unit: "s", Series: []series{{Label: "renewal took", Kind: "line"}}}
	for _, m := range d.rates.marks(nodeURL(q.id())) {
		c.X = append(c.X, seconds(m.at))
		c.Series[0].Values = append(c.Series[0].Values, &m.n)
	}
	return c, nil
}

// progressData is how the number in an item's marker has changed while somebody
// looked.
func (d *Dashboard) progressData(_ context.Context, q *question) (any, error) {
	c := chart{Series: []series{{Label: "progress", Kind: "line"}}}
	for _, m := range d.rates.marks(workURL(q.id())) {
		c.X = append(c.X, seconds(m.at))
		c.Series[0].Values = append(c.Series[0].Values, &m.n)
	}
	return c, nil
}
