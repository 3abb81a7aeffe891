package api

import (
	"context"
	"net/url"
	"strconv"
	"strings"
)

// Whoami returns whom the server takes this client for.
func (c *Client) Whoami(ctx context.Context) (*Identity, error) {
	var out Identity
	if err := c.get(ctx, "/v1/whoami", nil, &out, func() string { return missing(out.Role == "", "role") }); err != nil {
		return nil, err
	}
	return &out, nil
}

// Fleet returns all nodes in figures.
func (c *Client) Fleet(ctx context.Context) (*Fleet, error) {
	var out Fleet
	if err := c.get(ctx, "/v1/fleet", nil, &out, func() string { return missing(out.Reasons == nil, "reasons") }); err != nil {
		return nil, err
	}
	return &out, nil
}

// Ages returns how old the last beats were over the last hour.
func (c *Client) Ages(ctx context.Context) (*Ages, error) {
	var out Ages
	if err := c.get(ctx, "/v1/fleet/ages", nil, &out, func() string { return missing(out.Samples == nil, "samples") }); err != nil {
		return nil, err
	}
	return &out, nil
}

// NodesWhere returns some of the nodes, with the numbers of all.
func (c *Client) NodesWhere(ctx context.Context, q NodeQuery) (*Nodes, error) {
	query := texts(map[string]string{"match": q.Match, "is": strings.Join(q.Is, ","), "reason": string(q.Reason), "label": q.Label, "sort": q.Sort})
	numbers(query, map[string]int64{"offset": int64(q.Offset), "limit": int64(q.Limit)})
	var out Nodes
	if err := c.get(ctx, "/v1/nodes", query, &out, func() string { return missing(out.Nodes == nil, "nodes") }); err != nil {
		return nil, err
	}
	return &out, nil
}

// Timeline returns the last beats of a node.
func (c *Client) Timeline(ctx context.Context, node string) (*Timeline, error) {
	if err := checkID("node", node); err != nil {
		return nil, err
	}
	var out Timeline
	if err := c.get(ctx, nodePath(node)+"/timeline", nil, &out, func() string { return about(out.Node, node) }); err != nil {
		return nil, err
	}
	return &out, nil
}

// Takeovers returns takeovers of the ledger.
func (c *Client) Takeovers(ctx context.Context, q TakeoverQuery) (*Takeovers, error) {
	query := texts(map[string]string{"work": q.Work, "node": q.Node})
	numbers(query, map[string]int64{"after": q.After, "before": q.Before, "limit": int64(q.Limit)})
	if q.Last {
		query.Set("last", "true")
	}
	var out Takeovers
	if err := c.get(ctx, "/v1/takeovers", query, &out, func() string { return missing(out.Takeovers == nil, "takeovers") }); err != nil {
		return nil, err
	}
	return &out, nil
}

// Leases returns a page of the leases, in byte order of their names.
func (c *Client) Leases(ctx context.Context, q LeaseQuery) (*Leases, error) {
	query := texts(map[string]string{"prefix": q.Prefix, "after": q.After})
	numbers(query, map[string]int64{"limit": int64(q.Limit)})
	var out Leases
	if err := c.get(ctx, leasesPath, query, &out, func() string { return out.wrong(q.After) }); err != nil {
		return nil, err
	}
	return &out, nil
}

// texts returns a query of the texts that are not empty.
func texts(all map[string]string) url.Values {
	query := url.Values{}
	for name, text := range all {
		if text != "" {
			query.Set(name, text)
		}
	}
	return query
}

// numbers adds to a query the numbers that are not 0.
func numbers(query url.Values, all map[string]int64) {
	for name, n := range all {
		if n != 0 {
			query.Set(name, strconv.FormatInt(n, 10))
		}
	}
}
