package server

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/server/endpoint"
	"github.com/tenurehq/tenure/server/leasehttp"
)

func (h *handler) registerConfig(a huma.API) {
	op := operation(http.MethodGet, "/v1/config", "config", leasehttp.Read, "what this replica runs with, and what follows from it")
	op.Metadata[always] = true
	endpoint.Register(a, op, h.config, h.log)
}

func (h *handler) config(context.Context, *struct{}) (*of[api.ServerConfig], error) {
	out := api.ServerConfig{Server: h.cfg.Name, Version: h.opts.Version, Settings: h.cfg.Settings(), Derived: []api.Setting{}}
	for i := range out.Settings {
		s := &out.Settings[i]
		s.Source = cmp.Or(h.opts.Sources[s.Name], "default")
	}
	v := reflect.ValueOf(h.cfg.Effective())
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		out.Derived = append(out.Derived, api.Setting{Name: name, Value: fmt.Sprint(v.Field(i).Interface())})
	}
	return answer(out)
}

// Settings returns the settings in force under the names of their flags, without
// where they come from.
func (c *Config) Settings() []api.Setting {
	all := []api.Setting{}
	add := func(name string, value any, text string) {
		all = append(all, api.Setting{Name: name, Value: fmt.Sprint(value), Text: text})
	}
	brake := c.Brake.Filled()
	add("name", c.Name, "this replica, in the ledger")
	add("interval", c.Interval, "between two beats of a node")
	add("late-after", c.LateAfter, "missed beats until a node is late")
	add("suspect-after", c.SuspectAfter, "missed beats until a node is suspect")
	add("node-ttl", c.NodeTTL, "life of a node's lease")
	add("reconcile", c.Reconcile, "between two looks of the reconciler")
	add("reconciler-ttl", c.ReconcilerTTL, "life of the reconciler's own lease")
	add("window", c.Window, "for which a renewal waits for others")
	add("refresh", c.Refresh, "age of what a replica answers a yes from")
	add("takeover-wait", c.Takeover.Wait, "after the end of a node's lease")
	add("takeover-burst", c.Takeover.Rate.Burst, "takeovers at once")
	add("takeover-every", c.Takeover.Rate.Every, "one more after that")
	add("flap-times", c.Flap.Times, "lapses within flap-window that keep new work away")
	add("flap-window", c.Flap.Window, "")
	add("flap-quiet", c.Flap.Quiet, "without a lapse, until they are forgotten")
	add("brake-share", brake.Share, "of a domain that has to turn at once")
	add("brake-least", brake.Least, "nodes that have to turn at once")
	add("brake-window", brake.Window, "within which is at once")
	add("brake-known", brake.Known, "for which a silent node counts in its domain")
	add("brake-release", brake.Release, "of proven health, until the brake lets go")
	add("brake-label", brake.Label, "whose value is a node's failure domain")
	add("keep-events", c.Retention.Events, "age of the ledger")
	add("keep-ended", c.Retention.Ended, "age of work that ended")
	for _, p := range c.Probes {
		add("probe", p, "")
	}
	return all
}
