// Package resourcelock keeps the record of client-go's leader election in any
// store of tenure, instead of in a Lease object of Kubernetes: k8s.io/client-go/
// tools/leaderelection, unchanged, over SQLite, Postgres or a tenure server.
//
//	lease, err := resourcelock.New(st, "controller", resourcelock.Config{})
//	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
//		Lock:          lease,
//		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
//		ReleaseOnCancel: true,
//		Callbacks: leaderelection.LeaderCallbacks{
//			OnStartedLeading: func(ctx context.Context) {
//				ctx, cancel := lease.Within(ctx)
//				defer cancel()
//				run(ctx, lease)
//			},
//			OnStoppedLeading: func() { os.Exit(1) },
//		},
//	})
//
// # How the record maps
//
// Create, and Update by somebody who has no term, acquire a term; Update by the
// holder renews it, recognised by attempt; Update without a holder releases it.
// LeaseDurationSeconds is the TTL. LeaderTransitions, as Get returns it, is the
// token of the current or last term. A lease that is free by the store's clock
// has no HolderIdentity. What the store refuses is a conflict.
//
// A term that is lost is not won back under the feet of an elector that still
// leads: every Update then fails until the elector has given up, which it does
// within its RenewDeadline. Only the next Run contends again, for a new token.
//
// # Kept
//
// P1: tokens grow. P2: one term at a time by the store's clock, whatever the clocks
// of the electors show. P5: of two processes with one identity, or resumed from
// one memory image, one is confirmed; the record of a namesake is never taken for
// one's own. P6: a reply that got lost does no harm. P3 and P4, that the right
// ends before anybody else can have it and that a pause shows in the first
// check, hold for [Lease.MayAct] and for contexts of [Lease.Within].
//
// # Not kept
//
// The elector judges by its own clock, which stops in a suspend, and looks only when it
// renews: the context that it gives to OnStartedLeading goes on for as long as
// RenewDeadline after the term is over, and LeaderElector.IsLeader is no right
// to act. Do the work under Within. With a RetryPeriod and RenewDeadline that
// together exceed LeaseDuration minus Margin, the elector outlives its right even
// without a pause.
//
// With ReleaseOnCancel the elector gives the lease back as soon as its context ends,
// and does not wait for OnStartedLeading to return: cancel it when the work has
// ended, or let the lease lapse.
//
// The elector fences nothing: give the token of MayAct to whoever stores the work's
// results (package fence). A fork of the process is not noticed, nor is a step of
// the store's clock (both are by tenure.Keeper). Coordinated election
// (LeaseCandidate, Strategy) needs the API server.
package resourcelock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/term"
	"github.com/tenurehq/tenure/store"
)

var (
	// ErrNoTerm reports that this process holds no term.
	ErrNoTerm = errors.New("resourcelock: no term")
	// ErrLost reports a term that is over although its elector has not given up yet.
	ErrLost = errors.New("resourcelock: term is lost")
)

// Config sets a Lease. The zero value of each field means its default.
type Config struct {
	// Identity names this process in the record; see store.CheckHolder. Default the
	// host name, the process id and a random value.
	Identity string

	// Margin is how long before the store's expiry the right to act ends. It must cover
	// the drift between the two clocks and the time that work needs to stop.
	// Default a fifth of the elector's LeaseDuration, and less than all of it.
	Margin time.Duration

	// Timeout bounds one request. The elector sets no bound of its own while it
	// contends. Default 5 s.
	Timeout time.Duration

	// Meta is kept with the lease for people to read; at most store.MaxMeta bytes as JSON.
	Meta map[string]string

	// Logger gets one line for each change of state. Nil discards.
	Logger *slog.Logger
}

// Lease is a resourcelock.Interface over a lease in a store. It is safe for
// concurrent use. Use one for each elector; the elector may be run again.
type Lease struct {
	st   store.Store
	name string
	cfg  Config

	mu   sync.Mutex
	held *holding // the present term, or one that is lost and that the elector has not given up; or nil
	sent []sent   // acquires without an answer
}

var _ resourcelock.Interface = (*Lease)(nil)

// New returns the lease name in st. It asks the store nothing. The error matches
// store.ErrInvalid.
func New(st store.Store, name string, cfg Config) (*Lease, error) {
	if cfg.Identity == "" {
		cfg.Identity = newIdentity()
	}
	if err := errors.Join(store.CheckName(name), store.CheckHolder(cfg.Identity)); err != nil {
		return nil, err
	}
	if cfg.Margin < 0 || cfg.Timeout < 0 {
		return nil, &store.InvalidError{Field: "margin or timeout", Value: fmt.Sprintf("%s, %s", cfg.Margin, cfg.Timeout), Rule: "0s or more"}
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 5 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Lease{st: st, name: name, cfg: cfg}, nil
}

// newIdentity names this run of this process.
func newIdentity() string {
	host, _ := os.Hostname() // an unnamed host is one
	id := fmt.Sprintf("%s/%d-%s", host, os.Getpid(), store.NewAttempt().String()[:16])
	if store.CheckHolder(id) != nil {
		_, rest, _ := strings.Cut(id, "/")
		return "host/" + rest
	}
	return id
}

// Identity returns the name of this process in the record.
func (l *Lease) Identity() string { return l.cfg.Identity }

// Describe returns the name of the lease.
func (l *Lease) Describe() string { return l.name }

// Get returns the record of the lease, and bytes that differ after each write to it.
// If there is none the error is a NotFound of apimachinery.
func (l *Lease) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	rec, err := l.st.Get(ctx, l.name)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil, apierrors.NewNotFound(resource, l.name)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("get %q: %w", l.name, err)
	}
	ler := &resourcelock.LeaderElectionRecord{
		LeaseDurationSeconds: int(math.Ceil(rec.TTL.Seconds())),
		AcquireTime:          metav1.Time{Time: rec.AcquiredAt},
		RenewTime:            metav1.Time{Time: rec.RenewedAt},
		LeaderTransitions:    int(max(rec.Token, rec.Floor)),
	}
	if rec.Status == store.Held {
		ler.HolderIdentity = l.show(&rec)
	}
	raw, err := json.Marshal(struct {
		Record   *resourcelock.LeaderElectionRecord
		Revision store.Revision
	}{ler, rec.Revision})
	return ler, raw, err
}

// resource names in apimachinery's errors what is not there.
var resource = schema.GroupResource{Group: "tenure", Resource: "leases"}

// show returns the holder of a record that is held. The elector takes a record
// with its own identity for its own, so that of a namesake is shown as another.
func (l *Lease) show(rec *store.Record) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	ours := l.held != nil && l.held.owns(rec) || slices.ContainsFunc(l.sent, func(s sent) bool { return s.attempt == rec.Attempt })
	if rec.Holder == l.cfg.Identity && !ours {
		return fmt.Sprintf("%s (token %s)", rec.Holder, rec.Token)
	}
	return rec.Holder
}

// Create acquires a term. It fails if the lease is there by now.
func (l *Lease) Create(ctx context.Context, ler resourcelock.LeaderElectionRecord) error {
	return l.Update(ctx, ler)
}

// Update renews the term of this process, or acquires one, or releases it if ler
// has no holder. It returns a Conflict of apimachinery that names the decision
// if the lease is held by somebody else or the term is lost, and otherwise an
// error of package store; then the elector tries again.
func (l *Lease) Update(ctx context.Context, ler resourcelock.LeaderElectionRecord) error {
	if ler.HolderIdentity != "" && ler.HolderIdentity != l.cfg.Identity {
		return &store.InvalidError{Field: "holder", Value: ler.HolderIdentity, Rule: "none, or that of this Lease: " + l.cfg.Identity}
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	ttl := time.Duration(ler.LeaseDurationSeconds) * time.Second
	l.mu.Lock()
	h := l.held
	l.mu.Unlock()
	var err error
	switch {
	case ler.HolderIdentity == "":
		return l.release(ctx, h)
	case h == nil:
		err = l.acquire(ctx, ttl)
	default:
		err = l.renew(ctx, h, ttl)
	}
	if errors.Is(err, store.ErrHeld) || errors.Is(err, ErrLost) {
		return apierrors.NewConflict(resource, l.name, err)
	}
	return err
}

// begunLeading is what the elector records when it begins to lead. Whatever else
// it records says that it has ended to.
const begunLeading = "became leader"

// RecordEvent is told by the elector that it begins or has ended to lead. In the
// latter case what is left of the term is given up: it lapses by itself, and the
// next Run contends as a newcomer.
func (l *Lease) RecordEvent(event string) {
	l.cfg.Logger.Info("election", "lease", l.name, "holder", l.cfg.Identity, "event", event)
	if event == begunLeading {
		return
	}
	l.mu.Lock()
	h := l.held
	l.held = nil
	l.mu.Unlock()
	if h != nil {
		h.lose("stopped", nil)
	}
}

// MayAct returns the token, and whether this process may act now. It does no
// I/O. False means not now: without a term, once it is over, and in doubt until
// a renewal confirms.
func (l *Lease) MayAct() (fence.Token, bool) {
	l.mu.Lock()
	h := l.held
	l.mu.Unlock()
	if h == nil {
		return 0, false
	}
	return h.token, h.look() == term.Held
}

// Within returns a context that ends with ctx and with the present term: when it
// is released, lost, or not renewed in time. Its cause then matches ErrLost. If
// there is no term it has ended, with ErrNoTerm. The caller must call cancel.
func (l *Lease) Within(ctx context.Context) (_ context.Context, cancel context.CancelFunc) {
	work, stop := context.WithCancelCause(ctx)
	l.mu.Lock()
	h := l.held
	l.mu.Unlock()
	if h == nil {
		stop(ErrNoTerm)
		return work, func() {}
	}
	h.look() // a pause since it was won shows here
	stopFollowing := context.AfterFunc(h.ctx, func() { stop(context.Cause(h.ctx)) })
	return work, func() {
		stopFollowing()
		stop(nil)
	}
}
