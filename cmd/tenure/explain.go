package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/store"
)

// explain adds to a refusal of the store at loc which store it was and, where
// the store cannot know it, the command that helps. It gives err the exit code
// of its kind. A decision on a lease needs no more words.
func explain(loc location, err error) error {
	var coded *exitError
	if err == nil || errors.As(err, &coded) {
		return err
	}
	next := ""
	switch store.Classify(err) {
	case store.CodeCopied:
		next = "; or run: " + loc.command("migrate --adopt")
	case store.CodeNotFound:
		next = "; \"tenure lease ls\" shows the names"
	case store.CodeNoContact:
		if errors.Is(err, context.DeadlineExceeded) {
			next = "; check the address"
		}
	case store.CodePermission, store.CodeReadOnly:
		if loc.kind != kindSQLite {
			break
		}
		if why, readOnly := unwritable(loc.target); why != "" {
			if readOnly {
				err = store.ErrReadOnly // which SQLite does not tell from a missing right
			}
			return asExit(&explained{msg: fmt.Sprintf("store %s: %s", loc, why), err: err})
		}
	case store.CodeSchema, store.CodeBusy, store.CodeUnsupported:
	default:
		return asExit(err)
	}
	msg := loc.complete(words(err.Error()))
	return asExit(&explained{msg: fmt.Sprintf("store %s: %s%s", loc, msg, next), err: err})
}

// explained is an error with a message for people in place of its own.
type explained struct {
	msg string
	err error
}

func (e *explained) Error() string { return e.msg }
func (e *explained) Unwrap() error { return e.err }

// explainHere is explain for the store that cmd uses.
func explainHere(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	loc, locErr := chosenStore(cmd)
	if locErr != nil {
		return err
	}
	return explain(loc, err)
}
