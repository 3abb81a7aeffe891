package fleet

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Blocker is one item that a drain waits for, or a copy of one that is left.
type Blocker struct {
	Work  string    `json:"work"`
	State WorkState `json:"state"`          // "" of what is left
	Code  Code      `json:"code,omitempty"` // host_gone, if its node cannot end it; not_owner of what is left
	Text  string    `json:"text"`
}

// Blockers returns the items of works that the drain of n waits for, in order of
// id. An item blocks until its owner has said that it ended, or it has another
// owner: to be told to stop is not to have stopped. So does a copy that the node has
// left of what is not its own. The node is drained when nothing blocks.
func Blockers(n Node, works []Work, now time.Time) []Blocker {
	var all []Blocker
	for i := range works {
		if w := &works[i]; w.Owner == n.ID && w.State.Owned() {
			all = append(all, blocker(&n, w, now))
		}
	}
	for _, l := range Leftovers(n, works) {
		all = append(all, Blocker{Work: l.Work, Code: CodeNotOwner, Text: l.String()})
	}
	slices.SortStableFunc(all, func(a, b Blocker) int { return strings.Compare(a.Work, b.Work) })
	return all
}

// Leftovers returns what lives on n and is not the node's own, by works, which has the
// items of n. What a node says before it has read its orders may be its own.
func Leftovers(n Node, works []Work) []Leftover {
	var left []Leftover
	for _, l := range n.Facts.Leftovers {
		if !slices.ContainsFunc(works, func(w Work) bool {
			return w.ID == l.Work && w.Token == l.Token && w.Owner == n.ID && w.State.Owned()
		}) {
			left = append(left, l)
		}
	}
	return left
}

// String says what is left, for people.
func (l Leftover) String() string {
	return fmt.Sprintf("a copy with token %s lives on (pid %d), and the item is not the node's any more", l.Token, l.PID)
}

func blocker(n *Node, w *Work, now time.Time) Blocker {
	b := Blocker{Work: w.ID, State: w.State}
	moves := n.Intent.Drain != nil && n.Intent.Drain.Move && w.Movable
	switch {
	case !n.Lease.Live() && w.Movable:
		b.Code = CodeHostGone
		b.Text = "its host is gone (lease " + n.Lease.text() + "): it is to be taken over"
	case !n.Lease.Live():
		b.Code = CodeHostGone
		b.Text = "its host is gone (lease " + n.Lease.text() + "): it is pinned and waits for its host"
	case w.State == Stopping:
		b.Text = "told to stop, and not ended yet" + because(w.Why)
	case moves:
		b.Text = "movable: it will be told to stop, and placed elsewhere"
	case w.State == Placed:
		b.Text = "placed " + ago(w.Assigned, now) + ", and not started yet"
	case w.Movable:
		b.Text = fmt.Sprintf("running for %s: it is waited for, as the drain does not move work", span(now.Sub(w.Started)))
	default:
		b.Text = fmt.Sprintf("running for %s: it is pinned, and waited for", span(now.Sub(w.Started)))
	}
	if since, stuck := w.StuckSince(now); stuck {
		b.Text += ", stuck for " + span(now.Sub(since))
	}
	return b
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return fmt.Sprintf(" (%q)", why)
}

// text says how a lease stands, after the word "lease".
func (l Lease) text() string {
	switch l.State {
	case LeaseHeld:
		return fmt.Sprintf("held, token %s, %s left", l.Token, span(l.Remaining))
	case LeaseRevoked:
		return fmt.Sprintf("revoked, token %s, over in %s at the latest", l.Token, span(l.Remaining))
	case LeaseLapsed:
		return fmt.Sprintf("lapsed %s ago, token %s", span(l.Over), l.Token)
	case LeaseReleased:
		return fmt.Sprintf("given back %s ago, token %s", span(l.Over), l.Token)
	}
	return "none"
}
