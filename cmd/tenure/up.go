package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/server"
)

// upFlags are the flags of "tenure up".
type upFlags struct {
	demo, keep, quiet bool
	listen, node      string
	stateDir          string
}

func newUp(con console) *cobra.Command {
	var f upFlags
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a control plane and an agent for this host; --demo shows what for",
		Long: `Start a server over the default store and an agent for this host, in this terminal,
until Ctrl-C. Every command of this user finds this server. After the end pinned work
goes on and the next "tenure up" takes it up again; work that is stopped on loss, as
all movable work is, is ended when its host may no longer act under its lease.

With --state-dir everything is kept in that directory, the store as well unless --store
names another, and commands have to name the server: the line to do so is printed.

With --demo a fleet of three hosts is made in a throw-away directory, each by an agent
process of its own, and one host is paused: its beats stop, it is suspected, its lease
lapses, its work moves once, and the paused copy's write changes nothing. Every line
tells of something that was observed; if one is not seen in time, ` + fmt.Sprintf("the exit code is\n%d. It takes about ten seconds and leaves nothing behind.", exitDemo) + `

` + storeHelp,
		Example: `  tenure up --demo
  tenure up
  tenure up --state-dir /tmp/fleet`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.demo, "demo", false, "show on a throw-away fleet how work moves once, and how a stale writer is refused")
	flags.BoolVar(&f.keep, "keep", false, "with --demo: leave the fleet up afterwards, until Ctrl-C")
	flags.StringVar(&f.listen, "listen", defaultListen, "loopback address and port to listen on; port 0 takes a free one")
	flags.StringVar(&f.node, "node", "", "id of this host as a node (default its name)")
	flags.StringVar(&f.stateDir, "state-dir", "", "directory for the store and the agent's state, in place of this user's own")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "log nothing but what is wrong")
	run := daemon(func(ctx context.Context, cmd *cobra.Command, _ []string) error { return f.run(ctx, cmd, con) })
	demo := action(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		for _, name := range []string{"store", "listen", "node", "state-dir"} {
			if cmd.Flags().Changed(name) {
				return failf(exitUsage, "--demo makes everything anew in a directory of its own: leave out --%s", name)
			}
		}
		return runDemo(ctx, cmd.OutOrStdout(), f.keep)
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case f.demo:
			return demo(cmd, args)
		case f.keep:
			return failf(exitUsage, "--keep goes with --demo")
		}
		return run(cmd, args)
	}
	return cmd
}

// run is the control plane and the agent until ctx ends. The agent ends first, so
// that it can give its lease back.
func (f *upFlags) run(ctx context.Context, cmd *cobra.Command, con console) error {
	loc, err := f.place(cmd)
	if err != nil {
		return err
	}
	level := slog.LevelInfo
	if f.quiet {
		level = slog.LevelWarn
	}
	log := slog.New(slog.NewTextHandler(con.err, &slog.HandlerOptions{Level: level}))
	settings := &serverSettings{cfg: server.Config{Logger: log}, listen: server.ListenConfig{Address: f.listen}}
	p, err := openPlane(ctx, loc, settings, nil)
	if err != nil {
		return err
	}
	defer p.close()
	note := "" // with a directory of its own this is not the user's one server
	if f.stateDir == "" {
		if note, err = serverFile(); err != nil {
			return err
		}
		defer forgetServer(note, p.url()) // if it was noted
	}
	if err := p.describe(cmd.OutOrStdout()); err != nil {
		return err
	}

	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	working, stopWorking := context.WithCancelCause(ctx)
	defer stopWorking(nil)
	served := make(chan error, 1)
	go func() {
		err := p.serve(serving)
		if err != nil {
			stopWorking(err)
		}
		served <- err
	}()
	host := agentSettings{serverFlags: serverFlags{server: p.url()}, node: f.node, quiet: f.quiet}
	if f.stateDir != "" {
		if host.node, err = hostNode(f.node); err != nil {
			return err
		}
		host.stateDir = filepath.Join(f.stateDir, "agent", host.node)
	}
	err = host.run(working, log, func() error {
		if note != "" {
			if err := noteServer(note, p.url()); err != nil {
				return failf(exitPermission, "the server's URL cannot be noted: %w; --state-dir keeps everything elsewhere", err)
			}
		}
		nextCommands(cmd.OutOrStdout(), p.url(), host.node, note == "")
		return nil
	})
	stopServing()
	return cmp.Or(err, <-served)
}

// place returns the store: the one that was named, else that of --state-dir, else
// this user's own.
func (f *upFlags) place(cmd *cobra.Command) (location, error) {
	loc, err := chosenStore(cmd)
	if f.stateDir == "" || (err == nil && !loc.own) {
		return loc, err
	}
	if f.stateDir, err = filepath.Abs(f.stateDir); err != nil {
		return loc, failf(exitInternal, "%w", err)
	}
	if err := os.MkdirAll(f.stateDir, 0o700); err != nil {
		return loc, stateError(f.stateDir, err)
	}
	return location{kind: kindSQLite, target: filepath.Join(f.stateDir, "tenure.db"), own: true}, nil
}

// nextCommands prints what to try next; named says that commands have to name the
// server themselves.
func nextCommands(w io.Writer, url, node string, named bool) {
	name := ""
	if named {
		name = "\n  export " + envServer + "=" + url
	}
	fmt.Fprintf(w, `
This host is node %[2]s of the fleet at %[1]s. In another terminal:%[3]s
  tenure nodes ls
  tenure work submit hello -- sleep 600
  tenure why hello
  tenure events --follow
Ctrl-C ends both; pinned work, such as this, goes on and the next "tenure up" takes it
up again, and movable work is ended when this host may no longer act under its lease.

`, url, escape(node), name)
}

// noteServer writes the URL where commands of this user look for it.
func noteServer(path, url string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "server.tmp-*")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(tmp, url)
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}

// forgetServer removes the note, unless another server has written its own.
func forgetServer(path, url string) {
	text, err := os.ReadFile(path)
	if err == nil && strings.TrimSpace(string(text)) == url {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return // it names a server that is gone, which the next command says
		}
	}
}
