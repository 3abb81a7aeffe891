// Command tenure runs jobs under leases, looks after the leases of a store, and is
// the server, the agent and the tools of a fleet.
//
// It is the one binary of the project and the only place that names concrete
// backends (backend.go). What it prints on standard output is the answer that
// was asked for; everything else goes to standard error, one line a fact. Its
// exit codes are in exit.go.
//
// It opens one store a run: the one that --store or TENURE_STORE names, else a
// SQLite file of this user. It sets up and upgrades the tables of that file
// only; every other store is changed by "tenure migrate" alone.
package main

import (
	"context"
	"io"
	"os"
	"strings"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/cmd/tenure/guardian"
	"github.com/tenurehq/tenure/cmd/tenure/minder"
)

func main() {
	guardian.Main() // does not return if this process is a guardian
	minder.Main()   // nor if it is a minder
	os.Exit(execute(context.Background(), os.Args[1:], console{
		in: os.Stdin, out: os.Stdout, err: os.Stderr,
		interactive: isatty.IsTerminal(os.Stdin.Fd()) && isatty.IsTerminal(os.Stderr.Fd()),
	}))
}

// console is where a command talks to its caller.
type console struct {
	in       io.Reader
	out, err io.Writer
	// interactive says that a person can be asked: input and standard error
	// are terminals.
	interactive bool
}

// execute runs the command that args name and returns its exit code.
func execute(ctx context.Context, args []string, con console) int {
	root := newRoot(con)
	root.SetArgs(args)
	root.SetIn(con.in)
	root.SetOut(con.out)
	root.SetErr(con.err)
	strictHelp(root)
	cmd, err := root.ExecuteContextC(ctx)
	return report(con.err, cmd, err)
}

func newRoot(con console) *cobra.Command {
	root := &cobra.Command{
		Use:   "tenure",
		Short: "Run jobs under leases, and work on a fleet of hosts",
		Long: `tenure decides who may act: it keeps leases with fencing tokens in a database
that you already run, and runs jobs so that two copies do not overlap. A server
and an agent on each host make a fleet of it, on which work is placed, moved once
if its host is lost, and drained. "tenure up --demo" shows all of it here.

` + storeHelp + `

` + durationHelp + `

` + exitHelp(),
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          helpOnly,
		Version:       buildVersion().String(),
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.PersistentFlags().String("store", "", "store to use (default $TENURE_STORE, else a SQLite file of this user)")
	root.AddCommand(
		newRun(con),
		newLease(con),
		newFence(),
		newUp(con),
		newServer(),
		newAgent(),
		newNodes(con),
		newWork(),
		newWhy(),
		newEvents(),
		newBrake(),
		newCert(),
		newPublish(con),
		newFetch(con),
		newSweep(),
		newDoubt(),
		newMigrate(),
		newDoctor(),
		newBench(con),
		newVersion(),
		newDemoWork(),
	)
	return root
}

// strictHelp makes cobra's own commands refuse arguments that they do not know.
// These commands keep the output that root has now.
func strictHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Args = func(_ *cobra.Command, args []string) error {
				if _, rest, err := root.Find(args); err != nil || len(rest) > 0 {
					return usageError(root.Name(), "no help on %q", strings.Join(args, " "))
				}
				return nil
			}
		case "completion":
			cmd.RunE = helpOnly
		}
	}
}

// helpOnly is the action of a command that only groups others.
func helpOnly(cmd *cobra.Command, _ []string) error { return cmd.Help() }
