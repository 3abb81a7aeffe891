package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/publish"
	"github.com/tenurehq/tenure/fence/publish/target"
	"github.com/tenurehq/tenure/store"
)

const targetUsage = "where the files lie (default $" + targetEnv + ", else where NAME was published last)"

// publishJSON is a set as -o json prints it. Keys are never removed or renamed.
type publishJSON struct {
	Name       string      `json:"name"`
	Attempt    string      `json:"attempt"`
	Token      fence.Token `json:"token"`
	Seq        int64       `json:"seq"`
	Target     string      `json:"target"`
	Files      int         `json:"files"`
	Bytes      int64       `json:"bytes"`
	AcceptedAt instant     `json:"accepted_at"`
}

func setJSON(e publish.Entry) publishJSON {
	return publishJSON{e.Name, e.Attempt, e.Token, e.Seq, e.Target, e.Files, e.Bytes, instant(e.AcceptedAt)}
}

// setWords describes a set in a line.
func setWords(e publish.Entry) string {
	return fmt.Sprintf("%s: publication %d, token %s, %d files, %s, attempt %s at %s", e.Name, e.Seq, e.Token, e.Files, byteSize(e.Bytes), e.Attempt, e.Target)
}

func newPublish(con console) *cobra.Command {
	var to string
	var given tokenFlag
	var waitFor time.Duration
	var parallel int
	cmd := &cobra.Command{
		Use:                   "publish NAME DIR [--target TARGET]",
		DisableFlagsInUseLine: true,
		Short:                 "Publish the files of a directory as one result",
		Long: `Upload the files of DIR and make them what readers of NAME get, all at once, as the
holder of the lease NAME: inside "tenure run NAME" with its token (the store must be
named with --store there), else by acquiring the lease for the time. A publisher
whose term is over is refused (code 82), whatever it still believes, and it can
change nothing that others published.

TARGET is ` + target.Help + `.
Files are sent to NAME/TOKEN-NONCE/ in it and never overwritten. After an
interruption run the same command again: what arrived is not sent again, if DIR is
unchanged. Links and empty directories are not published.`,
		Example: `  tenure publish reports ./out --target s3://results/daily?region=eu-north-1
  tenure run reports -- sh -c './build.sh out && tenure publish reports out --store postgres://db/tenure'`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return errors.New("name the lease and the directory: tenure publish NAME DIR")
			}
			return notStore(args[0])
		},
	}
	out := addFormat(cmd)
	cmd.Flags().StringVar(&to, "target", "", targetUsage)
	cmd.Flags().Var(&given, "token", "token of the term to publish under, if somebody else holds it for this command (default $TENURE_TOKEN inside \"tenure run NAME\")")
	addDuration(cmd.Flags(), &waitFor, "wait-for", 0, 0, store.MaxHold, "how long to wait for the lease if it is held")
	cmd.Flags().IntVar(&parallel, "parallel", publish.DefaultParallel, "how many files to send at once")
	cmd.ValidArgsFunction = completeNames
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		name, dir := args[0], args[1]
		if err := store.CheckName(name); err != nil {
			return err
		}
		if parallel < 1 || parallel > 256 {
			return failf(exitUsage, "--parallel %d: from 1 to 256", parallel)
		}
		chosen, err := chosenTarget(to)
		if err != nil {
			return err
		}
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return failf(exitUsage, "DIR %q: no such directory", dir)
		}
		token, err := tokenOf(name, fence.Token(given))
		if err != nil {
			return err
		}
		st, ledger, closeStore, err := openLedger(ctx, cmd)
		if err != nil {
			return err
		}
		defer closeStore()
		p := &publisher{ledger: ledger, name: name, dir: dir, parallel: parallel, bar: &bar{w: con.err, terminal: con.interactive}}
		defer p.bar.clear()
		if chosen == "" {
			current, err := ledger.Current(ctx, name)
			if errors.Is(err, publish.ErrNone) {
				return failf(exitUsage, "publish %q: nothing was published yet, so say where: --target TARGET", name)
			} else if err != nil {
				return publishError(cmd, name, err)
			}
			chosen = current.Target
		}
		if inside(dir, chosen) {
			return failf(exitUsage, "DIR %q holds the target %s, so that each publication would publish those before it: name another with --target", dir, chosen)
		}
		p.target, err = target.Open(ctx, chosen, true)
		if err != nil {
			return publishError(cmd, name, err)
		}
		defer func() { _ = p.target.Close() }()
		if err := p.scan(ctx); err != nil {
			return publishError(cmd, name, err)
		}
		if token > 0 {
			err = p.publish(ctx, token)
		} else {
			err = p.publishHolding(ctx, st, waitFor)
		}
		p.bar.clear()
		if err != nil {
			if ctx.Err() != nil && p.attempt != "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s: interrupted and not published; run the same command again: the files that arrived are not sent again\n", escape(name))
			}
			return publishError(cmd, name, err)
		}
		if *out == asJSON {
			return printJSON(cmd.OutOrStdout(), setJSON(p.done.Entry))
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), escape(setWords(p.done.Entry)))
		return err
	})
	return cmd
}

// inside reports whether a target is dir, or a directory below it.
func inside(dir, target string) bool {
	u, err := url.Parse(target)
	if err != nil || u.Scheme != "file" {
		return false
	}
	top, err := os.Stat(dir)
	if err != nil {
		return false
	}
	for at := filepath.FromSlash(u.Path); ; at = filepath.Dir(at) {
		if info, err := os.Stat(at); err == nil && os.SameFile(info, top) {
			return true
		}
		if at == filepath.Dir(at) {
			return false
		}
	}
}

// tokenOf returns the token under which to publish name: the one given, or that of
// the "tenure run" around this command; 0 if the lease is to be acquired.
func tokenOf(name string, given fence.Token) (fence.Token, error) {
	lease, held := os.Getenv("TENURE_LEASE"), os.Getenv("TENURE_TOKEN")
	if given > 0 || lease != name || held == "" {
		return given, nil
	}
	token, err := fence.ParseToken(held)
	if err != nil {
		return 0, failf(exitUsage, "TENURE_TOKEN: %w", err)
	}
	return token, nil
}

// publisher is one "tenure publish".
type publisher struct {
	ledger    *publish.Ledger
	target    *publish.Target
	name, dir string
	parallel  int
	bar       *bar
	manifest  publish.Manifest
	attempt   string // once it has begun
	done      publish.Publication
}

// scan lists and hashes the files.
func (p *publisher) scan(ctx context.Context) error {
	root := os.DirFS(p.dir)
	var now publish.Progress
	err := fs.WalkDir(root, ".", func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, statErr := d.Info(); statErr == nil {
				now.AllFiles++
				now.AllBytes += info.Size()
			}
		}
		return errors.Join(err, context.Cause(ctx))
	})
	if err == nil {
		p.manifest, err = publish.Scan(ctx, root, func(n int64) {
			now.Bytes += n
			p.bar.show("hashing", now)
		})
	}
	return err
}

// publishHolding publishes under a term of its own.
func (p *publisher) publishHolding(ctx context.Context, st store.Store, waitFor time.Duration) error {
	k, err := tenure.NewKeeper(st, tenure.Config{TTL: defaultTTL})
	if err != nil {
		return failf(exitInternal, "%w", err)
	}
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	var background sync.WaitGroup
	background.Go(func() { _ = k.Run(keeping) }) // what is not released expires
	defer background.Wait()
	defer stop()
	var t *tenure.Term
	if waitFor > 0 {
		waiting, cancel := context.WithTimeout(ctx, waitFor)
		t, err = k.Acquire(waiting, p.name)
		if err != nil && ctx.Err() == nil && waiting.Err() != nil {
			err = failf(exitNotAcquired, "lease %q: still held after %s; wait longer with --wait-for", p.name, shortDuration(waitFor))
		}
		cancel()
	} else if t, err = k.TryAcquire(ctx, p.name); errors.Is(err, store.ErrHeld) {
		err = failf(exitNotAcquired, "%w; wait with --wait-for, or publish inside the \"tenure run %s\" that holds it", err, p.name)
	}
	if err != nil {
		return err
	}
	working, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(t.Context(), func() { cancel(context.Cause(t.Context())) })()
	err = p.publish(working, t.Token())
	if lost := t.Err(); err != nil && lost != nil && ctx.Err() == nil && !errors.Is(err, fence.ErrStale) {
		err = lost
	}
	releasing, end := context.WithTimeout(context.WithoutCancel(ctx), requestTime)
	defer end()
	if released := t.Release(releasing); err == nil && released != nil {
		fmt.Fprintf(p.bar.w, "%s: published; the lease is left to expire: %s\n", escape(p.name), plain(released.Error()))
	}
	return err
}

func (p *publisher) publish(ctx context.Context, token fence.Token) (err error) {
	how := publish.Transfer{Parallel: p.parallel, Progress: func(now publish.Progress) { p.bar.show("uploading", now) }}
	p.done, err = publish.Publish(ctx, p.ledger, p.target, p.name, token, p.manifest, os.DirFS(p.dir), how, func(e publish.Entry) { p.attempt = e.Attempt })
	return err
}

func newFetch(con console) *cobra.Command {
	var from string
	var opts publish.OpenOptions
	var parallel int
	cmd := &cobra.Command{
		Use:                   "fetch NAME [DIR]",
		DisableFlagsInUseLine: true,
		Short:                 "Get the files that were published under a name, whole",
		Long: `Make DIR (by default the last part of NAME, here) the set of files that is published
under NAME. Each file is verified by its size and SHA-256, and DIR changes in one step
when all are there: it is the old set or the new one, never a mix. DIR must not be
there, be empty, or come from an earlier fetch of NAME, which is replaced. While it
runs, a note in the store keeps sweeps from the set. After an interruption run the
same command again: what arrived is not read again.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				return notStore(args[0])
			}
			return oneName(cmd, args)
		},
	}
	out := addFormat(cmd)
	cmd.Flags().StringVar(&from, "target", "", "where the files lie, if that is another way to the place where NAME was published (default $"+targetEnv+")")
	cmd.Flags().StringVar(&opts.Attempt, "attempt", "", "get this retained set, and not the current one")
	cmd.Flags().BoolVar(&opts.NoNote, "read-only", false, "write nothing into the store: the set is then kept by the retention alone")
	cmd.Flags().IntVar(&parallel, "parallel", publish.DefaultParallel, "how many files to read at once")
	cmd.ValidArgsFunction = completeNames
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		name := args[0]
		dir := filepath.FromSlash(path.Base(name))
		if len(args) == 2 {
			dir = cmp.Or(args[1], ".")
		}
		if parallel < 1 || parallel > 256 {
			return failf(exitUsage, "--parallel %d: from 1 to 256", parallel)
		}
		chosen, err := chosenTarget(from)
		if err != nil {
			return err
		}
		_, ledger, closeStore, err := openLedger(ctx, cmd)
		if err != nil {
			return err
		}
		defer closeStore()
		set, err := publish.Open(ctx, ledger, openRecorded(chosen), name, opts)
		if err != nil {
			return publishError(cmd, name, err)
		}
		b := &bar{w: con.err, terminal: con.interactive}
		same, err := set.Fetch(ctx, dir, publish.Transfer{Parallel: parallel, Progress: func(now publish.Progress) { b.show("fetching", now) }})
		b.clear()
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTime)
		defer cancel()
		_ = set.Close(closing) // a note that stays expires
		if err != nil {
			return publishError(cmd, name, err)
		}
		if *out == asJSON {
			return printJSON(cmd.OutOrStdout(), struct {
				publishJSON
				Directory string `json:"directory"`
				Changed   bool   `json:"changed"`
			}{setJSON(set.Entry), dir, !same})
		}
		state := "fetched into"
		if same {
			state = "unchanged in"
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s; %s %s\n", escape(setWords(set.Entry)), state, escape(dir))
		return err
	})
	return cmd
}

func newSweep() *cobra.Command {
	var at string
	var opts publish.SweepOptions
	cmd := &cobra.Command{
		Use:                   "sweep NAME [--retention D]",
		DisableFlagsInUseLine: true,
		Short:                 "Remove published files that nobody needs any more",
		Long: `Remove the files of NAME that no published or retained set names: of sets that were
replaced longer ago than the retention, and of attempts whose term is over and that
were silent for as long. What a reader has open and what a running attempt has
uploaded stays, and so does what this store knows nothing of. Any number may sweep
at once, on any host, without holding the lease.`,
		Args: oneName,
	}
	out := addFormat(cmd)
	cmd.Flags().StringVar(&at, "target", "", "where the files lie, if that is another way to the place where NAME was published (default $"+targetEnv+")")
	addDuration(cmd.Flags(), &opts.Retention, "retention", publish.DefaultRetention, 0, 10*store.MaxHold, "how long to keep what was replaced or left unfinished")
	cmd.Flags().BoolVar(&opts.DryRun, "dry-run", false, "remove nothing, and tell what would be")
	cmd.ValidArgsFunction = completeNames
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		name := args[0]
		chosen, err := chosenTarget(at)
		if err != nil {
			return err
		}
		_, ledger, closeStore, err := openLedger(ctx, cmd)
		if err != nil {
			return err
		}
		defer closeStore()
		done, err := publish.Sweep(ctx, ledger, openRecorded(chosen), name, opts)
		if err != nil {
			return publishError(cmd, name, err)
		}
		if done.Unseen != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: unfinished uploads were not looked for (%s); have a lifecycle rule of the bucket end them\n", escape(name), plain(done.Unseen.Error()))
		}
		if *out == asJSON {
			return printJSON(cmd.OutOrStdout(), sweepJSON(name, opts.DryRun, done))
		}
		return sweepTable(cmd, name, opts.DryRun, done)
	})
	return cmd
}

func attempts(entries []publish.Entry) []string {
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Attempt)
	}
	return names
}

func sweepJSON(name string, dry bool, done publish.Swept) any {
	return map[string]any{
		"name": name, "dry_run": dry, "dropped": attempts(done.Dropped), "kept": attempts(done.Kept),
		"unknown": append([]string{}, done.Unknown...), "removed_objects": done.Objects, "removed_bytes": done.Bytes, "aborted_uploads": done.Aborted,
	}
}

func sweepTable(cmd *cobra.Command, name string, dry bool, done publish.Swept) error {
	rows := [][]string{{"ATTEMPT", "TOKEN", "STATE", "FILES", "SIZE", "ACCEPTED", "REPLACED"}}
	row := func(e publish.Entry, state string) {
		rows = append(rows, []string{e.Attempt, e.Token.String(), state, fmt.Sprint(e.Files), byteSize(e.Bytes), clockTime(e.AcceptedAt), clockTime(e.ReplacedAt)})
	}
	for _, e := range done.Kept {
		state := "retained or in use"
		switch {
		case e.Current:
			state = "published"
		case e.State == publish.Running:
			state = "running or retained"
		}
		row(e, state)
	}
	for _, e := range done.Dropped {
		row(e, map[bool]string{false: "dropped", true: "to be dropped"}[dry])
	}
	if len(rows) > 1 {
		if err := table(cmd.OutOrStdout(), rows); err != nil {
			return err
		}
	}
	if !dry {
		fmt.Fprintf(cmd.OutOrStdout(), "%s: removed %d files, %s\n", escape(name), done.Objects, byteSize(done.Bytes))
	}
	if done.Aborted > 0 {
		fmt.Fprintf(cmd.OutOrStdout(), "%s: ended %d unfinished uploads\n", escape(name), done.Aborted)
	}
	if n := len(done.Unknown); n > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %d directories of attempts that this store does not know were left alone, such as %s/%s; they may belong to another store\n", escape(name), n, escape(name), escape(done.Unknown[0]))
	}
	return nil
}
