package fleet

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
)

// Conditions are what a replica knows beside the node.
type Conditions struct {
	// Brakes are [Brake.States]. Nodes that are not ready for a reason which an
	// engaged brake doubts count as ready.
	Brakes []BrakeState
	// StuckAllowed is how many stuck items a node may have and still get new work.
	StuckAllowed int
}

// Exclusions returns all reasons why a node gets no work of this request, in the
// order of [Reasons] and then of name. It is empty if the node may get it.
func Exclusions(n Node, req Request, now time.Time, c Conditions) []Exclusion {
	w := newWants(req)
	found := w.findings(nil, &n, &c)
	ex := make([]Exclusion, 0, len(found))
	for _, f := range found {
		r, _ := ReasonOf(f.code)
		e := Exclusion{Code: f.code, Since: f.since(&n, now), Text: f.text(&n, now), Clears: r.Clears}
		if f.code == CodeFlapping && !n.CalmAt.IsZero() {
			e.Clears = "no further loss until " + instant(n.CalmAt)
		}
		ex = append(ex, e)
	}
	return ex
}

// Eligible reports whether nothing of the node's own keeps new work from it.
func Eligible(n Node, c Conditions) bool {
	var none wants
	return len(none.findings(nil, &n, &c)) == 0
}

// Free returns how much of a resource placement may give away. It is negative
// if more is in use than there is.
func (n *Node) Free(resource string) int64 {
	return n.Facts.Capacity[resource] - n.taken(resource)
}

func (n *Node) taken(resource string) int64 {
	return max(n.Facts.Used[resource], n.Reserved[resource])
}

// wants is a request with its names in order.
type wants struct {
	Request
	resources, labels []string
}

func newWants(req Request) wants {
	return wants{req, slices.Sorted(maps.Keys(req.Resources)), slices.Sorted(maps.Keys(req.Labels))}
}

// finding is an exclusion without its words, which cost more than the finding.
type finding struct {
	code  Code
	name  string // of a resource, label, feature or artifact
	want  string // value of the label
	need  int64
	brake *BrakeState
}

// findings appends why a node is left out, in the order of Reasons.
func (w *wants) findings(found []finding, n *Node, c *Conditions) []finding {
	add := func(code Code) { found = append(found, finding{code: code}) }
	if n.Duplicate != "" {
		add(CodeDuplicateNode)
	}
	if code := n.Lease.code(); code != "" {
		add(code)
	}
	switch n.Liveness {
	case Alive, Late:
	case Suspect:
		add(CodeStaleHeartbeat)
	default:
		add(CodeObserving)
	}
	ready := n.Facts.Readiness.Ready
	for i := range c.Brakes {
		switch b := &c.Brakes[i]; {
		case !b.Covers(*n):
		case b.Code == CodeNotReady:
			ready = true
		default:
			found = append(found, finding{code: CodeBrake, brake: b})
		}
	}
	if !ready {
		add(CodeNotReady)
	}
	if n.Flapping {
		add(CodeFlapping)
	}
	if n.Stuck > c.StuckAllowed {
		add(CodeStuck)
	}
	if d := n.Intent.Drain; d != nil && !d.Done.IsZero() {
		add(CodeDrained)
	} else if d != nil {
		add(CodeDraining)
	}
	if n.Intent.Cordon != nil {
		add(CodeCordoned)
	}
	return w.misfits(found, n)
}

// misfits appends why the request does not fit the node.
func (w *wants) misfits(found []finding, n *Node) []finding {
	if w.Node != "" && w.Node != n.ID || slices.Contains(w.Exclude, n.ID) {
		found = append(found, finding{code: CodeOtherNode, name: w.Node})
	}
	if w.Starts && n.Probed {
		found = append(found, finding{code: CodeNoAgent})
	}
	for _, k := range w.labels {
		if v, ok := n.Facts.Labels[k]; !ok || v != w.Labels[k] {
			found = append(found, finding{code: CodeMissingLabel, name: k, want: w.Labels[k]})
		}
	}
	for _, f := range w.Features {
		if !slices.Contains(n.Facts.Features, f) {
			found = append(found, finding{code: CodeMissingFeature, name: f})
		}
	}
	for _, a := range w.Artifacts {
		if !slices.Contains(n.Facts.Artifacts, a) {
			found = append(found, finding{code: CodeMissingArtifact, name: a})
		}
	}
	for _, r := range w.resources {
		if need := w.Resources[r]; need > n.Free(r) {
			found = append(found, finding{code: Insufficient(r), name: r, need: need})
		}
	}
	return found
}

// code returns why the lease gives no right to new work; "" if it does.
func (l Lease) code() Code {
	switch l.State {
	case LeaseHeld:
		return ""
	case LeaseRevoked:
		return CodeLeaseRevoked
	case LeaseLapsed:
		return CodeLeaseLapsed
	case LeaseReleased:
		return CodeLeaseReleased
	}
	return CodeNoLease
}

// since returns when it began to be so; zero if nobody knows.
func (f finding) since(n *Node, now time.Time) time.Time {
	switch f.code {
	case CodeLeaseLapsed, CodeLeaseReleased:
		return now.Add(-n.Lease.Over)
	case CodeStaleHeartbeat, CodeObserving:
		return n.Since
	case CodeBrake:
		return f.brake.Since
	case CodeNotReady:
		return n.NotReady
	case CodeDrained:
		return n.Intent.Drain.Done
	case CodeDraining:
		return n.Intent.Drain.At
	case CodeCordoned:
		return n.Intent.Cordon.At
	}
	return time.Time{}
}

// text says what was seen. What people wrote is quoted.
func (f finding) text(n *Node, now time.Time) string {
	switch f.code {
	case CodeDuplicateNode:
		return fmt.Sprintf("incarnation %q uses its name too; %q is the one that is believed", n.Duplicate, n.Incarnation)
	case CodeLeaseRevoked:
		return fmt.Sprintf("its lease (token %s) is revoked, and over in %s at the latest", n.Lease.Token, span(n.Lease.Remaining))
	case CodeLeaseLapsed:
		return fmt.Sprintf("its lease (token %s) lapsed %s ago", n.Lease.Token, span(n.Lease.Over))
	case CodeLeaseReleased:
		return fmt.Sprintf("its agent gave its lease (token %s) back %s ago", n.Lease.Token, span(n.Lease.Over))
	case CodeNoLease:
		return "there is no lease of its name"
	case CodeStaleHeartbeat:
		return fmt.Sprintf("not heard for %s of listening", span(n.Age))
	case CodeObserving:
		return "not heard yet, and not listened to for a full timeout"
	case CodeBrake:
		return f.brake.Text
	case CodeNotReady:
		return n.Facts.Readiness.text()
	case CodeFlapping:
		return "lost its lease, or was suspect, too often lately"
	case CodeStuck:
		return fmt.Sprintf("%d of its %s without progress", n.Stuck, items(n.Work))
	case CodeDrained:
		return "drained by " + n.Intent.Drain.Mark.text()
	case CodeDraining:
		return fmt.Sprintf("draining, %s left, by %s%s", items(n.Work), n.Intent.Drain.Mark.text(), n.Intent.Drain.overdue(now))
	case CodeCordoned:
		return "cordoned by " + n.Intent.Cordon.text()
	case CodeOtherNode:
		if f.name != "" && f.name != n.ID {
			return fmt.Sprintf("the request names node %q", f.name)
		}
		return "the request excludes this node"
	case CodeNoAgent:
		return "the server probes it: nothing there starts work"
	case CodeMissingLabel:
		if v, ok := n.Facts.Labels[f.name]; ok {
			return fmt.Sprintf("label %s is %q, %q needed", f.name, v, f.want)
		}
		return fmt.Sprintf("no label %s, %q needed", f.name, f.want)
	case CodeMissingFeature:
		return fmt.Sprintf("no feature %q", f.name)
	case CodeMissingArtifact:
		return fmt.Sprintf("no artifact %q", f.name)
	}
	return f.shortage(n)
}

// shortage says how much of a resource there is, as in "slots: full 40/40, 1 needed".
func (f finding) shortage(n *Node) string {
	of, offered := n.Facts.Capacity[f.name]
	switch taken := n.taken(f.name); {
	case !offered:
		return fmt.Sprintf("%s: none offered, %d needed", f.name, f.need)
	case taken == of:
		return fmt.Sprintf("%s: full %d/%d, %d needed", f.name, taken, of, f.need)
	case taken > of:
		return fmt.Sprintf("%s: over full %d/%d, %d needed", f.name, taken, of, f.need)
	default:
		return fmt.Sprintf("%s: %d/%d taken, %d free, %d needed", f.name, taken, of, of-taken, f.need)
	}
}

func (r Readiness) text() string {
	s := "says that it is not ready"
	if r.Reason != "" {
		s += ": " + r.Reason
	}
	if r.Text != "" {
		s += " (" + strconv.Quote(r.Text) + ")"
	}
	return s
}
