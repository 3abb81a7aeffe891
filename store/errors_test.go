package store_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err      error
		code     store.Code
		definite bool // the term is over for certain
	}{
		{nil, "", false},
		{store.ErrHeld, "held", false},
		{&store.HeldError{Reason: store.HeldByTerm}, "held", false},
		{store.ErrSuperseded, "superseded", true},
		{store.ErrExpired, "expired", true},
		{store.ErrMissing, "missing", true},
		{store.ErrRevoked, "revoked", true},
		{store.ErrReleased, "released", true},
		{store.ErrNotFound, "not_found", false},
		{store.ErrSlotDone, "slot_done", false},
		{&store.SlotError{}, "slot_done", false},
		{store.ErrClockStep, "store_clock_step", false},
		{store.ErrBusy, "busy", false},
		{&store.BusyError{Name: "job"}, "busy", false},
		{store.ErrPermission, "permission", false},
		{store.ErrReadOnly, "read_only", false},
		{store.ErrSchema, "schema", false},
		{store.ErrCopied, "store_copied", false},
		{store.ErrUnsupported, "unsupported", false},
		{store.ErrInvalid, "invalid", false},
		{&store.InvalidError{Field: "ttl"}, "invalid", false},
		{store.ErrUnavailable, "no_contact", false},
		{context.DeadlineExceeded, "no_contact", false},
		{context.Canceled, "no_contact", false},
		{io.ErrUnexpectedEOF, "no_contact", false},
		{errors.New("anything else"), "no_contact", false},
		{fence.ErrStale, "stale_token", false},
		{&fence.StaleError{Resource: "job", Token: 1, Current: 2}, "stale_token", false},
	} {
		for _, err := range []error{c.err, wrapped(c.err)} {
			if got := store.Classify(err); got != c.code {
				t.Errorf("%v: got code %q, want %q", err, got, c.code)
			}
			if got := store.Definite(err); got != c.definite {
				t.Errorf("%v: got definite %t, want %t", err, got, c.definite)
			}
		}
	}
	// A decision that came with a broken connection stays a decision.
	both := errors.Join(context.DeadlineExceeded, store.ErrSuperseded)
	if got := store.Classify(both); got != store.CodeSuperseded {
		t.Errorf("%v: got code %q, want %q", both, got, store.CodeSuperseded)
	}
}

func wrapped(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("renew: %w", err)
}

func TestMessages(t *testing.T) {
	t.Parallel()
	rec := store.Record{Name: "nightly", Holder: "web-7/4242", Token: 51, ReservedFor: "web-8"}
	for _, c := range []struct {
		err   error
		want  string
		match error
	}{
		{&store.HeldError{Record: rec, Remaining: 12345678 * time.Microsecond, Reason: store.HeldByTerm},
			`store: lease "nightly" is held by "web-7/4242" (token 51) for up to 12.346s`, store.ErrHeld},
		{&store.HeldError{Record: rec, Remaining: time.Minute, Reason: store.HeldByMinHold},
			`store: lease "nightly" is kept free for another 1m0s (min-hold of token 51)`, store.ErrHeld},
		{&store.HeldError{Record: rec, Remaining: 3 * time.Second, Reason: store.HeldReserved},
			`store: lease "nightly" is reserved for "web-8" for another 3s`, store.ErrHeld},
		{&store.HeldError{Record: rec, Remaining: time.Second, Reason: store.HeldMaybe},
			`store: lease "nightly" is held by "web-7/4242" (token 51), may be stale, wait up to 1s`, store.ErrHeld},
		{&store.InvalidError{Field: "ttl", Value: "-1ns", Rule: "from 1ms to 24h0m0s"},
			`store: ttl "-1ns": from 1ms to 24h0m0s`, store.ErrInvalid},
		{&store.BusyError{}, `store: busy: the database is locked by somebody else`, store.ErrBusy},
		{&store.BusyError{Name: "nightly"}, `store: busy: lease "nightly" is locked by somebody else`, store.ErrBusy},
		{&store.BusyError{Name: "nightly", Blockers: []string{"pid 4711 (psql)", `prepared transaction "x"`}},
			`store: busy: lease "nightly" is locked by pid 4711 (psql), prepared transaction "x"`, store.ErrBusy},
		{&store.SlotError{Slot: store.Slot{Name: "nightly", Slot: "2026-01-01", Holder: "web-7", Token: 51}},
			`store: slot "2026-01-01" of "nightly" was done by "web-7" (token 51)`, store.ErrSlotDone},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("got %s\nwant %s", got, c.want)
		}
		if !errors.Is(c.err, c.match) {
			t.Errorf("%v does not match %v", c.err, c.match)
		}
	}
}
