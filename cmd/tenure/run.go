package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
)

// runFlags are the flags of "tenure run" as they were given.
type runFlags struct {
	ttl, grace time.Duration
	noWait     bool
	skipOK     bool
	wait       bool
	waitFor    time.Duration
	minHold    time.Duration
	oncePer    time.Duration
	slot       string
	onLoss     string
	stallAfter time.Duration
	progress   string
	verbose    bool
	meta       map[string]string
	// Where metrics go; "" for nowhere.
	metricsFile, metricsPush string
	successWithin            time.Duration

	name     string
	argv     []string
	named    bool // the store is not the default one
	postgres bool // the store is a Postgres server
}

const (
	defaultTTL = 30 * time.Second
	// The guardian needs about 2 s to notice that the runner's side is broken and
	// to kill; a shorter term would end first.
	leastTTL = 2 * time.Second

	onLossExit  = "exit"
	onLossAgain = "again"

	progressDescriptor = "fd"
)

func newRun(con console) *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run NAME [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run a command while holding a lease",
		Long: `Wait for the lease NAME, run COMMAND under it, give the lease back.

No shell stands in between. COMMAND gets the signals that tenure gets, and tenure
exits with COMMAND's own code. COMMAND finds in its environment TENURE_LEASE,
TENURE_TOKEN (larger in each later term: give it to whatever it writes to) and
TENURE_HOLDER. TENURE_STORE and TENURE_SERVER_TOKEN, and PGPASSWORD and PGSSLPASSWORD
if the store is postgres://, are taken out of it, so that COMMAND has no secret of the
store and a tenure that it calls needs --store. Keep the store's password in
TENURE_STORE or in a PGPASSFILE, and give COMMAND its own if it needs one.

If the lease cannot be renewed in time, COMMAND and all that it started get
SIGTERM, and SIGKILL after --grace, before anybody else can get the lease. This
holds even if tenure itself is stopped or killed. A store that is down while tenure
waits is asked again; one that is down at the start ends it with code 69. What COMMAND leaves running in
the background when it ends is ended too.

` + metricsHelp + `

` + storeHelp + `

` + durationHelp + `

` + exitHelp(),
		Example: `  tenure run nightly -- ./bill.sh
  tenure run nightly --no-wait --min-hold 50s -- ./sync.sh       # in a crontab on many hosts
  tenure run billing --slot 2026-11-30 --no-wait --skip-ok -- ./bill.sh  # once for that night
  tenure run import --stall-after 5m --progress /var/lib/import/offset -- ./import`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch dash := cmd.ArgsLenAtDash(); {
			case dash == 1 && len(args) > 1:
				return nil
			case dash < 0 && len(args) > 1:
				return fmt.Errorf("write -- between the lease and the command: tenure run %s -- %s", args[0], strings.Join(args[1:], " "))
			case len(args) == 0 || dash == 0:
				return errors.New("name a lease and a command: tenure run NAME -- COMMAND")
			case dash > 1:
				return fmt.Errorf("one lease, not %d, stands before --", dash)
			}
			return fmt.Errorf("name a command: tenure run %s -- COMMAND", args[0])
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f.name, f.argv = args[0], args[1:]
			cfg, err := f.check(cmd)
			if err != nil {
				return err
			}
			loc, err := chosenStore(cmd)
			if err != nil {
				return err
			}
			f.named, f.postgres = !loc.own, loc.kind == kindPostgres
			return runJob(cmd, con, &f, cfg)
		},
		ValidArgsFunction: completeNames,
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&f.wait, "wait", true, "wait until the lease is free")
	flags.BoolVar(&f.noWait, "no-wait", false, "do not wait: if somebody else holds the lease, exit with code 75")
	addDuration(flags, &f.waitFor, "wait-for", 0, time.Millisecond, store.MaxHold, "wait at most this long, then exit with code 75")
	flags.BoolVar(&f.skipOK, "skip-ok", false, "if somebody else has the lease, or has done the slot, say nothing and exit with code 0: for cron and Kubernetes, which would report or repeat it")
	addDuration(flags, &f.ttl, "ttl", defaultTTL, leastTTL, store.MaxTTL, "how long the lease lasts without a renewal, on the store's clock; it is renewed every third of it")
	addDuration(flags, &f.grace, "grace", 0, 0, store.MaxTTL, "time between SIGTERM and SIGKILL; must fit into the margin, a fifth of the TTL (default half of the margin)")
	addDuration(flags, &f.minHold, "min-hold", 0, 0, store.MaxHold, "keep the lease from everybody for this long after the start, even if COMMAND ends or all is killed")
	addDuration(flags, &f.oncePer, "once-per", 0, time.Second, store.MaxHold, "run at most once with success in each such stretch of the store's clock, counted from 1970-01-01 UTC")
	flags.StringVar(&f.slot, "slot", "", "run at most once with success for this key, such as a date")
	flags.StringVar(&f.onLoss, "on-loss", onLossExit, "after the lease was lost: exit, or try again")
	addDuration(flags, &f.stallAfter, "stall-after", 0, time.Second, store.MaxHold, "kill COMMAND and give the lease back if its progress does not change for this long; needs --progress")
	flags.StringVar(&f.progress, "progress", "", "where progress shows: a FILE whose content changes, or \"fd\" for lines written to descriptor 3")
	flags.StringToStringVar(&f.meta, "meta", nil, "KEY=VALUE to keep with the lease for people to read")
	flags.StringVar(&f.metricsFile, "metrics-textfile", "", "file for the node exporter to read, such as /var/lib/node_exporter/nightly.prom; of this lease alone")
	flags.StringVar(&f.metricsPush, "metrics-push", "", "URL of a Pushgateway; the job is the lease")
	addDuration(flags, &f.successWithin, "success-within", 0, time.Second, 366*24*time.Hour, "how long ago the last success may be, for monitoring to say that it is overdue: a little more than the time between two runs")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "report each change of state on standard error")
	must(cmd.RegisterFlagCompletionFunc("on-loss", cobra.FixedCompletions([]string{onLossExit, onLossAgain}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// check validates the flags against each other and returns the keeper's settings.
func (f *runFlags) check(cmd *cobra.Command) (tenure.Config, error) {
	cfg := tenure.Config{TTL: f.ttl, Interval: f.ttl / 3, Margin: f.ttl / 5}
	fail := func(format string, args ...any) (tenure.Config, error) { return cfg, failf(exitUsage, format, args...) }
	if err := store.CheckName(f.name); err != nil {
		return fail("%w", err)
	}
	waiting := 0
	for _, name := range []string{"wait", "no-wait", "wait-for"} {
		if cmd.Flags().Changed(name) {
			waiting++
		}
	}
	if !f.wait {
		f.noWait = true
	}
	// Killing takes time too: leave a quarter of the margin for it.
	most := cfg.Margin * 3 / 4
	if !cmd.Flags().Changed("grace") {
		f.grace = cfg.Margin / 2
	}
	switch {
	case waiting > 1:
		return fail("--wait, --no-wait and --wait-for exclude each other")
	case f.grace > most:
		return fail("--grace %s does not fit: SIGTERM and SIGKILL must be over within the margin of %s (a fifth of --ttl %s), so --grace is at most %s; raise --ttl to at least %s",
			shortDuration(f.grace), shortDuration(cfg.Margin), shortDuration(f.ttl), shortDuration(most), shortDuration((f.grace*20/3).Round(time.Second)+time.Second))
	case f.onLoss != onLossExit && f.onLoss != onLossAgain:
		return fail("--on-loss %q: must be exit or again", f.onLoss)
	case f.stallAfter > 0 && f.progress == "":
		return fail("--stall-after needs --progress FILE, or --progress fd for lines that the command writes to descriptor 3")
	case f.stallAfter == 0 && f.progress != "":
		return fail("--progress needs --stall-after, the time without progress after which the command is stopped")
	case f.slot != "" && f.oncePer > 0:
		return fail("--slot and --once-per exclude each other: --once-per makes the slot from the store's clock")
	}
	// What is given and empty is a variable that was not set: not a wish to do without.
	if cmd.Flags().Changed("slot") {
		if err := store.CheckSlot(f.slot); err != nil {
			return fail("%w", err)
		}
	}
	if cmd.Flags().Changed("progress") && f.progress == "" {
		return fail("--progress \"\": name a file, or fd")
	}
	if err := f.checkProgress(); err != nil {
		return cfg, err
	}
	return cfg, f.checkMetrics(cmd)
}

// environment is what COMMAND gets: ours, with the facts of the term and without
// the store and its secrets.
func (f *runFlags) environment(t *tenure.Term) []string {
	var env []string
	for _, kv := range os.Environ() {
		switch key, _, _ := strings.Cut(kv, "="); key {
		case "PGPASSWORD", "PGSSLPASSWORD":
			if !f.postgres { // else it is that of the store
				env = append(env, kv)
			}
		case "TENURE_STORE", "TENURE_SERVER_TOKEN", storeWithheld, "TENURE_LEASE", "TENURE_TOKEN", "TENURE_HOLDER", "TENURE_PROGRESS_FD":
		default:
			env = append(env, kv)
		}
	}
	env = append(env, "TENURE_LEASE="+t.Name(), "TENURE_TOKEN="+t.Token().String(), "TENURE_HOLDER="+t.Holder())
	if f.progress == progressDescriptor {
		env = append(env, "TENURE_PROGRESS_FD=3")
	}
	if f.named {
		env = append(env, storeWithheld+"=1")
	}
	return env
}

// options are those of each Acquire.
func (f *runFlags) options() []tenure.AcquireOption {
	opts := []tenure.AcquireOption{tenure.WithMinHold(f.minHold), tenure.WithMeta(f.description())}
	if f.stallAfter > 0 {
		opts = append(opts, tenure.WithStallAfter(f.stallAfter))
	}
	return opts
}

// description is kept with the lease for whoever asks what holds it. Arguments
// may hold secrets, so only the program's name is told.
func (f *runFlags) description() map[string]string {
	meta := map[string]string{"command": filepath.Base(f.argv[0])}
	for k, v := range f.meta {
		meta[k] = v
	}
	return meta
}

// logger returns where changes of state go: standard error with --verbose.
func (f *runFlags) logger(con console) *slog.Logger {
	if !f.verbose {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(con.err, nil))
}

// slotKey returns the slot that this run is for, "" if none, by the store's clock.
func (f *runFlags) slotKey(ctx context.Context, st store.Store) (string, error) {
	if f.oncePer == 0 {
		return f.slot, nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	rec, err := st.Get(ctx, f.name)
	if err != nil {
		return "", err
	}
	return slotAt(rec.Now, f.oncePer), nil
}

// slotAt names the stretch of time that now lies in: stretches of per follow
// each other from the Unix epoch on.
func slotAt(now time.Time, per time.Duration) string {
	begin := time.Unix(0, now.UnixNano()/int64(per)*int64(per)).UTC()
	return shortDuration(per) + "/" + begin.Format("2006-01-02T15:04:05.999Z")
}
