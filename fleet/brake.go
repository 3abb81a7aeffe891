package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tenurehq/tenure/store"
)

// DomainAll names the brake of the whole fleet. That of a failure domain is
// named "label=value", as in "zone=b".
const DomainAll = "all"

// BrakeConfig says when the observer, or a dependency that nodes share, is
// doubted before the nodes are. A zero field means its default.
type BrakeConfig struct {
	// Share of a domain that has to turn at once; 0.55. Less holds more often, and
	// for losses that are real.
	Share float64
	// Least is how many nodes have to turn at once; 3, and not less, so that a
	// fleet of one or two is never held.
	Least int
	// Window is within which time they turn "at once"; 30 s, the default of the
	// detector. A longer one takes slow losses for one event.
	Window time.Duration
	// Known is within which listened time a node must have been heard to count in
	// its domain; 1 h. Nodes that are gone without goodbye count for so long.
	Known time.Duration
	// Release is after how much proven health of the observer, without a break, it
	// lets go; 10 min. So long a real loss of most of a domain waits at most.
	Release time.Duration
	// Label is the one whose value is a node's failure domain; "zone". Nodes
	// without it count in the whole fleet alone.
	Label string
}

// Filled returns c with its defaults in place of zero fields.
func (c BrakeConfig) Filled() BrakeConfig {
	return BrakeConfig{
		Share: cmp.Or(c.Share, 0.55), Least: cmp.Or(c.Least, 3), Window: cmp.Or(c.Window, 30*time.Second),
		Known: cmp.Or(c.Known, time.Hour), Release: cmp.Or(c.Release, 10*time.Minute), Label: cmp.Or(c.Label, "zone"),
	}
}

// Check returns an error matching store.ErrInvalid that names the first field
// which breaks its rule, with its default filled in.
func (c BrakeConfig) Check() error {
	c = c.Filled()
	switch {
	case !(c.Share > 0 && c.Share <= 1):
		return invalid("brake share", strconv.FormatFloat(c.Share, 'g', -1, 64), "above 0 and at most 1")
	case c.Least < 3:
		return invalid("brake least", strconv.Itoa(c.Least), "at least 3, so that a fleet of one or two is never held")
	case c.Window <= 0:
		return invalid("brake window", c.Window.String(), "above 0")
	case c.Known < c.Window:
		return invalid("brake known", c.Known.String(), fmt.Sprintf("at least the window of %s", c.Window))
	case c.Release < c.Window:
		return invalid("brake release", c.Release.String(), fmt.Sprintf("at least the window of %s", c.Window))
	case store.CheckName(c.Label) != nil:
		return invalid("brake label", c.Label, "the name of a label")
	}
	return nil
}

// Health is what an observer knows of itself: whether its own timers are on time
// and its store answers.
type Health struct {
	OK   bool
	Text string // why not
}

// Let says how a brake let go.
type Let string

// The ways in which a brake lets go.
const (
	LetRecovery  Let = "recovery"  // enough nodes are back
	LetConfirmed Let = "confirmed" // an operator said that the loss is real
	LetReleased  Let = "released"  // an operator let go
	LetTimeout   Let = "timeout"   // of the observer's proven health
)

// BrakeState is the brake of one domain for one cause.
type BrakeState struct {
	Domain  string // DomainAll or "label=value"
	Engaged bool
	Code    Code      // the cause: CodeStaleHeartbeat or CodeNotReady
	Reason  string    // that the nodes which are not ready share
	Since   time.Time // when it engaged
	From    time.Time // nodes that turned after it are doubted
	// Down nodes turned since From and have not come back. Of is how many the
	// domain has: the distinct nodes heard within BrakeConfig.Known.
	Down, Of int
	Proven   time.Duration // health of the observer so far, without a break
	LetsGo   time.Duration // how much more it takes until it lets go
	Let      Let           // how it let go; "" while it is engaged
	LetAt    time.Time
	By       Mark   // the operator who let go
	Text     string // in words, with the figures
}

// Covers reports whether the brake is engaged and doubts that this node is out:
// it is silent in a domain that fell silent, or it turned not ready in the event
// and for the reason that engaged the brake.
func (s BrakeState) Covers(n Node) bool {
	switch {
	case !s.Engaged || !s.has(n):
		return false
	case s.Code == CodeNotReady:
		return n.turned() && n.Facts.Readiness.Reason == s.Reason && n.NotReady.After(s.From)
	default:
		return n.Liveness == Suspect
	}
}

// HoldsWork reports whether the brake is engaged and keeps work from being taken
// from a node, which it does for all nodes of a domain that fell silent.
func (s BrakeState) HoldsWork(n Node) bool {
	return s.Engaged && s.Code == CodeStaleHeartbeat && s.has(n)
}

// has reports whether a node belongs to the domain.
func (s BrakeState) has(n Node) bool {
	if s.Domain == DomainAll {
		return true
	}
	label, value, _ := strings.Cut(s.Domain, "=")
	v, ok := n.Facts.Labels[label]
	return ok && v == value
}

// silence is for how long the node has been silent to all who watched.
func (n *Node) silence(now time.Time) time.Duration {
	if n.Gone.IsZero() {
		return n.Age
	}
	return max(n.Age, now.Sub(n.Gone))
}

// turned reports whether a node was ready and says that it is not, for a reason
// that others may share. One that never was ready has no last good readiness.
func (n *Node) turned() bool {
	return !n.Facts.Readiness.Ready && n.WasReady && n.Facts.Readiness.Reason != ""
}

// Brake watches each failure domain and the whole fleet. When at least Share and
// at least Least of a domain's nodes turn within one Window, fall silent or become
// not ready for one reason, it engages for that domain and cause:
//
//	idle ──► engaged ──► let go ──► idle
//	            ▲           │
//	            └───────────┘ as many again turn after that
//
// It lets go when fewer have been out for one Window, or none is (recovery), when
// an operator says so, or after Release of the observer's proven health. Health is
// proven while the observer is well and some node is heard: silence of everybody
// proves nothing. Nodes that are still out then count as gone: they engage nothing,
// and are no part of the domain until they are back.
//
// A Brake is not safe for concurrent use.
type Brake struct {
	cfg    BrakeConfig
	states map[brakeKey]*braking
	known  map[string]int // at last
	last   time.Time      // of Step
	proven bool           // at last
}

type brakeKey struct {
	domain string
	code   Code
	reason string
}

// braking is a BrakeState and what moves it.
type braking struct {
	BrakeState
	calm time.Time // since when fewer are out than would engage it; zero if they are not
	gone time.Time // what is out since then or longer counts as gone
}

// NewBrake returns a brake that holds nothing, or the error of BrakeConfig.Check.
func NewBrake(cfg BrakeConfig) (*Brake, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	return &Brake{cfg: cfg.Filled(), states: map[brakeKey]*braking{}}, nil
}

// Restore takes over what the brake of a former observer held and let go, as its
// States were, in place of all that this one knows. What was engaged stays so until
// it lets go by this brake's own judgement: health that another proved counts for
// nothing. It is to be called before the first Step. The instants are of the clock
// that Step will be given.
func (b *Brake) Restore(states []BrakeState) {
	b.states = make(map[brakeKey]*braking, len(states))
	for _, s := range states {
		restored := &braking{BrakeState: s}
		if s.Engaged {
			restored.Proven, restored.LetsGo = 0, b.cfg.Release
		} else {
			restored.gone = s.LetAt
		}
		b.states[brakeKey{s.Domain, s.Code, s.Reason}] = restored
	}
}

// Step takes in a snapshot of all nodes and returns the states that engaged or let
// go by it, in the order of States. It is to be called before anything is decided
// on the same snapshot, and at least once a Window: a longer gap proves no health.
// Since, Gone and NotReady of the nodes and now are of one clock.
func (b *Brake) Step(nodes []Node, now time.Time, h Health) []BrakeState {
	tallies, heard := b.count(nodes, now)
	proven := h.OK && heard
	gap := max(now.Sub(b.last), 0)
	if !proven || !b.proven || gap > b.cfg.Window {
		gap = 0
	}
	b.last, b.proven = now, proven

	var changed []BrakeState
	for key, t := range tallies {
		s := b.states[key]
		engages := (s == nil || !s.Engaged) && t.down >= b.least(t.of)
		switch {
		case engages:
			if s == nil {
				s = &braking{}
				b.states[key] = s
			}
			s.engage(key, now, b.cfg.Window)
			b.step(s, *t, now, 0, proven, h)
			changed = append(changed, s.BrakeState)
		case s == nil:
		case s.Engaged:
			b.step(s, *t, now, gap, proven, h)
			if !s.Engaged {
				changed = append(changed, s.BrakeState)
			}
		case t.gone == 0 && t.unheard == 0:
			delete(b.states, key)
		default:
			s.Down, s.Of = t.gone, t.of
		}
	}
	slices.SortFunc(changed, compareBrakes)
	return changed
}

// engage begins an event.
func (s *braking) engage(key brakeKey, now time.Time, window time.Duration) {
	from := now.Add(-window)
	if s.gone.After(from) {
		from = s.gone
	}
	s.BrakeState = BrakeState{Domain: key.domain, Code: key.code, Reason: key.reason, Engaged: true, Since: now, From: from}
	s.calm = time.Time{}
}

// step moves an engaged state by what was counted.
func (b *Brake) step(s *braking, t tally, now time.Time, gap time.Duration, proven bool, h Health) {
	s.Down, s.Of = t.down, t.of
	s.Proven += gap
	if !proven {
		s.Proven = 0
	}
	s.LetsGo = max(b.cfg.Release-s.Proven, 0)
	out := t.down + t.unheard
	if out >= b.least(s.Of) {
		s.calm = time.Time{}
	} else if s.calm.IsZero() {
		s.calm = now
	}
	switch {
	case out == 0, !s.calm.IsZero() && now.Sub(s.calm) >= b.cfg.Window:
		s.letGo(LetRecovery, now)
	case s.LetsGo == 0:
		s.letGo(LetTimeout, now)
	}
	s.Text = b.text(&s.BrakeState, proven, h)
}

func (s *braking) letGo(how Let, now time.Time) {
	s.Engaged, s.Let, s.LetAt, s.LetsGo, s.gone = false, how, now, 0, now
}

// least is how many of a domain's nodes engage its brake.
func (b *Brake) least(of int) int {
	// A product like 0.55 × 20 may come out a hair above 11.
	return max(b.cfg.Least, int(math.Ceil(b.cfg.Share*float64(of)-1e-9)))
}

// tally is what was counted for one domain and cause.
type tally struct {
	of   int // nodes of the domain without gone
	down int // that turned in the event, or within the window if there is none
	gone int // still out since before the brake let go
	// unheard nodes have not been heard yet by this observer, nor for a full timeout
	// been silent: they may have turned, and count as not back.
	unheard int
}

// count counts each domain and cause for which some node is out, and each that has
// a state. heard: some node is heard now.
func (b *Brake) count(nodes []Node, now time.Time) (tallies map[brakeKey]*tally, heard bool) {
	tallies = map[brakeKey]*tally{}
	for key := range b.states {
		tallies[key] = &tally{}
	}
	known := map[string]int{} // by domain
	extra := map[string]int{} // by domain: heard within Known of when its silence engaged
	domains := []string{DomainAll, ""}
	names := map[string]string{} // value of the label to domain, to make each name once
	for i := range nodes {
		n := &nodes[i]
		if (n.Liveness == Suspect || !n.Gone.IsZero()) && (n.Lease.State == LeaseReleased || n.Intent.State() == Drained) {
			continue // it said goodbye, or was emptied so that it could go
		}
		heard = heard || n.Liveness == Alive || n.Liveness == Late
		domains = domains[:1]
		if value, ok := n.Facts.Labels[b.cfg.Label]; ok {
			if names[value] == "" {
				names[value] = b.cfg.Label + "=" + value
			}
			domains = append(domains, names[value])
		}
		for _, d := range domains {
			silence := brakeKey{domain: d, code: CodeStaleHeartbeat}
			if age := n.silence(now); age > b.cfg.Known {
				s := b.states[silence]
				if s == nil || !s.Engaged || age > b.cfg.Known+now.Sub(s.Since) {
					continue
				}
				extra[d]++
			} else {
				known[d]++
			}
			switch {
			case !n.Gone.IsZero():
				b.turn(tallies, silence, n.Gone, now)
			case n.Liveness == Suspect:
				b.turn(tallies, silence, n.Since, now)
			case n.Liveness == Observing && tallies[silence] != nil:
				tallies[silence].unheard++
			}
			if n.Liveness != Suspect && n.turned() {
				b.turn(tallies, brakeKey{d, CodeNotReady, n.Facts.Readiness.Reason}, n.NotReady, now)
			}
		}
	}
	b.known = known
	for key, t := range tallies {
		t.of = known[key.domain] - t.gone
		if key.code == CodeStaleHeartbeat {
			t.of += extra[key.domain]
		}
	}
	return tallies, heard
}

// turn counts a node that is out since an instant.
func (b *Brake) turn(tallies map[brakeKey]*tally, key brakeKey, since, now time.Time) {
	t := tallies[key]
	if t == nil {
		t = &tally{}
		tallies[key] = t
	}
	from := now.Add(-b.cfg.Window)
	if s := b.states[key]; s != nil {
		if !since.After(s.gone) {
			t.gone++
			return
		}
		if s.Engaged {
			from = s.From
		}
	}
	if since.After(from) {
		t.down++
	}
}

// Release lets go of all that is engaged for a domain, for an operator; how is
// LetConfirmed or LetReleased, and by.At the present. It returns what let go:
// nothing if nothing was engaged. Consequences follow at once.
func (b *Brake) Release(domain string, how Let, by Mark) []BrakeState {
	now := by.At
	if b.last.After(now) {
		now = b.last
	}
	var changed []BrakeState
	for _, s := range b.states {
		if s.Domain == domain && s.Engaged {
			s.By = by
			s.letGo(how, now)
			s.Text = b.text(&s.BrakeState, false, Health{})
			changed = append(changed, s.BrakeState)
		}
	}
	slices.SortFunc(changed, compareBrakes)
	return changed
}

// Known returns how many nodes each domain has: the distinct ones that were heard
// within BrakeConfig.Known when Step was last called, without those that fell silent
// after they gave their lease back or were drained.
func (b *Brake) Known() map[string]int { return maps.Clone(b.known) }

// States returns what is engaged, and what was let go while nodes of it are still
// out: DomainAll first, then in order of domain, cause and reason.
func (b *Brake) States() []BrakeState {
	var all []BrakeState
	for _, s := range slices.SortedFunc(maps.Values(b.states), func(x, y *braking) int { return compareBrakes(x.BrakeState, y.BrakeState) }) {
		if s.Engaged || s.Let != "" {
			all = append(all, s.BrakeState)
		}
	}
	return all
}

func compareBrakes(x, y BrakeState) int {
	rank := func(s BrakeState) int {
		if s.Domain == DomainAll {
			return 0
		}
		return 1
	}
	return cmp.Or(rank(x)-rank(y), strings.Compare(x.Domain, y.Domain), strings.Compare(string(x.Code), string(y.Code)), strings.Compare(x.Reason, y.Reason))
}

// text says what happened, what is withheld and what lets it go.
func (b *Brake) text(s *BrakeState, proven bool, h Health) string {
	where := "the fleet"
	if s.Domain != DomainAll {
		where = strconv.Quote(s.Domain)
	}
	what, withheld := "fell silent", "no work is taken from "+where
	doubted := "the observer is doubted first"
	if s.Code == CodeNotReady {
		what = fmt.Sprintf("turned not ready for one reason (%s)", s.Reason)
		withheld = "they count as ready, as they last were"
		doubted = "what they share is doubted first"
	}
	text := fmt.Sprintf("%d of %d nodes of %s %s within %s", s.Down, s.Of, where, what, span(b.cfg.Window))
	switch s.Let {
	case "":
		health := fmt.Sprintf("after %s more of the observer's proven health", span(s.LetsGo))
		if !proven {
			health = fmt.Sprintf("after %s of the observer's proven health, which begins when it hears a node", span(b.cfg.Release))
			if !h.OK {
				health = fmt.Sprintf("after %s of the observer's own health, which is not proven now (%s)", span(b.cfg.Release), cmp.Or(h.Text, "unknown"))
			}
		}
		return fmt.Sprintf("%s: %s, and %s. Lets go when fewer than %d are out, when an operator says so, or %s",
			text, doubted, withheld, b.least(s.Of), health)
	case LetRecovery:
		return fmt.Sprintf("%d of %d nodes of %s are still out: let go, the others are back", s.Down, s.Of, where)
	case LetTimeout:
		return fmt.Sprintf("%s: let go after %s of the observer's proven health", text, span(b.cfg.Release))
	default:
		return fmt.Sprintf("%s: %s by %s", text, s.Let, s.By.text())
	}
}
