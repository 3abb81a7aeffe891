package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
)

// holderEnv makes this program hold one lease until it is killed. Its value is
// "TTL NAME TARGET"; the target is a URL of Postgres or the path of a file.
const holderEnv = "TENURE_BENCH_HOLDER"

const crashTTL = 2 * time.Second

// hold is the life of a holder that will crash.
func hold(target string) error {
	f := strings.SplitN(target, " ", 3)
	if len(f) != 3 {
		return fmt.Errorf("%s=%q: want a TTL, a name and a target", holderEnv, target)
	}
	ttl, err := time.ParseDuration(f[0])
	if err != nil {
		return err
	}
	ctx := context.Background()
	st, closeStore, err := openTarget(ctx, f[2])
	if err != nil {
		return err
	}
	defer closeStore()
	k, stop, err := keep(ctx, st, tenure.Config{TTL: ttl})
	if err != nil {
		return err
	}
	defer stop()
	term, err := k.Acquire(ctx, f[1])
	if err != nil {
		return err
	}
	fmt.Println("held")
	<-term.Context().Done()
	return term.Err()
}

func openTarget(ctx context.Context, target string) (store.Store, func(), error) {
	if strings.HasPrefix(target, "postgres://") {
		st, err := openPostgres(ctx, target, nil)
		if err != nil {
			return nil, nil, err
		}
		return st, st.close, nil
	}
	st, err := openSQLite(ctx, target)
	if err != nil {
		return nil, nil, err
	}
	return st, st.close, nil
}

// takeovers measures B5.
func (b *bench) takeovers(ctx context.Context) (section, error) {
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
	file := filepath.Join(dir, "leases.db")
	made, err := openSQLite(ctx, file)
	if err != nil {
		return section{}, err
	}
	made.close()

	s := section{id: "b5", how: []string{
		fmt.Sprintf("A process holds a lease with a TTL of %s and is killed with SIGKILL at a random moment after it has renewed or not; a contestant in another process waits for the lease. "+
			"Measured from the term's own expiry in the record to the beginning of the next term (on Postgres both by the server's clock; on SQLite from the record's remaining time, as read after the kill, to Acquire returning).", crashTTL),
	}}
	t := table{title: "Take-over after the lease's own expiry", header: spreadHeader}
	for _, c := range []struct{ name, target string }{{"tenure, Postgres", srv.url(name)}, {"tenure, SQLite", file}} {
		progress("B5: take-over after a crash, %s", c.name)
		list, err := lanesOf(ctx, b.lanes, func(ctx context.Context, lane int) ([]time.Duration, error) {
			return crashes(ctx, c.target, fmt.Sprintf("crash-%d", lane), b.crashes)
		})
		if err != nil {
			return section{}, err
		}
		t.add(spread(c.name, list)...)
		s.rows = append(s.rows, row{"b5", fmt.Sprintf("take-over after a crash, past the lease's expiry, %s, p50 / p99 of %d", c.name, len(list)), pair(list),
			"below", "p99 ≤ 100 ms", judge(quantile(list, 0.99) <= 100*time.Millisecond)})
	}
	s.tables = []table{t}
	return s, nil
}

// peerTakeovers measures B5, the peers' side.
func (b *bench) peerTakeovers(ctx context.Context) (section, error) {
	const lanes = 10
	progress("B5: take-overs of the peers, %s", b.window)
	srv, err := b.serve(ctx)
	if err != nil {
		return section{}, err
	}
	name, err := srv.database(ctx)
	if err != nil {
		return section{}, err
	}
	until := time.Now().Add(b.window)
	var elected, locked []time.Duration
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) { elected, err = electionHandovers(ctx, lanes, until, true); return err })
	group.Go(func() (err error) { locked, err = pglockHandovers(ctx, srv.url(name), lanes, until, true); return err })
	if err := group.Wait(); err != nil {
		return section{}, err
	}
	t := table{title: "The same of the peers, with their defaults", header: spreadHeader}
	t.add(spread("client-go", elected)...)
	t.add(spread("pglock", locked)...)
	return section{
		id:     "b5",
		rows:   []row{{"b5", "the same of the peers, p50 / p99", "–", fmt.Sprintf("client-go %s; pglock %s", pair(elected), pair(locked)), "–", noQuest}},
		how:    []string{"A peer's holder stops to renew without a release, and the time is taken from the lease duration after the last renewal that it made (15 s in client-go, 20 s in pglock)."},
		tables: []table{t},
	}, nil
}

// crashes kills holders of one lease, one after the other, and measures how long
// after the expiry the contestant held it.
func crashes(ctx context.Context, target, name string, rounds int) (list []time.Duration, err error) {
	st, closeStore, err := openTarget(ctx, target)
	if err != nil {
		return nil, err
	}
	c, err := newContestant(ctx, st, closeStore, tenure.Config{TTL: crashTTL})
	if err != nil {
		return nil, err
	}
	defer c.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for range rounds {
		d, err := crash(ctx, c, st, target, name)
		if err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	return list, nil
}

func crash(ctx context.Context, c *contestant, st store.Store, target, name string) (time.Duration, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s", holderEnv, crashTTL, name, target))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	killed := false
	kill := func() {
		if !killed {
			killed = true
			_ = cmd.Process.Kill() // it may have ended
			_ = cmd.Wait()         // and was killed
		}
	}
	defer kill()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "held\n" {
		return 0, fmt.Errorf("the holder said %q: %w", line, errors.Join(errors.New("want held"), err))
	}
	wins := make(chan win, 1)
	if err := c.queue(ctx, name, wins); err != nil {
		return 0, err
	}
	if err := pauseUpTo(ctx, crashTTL); err != nil { // three renewals lie in a TTL
		return 0, err
	}
	kill()
	last, err := st.Get(ctx, name)
	if err != nil {
		return 0, err
	}
	expires := time.Now().Add(last.Remaining)
	if last.Status != store.Held {
		return 0, fmt.Errorf("after the crash %q is %s", name, last.Status)
	}
	var w win
	select {
	case w = <-wins:
	case <-time.After(time.Minute):
		return 0, fmt.Errorf("%q was not taken over within a minute", name)
	}
	if w.err != nil {
		return 0, w.err
	}
	took := w.at.Sub(expires)
	if st.Features().Clock == store.ClockServer {
		next, err := st.Get(ctx, name)
		if err != nil {
			return 0, err
		}
		took = next.AcquiredAt.Sub(last.ExpiresAt)
	}
	return took, w.term.Release(ctx)
}
