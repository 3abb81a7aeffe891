package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

// ErrConfig reports settings that are missing or contradict each other.
var ErrConfig = errors.New("agent: invalid configuration")

// Server is the control plane, as *api.Client speaks to it: beats go over
// connections of their own, and a replica that fails is left for the next one.
type Server interface {
	// Beat sends one heartbeat, once: an error may leave its outcome unknown.
	Beat(ctx context.Context, b *api.Beat) (*api.BeatReply, error)
	// Orders returns what the node is to do, as soon as the revision is not after,
	// or when wait has passed. Beyond that it bounds its own time.
	Orders(ctx context.Context, node string, after uint64, wait time.Duration) (*api.Orders, error)
}

// Config says what an Agent is and how it works. Node, Server, Store and StateDir
// are needed; the zero value of the others means their default.
type Config struct {
	// Node is the id of this node; see fleet.CheckID.
	Node   string
	Server Server
	// Store keeps the node's lease: the server's own, of a tenure:// URL. It is
	// used to acquire and release; renewals travel in the beats.
	Store store.Store
	// StateDir belongs to this agent alone and must outlive it on this host.
	StateDir string

	// Facts returns what the node says of itself. It is called from one goroutine,
	// once an interval, and may take its time. Nil: nothing, and ready.
	Facts func() fleet.Facts
	// Driver runs work. Nil: the node takes none.
	Driver Driver
	// ServerURL is what work is told in TENURE_SERVER.
	ServerURL string

	// TTL is the life of the node's lease without a renewal. Default 60 s. Work
	// of a node that died can move after it; a longer one bridges longer outages
	// of the server.
	TTL time.Duration
	// Interval is the longest time between two beats, and between two renewals,
	// at most a third of TTL. Default TTL/6. The server may ask for another
	// interval between beats, up to a third of TTL.
	Interval time.Duration
	// Margin is how long before the expiry the node stops to act. Work that is
	// to be stopped has half of it to end. Default TTL/5.
	Margin time.Duration
	// Poll is how long a request for orders waits at the server. Default 30 s.
	Poll time.Duration

	// NewKeeper makes the keeper of the node's lease, for instruments that follow it.
	// Nil means tenure.NewKeeper. What it is given must reach the keeper as it is.
	NewKeeper func(store.Store, tenure.Config) (*tenure.Keeper, error)

	// OnEvent is told of each change of state, in order, from the goroutine that
	// made it. It must return quickly.
	OnEvent func(Event)
	// Logger gets one line for each change of state. Nil discards.
	Logger *slog.Logger
}

func (cfg Config) withDefaults() (Config, error) {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&cfg.TTL, 60*time.Second)
	def(&cfg.Interval, cfg.TTL/6)
	def(&cfg.Margin, cfg.TTL/5)
	def(&cfg.Poll, 30*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.NewKeeper == nil {
		cfg.NewKeeper = tenure.NewKeeper
	}
	if cfg.Facts == nil {
		cfg.Facts = func() fleet.Facts { return fleet.Facts{Readiness: fleet.Readiness{Ready: true}} }
	}
	switch {
	case cfg.Server == nil || cfg.Store == nil || cfg.StateDir == "":
		return cfg, fmt.Errorf("%w: Server, Store and StateDir are needed", ErrConfig)
	case cfg.TTL < 0 || cfg.TTL%time.Millisecond != 0:
		return cfg, fmt.Errorf("%w: TTL %s must be a whole number of milliseconds", ErrConfig, cfg.TTL)
	case cfg.Interval <= 0 || cfg.Interval > cfg.TTL/3:
		return cfg, fmt.Errorf("%w: interval %s must be at most a third of the TTL %s, so that two renewals may fail", ErrConfig, cfg.Interval, cfg.TTL)
	case cfg.Poll < 0:
		return cfg, fmt.Errorf("%w: poll %s must not be negative", ErrConfig, cfg.Poll)
	}
	if err := fleet.CheckID("node", cfg.Node); err != nil {
		return cfg, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return cfg, nil
}

// EventKind says what happened.
type EventKind string

// The kinds of event.
const (
	EventLeased    EventKind = "lease_acquired"
	EventLost      EventKind = "lease_lost"
	EventReplaced  EventKind = "incarnation_replaced" // fenced for good
	EventDuplicate EventKind = "duplicate_node"       // another incarnation uses the name
	EventStale     EventKind = "orders_stale"
	EventFresh     EventKind = "orders_fresh"
	EventIntent    EventKind = "intent_changed"
	EventNoServer  EventKind = "server_silent" // a beat failed; told once
	// EventRefused: a server will not take beats of this node, and Err says why.
	// Told again when the reason changes.
	EventRefused     EventKind = "server_refused"
	EventServer      EventKind = "server_heard" // again
	EventStarted     EventKind = "work_started"
	EventAttached    EventKind = "work_attached"
	EventNotStarted  EventKind = "work_not_started"
	EventStopping    EventKind = "work_stopping"
	EventEnded       EventKind = "work_ended"
	EventFenced      EventKind = "work_fenced" // it belongs to another
	EventQuiesced    EventKind = "work_quiesced"
	EventResumed     EventKind = "work_resumed"
	EventStateFailed EventKind = "state_not_written"
)

// Event is one change of state.
type Event struct {
	Kind EventKind
	Work string // "" for events of the node
	// Code says why: a fleet.Code, a store.Code, a tenure.Reason or an Ending.
	Code string
	Text string
	Err  error
}

// emit counts nothing and blocks nobody: hook and log are quick by contract.
func (a *Agent) emit(e Event) {
	level := slog.LevelInfo
	switch e.Kind {
	case EventLost, EventReplaced, EventDuplicate, EventStale, EventNoServer, EventRefused, EventNotStarted, EventFenced, EventQuiesced, EventStateFailed:
		level = slog.LevelWarn
	}
	attrs := []any{"node", a.cfg.Node}
	add := func(key, value string) {
		if value != "" {
			attrs = append(attrs, key, value)
		}
	}
	add("work", e.Work)
	add("reason", e.Code)
	add("text", e.Text)
	if e.Err != nil {
		attrs = append(attrs, "err", e.Err)
	}
	a.cfg.Logger.Log(context.Background(), level, string(e.Kind), attrs...)
	if a.cfg.OnEvent != nil {
		a.cfg.OnEvent(e)
	}
}
