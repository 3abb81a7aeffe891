package fleet

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Blocker is one item that a drain waits for.
type Blocker struct {
	Work  string    `json:"work"`
	State WorkState `json:"state"`
	Code  Code      `json:"code,omitempty"` // host_gone, if its node cannot end it
	Text  string    `json:"text"`
}

// Blockers returns the items of works that the drain of n waits for, in order of
// id. An item blocks until its owner has said that it ended, or it has another
// owner: to be told to stop is not to have stopped. The node is drained when
// nothing blocks.
func Blockers(n Node, works []Work, now time.Time) []Blocker {
	var all []Blocker
	for i := range works {
		if w := &works[i]; w.Owner == n.ID && w.State.Owned() {
			all = append(all, blocker(&n, w, now))
		}
	}
	slices.SortFunc(all, func(a, b Blocker) int { return strings.Compare(a.Work, b.Work) })
	return all
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
