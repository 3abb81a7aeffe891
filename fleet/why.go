package fleet

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// WhyNode returns the lines that say how a node stands: the verdict, its four
// facts, what it has, and each reason why it gets no new work, with what clears it.
func WhyNode(n Node, c Conditions, now time.Time) []string {
	ex := Exclusions(n, Request{Starts: true}, now, c)
	lines := []string{n.ID + ": may get new work"}
	if len(ex) > 0 {
		lines[0] = fmt.Sprintf("%s: gets no new work, for %s", n.ID, plural(len(ex), "reason"))
	}
	lines = append(lines,
		"  liveness:  "+n.livenessText(now),
		"  lease:     "+n.Lease.text(),
		"  intent:    "+n.Intent.text(now),
		"  readiness: "+n.readinessText(c, now),
		"  work:      "+n.workText(),
	)
	for _, r := range slices.Sorted(maps.Keys(n.Facts.Capacity)) {
		lines = append(lines, fmt.Sprintf("  %s: %d/%d taken (%d reserved by work, %d in use)",
			r, n.taken(r), n.Facts.Capacity[r], n.Reserved[r], n.Facts.Used[r]))
	}
	for _, e := range ex {
		lines = append(lines, e.lines(now)...)
	}
	return lines
}

// lines says why, since when, and what clears it.
func (e Exclusion) lines(now time.Time) []string {
	since := ""
	if !e.Since.IsZero() {
		since = fmt.Sprintf(", since %s (%s)", instant(e.Since), ago(e.Since, now))
	}
	return []string{fmt.Sprintf("- %s%s: %s", e.Code, since, e.Text), "  clears when: " + e.Clears}
}

func (n *Node) livenessText(now time.Time) string {
	s := string(n.Liveness)
	if n.Liveness == "" {
		s = string(Observing)
	}
	if !n.Since.IsZero() {
		s += " for " + span(now.Sub(n.Since))
	}
	return s + ", last heard " + span(n.Age) + " of listening ago"
}

func (i Intent) text(now time.Time) string {
	var all []string
	if d := i.Drain; d != nil {
		s := fmt.Sprintf("draining since %s, by %s%s", instant(d.At), d.Mark.text(), d.overdue(now))
		if !d.Done.IsZero() {
			s = fmt.Sprintf("drained since %s, by %s", instant(d.Done), d.Mark.text())
		}
		all = append(all, s)
	}
	if i.Cordon != nil {
		all = append(all, fmt.Sprintf("cordoned since %s, by %s", instant(i.Cordon.At), i.Cordon.text()))
	}
	if len(all) == 0 {
		return string(Active)
	}
	return strings.Join(all, "; ")
}

func (n *Node) readinessText(c Conditions, now time.Time) string {
	if n.Facts.Readiness.Ready {
		return "ready"
	}
	s := n.Facts.Readiness.text()
	if !n.NotReady.IsZero() {
		s += " for " + span(now.Sub(n.NotReady))
	}
	for _, b := range c.Brakes {
		if b.Code == CodeNotReady && b.Covers(*n) {
			s += "; counts as ready: " + b.Text
			break
		}
	}
	return s
}

func (n *Node) workText() string {
	s := items(n.Work)
	if n.Stuck > 0 {
		s += fmt.Sprintf(", %d stuck", n.Stuck)
	}
	return s
}

// WorkFacts are what WhyWork tells of.
type WorkFacts struct {
	Work  Work
	Owner *Node // with its lease as the store has it; nil if it is not known
	// Takeover is the judgement of a takeover, if the owner's lease is over.
	Takeover *Decision
	// Fit is how many nodes may get it, and Counts why the others may not, if it
	// has no owner or may be taken from it.
	Fit    int
	Counts map[Code]int
}

// WhyWork returns the lines that say how an item stands, why, and what has to
// happen for it to go on.
func WhyWork(f WorkFacts, now time.Time) []string {
	w := &f.Work
	lines := []string{fmt.Sprintf("%s: %s%s", w.ID, w.State, w.whereText(now))}
	add := func(format string, args ...any) { lines = append(lines, "  "+fmt.Sprintf(format, args...)) }
	if w.Why != "" {
		add("reason: %q", w.Why)
	}
	if w.Takeovers > 0 {
		add("taken over %s, the last time from %s", plural(w.Takeovers, "time"), w.TakenFrom)
	}
	switch {
	case w.State.Ended():
		add("exit code %d%s", w.ExitCode, because(w.Result))
	case w.State == Pending:
		f.unplaced(add, "")
	case f.Owner == nil:
		add("next: its owner %s is not known here", w.Owner)
	case !f.Owner.Lease.over():
		add("owner %s: %s, lease %s", w.Owner, f.Owner.livenessText(now), f.Owner.Lease.text())
		f.nextOfOwner(add, now)
	default:
		add("owner %s: its host is gone (lease %s)", w.Owner, f.Owner.Lease.text())
		if d := f.Takeover; d != nil {
			f.takeover(add, *d, now)
		}
	}
	return lines
}

// whereText says where an item is, under which token and since when.
func (w *Work) whereText(now time.Time) string {
	switch {
	case w.State == Pending:
		return ", submitted " + ago(w.Submitted, now)
	case w.State.Ended():
		return fmt.Sprintf(" on %s %s, token %s", w.Owner, ago(w.EndedAt, now), w.Token)
	}
	at := w.Assigned
	if w.State != Placed && !w.Started.IsZero() {
		at = w.Started
	}
	return fmt.Sprintf(" on %s, token %s, for %s", w.Owner, w.Token, span(now.Sub(at)))
}

// unplaced says where an item may go; turn says what it waits for if there is room.
func (f *WorkFacts) unplaced(add func(string, ...any), turn string) {
	if f.Fit > 0 {
		add("next: it is placed on one of the nodes that fit: %d%s", f.Fit, turn)
		return
	}
	add("no node fits")
	for _, r := range slices.SortedFunc(maps.Keys(f.Counts), func(a, b Code) int {
		if d := f.Counts[b] - f.Counts[a]; d != 0 {
			return d
		}
		return strings.Compare(string(a), string(b))
	}) {
		text := string(r)
		if reason, ok := ReasonOf(r); ok {
			text = reason.Text
		}
		add("- %s: %s (%s)", r, plural(f.Counts[r], "node"), text)
	}
	add("next: one of these has to clear, or the request has to ask for less")
}

func (f *WorkFacts) nextOfOwner(add func(string, ...any), now time.Time) {
	w := &f.Work
	since, stuck := w.StuckSince(now)
	switch {
	case stuck:
		add("stuck since %s (%s): its marker %q has not changed", instant(since), ago(since, now), w.Progress)
		add("next: it makes progress, or somebody stops it")
	case w.State == Placed:
		add("next: its owner starts it")
	case w.State == Stopping && w.Moving:
		add("next: its owner ends it, and then it is placed elsewhere")
	case w.State == Stopping:
		add("next: its owner ends it")
	default:
		add("next: it ends by itself, or somebody stops it")
	}
}

func (f *WorkFacts) takeover(add func(string, ...any), d Decision, now time.Time) {
	switch d.Action {
	case Hold:
		add("held, %s: %s", d.Code, d.Text)
		switch {
		case d.Code == CodeHostGone:
			add("next: its host comes back")
		case !d.Until.IsZero():
			add("next: it is judged again in %s at the latest", span(d.Until.Sub(now)))
		default:
			add("next: it is judged again at each round")
		}
	case Move:
		add("may be taken over: %s", d.Text)
		f.unplaced(add, ", when the rate of takeovers lets it")
	case End:
		add("next: it is recorded as stopped: %s", d.Text)
	}
}
