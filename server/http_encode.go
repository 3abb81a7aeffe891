package server

import (
	"encoding/hex"
	"encoding/json"
	"strconv"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fence"
)

// encoder appends JSON as encoding/json would write it, byte by byte, for the
// answers to beats, which are most of what a server writes. What is rare in them
// it leaves to encoding/json.
type encoder struct {
	b   []byte
	err error
}

// key begins a member. The first of an object follows its brace.
func (e *encoder) key(name string) {
	if e.b[len(e.b)-1] != '{' {
		e.b = append(e.b, ',')
	}
	e.b = append(e.b, '"')
	e.b = append(e.b, name...)
	e.b = append(e.b, `":`...)
}

func (e *encoder) any(v any) {
	text, err := json.Marshal(v)
	if err != nil && e.err == nil {
		e.err = err
	}
	e.b = append(e.b, text...)
}

func (e *encoder) string(s string) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			e.any(s)
			return
		}
	}
	e.b = append(e.b, '"')
	e.b = append(e.b, s...)
	e.b = append(e.b, '"')
}

func (e *encoder) text(name, s string) {
	e.key(name)
	e.string(s)
}

func (e *encoder) textIf(name, s string) {
	if s != "" {
		e.text(name, s)
	}
}

func (e *encoder) number(name string, n int64) {
	e.key(name)
	e.b = strconv.AppendInt(e.b, n, 10)
}

func (e *encoder) numberIf(name string, n int64) {
	if n != 0 {
		e.number(name, n)
	}
}

func (e *encoder) trueIf(name string, is bool) {
	if is {
		e.key(name)
		e.b = append(e.b, "true"...)
	}
}

func (e *encoder) token(name string, t fence.Token) {
	e.key(name)
	e.b = append(e.b, '"')
	e.b = strconv.AppendInt(e.b, int64(t), 10)
	e.b = append(e.b, '"')
}

func (e *encoder) instant(name string, t time.Time) {
	e.key(name)
	e.b = append(e.b, '"')
	b, err := t.AppendText(e.b)
	if err != nil && e.err == nil {
		e.err = err
	}
	e.b = append(b, '"')
}

func (e *encoder) instantIf(name string, t time.Time) {
	if !t.IsZero() {
		e.instant(name, t)
	}
}

func (e *encoder) reply(r *api.BeatReply) {
	e.b = append(e.b, '{')
	e.text("node", r.Node)
	e.textIf("code", string(r.Code))
	e.textIf("text", r.Text)
	e.trueIf("need_facts", r.NeedFacts)
	e.number("interval_ms", r.IntervalMS)
	e.textIf("intent", string(r.Intent))
	e.trueIf("leftovers", r.Leftovers)
	if r.Renewed != nil {
		e.key("renewed")
		e.renewed(r.Renewed)
	}
	if r.Orders != nil {
		e.key("orders")
		e.any(r.Orders)
	}
	if len(r.Work) > 0 {
		e.key("work")
		e.any(r.Work)
	}
	e.b = append(e.b, '}')
}

func (e *encoder) renewed(r *api.RenewResult) {
	e.b = append(e.b, '{')
	e.textIf("code", string(r.Code))
	e.textIf("text", r.Text)
	if r.Record != nil {
		e.key("record")
		e.record(r.Record)
	}
	if r.Busy != nil {
		e.key("busy")
		e.any(r.Busy)
	}
	e.b = append(e.b, '}')
}

func (e *encoder) record(r *api.Record) {
	e.b = append(e.b, '{')
	e.text("name", r.Name)
	e.text("status", string(r.Status))
	e.textIf("holder", r.Holder)
	e.token("token", r.Token)
	if r.Floor != 0 {
		e.token("floor", r.Floor)
	}
	e.textIf("revision", string(r.Revision))
	if !r.Attempt.IsZero() {
		e.key("attempt")
		e.b = append(e.b, '"')
		e.b = hex.AppendEncode(e.b, r.Attempt[:])
		e.b = append(e.b, '"')
	}
	e.number("ttl_us", r.TTLUS)
	e.number("remaining_us", r.RemainingUS)
	e.numberIf("wait_us", r.WaitUS)
	e.textIf("reserved_for", r.ReservedFor)
	e.trueIf("revoked", r.Revoked)
	e.textIf("why", r.Why)
	e.textIf("revoked_by", r.RevokedBy)
	e.instantIf("acquired_at", r.AcquiredAt)
	e.instantIf("renewed_at", r.RenewedAt)
	e.instantIf("expires_at", r.ExpiresAt)
	e.instantIf("ended_at", r.EndedAt)
	e.instant("now", r.Now)
	if len(r.Meta) > 0 {
		e.key("meta")
		e.any(r.Meta)
	}
	e.b = append(e.b, '}')
}

func (e *encoder) replies(all []api.BeatReply) {
	e.b = append(e.b, `{"replies":[`...)
	for i := range all {
		if i > 0 {
			e.b = append(e.b, ',')
		}
		e.reply(&all[i])
	}
	e.b = append(e.b, `]}`...)
}
