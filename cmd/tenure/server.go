package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server"
	"github.com/tenurehq/tenure/server/dashboard"
	"github.com/tenurehq/tenure/server/registry"
)

// serverSettings are the flags of "tenure server".
type serverSettings struct {
	cfg    server.Config
	listen server.ListenConfig
	probes []string
	quiet  bool
	// noDashboard serves the interface alone.
	noDashboard bool
	// printOnly prints the settings and serves nothing.
	printOnly bool
}

func newServer() *cobra.Command {
	var s serverSettings
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Serve a fleet: one replica of the control plane, over one database",
		Long: `Serve leases, nodes and work over HTTP, from the database that holds them. Any
number of replicas may share a database; each serves every node, and one of them,
under a lease of tenure's own, places waiting work and moves that of lost nodes.

It listens on loopback unless it has a certificate ("tenure cert" makes one for
development) and a file of credentials, lines of TOKEN ROLE [NODE] with the roles
viewer, operator and agent. SIGTERM ends it in order, with exit code 0.

With --print-config it says what it would run with, where each setting comes from, and
what falls out of all of them; it opens nothing, and refuses what contradicts itself.

` + tracingHelp + `

` + settingsHelp + `

` + storeHelp + `

` + durationHelp,
		Example: `  tenure server
  tenure server --store postgres://tenure@db.example/ops --listen :7470 \
      --tls-cert server.pem --tls-key server-key.pem --tokens-file tokens`,
		Args: cobra.NoArgs,
	}
	flags, cfg := cmd.Flags(), &s.cfg
	flags.SortFlags = false
	const (
		long = 366 * 24 * time.Hour
		many = 1000
	)
	flags.StringVar(&s.listen.Address, "listen", defaultListen, "address and port to listen on; port 0 takes a free one")
	flags.StringVar(&cfg.Name, "name", "", "name of this replica in the ledger (default HOST/PID)")
	flags.StringVar(&s.listen.CertFile, "tls-cert", "", "certificate of this server, in PEM")
	flags.StringVar(&s.listen.KeyFile, "tls-key", "", "its key, in PEM")
	flags.StringVar(&s.listen.TokenFile, "tokens-file", "", "file of credentials: lines of TOKEN ROLE [NODE]")
	addDuration(flags, &cfg.Interval, "interval", 0, 50*time.Millisecond, time.Hour, "between two beats of a node (default 10s)")
	addCount(flags, &cfg.LateAfter, "late-after", 1, many, "missed beats until a node is late (default 1)")
	addCount(flags, &cfg.SuspectAfter, "suspect-after", 2, many, "missed beats until a node is suspect, and gets no new work (default 3)")
	addDuration(flags, &cfg.NodeTTL, "node-ttl", 0, 100*time.Millisecond, 24*time.Hour, "life of a node's lease; agents take it from here (default six intervals)")
	addDuration(flags, &cfg.Reconcile, "reconcile", 0, 10*time.Millisecond, time.Hour, "between two looks of the reconciler (default half an interval, at most 5s)")
	addDuration(flags, &cfg.ReconcilerTTL, "reconciler-ttl", 0, 100*time.Millisecond, 24*time.Hour, "life of the reconciler's own lease (default three times --reconcile)")
	addDuration(flags, &cfg.Window, "window", 0, time.Millisecond, time.Minute, "for which the first renewal of a request waits for others (default 20ms)")
	addDuration(flags, &cfg.Refresh, "refresh", 0, 10*time.Millisecond, time.Minute, "how often a replica reads what others changed (default half an interval, at most 1s)")
	addCount(flags, &cfg.Takeover.Rate.Burst, "takeover-burst", 1, 100_000, "takeovers at once (default 50)")
	addDuration(flags, &cfg.Takeover.Rate.Every, "takeover-every", 0, time.Millisecond, time.Hour, "then one more each such time (default 100ms)")
	addCount(flags, &cfg.Flap.Times, "flap-times", 2, fleet.MaxFlaps, "losses of the lease within --flap-window that keep new work from a node (default 3)")
	addDuration(flags, &cfg.Flap.Window, "flap-window", 0, time.Second, long, "see --flap-times (default 30m)")
	addDuration(flags, &cfg.Flap.Quiet, "flap-quiet", 0, time.Second, long, "quiet time until those losses are forgotten (default 30m)")
	flags.Var(&shareFlag{&cfg.Brake.Share}, "brake-share", "share of a domain that has to fall silent at once for the brake, above 0 and at most 1 (default 0.55)")
	addCount(flags, &cfg.Brake.Least, "brake-least", 3, 100_000, "nodes that have to, at least (default 3)")
	addDuration(flags, &cfg.Brake.Window, "brake-window", 0, time.Second/10, long, "within which is at once (default the time until suspicion)")
	addDuration(flags, &cfg.Brake.Known, "brake-known", 0, time.Second, long, "for which a silent node counts in its domain (default 1h)")
	addDuration(flags, &cfg.Brake.Release, "brake-release", 0, time.Second, long, "of the server's proven health until the brake lets go (default 10m)")
	flags.StringVar(&cfg.Brake.Label, "brake-label", "", "label whose value is a node's failure domain (default zone)")
	addDuration(flags, &cfg.Retention.Events, "keep-events", 0, time.Minute, 10*long, "age up to which the ledger is kept (default 720h)")
	addDuration(flags, &cfg.Retention.Ended, "keep-ended", 0, time.Minute, 10*long, "likewise work that ended (default 168h)")
	flags.StringArrayVar(&s.probes, "probe", nil, "NODE=URL: ask a node that cannot call out, with http://, https:// or tcp://HOST:PORT; may be repeated")
	flags.BoolVar(&s.noDashboard, "no-dashboard", false, "serve the interface alone, without the pages below /ui/")
	flags.BoolVar(&s.printOnly, "print-config", false, "print the settings in force and what falls out of them, and serve nothing")
	flags.BoolVarP(&s.quiet, "quiet", "q", false, "log nothing but what is wrong")
	addSettings(cmd)
	cmd.RunE = daemon(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		sources, err := readSettings(cmd)
		if err != nil {
			return err
		}
		loc, err := chosenStore(cmd)
		if err != nil {
			return err
		}
		if err := s.readProbes(); err != nil {
			return err
		}
		s.complete()
		if s.printOnly {
			return s.print(cmd.OutOrStdout(), loc, sources)
		}
		level := slog.LevelInfo
		if s.quiet {
			level = slog.LevelWarn
		}
		s.cfg.Logger = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
		p, err := openPlane(ctx, loc, &s, sources)
		if err != nil {
			return err
		}
		defer p.close()
		if err := p.describe(cmd.OutOrStdout()); err != nil {
			return err
		}
		return p.serve(ctx)
	})
	return cmd
}

// complete fills in the rest of a rule of which a part was given; a rule of which
// nothing was given has its default as a whole.
func (s *serverSettings) complete() {
	if f, def := &s.cfg.Flap, fleet.NodeFlapRule(); *f != (fleet.FlapRule{}) {
		*f = fleet.FlapRule{Times: cmp.Or(f.Times, def.Times), Window: cmp.Or(f.Window, def.Window), Quiet: cmp.Or(f.Quiet, def.Quiet)}
	}
	if r, def := &s.cfg.Takeover.Rate, (fleet.TakeoverRules{}).Filled().Rate; *r != (fleet.Rate{}) {
		*r = fleet.Rate{Burst: cmp.Or(r.Burst, def.Burst), Every: cmp.Or(r.Every, def.Every)}
	}
}

// checkAddress checks what --listen says before anything is opened.
func checkAddress(ctx context.Context, address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil // which server.Listen refuses
	}
	if _, err := net.DefaultResolver.LookupPort(ctx, "tcp", port); err != nil {
		return failf(exitUsage, "--listen %q: the port must be a number from 0 to 65535", address)
	}
	return nil
}

// readProbes takes the probes from their flags.
func (s *serverSettings) readProbes() error {
	for _, text := range s.probes {
		node, target, ok := strings.Cut(text, "=")
		if !ok {
			return failf(exitUsage, "--probe %q: must be NODE=URL, such as db-1=http://db-1:8080/healthz or db-1=tcp://db-1:5432", text)
		}
		p := server.Probe{Node: node, URL: target}
		if address, tcp := strings.CutPrefix(target, "tcp://"); tcp {
			p.URL, p.Address = "", address
		}
		s.cfg.Probes = append(s.cfg.Probes, p)
	}
	return nil
}

// plane is a replica that listens.
type plane struct {
	srv      *server.Server
	listener net.Listener
	handler  http.Handler
	store    location
	sources  map[string]string
	secure   bool
	pages    bool // the dashboard is served
	log      *slog.Logger
	tracing  *tracing
	closeDB  closeFunc
}

// openPlane opens the database and the listener. It makes the tables of the
// default SQLite file only.
func openPlane(ctx context.Context, loc location, s *serverSettings, sources map[string]string) (*plane, error) {
	if err := checkAddress(ctx, s.listen.Address); err != nil {
		return nil, err
	}
	opening, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	st, reg, closeDB, err := openFleet(opening, loc)
	if err != nil {
		return nil, err
	}
	p := &plane{store: loc, sources: sources, closeDB: closeDB, secure: s.listen.CertFile != "", pages: !s.noDashboard, log: cmp.Or(s.cfg.Logger, slog.New(slog.DiscardHandler))}
	if p.tracing, err = startTracing(ctx, "tenure-server", p.log); err != nil {
		p.closeDB()
		return nil, err
	}
	if p.srv, err = server.New(p.tracing.store(st), reg, s.cfg); err != nil {
		p.closeDB()
		return nil, settingsError(err)
	}
	var tokens server.Tokens
	if p.listener, tokens, err = server.Listen(ctx, s.listen); err != nil {
		p.closeDB()
		return nil, listenError(s.listen.Address, err)
	}
	served := server.HTTPConfig{Tokens: tokens, Version: buildVersion().Version, Sources: sources}
	if db, ok := st.(interface {
		refusals(context.Context) ([]server.TableRefusals, error)
	}); ok {
		served.Tables = db.refusals
	}
	p.handler = p.tracing.handler(p.srv.Handler(served))
	if p.pages {
		p.handler = dashboard.New(dashboard.Config{API: p.handler, Logger: s.cfg.Logger})
	}
	return p, nil
}

// openFleet opens the database at loc with the leases and the fleet in it.
func openFleet(ctx context.Context, loc location) (backend, *registry.Registry, closeFunc, error) {
	st, closeDB, err := openAt(ctx, loc)
	if err != nil {
		return nil, nil, nil, err
	}
	f, ok := st.(fleetBackend)
	if !ok {
		closeDB()
		return nil, nil, nil, failf(exitUsage, "store %s: a server needs the database itself: name a SQLite file or a postgres:// URL", loc)
	}
	reg, err := f.Fleet()
	if err == nil && loc.own {
		err = reg.Migrate(ctx)
	}
	if err == nil {
		err = reg.Check(ctx)
	}
	if err != nil {
		closeDB()
		return nil, nil, nil, explain(loc, err)
	}
	return st, reg, closeDB, nil
}

// settingsError is the first of the errors that a server has with its settings,
// on one line.
func settingsError(err error) error {
	if !errors.Is(err, server.ErrConfig) {
		return err
	}
	first, _, _ := strings.Cut(err.Error(), "\n")
	return failf(exitUsage, "%s", strings.TrimPrefix(first, server.ErrConfig.Error()+": "))
}

func listenError(address string, err error) error {
	if errors.Is(err, server.ErrConfig) {
		return settingsError(err)
	}
	if errors.Is(err, os.ErrPermission) {
		return failf(exitPermission, "listen on %s: %w", address, err)
	}
	var opErr *net.OpError
	if errors.As(err, &opErr) {
		return failf(exitUnavailable, "listen on %s: %w; another server may run there: stop it, or give another address with --listen", address, opErr.Err)
	}
	return failf(exitUsage, "%w", err)
}

// url is where the replica is reached from this host.
func (p *plane) url() string {
	scheme := "tenure"
	if p.secure {
		scheme = "tenures"
	}
	addr := p.listener.Addr().String()
	if host, port, err := net.SplitHostPort(addr); err == nil && net.ParseIP(host).IsUnspecified() {
		if name, err := os.Hostname(); err == nil {
			addr = net.JoinHostPort(name, port)
		}
	}
	return scheme + "://" + addr
}

// pagesURL is where a browser finds the dashboard of the server at url.
func pagesURL(url string) string { return "http" + strings.TrimPrefix(url, "tenure") + "/ui/" }

// describe prints where the replica is, what falls out of its settings, and those that
// were given.
func (p *plane) describe(w io.Writer) error {
	cfg := p.srv.Config()
	rows := [][2]string{{"server", p.url()}, {"name", cfg.Name}, {"store", p.store.String()}}
	if p.pages {
		rows = slices.Insert(rows, 1, [2]string{"dashboard", pagesURL(p.url())})
	}
	rows = append(rows, consequences(&cfg)...)
	for _, s := range cfg.Settings() {
		if from := p.sources[s.Name]; from != "" {
			rows = append(rows, [2]string{s.Name, s.Value + " (" + from + ")"})
		}
	}
	return pairs(w, rows)
}

// print prints what a server with these settings would run with, all of them.
func (s *serverSettings) print(w io.Writer, loc location, sources map[string]string) error {
	cfg, err := s.cfg.Filled()
	if err != nil {
		return settingsError(err)
	}
	rows := append([][2]string{{"listen", s.listen.Address}, {"store", loc.String()}}, consequences(&cfg)...)
	for _, s := range cfg.Settings() {
		rows = append(rows, [2]string{s.Name, s.Value + " (" + cmp.Or(sources[s.Name], "default") + ")"})
	}
	return pairs(w, rows)
}

// consequences are what falls out of the settings, for people.
func consequences(cfg *server.Config) [][2]string {
	e := cfg.Effective()
	d := func(ms int64) string { return shortDuration(time.Duration(ms) * time.Millisecond) }
	return [][2]string{
		{"beats", fmt.Sprintf("every %s; a node is late after %d missed and suspect after %d", d(e.IntervalMS), cfg.LateAfter, cfg.SuspectAfter)},
		{"detection", fmt.Sprintf("a crash is suspected within %s to %s; %d lost in a row are tolerated", d(e.DetectionMS[0]), d(e.DetectionMS[1]), e.ToleratedMisses)},
		{"node lease", fmt.Sprintf("%s; %d lost renewals in a row are tolerated", d(e.NodeTTLMS), e.ToleratedRenewals)},
		{"takeover", fmt.Sprintf("of movable work begins within %s of a crash, within %s if the reconciler dies with it", d(e.TakeoverMS), d(e.TakeoverDeadMS))},
		{"takeovers", fmt.Sprintf("%d at once, then %s a second", cfg.Takeover.Rate.Burst, rates(e.TakeoverRate))},
		{"writes", fmt.Sprintf("two rows a beat: %s a second for 100, 1,000 and 10,000 nodes, in at most %.0f commits a second",
			rates(e.RowsPerSecond/10, e.RowsPerSecond, e.RowsPerSecond*10), e.CommitsPerSecond)},
	}
}

func rates(all ...float64) string {
	text := make([]string, len(all))
	for i, r := range all {
		text[i] = fmt.Sprintf("%.3g", r)
		if r >= 1000 {
			text[i] = fmt.Sprintf("%.0f", r)
		}
	}
	return strings.Join(text, ", ")
}

const (
	// Times of an end in order: what is under way may finish, then what waits is cut
	// (long polls, streams), and then everything.
	cutAfter = 500 * time.Millisecond
	endAfter = 5 * time.Second
)

// serve runs the replica until ctx ends, and then ends it in order: the listener,
// the loops, and the store by close.
func (p *plane) serve(ctx context.Context) error {
	requests, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	loops, stopLoops := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLoops()
	hs := p.srv.HTTPServer(p.handler)
	hs.BaseContext = func(net.Listener) context.Context { return requests }
	served, ran := make(chan error, 1), make(chan error, 1)
	go func() { served <- hs.Serve(p.listener) }()
	go func() { ran <- p.srv.Run(loops) }()
	var supervision sync.WaitGroup
	defer supervision.Wait()
	watched, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	supervision.Go(func() { supervised(watched, p.log, p.srv.Ready, p.srv.Alive) })
	var err error
	running := true
	select {
	case <-ctx.Done():
	case err = <-served:
		err = fmt.Errorf("serve: %w", err)
	case err = <-ran:
		running = false
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), endAfter)
	defer cancel()
	timer := time.AfterFunc(cutAfter, cut)
	defer timer.Stop()
	if hs.Shutdown(ending) != nil {
		_ = hs.Close() // whatever did not end in time is cut
	}
	stopLoops()
	if running {
		err = errors.Join(err, <-ran)
	}
	return err
}

func (p *plane) close() {
	p.listener.Close()
	p.tracing.stop()
	p.closeDB()
}
