package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// How often a watch asks when nothing tells it and no expiry is known, and how
// long it waits after a store that did not answer.
const (
	askAgain = 5 * time.Second
	retryIn  = 2 * time.Second
)

func newLeaseWatch() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "watch NAME",
		Short: "Print one line for each change of a lease, until interrupted",
		Long: `Print the lease as it is, then one line for each term that starts or ends, and
for each revocation. Renewals make no line. Where the store can tell of changes
nothing is asked meanwhile; else the store is asked when the term would expire.
With -o json each line is an object.`,
		Args: oneName,
	}
	timeout, out := addTimeout(cmd), addFormat(cmd)
	cmd.ValidArgsFunction = completeNames
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		if err := store.CheckName(args[0]); err != nil {
			return err
		}
		opening, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		st, closeStore, err := openStore(opening, cmd)
		if err != nil {
			return err
		}
		defer closeStore()
		w := &watch{st: st, name: args[0], timeout: *timeout, show: func(l watchLine) error {
			if *out == asJSON {
				return printJSONLine(cmd.OutOrStdout(), l)
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), escape(l.String()))
			return err
		}}
		return explainHere(cmd, w.run(ctx))
	})
	return cmd
}

// watchLine is one line of a watch.
type watchLine struct {
	At        instant      `json:"at"`     // the store's clock; null if it did not answer
	Event     string       `json:"event"`  // see watch.line
	Status    store.Status `json:"status"` // "" if there is no such lease or no answer
	Name      string       `json:"name"`
	Holder    string       `json:"holder"`
	Token     fence.Token  `json:"token"`
	Remaining int64        `json:"remaining_ms"`
	Reason    string       `json:"reason"`
}

func (l watchLine) String() string {
	at := clockTime(time.Time(l.At))
	if at == "" {
		at = "(no store clock)"
	}
	s := fmt.Sprintf("%s  %s  %s", at, l.Name, l.Event)
	if l.Token > 0 {
		s += fmt.Sprintf("  token %s  %s", l.Token, l.Holder)
	}
	if l.Remaining > 0 {
		s += "  for up to " + left(time.Duration(l.Remaining)*time.Millisecond)
	}
	if l.Reason != "" {
		s += "  (" + l.Reason + ")"
	}
	return s
}

// watch follows one lease. Its answers come from Get alone; events of the
// store only say when to ask.
type watch struct {
	st      store.Store
	name    string
	timeout time.Duration
	show    func(watchLine) error
	last    watchLine // without At and Remaining, to see changes
}

func (w *watch) run(ctx context.Context) error {
	var events <-chan store.Event
	watcher, _ := w.st.(store.Watcher)
	for {
		if events == nil && watcher != nil {
			var err error
			events, err = watcher.Watch(ctx, w.name)
			if errors.Is(err, store.ErrUnsupported) {
				watcher = nil
			} else if err != nil && !isRefusal(err) {
				return fmt.Errorf("watch %q: %w", w.name, err)
			}
		}
		next, err := w.ask(ctx, events != nil)
		if err != nil {
			return err
		}
		if next == 0 { // only an event can tell
			select {
			case <-ctx.Done():
				return nil
			case _, ok := <-events:
				if !ok {
					events = nil
				}
			}
			continue
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case _, ok := <-events: // blocks for ever on a nil channel
			if !ok {
				events = nil
			}
			timer.Stop()
		case <-timer.C:
		}
	}
}

// ask reads the lease, shows it if it changed, and returns when to ask again; 0
// means that an event will tell.
func (w *watch) ask(ctx context.Context, told bool) (time.Duration, error) {
	asking, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	r, err := w.st.Get(asking, w.name)
	switch {
	case ctx.Err() != nil:
		return retryIn, nil // run sees the end
	case errors.Is(err, store.ErrNotFound):
		r = store.Record{Name: w.name}
	case err != nil && isRefusal(err):
		return retryIn, w.changed(watchLine{Event: "unknown", Name: w.name, Reason: words(err.Error())})
	case err != nil:
		return 0, fmt.Errorf("watch %q: %w", w.name, err)
	}
	if err := w.changed(line(&r)); err != nil {
		return 0, err
	}
	switch wait := max(r.Remaining, r.Wait); {
	case wait > 0:
		return wait + 10*time.Millisecond, nil
	case told:
		return 0, nil
	}
	return askAgain, nil
}

// line describes a record. Event is its state as tables show it, or "no such
// lease" or "unknown".
func line(r *store.Record) watchLine {
	event := state(r)
	if r.Status == "" {
		event = "no such lease"
	}
	return watchLine{
		At: instant(r.Now), Event: event, Status: r.Status, Name: r.Name, Holder: r.Holder, Token: r.Token,
		Remaining: millis(max(r.Remaining, r.Wait)), Reason: r.Why,
	}
}

// changed shows l unless it says what the last line said.
func (w *watch) changed(l watchLine) error {
	seen := l
	seen.At, seen.Remaining = instant{}, 0
	if seen == w.last {
		return nil
	}
	w.last = seen
	return w.show(l)
}
