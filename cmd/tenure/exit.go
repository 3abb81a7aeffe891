package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

// Exit codes. They lie in the range of sysexits.h and just above it, clear of 1
// and 2, which most programs use, and of what shells use: 126, 127 and 128+n.
// "tenure run" passes the codes of its command through, so that a command
// which uses these codes itself cannot be told apart by the code alone.
const (
	exitOK          = 0
	exitUsage       = 64  // a bad argument, flag, name, URL or duration
	exitNotFound    = 66  // no such lease, node or work item
	exitUnavailable = 69  // the store or the server did not answer, or is busy
	exitInternal    = 70  // a fault in tenure itself
	exitNotAcquired = 75  // somebody else holds the lease; try later
	exitPermission  = 77  // the store or the system does not allow it
	exitConfig      = 78  // the store is not set up for this: tables, version, a copy
	exitSlotDone    = 79  // the slot was done already: somebody else ran it
	exitLost        = 80  // the lease was lost while the command ran
	exitNoProgress  = 81  // the command made no progress and was stopped
	exitConflict    = 82  // the term is not the current one, nothing was changed
	exitWarnings    = 83  // doctor: at least one warning
	exitBroken      = 84  // doctor: a promise does not hold
	exitNoCapacity  = 85  // no node has room for the work
	exitReplaced    = 86  // agent: another incarnation has the node's name
	exitNotDrained  = 87  // nodes drain --wait-for: not drained in that time
	exitDemo        = 88  // up --demo: an expected thing was not observed
	exitDamaged     = 89  // fetch: the files are not as they were published
	exitNotExec     = 126 // the command cannot be started: not executable
	exitNoCommand   = 127 // the command cannot be started: not found
)

// exitCodes is the table that the help, the README and the tests share.
var exitCodes = []struct {
	code    int
	meaning string
}{
	{exitOK, "done"},
	{exitUsage, "usage: a bad argument, flag, name, URL or duration"},
	{exitNotFound, "no such lease, node or work item"},
	{exitUnavailable, "the store or the server is busy or cannot be reached: no answer, no such database, a certificate that does not count"},
	{exitInternal, "a fault in tenure itself"},
	{exitNotAcquired, "not acquired: somebody else holds the lease"},
	{exitPermission, "not permitted, wrong password, or the store is read-only"},
	{exitConfig, "the store is not set up for this: no tables, another version, a copied file, or no such feature"},
	{exitSlotDone, "the slot is done already: somebody else ran it"},
	{exitLost, "the lease was lost while the command ran"},
	{exitNoProgress, "the command made no progress and was stopped"},
	{exitConflict, "the token is not the current one, or a node or work item is in another state than that needs; nothing was changed"},
	{exitWarnings, "doctor: at least one warning"},
	{exitBroken, "doctor: a promise does not hold"},
	{exitNoCapacity, "work submit: no node has room for it"},
	{exitReplaced, "agent: another process has taken over the node's name, so this one is fenced for good"},
	{exitNotDrained, "nodes drain: not drained within --wait-for, or the drain was called off"},
	{exitDemo, "up --demo: something that it shows was not observed in time"},
	{exitDamaged, "publish, fetch: files at the target are missing or are not as they were published"},
	{exitNotExec, "the command cannot be started: not executable"},
	{exitNoCommand, "the command cannot be started: not found"},
}

func exitHelp() string {
	var b strings.Builder
	b.WriteString("Exit codes (\"tenure run\" passes its command's own code through, and 128+n for signal n):")
	for _, c := range exitCodes {
		fmt.Fprintf(&b, "\n  %3d  %s", c.code, c.meaning)
	}
	return b.String()
}

// exitError ends the program with a code. Err may be nil: then nothing is
// printed, as the answer was given already.
type exitError struct {
	code int
	err  error
	see  string // the command whose help tells more of a usage error; "" for the one that failed
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// failf returns an error that ends the program with code and this message.
func failf(code int, format string, args ...any) error {
	return &exitError{code: code, err: fmt.Errorf(format, args...)}
}

// usageError is failf for a usage that the help of the command see tells.
func usageError(see, format string, args ...any) error {
	return &exitError{code: exitUsage, see: see, err: fmt.Errorf(format, args...)}
}

// badStore returns the error of a store that was named wrongly.
func badStore(format string, args ...any) error { return usageError("tenure", format, args...) }

// codeExits maps the reason codes of package store to exit codes.
var codeExits = map[store.Code]int{
	store.CodeHeld:        exitNotAcquired,
	store.CodeSuperseded:  exitConflict,
	store.CodeExpired:     exitConflict,
	store.CodeMissing:     exitConflict,
	store.CodeRevoked:     exitConflict,
	store.CodeReleased:    exitConflict,
	store.CodeStale:       exitConflict,
	store.CodeNotFound:    exitNotFound,
	store.CodeSlotDone:    exitSlotDone,
	store.CodeClockStep:   exitNotAcquired,
	store.CodeBusy:        exitUnavailable,
	store.CodeNoContact:   exitUnavailable,
	store.CodePermission:  exitPermission,
	store.CodeReadOnly:    exitPermission,
	store.CodeSchema:      exitConfig,
	store.CodeCopied:      exitConfig,
	store.CodeUnsupported: exitConfig,
	store.CodeInvalid:     exitUsage,
}

// fleetExits maps the reason codes of a server to exit codes, beside those of
// package store.
var fleetExits = map[string]int{
	string(fleet.CodeNoSuchNode):    exitNotFound,
	string(fleet.CodeNoSuchWork):    exitNotFound,
	string(fleet.CodeNoCapacity):    exitNoCapacity,
	string(fleet.CodeWorkExists):    exitConflict,
	string(fleet.CodeWrongState):    exitConflict,
	string(fleet.CodeNotOwner):      exitConflict,
	string(fleet.CodeStaleToken):    exitConflict,
	string(fleet.CodeNoLease):       exitConflict,
	string(fleet.CodeLeaseLapsed):   exitConflict,
	string(fleet.CodeLeaseReleased): exitConflict,
	string(fleet.CodeLeaseRevoked):  exitConflict,
	string(fleet.CodeDuplicateNode): exitConflict,
	string(fleet.CodeReplaced):      exitReplaced,
	string(fleet.CodeHostGone):      exitUnavailable,
	string(fleet.CodeBrake):         exitUnavailable,
	string(fleet.CodeObserving):     exitUnavailable,
	api.CodeNotReady:                exitUnavailable,
	api.CodeUnauthorized:            exitPermission,
	api.CodeForbidden:               exitPermission,
	api.CodeFault:                   exitUnavailable,
	api.CodeTooLarge:                exitUsage,
}

// asExit gives err the exit code of its kind, unless it has one.
func asExit(err error) error {
	if err == nil {
		return nil
	}
	var coded *exitError
	if errors.As(err, &coded) {
		return err
	}
	code, ok := codeExits[store.Classify(err)]
	if refusal, refused := errors.AsType[*api.Error](err); refused {
		if fleetCode, known := fleetExits[refusal.Code]; known {
			code, ok = fleetCode, true
		}
	}
	if !ok {
		code = exitInternal
	}
	return &exitError{code: code, err: err}
}

// action makes a cobra action of f: its context ends at SIGINT or SIGTERM, and
// its errors carry an exit code, that of the signal if there was one. An error
// without one is then cobra's own, about the arguments.
func action(f func(ctx context.Context, cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return signalled(f, func(stopped, _ error) error { return stopped })
}

// daemon is action for what is meant to run until it is told to end: an end in
// order is exit code 0. A second signal ends it at once.
func daemon(f func(ctx context.Context, cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return signalled(f, func(_, err error) error { return asExit(err) })
}

// signalled runs f under a context that ends at a signal. end chooses what comes
// of the signal and of f's error then.
func signalled(f func(ctx context.Context, cmd *cobra.Command, args []string) error, end func(stopped, err error) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, cancel := context.WithCancelCause(cmd.Context())
		defer cancel(nil)
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
		defer signal.Stop(signals)
		go func() {
			select {
			case s := <-signals:
				signal.Stop(signals)
				n, _ := s.(syscall.Signal)
				cancel(&exitError{code: 128 + int(n)})
			case <-ctx.Done():
			}
		}()
		err := f(ctx, cmd, args)
		var stopped *exitError
		if errors.As(context.Cause(ctx), &stopped) {
			return end(stopped, err)
		}
		return asExit(err)
	}
}

// exitNames are the codes, for programs, of errors that have none of package
// store or of a server.
var exitNames = map[int]string{
	exitUsage:       string(store.CodeInvalid),
	exitNotFound:    string(store.CodeNotFound),
	exitUnavailable: string(store.CodeNoContact),
	exitNotAcquired: string(store.CodeHeld),
	exitPermission:  string(store.CodePermission),
	exitConfig:      "config",
	exitSlotDone:    string(store.CodeSlotDone),
	exitLost:        "lost",
	exitNoProgress:  "no_progress",
	exitConflict:    string(fleet.CodeWrongState),
	exitNoCapacity:  string(fleet.CodeNoCapacity),
	exitReplaced:    string(fleet.CodeReplaced),
	exitNotDrained:  "not_drained",
	exitDemo:        "not_observed",
	exitDamaged:     "damaged",
}

// reasonCode names the kind of an error for programs: the code of a server's refusal,
// that of package store, or the name of the exit code.
func reasonCode(coded *exitError) string {
	if refusal, refused := errors.AsType[*api.Error](coded.err); refused {
		return refusal.Code
	}
	if code := store.Classify(coded.err); codeExits[code] == coded.code {
		return string(code)
	}
	return cmp.Or(exitNames[coded.code], "internal")
}

// errorJSON is what a failure prints on standard error with -o json.
type errorJSON struct {
	Error struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// report prints err on one line, as JSON if the command was asked for that, and
// returns the exit code that it stands for. A refusal of a server shows its code.
func report(w io.Writer, cmd *cobra.Command, err error) int {
	if err == nil {
		return exitOK
	}
	var coded *exitError
	if !errors.As(err, &coded) { // cobra's own, about the arguments
		coded = &exitError{code: exitUsage, err: err}
	}
	if coded.err == nil {
		return coded.code
	}
	msg := plain(err.Error())
	code := reasonCode(coded)
	if f := cmd.Flags().Lookup("output"); f != nil && f.Value.String() == string(asJSON) {
		var e errorJSON
		e.Error.Code, e.Error.Message = code, msg
		if printJSONLine(w, e) == nil {
			return coded.code
		}
	}
	if _, refused := errors.AsType[*api.Error](err); refused && !strings.HasSuffix(msg, "("+code+")") {
		msg += " (" + code + ")"
	}
	switch {
	case coded.code == exitUsage:
		msg += fmt.Sprintf(" (see \"%s --help\")", cmp.Or(coded.see, cmd.CommandPath()))
	case errors.Is(err, context.DeadlineExceeded) && cmd.Flags().Lookup("timeout") != nil:
		msg += "; allow more time with --timeout"
	}
	fmt.Fprintln(w, "tenure: "+msg)
	return coded.code
}
