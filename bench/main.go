// Command bench measures tenure beside its peers on this machine, all in one
// run, and writes what it saw to docs/BENCHMARKS.md.
//
//	cd bench && go run .                      all of it, about twenty-five minutes
//	cd bench && go run . -short -only b1,b6   a first look
//
// # Promised
//
// Every number in the document was measured by the run that wrote it. What is
// compared was measured in turns (A B A B …), and the medians are compared, so
// that a noisy machine is noisy for both.
//
// # Not promised
//
// Absolute figures say little about another machine, and client and servers
// share the processors of this one. Compare the ratios.
//
// # How
//
// The program starts PostgreSQL servers of its own, with the settings that
// initdb gives. What must not be disturbed runs alone, first; what is counted
// over minutes and keeps the machine idle runs together, last.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

func main() {
	if target := os.Getenv(holderEnv); target != "" {
		exit(hold(target))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(run(ctx, os.Args[1:]))
}

func exit(err error) {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	fmt.Fprintln(os.Stderr, "bench:", err)
	os.Exit(1)
}

// run measures and writes the document.
func run(ctx context.Context, args []string) error {
	var (
		flags = flag.NewFlagSet("bench", flag.ContinueOnError)
		out   = filepath.Join("..", "docs", "BENCHMARKS.md")
		short = flags.Bool("short", false, "measure for about six minutes, for a first look; the figures are rough")
		large = flags.Bool("large", false, "also measure fleets of 50,000 and 100,000 nodes, which takes half an hour")
		only  = flags.String("only", "", "the parts to measure, for instance b1,b4 (default all)")
	)
	flags.StringVar(&out, "out", out, "the `file` to write")
	flags.StringVar(&out, "o", out, "short for -out")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	parts, err := choose(*only)
	if err != nil {
		return err
	}
	b := &bench{effort: full, large: *large}
	if *short {
		b.effort = rough
	}
	defer b.close()
	facts, err := aboutMachine()
	if err != nil {
		return err
	}
	r := &report{facts: facts, command: "go run .", began: time.Now(), rough: *short}
	if *short {
		r.command += " -short"
	}
	if *large {
		r.command += " -large"
	}
	if *only != "" {
		r.command += " -only " + *only
	}
	if err := b.measure(ctx, r, parts); err != nil {
		return err
	}
	if len(b.servers) > 0 {
		version, err := b.servers[0].version(ctx)
		if err != nil {
			return err
		}
		r.facts = append(r.facts, [2]string{"PostgreSQL", version})
	}
	if err := os.WriteFile(out, []byte(r.markdown()), 0o644); err != nil { //nolint:gosec // a document that everybody may read
		return err
	}
	progress("wrote %s", out)
	return nil
}

// part is one row, or a few, of the table of figures.
type part struct {
	id      string
	measure func(*bench, context.Context) (section, error)
	// together says that the part leaves the machine idle and is not disturbed
	// by others that do.
	together bool
}

var allParts = []part{
	{id: "b1", measure: (*bench).renewals},
	{id: "b1", measure: (*bench).renewalsSQLite},
	{id: "b4", measure: (*bench).handovers},
	{id: "b4", measure: (*bench).releases},
	{id: "b5", measure: (*bench).takeovers},
	{id: "b6", measure: (*bench).mayAct},
	{id: "fence", measure: (*bench).guards},
	{id: "fleet", measure: (*bench).controlPlane},
	{id: "b2", measure: (*bench).holders, together: true},
	{id: "b3", measure: (*bench).waiters, together: true},
	{id: "b3", measure: (*bench).silence, together: true},
	{id: "b4", measure: (*bench).peerHandovers, together: true},
	{id: "b5", measure: (*bench).peerTakeovers, together: true},
}

func choose(only string) ([]part, error) {
	if only == "" {
		return allParts, nil
	}
	var parts []part
	for id := range strings.SplitSeq(strings.ToLower(only), ",") {
		if !slices.ContainsFunc(allParts, func(p part) bool { return p.id == id }) {
			return nil, fmt.Errorf("-only: no part %q; there are b1 to b6, fence and fleet", id)
		}
	}
	for _, p := range allParts {
		if slices.Contains(strings.Split(strings.ToLower(only), ","), p.id) {
			parts = append(parts, p)
		}
	}
	return parts, nil
}

// effort says how long to measure.
type effort struct {
	reps    int           // of each case that is measured in turns
	slice   time.Duration // of one such measurement
	window  time.Duration // for counting the requests of what is idle
	rounds  int           // hand-overs of each kind
	crashes int           // holders killed, in each of the lanes
	lanes   int           // of holders that are killed side by side

	fleetNodes int           // of the fleet that a server is measured with
	fleetTime  time.Duration // for which its beats are measured
}

var (
	full  = effort{reps: 5, slice: 1500 * time.Millisecond, window: 190 * time.Second, rounds: 300, crashes: 8, lanes: 8, fleetNodes: 10_000, fleetTime: 20 * time.Second}
	rough = effort{reps: 3, slice: 500 * time.Millisecond, window: 45 * time.Second, rounds: 40, crashes: 2, lanes: 8, fleetNodes: 1_000, fleetTime: 5 * time.Second}
)

// bench is one run.
type bench struct {
	effort
	large   bool // also measure fleets that take long to join
	servers []*server
}

func (b *bench) close() {
	for _, s := range b.servers {
		s.close()
	}
}

func (b *bench) measure(ctx context.Context, r *report, parts []part) error {
	sections := make([]section, len(parts))
	for i, p := range parts {
		if p.together {
			continue
		}
		var err error
		if sections[i], err = p.measure(b, ctx); err != nil {
			return fmt.Errorf("%s: %w", p.id, err)
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	for i, p := range parts {
		if p.together {
			group.Go(func() (err error) {
				if sections[i], err = p.measure(b, ctx); err != nil {
					return fmt.Errorf("%s: %w", p.id, err)
				}
				return nil
			})
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, s := range sections {
		r.add(s)
	}
	return nil
}

// progress says on standard error what is going on.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s "+format+"\n", append([]any{time.Now().Format(time.TimeOnly)}, args...)...)
}

// pause waits for d, or returns why ctx ended.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// pauseUpTo waits for a random time, at most d.
func pauseUpTo(ctx context.Context, d time.Duration) error {
	return pause(ctx, time.Duration(rand.Int64N(int64(d))))
}
