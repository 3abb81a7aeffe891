package registry

import (
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
)

// leaseRow receives the columns of {lease}.
type leaseRow struct {
	token           int64
	holder, state   string
	remaining, over int64 // µs
}

func (l *leaseRow) into() []any { return []any{&l.token, &l.holder, &l.state, &l.remaining, &l.over} }

func (l *leaseRow) lease() fleet.Lease {
	return fleet.Lease{
		State: fleet.LeaseState(l.state), Token: fence.Token(l.token), Holder: l.holder,
		Remaining: microseconds(l.remaining), Over: microseconds(l.over),
	}
}

// holdLeases returns the leases of nodes, in the order in which they are locked,
// and keeps their terms from being followed by others until the transaction ends.
// Renewals are not in their way.
func (t *tx) holdLeases(nodes ...string) (map[string]fleet.Lease, error) {
	names := make([]string, len(nodes))
	leases := make(map[string]fleet.Lease, len(nodes))
	for i, node := range nodes {
		names[i] = fleet.LeaseName(node)
		leases[node] = fleet.Lease{State: fleet.LeaseNone}
	}
	var l leaseRow
	var name string
	return leases, t.each(func(rows scanner) error {
		if err := rows.Scan(append([]any{&name}, l.into()...)...); err != nil {
			return err
		}
		leases[name[len(fleet.LeasePrefix):]] = l.lease()
		return nil
	}, "SELECT l.name, {lease} FROM {leases} WHERE l.name {in} "+t.set("$1")+" ORDER BY l.name{held}", t.list(names))
}

// judgeOwn says why a node may not act under a term, "" if it may. A revoked term
// is live until it ends.
func judgeOwn(node string, l fleet.Lease, token fence.Token) Verdict {
	if l.Live() && l.Token != token {
		return refused(fleet.CodeStaleToken, "the lease of node %q has token %s, not %s", node, l.Token, token)
	}
	if l.Token > token {
		return refused(fleet.CodeStaleToken, "the lease of node %q has had token %s since %s", node, l.Token, token)
	}
	return judgeLive(node, l)
}

// judgeLive says why a lease is not live, "" if it is.
func judgeLive(node string, l fleet.Lease) Verdict {
	switch l.State {
	case fleet.LeaseNone:
		return refused(fleet.CodeNoLease, "node %q has no lease", node)
	case fleet.LeaseLapsed:
		return refused(fleet.CodeLeaseLapsed, "the lease of node %q lapsed %s ago", node, l.Over)
	case fleet.LeaseReleased:
		return refused(fleet.CodeLeaseReleased, "the lease of node %q was released %s ago", node, l.Over)
	}
	return Verdict{}
}

// notLive explains why a statement that asks for {live} changed nothing although
// the lease was live when it was read.
func (t *tx) notLive(node string, token fence.Token) (Verdict, error) {
	if err := t.readClock(); err != nil {
		return Verdict{}, err
	}
	leases, err := t.holdLeases(node)
	if err != nil {
		return Verdict{}, err
	}
	if v := judgeOwn(node, leases[node], token); v.Code != "" {
		return v, nil
	}
	if leases[node].State == fleet.LeaseRevoked {
		return refused(fleet.CodeLeaseRevoked, "the lease of node %q is revoked, or a floor was raised above its token", node), nil
	}
	return refused(fleet.CodeLeaseLapsed, "nothing shows that the lease of node %q is unexpired", node), nil
}
