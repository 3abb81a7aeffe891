//go:build !linux

package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/cmd/tenure/minder"
)

func runDemo(context.Context, io.Writer, bool) error {
	return failf(exitConfig, "up --demo: %w", minder.ErrUnsupported)
}

// newDemoWork is the work of the demo, which runs on Linux alone.
func newDemoWork() *cobra.Command { return &cobra.Command{Use: "demo-work", Hidden: true} }
