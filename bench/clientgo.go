package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// leaseAPI answers what client-go's elections ask a Kubernetes API server:
// leases are read, created, and updated if their resource version is the
// present one. It keeps them in memory and counts the requests.
type leaseAPI struct {
	mu       sync.Mutex
	leases   map[string]*coordination.Lease
	version  int
	requests map[string]int       // by method
	renewed  map[string]time.Time // when a lease was last written
	web      *httptest.Server
}

var quiet sync.Once

func newLeaseAPI() *leaseAPI {
	a := &leaseAPI{leases: map[string]*coordination.Lease{}, requests: map[string]int{}, renewed: map[string]time.Time{}}
	const path = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
	quiet.Do(func() { // each try would be a line
		flags := flag.NewFlagSet("klog", flag.PanicOnError)
		klog.InitFlags(flags)
		_ = flags.Parse([]string{"-logtostderr=false", "-stderrthreshold=FATAL"}) // panics
		klog.SetOutput(io.Discard)
	})
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+path, a.serve)
	mux.HandleFunc("GET "+path+"/{name}", a.serve)
	mux.HandleFunc("PUT "+path+"/{name}", a.serve)
	a.web = httptest.NewServer(mux)
	return a
}

func (a *leaseAPI) serve(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests[r.Method]++
	refuse := func(code int, reason meta.StatusReason) {
		reply(w, code, &meta.Status{TypeMeta: meta.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: meta.StatusFailure, Code: int32(code), Reason: reason})
	}
	var lease coordination.Lease
	if r.Method != http.MethodGet {
		if err := json.NewDecoder(r.Body).Decode(&lease); err != nil {
			refuse(http.StatusBadRequest, meta.StatusReasonBadRequest)
			return
		}
	}
	name := r.PathValue("name")
	if r.Method == http.MethodPost {
		name = lease.Name
	}
	have := a.leases[name]
	switch {
	case r.Method == http.MethodPost && have != nil:
		refuse(http.StatusConflict, meta.StatusReasonAlreadyExists)
		return
	case r.Method != http.MethodPost && have == nil:
		refuse(http.StatusNotFound, meta.StatusReasonNotFound)
		return
	case r.Method == http.MethodPut && have.ResourceVersion != lease.ResourceVersion:
		refuse(http.StatusConflict, meta.StatusReasonConflict)
		return
	case r.Method != http.MethodGet:
		a.version++
		lease.ResourceVersion = strconv.Itoa(a.version)
		lease.TypeMeta = meta.TypeMeta{Kind: "Lease", APIVersion: "coordination.k8s.io/v1"}
		a.leases[name], a.renewed[name] = &lease, time.Now()
		have = &lease
	}
	reply(w, http.StatusOK, have)
}

func reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client has gone
}

// counts returns how many reads and updates there were.
func (a *leaseAPI) counts() (reads, updates int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.requests[http.MethodGet], a.requests[http.MethodPut]
}

func (a *leaseAPI) lastRenewal(lease string) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.renewed[lease]
}

// elector runs one candidate of client-go with its defaults and calls leads
// once it leads. stop cancels it and returns when it has ended; it releases the
// lease if release is set, and otherwise only renews it no more.
func (a *leaseAPI) elector(ctx context.Context, lease, identity string, release bool, leads func()) (stop func(), err error) {
	client, err := coordinationclient.NewForConfig(&rest.Config{Host: a.web.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		return nil, err
	}
	e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  meta.ObjectMeta{Namespace: "bench", Name: lease},
			Client:     client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		},
		LeaseDuration:   electionLease,
		RenewDeadline:   10 * time.Second,
		RetryPeriod:     2 * time.Second,
		ReleaseOnCancel: release,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { leads() },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		e.Run(ctx)
	}()
	return func() { cancel(); <-ended }, nil
}

const (
	standbys      = 4
	electionLease = 15 * time.Second // client-go's default
)

// elections counts for the window what one leader and its standbys ask, in
// requests a minute of each of them.
func elections(ctx context.Context, window time.Duration) (leader, standby float64, err error) {
	a := newLeaseAPI()
	defer a.web.Close()
	led := make(chan struct{}, 1)
	for i := range 1 + standbys {
		stop, err := a.elector(ctx, "bench", fmt.Sprintf("candidate-%d", i), true, func() { led <- struct{}{} })
		if err != nil {
			return 0, 0, err
		}
		defer stop()
		if i > 0 {
			continue
		}
		select {
		case <-led: // the others find it held
		case <-ctx.Done():
			return 0, 0, context.Cause(ctx)
		}
	}
	reads, updates := a.counts()
	if err := pause(ctx, window); err != nil {
		return 0, 0, err
	}
	moreReads, moreUpdates := a.counts()
	return float64(moreUpdates-updates) / window.Minutes(), float64(moreReads-reads) / window.Minutes() / standbys, nil
}

// electionHandovers has two candidates hand a lease to and fro until the time is
// up, and returns how long each hand-over took from the holder's cancellation.
// If holders crash instead, it returns how long after the expiry it was.
func electionHandovers(ctx context.Context, lanes int, until time.Time, crash bool) ([]time.Duration, error) {
	a := newLeaseAPI()
	defer a.web.Close()
	return lanesOf(ctx, lanes, func(ctx context.Context, lane int) (list []time.Duration, err error) {
		lease := fmt.Sprintf("bench-%d", lane)
		var holder func()
		for round := 0; ; round++ {
			led := make(chan time.Time, 1)
			next, err := a.elector(ctx, lease, fmt.Sprintf("candidate-%d-%d", lane, round), !crash, func() { led <- time.Now() })
			if err != nil {
				return nil, err
			}
			if holder == nil {
				<-led
				holder = next
				continue
			}
			if err := pauseUpTo(ctx, 2*time.Second); err != nil { // anywhere in the standby's beat
				return nil, err
			}
			start := time.Now()
			holder()
			if crash {
				start = a.lastRenewal(lease).Add(electionLease)
			}
			select {
			case at := <-led:
				list = append(list, at.Sub(start))
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			if holder = next; time.Now().After(until) {
				holder()
				return list, nil
			}
		}
	})
}
