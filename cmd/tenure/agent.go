package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/agent"
	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/cmd/tenure/minder"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

// agentSettings are the flags of "tenure agent".
type agentSettings struct {
	serverFlags
	node       string
	labels     map[string]string
	capacity   map[string]int64
	features   []string
	artifacts  []string
	address    string
	stateDir   string
	readyFiles []string
	config     string
	ttl        time.Duration
	interval   time.Duration
	margin     time.Duration
	metrics    string
	quiet      bool
}

func newAgent() *cobra.Command {
	var s agentSettings
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Make this host a node of a fleet",
		Long: `Say that this host is there, hold its lease, and run the work that is placed on
it. Work outlives the agent: after a restart or an upgrade the next agent of the same
state directory takes it up again. If the lease cannot be renewed in time, the work
is stopped, told to stop acting, or left alone, as it was submitted (--on-loss).

What the node offers is taken from the host, memory_mb and cpu_milli, and changed or
added to by --capacity. The times of beats and of the lease come from the server.
SIGTERM ends the agent in order, with exit code 0, and leaves the work running.

` + fmt.Sprintf("If another process takes over the node's name, the agent ends with exit code %d.", exitReplaced) + `

` + tracingHelp + `

` + settingsHelp + `

` + serverHelp + `

` + durationHelp,
		Example: `  tenure agent --server tenure://127.0.0.1:7470
  tenure agent --server tenures://a.example:7470,b.example:7470 --token-file token --ca ca.pem \
      --node web-7 --label zone=b --capacity slots=8 --feature gpu`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	s.add(flags)
	flags.StringVar(&s.node, "node", "", "id of this node (default the name of this host)")
	flags.StringToStringVar(&s.labels, "label", nil, "KEY=VALUE that work may ask for; may be repeated")
	flags.StringToInt64Var(&s.capacity, "capacity", nil, "RESOURCE=AMOUNT, such as memory_mb=4096,slots=8; 0 offers none of it")
	flags.StringSliceVar(&s.features, "feature", nil, "feature that work may ask for; may be repeated")
	flags.StringSliceVar(&s.artifacts, "artifact", nil, "artifact that is here, and that work may ask for; may be repeated")
	flags.StringVar(&s.address, "address", "", "where the node's work can be reached, for lookups")
	flags.StringVar(&s.stateDir, "state-dir", "", "directory of this agent alone, which outlives it (default agent/NODE beside the default store)")
	flags.StringSliceVar(&s.readyFiles, "ready-file", nil, "the node is ready while this file is there; may be repeated")
	flags.StringVar(&s.config, "node-config", "", "name of the configuration that the node runs with, for people")
	addDuration(flags, &s.ttl, "ttl", 0, 100*time.Millisecond, 24*time.Hour, "life of the node's lease without a renewal (default the server's --node-ttl)")
	addDuration(flags, &s.interval, "interval", 0, 10*time.Millisecond, time.Hour, "longest time between two beats (default the server's)")
	addDuration(flags, &s.margin, "margin", 0, 10*time.Millisecond, 24*time.Hour, "how long before the end of the lease the node stops to act (default a fifth of it)")
	flags.StringVar(&s.metrics, "metrics-addr", "", "loopback address to serve /metrics, /livez and /readyz at, such as 127.0.0.1:7471; none if left out")
	flags.BoolVarP(&s.quiet, "quiet", "q", false, "log nothing but what is wrong")
	addSettings(cmd)
	cmd.RunE = daemon(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		if _, err := readSettings(cmd); err != nil {
			return err
		}
		level := slog.LevelInfo
		if s.quiet {
			level = slog.LevelWarn
		}
		log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
		return s.run(ctx, log, nil)
	})
	return cmd
}

// run is the agent until ctx ends. ready, if there is one, is called once nothing
// keeps the node from beginning.
func (s *agentSettings) run(ctx context.Context, log *slog.Logger, ready func() error) error {
	other := "--node" // which has a directory of its own
	if s.stateDir != "" {
		other = "--state-dir"
	}
	facts, err := s.facts()
	if err != nil {
		return err
	}
	traces, err := startTracing(ctx, "tenure-agent", log)
	if err != nil {
		return err
	}
	defer traces.stop()
	s.wrap = traces.transport
	c, servers, err := s.client()
	if err != nil {
		return err
	}
	defer closeClient(c)
	shown, err := listenMetrics(ctx, s.metrics, s.node)
	if err != nil {
		return err
	}
	defer shown.close()
	if err := s.times(ctx, c, servers, log); err != nil || ctx.Err() != nil {
		return err
	}
	driver, err := minder.New(minder.Config{Dir: filepath.Join(s.stateDir, "work")})
	switch {
	case errors.Is(err, minder.ErrUnsupported):
		return failf(exitConfig, "%w", err)
	case err != nil:
		return stateError(s.stateDir, err)
	}
	a, err := agent.New(shown.hook(agent.Config{
		Node: s.node, Server: c, Store: api.NewStore(c), StateDir: s.stateDir, Facts: facts, Driver: driver,
		ServerURL: strings.Join(servers, ","), TTL: s.ttl, Interval: s.interval, Margin: s.margin, Logger: log,
	}))
	switch {
	case errors.Is(err, agent.ErrConfig):
		return failf(exitUsage, "%s", strings.TrimPrefix(err.Error(), agent.ErrConfig.Error()+": "))
	case errors.Is(err, agent.ErrStateInUse):
		return failf(exitNotAcquired, "state directory %s: another agent uses it; stop that one, or give another %s", s.stateDir, other)
	case err != nil:
		return stateError(s.stateDir, err)
	}
	log.Info("agent", "node", s.node, "incarnation", a.Incarnation(), "server", strings.Join(servers, ","), "ttl", s.ttl, "interval", s.interval, "state", s.stateDir)
	if ready != nil {
		if err := ready(); err != nil {
			return err
		}
	}
	if err := shown.serve(a, log); err != nil {
		return err
	}
	supervision, stop := context.WithCancel(ctx)
	told := make(chan struct{})
	go func() {
		defer close(told)
		supervised(supervision, log, func() error { return nil }, a.Alive) // it serves without a server too
	}()
	err = a.Run(ctx)
	stop()
	<-told
	if errors.Is(err, agent.ErrReplaced) {
		return failf(exitReplaced, "%w; give this host a --node of its own, or end the other agent", err)
	}
	return explainServer(servers, err)
}

func stateError(dir string, err error) error {
	code := exitConfig
	if errors.Is(err, os.ErrPermission) {
		code = exitPermission
	}
	return failf(code, "state directory %s: %w", dir, err)
}

// times takes the times of the lease from the server, unless they were given. It
// waits for a server: with other times than the server counts with, work could be
// found lost too late.
func (s *agentSettings) times(ctx context.Context, c *api.Client, servers []string, log *slog.Logger) error {
	for told := false; s.ttl == 0 || s.interval == 0; told = true {
		asking, cancel := context.WithTimeout(ctx, requestTime)
		cfg, err := c.Config(asking)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			for _, setting := range cfg.Settings {
				d, _ := time.ParseDuration(setting.Value) // what is none is not asked for
				switch setting.Name {
				case "node-ttl":
					if s.ttl == 0 {
						s.ttl = d
					}
				case "interval":
					if s.interval == 0 {
						s.interval = d
					}
				}
			}
			if s.ttl <= 0 || s.interval <= 0 {
				return failf(exitUnavailable, "server %s: does not say node-ttl and interval; give --ttl and --interval", strings.Join(servers, ","))
			}
		case errors.Is(err, store.ErrPermission), errors.Is(err, store.ErrInvalid):
			return explainServer(servers, err)
		default:
			if !told {
				log.Warn("waiting for a server", "server", strings.Join(servers, ","), "err", words(err.Error()))
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return nil
			}
		}
	}
	return nil
}

// hostNode returns the id of this host as a node: the one given, or its name.
func hostNode(given string) (string, error) {
	if given == "" {
		host, err := os.Hostname()
		if err != nil {
			return "", failf(exitUsage, "this host has no name: give --node")
		}
		given = host
	}
	return given, fleet.CheckID("node", given)
}

// facts checks what the node is to say of itself, fills in what the host says, and
// returns what reads it anew.
func (s *agentSettings) facts() (func() fleet.Facts, error) {
	var err error
	if s.node, err = hostNode(s.node); err != nil {
		return nil, err
	}
	if s.stateDir == "" {
		path, err := ownFile(os.Geteuid(), os.Getenv)
		if err != nil {
			return nil, err
		}
		s.stateDir = filepath.Join(filepath.Dir(path), "agent", s.node)
	}
	dir, err := filepath.Abs(s.stateDir)
	if err != nil {
		return nil, failf(exitInternal, "%w", err)
	}
	s.stateDir = dir
	capacity := fleet.Resources{"cpu_milli": int64(runtime.NumCPU()) * 1000}
	memory, _, known := hostMemory()
	if known {
		capacity["memory_mb"] = memory
	}
	maps.Copy(capacity, s.capacity)
	maps.DeleteFunc(capacity, func(_ string, amount int64) bool { return amount == 0 })
	base := fleet.Facts{
		Address: s.address, Labels: s.labels, Features: s.features, Artifacts: s.artifacts, Capacity: capacity,
		Readiness: fleet.Readiness{Ready: true}, Config: s.config,
	}
	_, chosen := s.capacity["memory_mb"]
	now := func() fleet.Facts {
		f := base
		if total, used, ok := hostMemory(); ok && !chosen {
			f.Used = fleet.Resources{"memory_mb": coarse(used, total)}
		}
		for _, path := range s.readyFiles {
			if _, err := os.Stat(path); err != nil {
				f.Readiness = fleet.Readiness{Reason: "ready_file_missing", Text: path}
			}
		}
		return f
	}
	return now, now().Check()
}

// coarse rounds what is used up to a sixteenth of the whole: facts that change are
// written to the database.
func coarse(used, total int64) int64 {
	unit := max(total/16, 1)
	return min((used+unit-1)/unit*unit, total)
}

// hostMemory returns how much memory this host has and uses, in MB of 2^20 bytes.
// A limit of the container, if there is one, is taken for the whole.
func hostMemory() (total, used int64, ok bool) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, 0, false
	}
	kb := map[string]int64{}
	for line := range strings.Lines(string(text)) {
		name, rest, _ := strings.Cut(line, ":")
		if fields := strings.Fields(rest); len(fields) > 0 {
			kb[name], _ = strconv.ParseInt(fields[0], 10, 64)
		}
	}
	total, used = kb["MemTotal"]>>10, (kb["MemTotal"]-kb["MemAvailable"])>>10
	if limit, err := readNumber("/sys/fs/cgroup/memory.max"); err == nil && limit>>20 < total {
		total = limit >> 20
		if current, err := readNumber("/sys/fs/cgroup/memory.current"); err == nil {
			used = current >> 20
		}
	}
	return total, min(used, total), total > 0
}

func readNumber(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}
