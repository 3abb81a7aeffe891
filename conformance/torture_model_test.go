//go:build linux

package conformance_test

import (
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// leaseState is the lease as the model has it.
type leaseState struct {
	any     bool // whatever there was before the first term of a group
	token   fence.Token
	attempt store.Attempt
	expires int64 // by the store's clock, in microseconds
	ended   bool
}

// leaseStep says whether the lease may answer o so, and what it is afterwards.
// Of joined writes it knows what the guard asks: that the token is the present one.
func leaseStep(s leaseState, o *operation) (bool, leaseState) {
	known := slices.Contains(o.Known, s.attempt)
	live := !s.ended && o.now < s.expires
	next := leaseState{token: o.seen, attempt: o.Attempt, expires: o.now + o.TTL.Microseconds()}
	if s.any {
		return o.begins, next
	}
	if o.begins {
		return o.code == "" && o.seen == s.token+1 && !live, next
	}
	if o.seen != s.token {
		return false, s
	}
	mine := o.Token == s.token || o.Op == opRelease && o.Token == 0
	ended := s
	ended.attempt, ended.ended = o.Attempt, true
	switch {
	case o.Op == opJoined:
		return mine == (o.code == ""), s
	case o.Op == opAcquire && o.code == "": // goes on with what a lost reply granted
		return live && known, next
	case o.Op == opAcquire && o.code == store.HeldByTerm:
		return live && !known, s
	case o.Op == opAcquire && o.code == store.HeldChanged:
		return !live, s
	case o.Op == opRenew && o.code == "":
		return mine && live && known, next
	case o.Op == opRelease && o.code == "" && s.ended:
		return mine && known, s
	case o.Op == opRelease && o.code == "":
		return mine && known, ended
	case o.code == string(store.CodeSuperseded):
		return o.Token < s.token || !known, s
	case o.code == string(store.CodeExpired):
		return mine && known && !s.ended && !live, s
	case o.code == string(store.CodeReleased):
		return mine && s.ended, s
	}
	return false, s // nothing else can happen here
}

// markStep is the same for the resource that remembers the largest token.
func markStep(mark fence.Token, o *operation) (bool, fence.Token) {
	if o.code == codeStale {
		return mark > o.Token, mark
	}
	return o.Token >= mark, o.Token
}

// groupTokens is how many terms are judged together.
const groupTokens = 100

// object is one linearizable object: its operations, each in the group of terms
// in which it must have taken effect, and the models of the groups.
//
// The token never shrinks, so that a linearization of the whole is one of each
// group, one after the other. That exists exactly if each group has one, and no
// operation of a later group returned before one of an earlier was called.
type object struct {
	name   string
	groups map[int][]porcupine.Operation
	model  func(group int) porcupine.Model
}

func (b *object) add(group int, o *operation) {
	b.groups[group] = append(b.groups[group], porcupine.Operation{Input: o, Call: int64(o.At), Return: int64(o.returned)})
}

func (b *object) check() (problems []string) {
	numbers := make([]int, 0, len(b.groups))
	for n := range b.groups {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	lastCall := int64(0)
	for _, n := range numbers {
		firstReturn := int64(never)
		for _, op := range b.groups[n] {
			firstReturn = min(firstReturn, op.Return)
		}
		if firstReturn < lastCall {
			problems = append(problems, fmt.Sprintf("%s: not linearizable: an operation of terms %d and later returned %s before one of earlier terms was called", b.name, n*groupTokens+1, time.Duration(lastCall-firstReturn)))
		}
		for _, op := range b.groups[n] {
			lastCall = max(lastCall, op.Call)
		}
		switch porcupine.CheckOperationsTimeout(b.model(n), b.groups[n], 2*time.Minute) {
		case porcupine.Illegal:
			problems = append(problems, fmt.Sprintf("%s: not linearizable: terms %d to %d", b.name, n*groupTokens+1, (n+1)*groupTokens))
		case porcupine.Unknown:
			problems = append(problems, fmt.Sprintf("%s: not decided in time: terms %d to %d", b.name, n*groupTokens+1, (n+1)*groupTokens))
		}
	}
	return problems
}

// checkLinearizable judges the lease and the marked resource. The history must be settled.
func (h *history) checkLinearizable() (problems []string, groups int) {
	lease := object{name: "lease", groups: map[int][]porcupine.Operation{}, model: func(group int) porcupine.Model {
		return porcupine.Model{
			Init: func() any { return leaseState{any: group > 0, ended: true} },
			Step: func(s, input, _ any) (bool, any) {
				ok, next := leaseStep(s.(leaseState), input.(*operation))
				return ok, next
			},
		}
	}}
	mark := object{name: "marked resource", groups: map[int][]porcupine.Operation{}, model: func(int) porcupine.Model {
		return porcupine.Model{
			Init: func() any { return fence.Token(0) }, // earlier groups leave a mark that refuses none of this one's
			Step: func(s, input, _ any) (bool, any) {
				ok, next := markStep(s.(fence.Token), input.(*operation))
				return ok, next
			},
		}
	}}
	group := func(token fence.Token) int { return int(max(token, 1)-1) / groupTokens }
	var accepted []*operation // marked
	for i := range h.ops {
		switch o := &h.ops[i]; {
		case o.Op == opMarked && o.code == "":
			accepted = append(accepted, o)
			mark.add(group(o.Token), o)
		case o.Op == opMarked:
		default:
			lease.add(group(o.seen), o)
			// The first term of a group also ends the group before.
			if o.begins && o.seen > 1 && group(o.seen) != group(o.seen-1) {
				lease.add(group(o.seen-1), o)
			}
		}
	}
	// A refusal changes nothing and gets no less true with time, so it may have
	// taken effect at its very end.
	slices.SortFunc(accepted, func(a, b *operation) int { return int(a.At - b.At) })
	largest := make([]fence.Token, len(accepted))
	for i, o := range accepted {
		largest[i] = o.Token
		if i > 0 {
			largest[i] = max(o.Token, largest[i-1])
		}
	}
	for i := range h.ops {
		o := &h.ops[i]
		if o.Op != opMarked || o.code != codeStale {
			continue
		}
		before, _ := slices.BinarySearchFunc(accepted, o.returned, func(a *operation, t time.Duration) int {
			if a.At <= t {
				return -1
			}
			return 1
		})
		if before == 0 {
			problems = append(problems, fmt.Sprintf("%s: %s was refused before anything was accepted", mark.name, o.ID))
			continue
		}
		mark.add(group(largest[before-1]), o)
	}
	problems = slices.Concat(problems, lease.check(), mark.check())
	return problems, len(lease.groups) + len(mark.groups)
}
