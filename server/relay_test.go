package server

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

// TestRelay: beats that come together are answered as alone, those that are
// refused do no harm to the others, and two of one node are taken in order.
func TestRelay(t *testing.T) {
	t.Parallel()
	b := newBed(t, Config{}, HTTPConfig{})
	n1, n2, n3 := b.join("n1"), b.join("n2"), b.join("n3")
	for _, n := range []*node{n1, n2, n3} {
		n.next() // takes the revision of the orders
	}
	n1.step()
	first := n1.beat
	second := n1.beat
	second.Seq++
	second.Renew = &api.Renewal{Token: n1.token, TTLMS: first.Renew.TTLMS, Attempt: store.NewAttempt(), Known: []store.Attempt{first.Renew.Attempt}}
	old := n2.beat
	old.Renew = nil
	n3.step()
	n3.beat.Work = []api.WorkReport{{Work: "w9", Token: 1, Lease: n3.token, State: fleet.Running}}
	fresh := api.Beat{Node: "n4", Incarnation: "i", Seq: 1, FactsVersion: 1, Facts: &fleet.Facts{Readiness: fleet.Readiness{Ready: true}}}
	replies := must[api.BeatReplies](b, "POST", "/v1/beats", api.Beats{Beats: []api.Beat{first, second, old, n3.beat, {Node: "a b", Incarnation: "i", Seq: 1}, fresh}}).Replies
	if len(replies) != 6 {
		t.Fatalf("got %d replies, want 6", len(replies))
	}
	for i, want := range []fleet.Code{"", "", fleet.CodeOldSequence, "", "invalid", ""} {
		if replies[i].Code != want {
			t.Errorf("reply %d: got %+v, want code %q", i, replies[i], want)
		}
	}
	for i := range 2 {
		if r := replies[i].Renewed; r == nil || r.Code != "" || r.Record == nil || r.Record.Token != n1.token {
			t.Errorf("renewal %d of n1: got %+v", i, r)
		}
	}
	if w := replies[3].Work; len(w) != 1 || w[0].Code != fleet.CodeNoSuchWork {
		t.Errorf("report of n3: got %+v, want no_such_work", w)
	}
	if n := must[api.Node](b, "GET", "/v1/nodes/n4", nil); n.Liveness != fleet.Alive {
		t.Errorf("n4: got %+v, want alive", n)
	}
	if rec := must[api.Record](b, "GET", "/v1/leases/get?name=node/n1", nil); rec.Attempt != second.Renew.Attempt {
		t.Errorf("lease of n1: got attempt %s, want that of the second beat", rec.Attempt)
	}
}

// fill sets every field below v to something that is not zero.
func fill(v reflect.Value) {
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Date(2026, 3, 4, 5, 6, 7, 890_000_000, time.UTC)))
		return
	case fence.Token:
		v.SetInt(12)
		return
	case any:
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0))
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("é<\"\\\n\u2028&x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(-7)
	case reflect.Uint8, reflect.Uint64:
		v.SetUint(7)
	default:
	}
}

// TestEncoder: what the encoder writes is what encoding/json would, with every
// field that there is, so that a field which is added is not left out.
func TestEncoder(t *testing.T) {
	t.Parallel()
	var full api.BeatReply
	fill(reflect.ValueOf(&full).Elem())
	plain := api.BeatReply{Node: "n1", IntervalMS: 10_000, Renewed: &api.RenewResult{Record: &api.Record{Name: "node/n1"}}}
	for _, reply := range []api.BeatReply{{}, plain, full} {
		want, err := json.Marshal(reply)
		if err != nil {
			t.Fatal(err)
		}
		var e encoder
		e.reply(&reply)
		if e.err != nil || string(e.b) != string(want) {
			t.Errorf("got  %s %v\nwant %s", e.b, e.err, want)
		}
		want, _ = json.Marshal(api.BeatReplies{Replies: []api.BeatReply{reply, reply}})
		e = encoder{}
		e.replies([]api.BeatReply{reply, reply})
		if string(e.b) != string(want) {
			t.Errorf("got  %s\nwant %s", e.b, want)
		}
	}
}
