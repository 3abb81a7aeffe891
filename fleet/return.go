package fleet

import (
	"fmt"
	"time"
)

// JudgeReturn says whether an item that was taken over goes back to the node that
// lost it. By default the replacement stays, so that nothing moves a second time
// without need. With KeepOriginal the replacement is told to stop and the item is
// placed on from again, once from may get it like any other new work.
//
// Either way the copy that from may still have is not the owner's: its reports are
// answered with CodeNotOwner, and its writes change nothing.
func JudgeReturn(w Work, from Node, now time.Time, c Conditions) Decision {
	hold := func(code Code, format string, args ...any) Decision {
		return Decision{Action: Hold, Code: code, Text: fmt.Sprintf(format, args...)}
	}
	switch {
	case w.TakenFrom == "" || w.TakenFrom != from.ID || w.Owner == from.ID:
		return hold(CodeNotOwner, "it was not taken from %s", from.ID)
	case w.State != Placed && w.State != Running:
		return hold(CodeWrongState, "it is %s", w.State)
	case w.Filled().OnReturn != KeepOriginal:
		return hold(CodeNotOwner, "its policy is %s: it stays on %s", KeepReplacement, w.Owner)
	}
	req := w.Needs()
	req.Exclude = nil // the loser may be excluded because it lost
	if ex := Exclusions(from, req, now, c); len(ex) > 0 {
		return hold(ex[0].Code, "%s is back, and may not get it yet: %s", from.ID, ex[0].Text)
	}
	return Decision{Action: Move, Text: fmt.Sprintf("its policy is %s, and %s is back: it moves from %s to %s", KeepOriginal, from.ID, w.Owner, from.ID)}
}
