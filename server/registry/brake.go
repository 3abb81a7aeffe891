package registry

import (
	"context"
	"encoding/json"
	"time"
)

// Brake is the brake as it is kept: the state that the active replica saved, and
// what operators have ordered since.
type Brake struct {
	State  json.RawMessage // nil: none was saved
	Saved  time.Time
	Orders []BrakeOrder // in order of Seq
	Now    time.Time    // by the database's clock, when this was read
}

// BrakeOrder is an operator's word on the brake of one domain.
type BrakeOrder struct {
	Seq    int64 // set by OrderBrake
	Domain string
	What   string // confirm or release
	Order
	At time.Time // set by OrderBrake
}

// Brake returns the brake.
func (r *Registry) Brake(ctx context.Context) (Brake, error) {
	var b Brake
	err := r.read(ctx, "read the brake", func(t *tx) error {
		var state string
		var saved int64
		b.Now = instant(t.wall)
		if err := t.row("SELECT brake, brake_us FROM {s}fleet_single").Scan(&state, &saved); err != nil {
			return err
		}
		if state != "" {
			b.State, b.Saved = json.RawMessage(state), instant(saved)
		}
		return t.each(func(row scanner) error {
			var o BrakeOrder
			var at int64
			err := row.Scan(&o.Seq, &o.Domain, &o.What, &o.Actor, &o.Reason, &at)
			o.At = instant(at)
			b.Orders = append(b.Orders, o)
			return err
		}, "SELECT seq, domain, what, actor, reason, at_us FROM {s}fleet_brake_order ORDER BY seq")
	})
	return b, err
}

// SaveBrake keeps the state of the brake, and drops the orders up to the Seq that
// it has taken into account.
func (r *Registry) SaveBrake(ctx context.Context, f Fence, state json.RawMessage, seen int64) (Verdict, error) {
	return r.decide(ctx, "save the brake", f, "", func(t *tx) (Verdict, error) {
		if _, err := t.exec("UPDATE {s}fleet_single SET brake = $1, brake_us = {now}", string(state)); err != nil {
			return Verdict{}, err
		}
		_, err := t.exec("DELETE FROM {s}fleet_brake_order WHERE seq <= $1", seen)
		return Verdict{}, err
	})
}

// OrderBrake keeps an operator's word for the active replica.
func (r *Registry) OrderBrake(ctx context.Context, o BrakeOrder) error {
	return r.transact(ctx, "order the brake", writing, func(t *tx) (bool, error) {
		_, err := t.exec("INSERT INTO {s}fleet_brake_order (domain, what, actor, reason, at_us) VALUES ($1, $2, $3, $4, {now})", o.Domain, o.What, o.Actor, o.Reason)
		return true, err
	})
}
