package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
)

const (
	manyTerms = 1000
	farAway   = 5 * time.Millisecond // to the server and back
	// drainTime is how long the slowest work goes on after the end of Run's context
	// where work drains. Others end evenly before.
	drainTime = 100 * time.Millisecond
)

// releases measures how long a process takes to give back what it holds, 1 term
// and 1,000.
func (b *bench) releases(ctx context.Context) (section, error) {
	progress("B4: release of 1 and %s terms", thousands(manyTerms))
	srv, err := b.serve(ctx)
	if err != nil {
		return section{}, err
	}
	name, err := srv.leases(ctx)
	if err != nil {
		return section{}, err
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return section{}, err
	}
	defer os.RemoveAll(dir)
	var far distance
	near, err := openPostgres(ctx, srv.url(name), nil)
	if err != nil {
		return section{}, err
	}
	defer near.close()
	remote, err := openPostgres(ctx, srv.url(name), far.dial)
	if err != nil {
		return section{}, err
	}
	defer remote.close()
	file, err := openSQLite(ctx, filepath.Join(dir, "leases.db"))
	if err != nil {
		return section{}, err
	}
	defer file.close()

	s := section{id: "b4"}
	t := table{header: []string{"", "terms", "one request, p50", "p90", "Run, p50", "p90", "requests", "Run, work drains, p50", "p90", "requests"},
		title: fmt.Sprintf("The release of all terms of a process, %d times in turns", b.releaseRounds())}
	for _, c := range []struct {
		name  string
		st    store.Store
		delay time.Duration
	}{
		{"Postgres", near, 0},
		{fmt.Sprintf("Postgres, %s away", short(farAway)), remote, farAway},
		{"SQLite", file, 0},
	} {
		sizes := []int{1, manyTerms}
		request, shutdown, drained := map[int][]time.Duration{}, map[int][]time.Duration{}, map[int][]time.Duration{}
		asked, askedDrained := map[int][]float64{}, map[int][]float64{}
		for round := range 1 + b.releaseRounds() { // the first warms up
			for _, n := range sizes {
				prefix := fmt.Sprintf("r-%d", n)
				took, err := oneRelease(ctx, c.st, prefix, n, &far, c.delay)
				if err != nil {
					return section{}, err
				}
				all, requests, err := oneShutdown(ctx, c.st, prefix, n, 0, &far, c.delay)
				if err != nil {
					return section{}, err
				}
				slow, more, err := oneShutdown(ctx, c.st, prefix, n, drainTime, &far, c.delay)
				if err != nil {
					return section{}, err
				}
				if round > 0 {
					request[n], shutdown[n], drained[n] = append(request[n], took), append(shutdown[n], all), append(drained[n], slow)
					asked[n], askedDrained[n] = append(asked[n], float64(requests)), append(askedDrained[n], float64(more))
				}
			}
		}
		for _, n := range sizes {
			t.add(c.name, thousands(n), short(median(request[n])), short(quantile(request[n], 0.9)),
				short(median(shutdown[n])), short(quantile(shutdown[n], 0.9)), count(median(asked[n])),
				short(median(drained[n])), short(quantile(drained[n], 0.9)), count(median(askedDrained[n])))
		}
		ratio := float64(median(shutdown[manyTerms])) / float64(median(shutdown[1]))
		inOne := float64(median(request[manyTerms])) / float64(median(request[1]))
		draining := float64(median(drained[manyTerms])) / float64(median(drained[1]))
		s.rows = append(s.rows, row{"b4", fmt.Sprintf("release of %s terms ÷ of one while work drains for %s, from the end of Run's context to its return, %s", thousands(manyTerms), short(drainTime), c.name),
			fmt.Sprintf("%s × (%s to %s)", count(draining), short(median(drained[1])), short(median(drained[manyTerms]))), "below", "≤ 2 ×", judge(draining <= 2)})
		s.rows = append(s.rows, row{"b4", fmt.Sprintf("the same where all work ends at once, %s", c.name),
			fmt.Sprintf("%s × (%s to %s)", count(ratio), short(median(shutdown[1])), short(median(shutdown[manyTerms]))),
			fmt.Sprintf("the request alone: %s × (%s to %s)", count(inOne), short(median(request[1])), short(median(request[manyTerms]))), "≤ 2 ×", judge(ratio <= 2)})
	}
	s.how = []string{fmt.Sprintf("A process gives back what it holds in two ways: all terms in one call of `store.Release`, and by the end of Run's context, on which a goroutine for each term calls its Release, at once or when its work has drained, until Run returns. "+
		"Where the server is away, everything that a client sends reaches it %s later.", short(farAway))}
	s.tables = []table{t}
	return s, nil
}

func (b *bench) releaseRounds() int { return max(b.rounds/10, 8) }

// oneRelease returns how long it takes to release n leases in one request.
func oneRelease(ctx context.Context, st store.Store, prefix string, n int, far *distance, delay time.Duration) (time.Duration, error) {
	f, err := newFleet(ctx, st, prefix, n)
	if err != nil {
		return 0, err
	}
	for i, attempt := range store.NewAttempts(n) {
		f.grants[i].Attempt = attempt
	}
	far.set(delay)
	defer far.set(0)
	began := time.Now()
	results, err := st.Release(ctx, f.grants)
	took := time.Since(began)
	for i := range results {
		if err == nil && results[i].Err != nil {
			err = fmt.Errorf("release %q: %w", f.grants[i].Name, results[i].Err)
		}
	}
	return took, err
}

// oneShutdown returns how long a keeper with n terms takes from the end of
// Run's context to Run's return, and how many requests it sends. The works of the
// terms end evenly over drain, the last at its end.
func oneShutdown(ctx context.Context, st store.Store, prefix string, n int, drain time.Duration, far *distance, delay time.Duration) (time.Duration, int64, error) {
	var requests atomic.Int64
	k, err := tenure.NewKeeper(&releaseCounter{Store: st, n: &requests}, tenure.Config{})
	if err != nil {
		return 0, 0, err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- k.Run(running) }()

	var work sync.WaitGroup
	group, acquiring := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range n {
		group.Go(func() error {
			term, err := k.Acquire(acquiring, fmt.Sprintf("%s-%05d", prefix, i))
			if err != nil {
				return err
			}
			work.Go(func() {
				<-term.Context().Done()
				if drain > 0 {
					<-time.After(drain * time.Duration(i+1) / time.Duration(n)) // its last work
				}
				_ = term.Release(context.WithoutCancel(ctx)) // Run names what was not released
			})
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return 0, 0, err
	}
	far.set(delay)
	defer far.set(0)
	began := time.Now()
	stop()
	err = <-ended
	took := time.Since(began)
	work.Wait()
	return took, requests.Load(), err
}

// releaseCounter counts the requests that release.
type releaseCounter struct {
	store.Store
	n *atomic.Int64
}

func (s *releaseCounter) Release(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	s.n.Add(1)
	return s.Store.Release(ctx, grants)
}

// distance is a network that delivers what a client sends some time later. A
// way there that takes as long as both is the same to who asks and waits.
type distance struct{ delay atomic.Int64 }

func (d *distance) set(delay time.Duration) { d.delay.Store(int64(delay)) }

func (d *distance) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &distantConn{Conn: conn, d: d, sent: make(chan parcel, 1024), gone: make(chan struct{})}
	go c.deliver()
	return c, nil
}

// parcel is one write on its way.
type parcel struct {
	due  time.Time
	data []byte
}

// distantConn delivers what is written at its due time, and in order.
type distantConn struct {
	net.Conn
	d    *distance
	sent chan parcel
	gone chan struct{}
	once sync.Once
}

func (c *distantConn) Write(b []byte) (int, error) {
	p := parcel{due: time.Now().Add(time.Duration(c.d.delay.Load())), data: append([]byte(nil), b...)}
	select {
	case c.sent <- p:
		return len(b), nil
	case <-c.gone:
		return 0, net.ErrClosed
	}
}

func (c *distantConn) deliver() {
	for {
		select {
		case p := <-c.sent:
			<-time.After(time.Until(p.due))
			if _, err := c.Conn.Write(p.data); err != nil {
				_ = c.Close() // whoever reads is told
				return
			}
		case <-c.gone:
			return
		}
	}
}

// Close ends the connection and what is on its way.
func (c *distantConn) Close() error {
	c.once.Do(func() { close(c.gone) })
	return c.Conn.Close()
}
