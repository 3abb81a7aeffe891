package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server/registry"
)

// Submit takes in a work item and places it. If nothing fits it is refused with
// no_capacity and the counts per reason, from an authoritative read, and nothing
// is stored; with queue it is stored to be placed later. If the same item was
// submitted before, whatever became of it, it is returned as it is, and existing is
// true. The error is an *api.Error.
func (s *Server) Submit(ctx context.Context, spec fleet.Spec, actor string, queue bool) (w fleet.Work, existing bool, err error) {
	spec = spec.Filled()
	if err := spec.Check(); err != nil {
		return fleet.Work{}, false, api.NewError(err)
	}
	began := time.Now()
	v, err := s.place(ctx, spec.Needs(), new(bool), func(p registry.Placement) (registry.Verdict, error) {
		p.Actor = actor
		return s.reg.SubmitTo(ctx, spec, p)
	})
	if refused, ok := errors.AsType[*api.Error](err); ok && refused.Code == string(fleet.CodeNoCapacity) && queue {
		v, err = s.reg.Submit(ctx, spec, actor)
	}
	s.counts.add("placement", codeOf(v, err))
	s.st.placeTime.Observe(time.Since(began).Seconds())
	if err != nil {
		return fleet.Work{}, false, api.NewError(err)
	}
	if v.Code != "" {
		return fleet.Work{}, false, refusal(v)
	}
	w, ok, err := s.reg.Work(ctx, spec.ID)
	if err != nil {
		return fleet.Work{}, false, api.NewError(err)
	}
	if !ok {
		return fleet.Work{}, false, api.Refuse(fleet.CodeNoSuchWork, "work %q was pruned", spec.ID)
	}
	if w.Owner != "" {
		s.touch(ctx, w.Owner)
	}
	return w, v.Event.Kind == "", nil
}

func codeOf(v registry.Verdict, err error) string {
	if err != nil {
		return api.NewError(err).Code
	}
	return string(v.Code)
}

// refusal is a verdict as an error.
func refusal(v registry.Verdict) *api.Error {
	e := api.Refuse(v.Code, "%s", v.Text)
	e.Owner, e.Current = v.Owner, v.Current
	return e
}

// candidates is how many nodes are tried after one reading. What one reading
// ranks first others have ranked first too.
const candidates = 8

// refusedAs is how a node stood when the registry refused to give it work, or before
// that, and for what.
type refusedAs struct {
	version int64 // of its row: room that becomes free changes it too
	lease   fence.Token
	code    fleet.Code
}

// place tries nodes in the order of their rank until one takes the work. What is
// known here may be old, so before a refusal it reads authoritatively, and as
// long as such a reading shows a node that fits it tries again (P8), but none that
// stands as it did when the registry refused it: that counts with the registry's
// code. read says that whoever asks has had such a reading already, and is set by one.
func (s *Server) place(ctx context.Context, req fleet.Request, read *bool, try func(registry.Placement) (registry.Verdict, error)) (registry.Verdict, error) {
	refused := map[string]refusedAs{}
	for nodes := s.Nodes(); ; {
		ranked, counts := fleet.Rank(nodes, req, s.conditions())
		ranked = slices.DeleteFunc(ranked, func(c fleet.Candidate) bool {
			as, was := refused[c.Node]
			same := was && as.lease == nodes[c.Index].Lease.Token && as.version == s.in.version(c.Node)
			if same {
				counts[as.code]++
			}
			return same
		})
		if len(ranked) == 0 && *read {
			e := api.Refuse(fleet.CodeNoCapacity, "%s", noCapacity(len(nodes), counts))
			e.Counts, e.RetryAfter = counts, 250*time.Millisecond
			return registry.Verdict{}, e
		}
		for _, c := range ranked[:min(len(ranked), candidates)] {
			as := refusedAs{version: s.in.version(c.Node), lease: nodes[c.Index].Lease.Token}
			v, err := try(registry.Placement{Node: c.Node, Lease: as.lease})
			if err != nil || !v.OfTarget {
				return v, err
			}
			as.code = v.Code
			refused[c.Node] = as
			s.counts.add("candidate", string(v.Code))
			s.touch(ctx, c.Node)
		}
		if err := ctx.Err(); err != nil {
			return registry.Verdict{}, context.Cause(ctx)
		}
		var err error
		if nodes, err = s.authoritative(ctx); err != nil {
			return registry.Verdict{}, err
		}
		*read = true
	}
}

func noCapacity(nodes int, counts map[fleet.Code]int) string {
	text := fmt.Sprintf("none of %d nodes fits", nodes)
	for i, code := range sortedByCount(counts) {
		text += map[bool]string{true: ": ", false: ", "}[i == 0] + fmt.Sprintf("%s %d", code, counts[code])
	}
	return text
}

// owners are the answers of lookups that may be given again for a while.
type owners struct {
	mu         sync.Mutex
	found      map[string]location
	redirected map[string]fence.Token // takeovers whose first lookup was recorded
}

type location struct {
	owner api.Owner
	until time.Time
}

// maxOwners bounds the memory of lookups.
const maxOwners = 100_000

// Owner says who has a work item, in one of three distinct answers. A positive
// one may be as old as Config.Refresh; a negative one was read just now.
func (s *Server) Owner(ctx context.Context, work string) (api.Owner, error) {
	now := time.Now()
	s.owners.mu.Lock()
	known, ok := s.owners.found[work]
	s.owners.mu.Unlock()
	if ok && now.Before(known.until) {
		return known.owner, nil
	}
	l, ok, err := s.reg.Locate(ctx, work)
	if err != nil {
		return api.Owner{}, api.NewError(err)
	}
	if !ok {
		return api.Owner{}, api.Refuse(fleet.CodeNoSuchWork, "no work %q", work)
	}
	w, o := l.Work, ownerOf(l)
	if o.Answer != api.OwnerFound {
		return o, nil
	}
	s.owners.mu.Lock()
	if len(s.owners.found) >= maxOwners {
		clear(s.owners.found)
	}
	s.owners.found[work] = location{owner: o, until: now.Add(min(s.cfg.Refresh, l.Lease.Remaining))}
	first := w.Takeovers > 0 && s.owners.redirected[work] != w.Token
	if first {
		if s.owners.redirected == nil || len(s.owners.redirected) >= maxOwners {
			s.owners.redirected = map[string]fence.Token{}
		}
		s.owners.redirected[work] = w.Token
	}
	s.owners.mu.Unlock()
	if first {
		if err := s.reg.MarkRedirected(ctx, work, w.Token); err != nil {
			s.log.Warn("mark redirected", "work", work, "err", err)
		}
	}
	return o, nil
}

// ownerOf says who has an item that was located.
func ownerOf(l registry.Location) api.Owner {
	w := l.Work
	o := api.Owner{Work: w.ID, Token: w.Token}
	switch {
	case !w.State.Owned():
		o.Answer, o.Text = api.OwnerNone, "it is "+string(w.State)
	case !l.Lease.Live():
		o.Answer, o.Node = api.OwnerLapsed, w.Owner
		o.Text = "its host is gone: the lease of node " + w.Owner + " is over"
		if w.Movable {
			o.Text += ", and it will be moved"
		}
	default:
		o.Answer, o.Node, o.Address = api.OwnerFound, w.Owner, l.Address
	}
	return o
}

// sortedByCount returns the codes, most frequent first.
func sortedByCount(counts map[fleet.Code]int) []fleet.Code {
	return sortedKeys(maps.Keys(counts), func(a, b fleet.Code) int { return counts[b] - counts[a] })
}
