//go:build linux

package conformance_test

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/internal/term"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/postgres"
	"github.com/tenurehq/tenure/store/sqlite"
	"github.com/tenurehq/tenure/store/storetest"
)

// target is a store that another process can open too.
type target struct {
	Backend string // "postgres" or "sqlite"
	Source  string // URL or path
}

func (g target) open(ctx context.Context) (st store.Store, closed func(), err error) {
	if g.Backend == "sqlite" {
		db, err := sql.Open("sqlite", sqlite.ModerncDSN(g.Source))
		if err != nil {
			return nil, nil, err
		}
		s, err := sqlite.New(db, sqlite.Config{})
		return s, func() { _, _ = s.Close(), db.Close() }, err
	}
	pool, err := pgxpool.New(ctx, g.Source)
	if err != nil {
		return nil, nil, err
	}
	s, err := postgres.New(pool, postgres.Config{})
	return s, func() {
		s.Close()
		pool.Close()
	}, err
}

// fresh returns an empty store of a backend.
func fresh(t *testing.T, backend string) target {
	t.Helper()
	g := target{Backend: backend, Source: filepath.Join(t.TempDir(), "tenure.db")}
	if backend == "postgres" {
		g.Source = pgtest.Database(t)
	}
	st := opened(t, g)
	if err := st.(interface{ Migrate(context.Context) error }).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return g
}

func opened(t *testing.T, g target) store.Store {
	t.Helper()
	st, closed, err := g.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closed)
	return st
}

// The interval leaves room for several tries after the image was taken.
const (
	copyTTL      = 6 * time.Second
	copyInterval = time.Second
)

// copyConfig is what a process is told that goes on from the image of another.
type copyConfig struct {
	Target  target
	Journal string
	Cut     bool // its renewals do not reach the store until it is told "pass"
	Doubt   bool // the platform tells it before its work goes on
}

// playCopy says "ready", reads the image, and then says what happens to it:
//
//	term TOKEN            it may act under this term
//	confirmed             a renewal of its own was confirmed
//	lost REASON HOLDER    and under which name it goes on
//	released
func playCopy(config []byte) error {
	var cfg copyConfig
	if err := json.Unmarshal(config, &cfg); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	j, err := openJournal(cfg.Journal)
	if err != nil {
		return err
	}
	st, closed, err := cfg.Target.open(ctx)
	if err != nil {
		return err
	}
	defer closed()
	faulty := storetest.NewFaulty(st)
	if cfg.Cut {
		faulty.Rule(func(storetest.Op) storetest.Fault {
			return storetest.Fault{DropRequest: true, Err: store.ErrUnavailable}
		})
	}
	if _, err := st.Get(ctx, "nothing"); !errors.Is(err, store.ErrNotFound) { // so that it need not connect later
		return fmt.Errorf("get of no lease: %w", err)
	}
	k, err := tenure.NewKeeper(faulty, tenure.Config{TTL: copyTTL, Interval: copyInterval, ReleaseTimeout: 10 * copyTTL})
	if err != nil {
		return err
	}
	go k.Run(ctx) // ends with the process
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	fmt.Println("ready")
	if !in.Scan() {
		return errors.New("no image")
	}
	var image term.Image
	if err := json.Unmarshal(in.Bytes(), &image); err != nil {
		return err
	}
	t, err := k.Resume(image)
	if err != nil {
		return err
	}
	if cfg.Doubt {
		k.Doubt(tenure.DoubtRestore, "test")
		if _, ok := t.MayAct(); ok {
			return errors.New("it may act after it was told of a restore")
		}
		if t, err = k.Acquire(ctx, image.Name); err != nil {
			return err
		}
	}
	fmt.Println("term", t.Token())
	go follow(j, k, t, image)
	for in.Scan() {
		switch in.Text() {
		case "pass":
			faulty.Pass()
		case "release":
			if err := t.Release(ctx); err != nil {
				return err
			}
			fmt.Println("released")
		}
	}
	return nil
}

// follow notes every instant at which the copy may act, until its term ends.
func follow(j *journal, k *tenure.Keeper, t *tenure.Term, image term.Image) {
	first, confirmed := t.TrustedUntil(), false
	for t.Err() == nil {
		at := clock.Boot()
		if token, ok := t.MayAct(); ok {
			j.write(entry{Kind: kindAct, At: at, Token: token})
		}
		if !confirmed && t.TrustedUntil() > first {
			confirmed = true
			fmt.Println("confirmed")
		}
		time.Sleep(time.Millisecond) // the rate of the sampling
	}
	var lost *tenure.LostError
	if errors.As(t.Err(), &lost) {
		for range 1000 { // the name is dropped just after the term ends
			if lost.Reason != tenure.ReasonSuperseded || k.Holder() != image.Holder {
				break
			}
			time.Sleep(time.Millisecond) // as above
		}
		fmt.Println("lost", lost.Reason, k.Holder())
	}
}

// copied is a process that goes on from an image.
type copied struct {
	t       *testing.T
	process *process
	journal string
}

func startCopy(t *testing.T, cfg copyConfig) *copied {
	t.Helper()
	cfg.Journal = filepath.Join(t.TempDir(), "journal.jsonl")
	p, err := spawn("copy", true, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	c := &copied{t, p, cfg.Journal}
	if said := c.next(); said != "ready" {
		t.Fatalf("a copy said %q, want it ready", said)
	}
	return c
}

func (c *copied) next() string {
	c.t.Helper()
	if !c.process.out.Scan() {
		<-c.process.ended
		c.t.Fatalf("a copy ended: %v", c.process.err)
	}
	return c.process.out.Text()
}

func (c *copied) expect(begins string) string {
	c.t.Helper()
	said := c.next()
	if !strings.HasPrefix(said, begins) {
		c.t.Fatalf("a copy said %q, want %q", said, begins)
	}
	return said
}

func (c *copied) say(line string) {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.process.in, line); err != nil {
		c.t.Fatal(err)
	}
}

// acts returns the first and the last instant at which it might act under
// token; 0 and 0 if there was none.
func (c *copied) acts(token fence.Token) (first, last time.Duration) {
	c.t.Helper()
	var h history
	if err := h.readJournals([]string{c.journal}); err != nil {
		c.t.Fatal(err)
	}
	for _, e := range h.belief {
		if e.token == token {
			if first == 0 {
				first = e.at
			}
			last = e.at
		}
	}
	return first, last
}

// imageOf returns the image of a term of a process that then does nothing more,
// and until when it trusts. If outstanding, a renewal of it was applied and its
// reply is on the way.
func imageOf(t *testing.T, g target, outstanding bool) (image term.Image, trusted time.Duration) {
	t.Helper()
	st := opened(t, g)
	faulty := storetest.NewFaulty(st)
	k, err := tenure.NewKeeper(faulty, tenure.Config{TTL: copyTTL, Interval: copyInterval, DrainTimeout: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = k.Run(ctx) // that the term is not released is what is wanted
	}()
	t.Cleanup(func() { <-ended })
	t.Cleanup(cancel)
	faulty.Script(storetest.OpRenew, storetest.Fault{DropReply: true}, storetest.Fault{DropRequest: true})
	held, err := k.Acquire(ctx, "job")
	if err != nil {
		t.Fatal(err)
	}
	if outstanding {
		before, err := st.Get(ctx, "job")
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "a renewal is applied and not answered", func() bool {
			rec, err := st.Get(ctx, "job")
			return err == nil && rec.Attempt != before.Attempt
		})
	}
	image, trusted = held.Image(), held.TrustedUntil()
	cancel()
	if open := len(image.Machine.Open); (open == 1) != outstanding {
		t.Fatalf("the image has %d renewals on their way, want one: %t", open, outstanding)
	}
	return image, trusted
}

func (c *copied) resume(image term.Image) {
	c.t.Helper()
	b, err := json.Marshal(image)
	if err != nil {
		c.t.Fatal(err)
	}
	c.say(string(b))
}

// TestCopies: of two processes that go on from one image at most one is
// confirmed at each renewal, and the other stops at its own next attempt, at the
// latest when its trust ends (P5). Until then both may act, and the test prints
// for how long they did: only the fence covers that, or Doubt.
func TestCopies(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"postgres", "sqlite"} {
		for _, c := range []struct {
			name               string
			firstCut, otherCut bool // whose renewals wait
			outstanding        bool
		}{
			{"the first renews first", false, true, false},
			{"the other renews first", true, false, false},
			{"with a reply outstanding", false, true, true},
		} {
			t.Run(backend+", "+c.name, func(t *testing.T) {
				t.Parallel()
				g := fresh(t, backend)
				winner, loser := startCopy(t, copyConfig{Target: g, Cut: c.firstCut}), startCopy(t, copyConfig{Target: g, Cut: c.otherCut})
				image, trusted := imageOf(t, g, c.outstanding)
				winner.resume(image)
				loser.resume(image)
				if c.firstCut {
					winner, loser = loser, winner
				}
				winner.expect("term")
				loser.expect("term")
				winner.expect("confirmed")
				loser.say("pass")
				lost := loser.expect("lost superseded ")
				if strings.HasSuffix(lost, image.Holder) {
					t.Errorf("the copy that lost goes on as %q, the name of both", image.Holder)
				}
				judgeCopies(t, winner, loser, image, trusted)
			})
		}
		t.Run(backend+", at once", func(t *testing.T) {
			t.Parallel()
			g := fresh(t, backend)
			a, b := startCopy(t, copyConfig{Target: g}), startCopy(t, copyConfig{Target: g})
			image, trusted := imageOf(t, g, false)
			a.resume(image)
			b.resume(image)
			a.expect("term")
			b.expect("term")
			winner, loser := a, b
			said := a.next()
			if strings.HasPrefix(said, "lost superseded ") {
				winner, loser = b, a
				b.expect("confirmed")
			} else if said != "confirmed" {
				t.Fatalf("a copy said %q, want it confirmed or superseded", said)
			} else {
				b.expect("lost superseded ")
			}
			judgeCopies(t, winner, loser, image, trusted)
		})
		t.Run(backend+", one cut off", func(t *testing.T) {
			t.Parallel()
			g := fresh(t, backend)
			cut, dead := copyConfig{Target: g, Cut: true}, func() {}
			if backend == "postgres" { // its network is dead, and nobody tells it
				proxy := newProxyTo(t, g)
				cut = copyConfig{Target: target{g.Backend, through(t, g.Source, proxy)}}
				dead = func() {
					proxy.HoldExisting()
					proxy.HoldNew()
				}
			}
			winner, loser := startCopy(t, copyConfig{Target: g}), startCopy(t, cut)
			dead()
			image, trusted := imageOf(t, g, false)
			winner.resume(image)
			loser.resume(image)
			winner.expect("term")
			loser.expect("term")
			winner.expect("confirmed")
			loser.expect("lost no_contact ")
			judgeCopies(t, winner, loser, image, trusted)
		})
		t.Run(backend+", told", func(t *testing.T) {
			t.Parallel()
			g := fresh(t, backend)
			a, b := startCopy(t, copyConfig{Target: g, Doubt: true}), startCopy(t, copyConfig{Target: g, Doubt: true})
			image, _ := imageOf(t, g, false)
			a.resume(image)
			b.resume(image)
			// Either wins; the one that says so first is asked to let the other.
			lines := make(chan *copied, 2)
			for _, c := range []*copied{a, b} {
				go func() {
					if c.process.out.Scan() && strings.HasPrefix(c.process.out.Text(), "term ") {
						lines <- c
					} else {
						lines <- nil
					}
				}()
			}
			var tokens [2]fence.Token
			var spans [2]struct{ first, last time.Duration }
			for i := range 2 {
				c := <-lines
				if c == nil {
					t.Fatal("a copy did not get a term")
				}
				var err error
				if tokens[i], err = fence.ParseToken(strings.TrimPrefix(c.process.out.Text(), "term ")); err != nil {
					t.Fatal(err)
				}
				eventually(t, "the copy acts", func() bool {
					first, _ := c.acts(tokens[i])
					return first > 0
				})
				c.say("release")
				c.expect("released")
				spans[i].first, spans[i].last = c.acts(tokens[i])
				if first, _ := c.acts(image.Token); first != 0 {
					t.Errorf("a copy that was told acted under the image's token %s", image.Token)
				}
			}
			if tokens[0] <= image.Token || tokens[1] <= tokens[0] {
				t.Errorf("tokens of the new terms: got %s and %s, want them larger than %s and growing", tokens[0], tokens[1], image.Token)
			}
			if spans[0].last >= spans[1].first {
				t.Errorf("both acted: one until %s, the other from %s on", spans[0].last, spans[1].first)
			}
		})
	}
}

// judgeCopies checks what the two did by the clock of the host.
func judgeCopies(t *testing.T, winner, loser *copied, image term.Image, trusted time.Duration) {
	t.Helper()
	eventually(t, "the winner acts beyond the image's trust", func() bool {
		_, last := winner.acts(image.Token)
		return last > trusted
	})
	firstA, _ := winner.acts(image.Token)
	firstB, last := loser.acts(image.Token)
	if last >= trusted {
		t.Errorf("the copy that lost acted until %s after its trust ended", last-trusted)
	}
	window := max(last-max(firstA, firstB), 0)
	t.Logf("both might act for %s of a TTL of %s", window.Round(time.Millisecond), copyTTL)
}

// newProxyTo returns a network in front of the server of a database.
func newProxyTo(t *testing.T, g target) *storetest.Proxy {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(g.Source)
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := storetest.NewProxy("tcp", fmt.Sprintf("%s:%d", cfg.ConnConfig.Host, cfg.ConnConfig.Port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	return proxy
}
