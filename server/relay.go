package server

import (
	"context"
	"sync"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/store"
)

// relayWorkers is how many beats of one relay that bring news are taken in at
// the same time.
const relayWorkers = 16

// Beats takes in the heartbeats that a relay brings, and answers each at its
// index as Beat does. One that Beat would refuse with an error has that error's
// code and text: the others are none the worse for it.
//
// Beats that bring no news share one way to the renewer. Two of one node are to
// be in the order of their sequence numbers.
func (s *Server) Beats(ctx context.Context, beats []api.Beat) []api.BeatReply {
	replies := make([]api.BeatReply, len(beats))
	interval := s.cfg.Interval.Milliseconds()
	grants := make([]store.Grant, 0, len(beats))
	renewing := make([]int, 0, len(beats)) // whose the grants are
	slots := make([]*slot, len(beats))
	steady := uint64(0)
	var news []int
	now := clock.Now().Boot
	at := s.in.atBoot(now)
	for i := range beats {
		b, reply := &beats[i], &replies[i]
		reply.Node, reply.IntervalMS, reply.Leftovers = b.Node, interval, true
		if b.Facts != nil || len(b.Work) > 0 || checkBeat(b) != nil {
			news = append(news, i)
			continue
		}
		n := s.in.find(b.Node)
		if n == nil || !n.steady(b, at, now, reply) {
			news = append(news, i)
			continue
		}
		steady++
		if b.Renew != nil {
			if g, err := grant(b); err == nil { // as checkBeat said
				grants, renewing, slots[i] = append(grants, *g), append(renewing, i), n
			}
		}
	}
	if steady > 0 {
		s.counts.addN("beat", "", steady)
	}

	var all sync.WaitGroup
	todo := make(chan int, len(news))
	for _, i := range news {
		todo <- i
	}
	close(todo)
	for range min(relayWorkers, len(news)) {
		all.Go(func() {
			for i := range todo {
				reply, err := s.Beat(ctx, &beats[i])
				if err != nil {
					e := api.NewError(err)
					reply = api.BeatReply{Node: beats[i].Node, Code: fleet.Code(e.Code), Text: e.Message, IntervalMS: interval}
				}
				replies[i] = reply
			}
		})
	}
	began := clock.Now().Boot
	if results, err := s.renewer.renewAll(ctx, grants); err != nil {
		e := api.NewError(err)
		for _, i := range renewing {
			replies[i].Code, replies[i].Text = fleet.Code(e.Code), e.Message
		}
	} else {
		renewals, now := map[string]uint64{}, clock.Now().Boot
		for k, i := range renewing {
			slots[i].noteRenewal(&results[k], &replies[i], began, now)
			renewals[string(replies[i].Renewed.Code)]++
		}
		for code, n := range renewals {
			s.counts.addN("renewal", code, n)
		}
	}
	all.Wait()
	return replies
}

// steady takes in a beat without facts and reports that brings no news: its
// sender is the node's incarnation, and what it and the registry know of each
// other is known. It changes nothing and returns false if it is another.
func (s *slot) steady(b *api.Beat, at, now time.Duration, reply *api.BeatReply) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	row := s.row
	if row == nil || s.incarnation != b.Incarnation || row.Incarnation != b.Incarnation || b.Seq <= s.seq ||
		s.facts == nil || s.version != b.FactsVersion || row.Orders != b.Orders || !s.agrees() {
		return false
	}
	s.hear(at, time.Duration(b.LateMS)*time.Millisecond, now)
	if s.liveness == fleet.Observing || s.liveness == fleet.Late {
		s.judge(at)
	}
	s.seq = b.Seq
	reply.Intent = row.Intent.State()
	return true
}

// agrees reports whether the registry has the facts that the node told last. The
// caller holds s.mu.
func (s *slot) agrees() bool {
	now := agreement{s.row, s.facts}
	if s.agreed != now && sameFacts(&s.row.Facts, s.facts) {
		s.agreed = now
	}
	return s.agreed == now
}
