package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/server"
	"github.com/tenurehq/tenure/store"
)

func newCert() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cert",
		Short: "Make an authority for development, and certificates of servers under it",
		Long: `Make an authority for development, and certificates of servers under it. Keys are
readable by you alone; nothing is overwritten.`,
		Example: `  tenure cert ca
  tenure cert server --host control.example --host 10.0.0.7
  tenure server --listen :7470 --tls-cert server.pem --tls-key server-key.pem --tokens-file tokens
  tenure nodes ls --server tenures://control.example:7470 --ca ca.pem`,
		Args: cobra.NoArgs,
		RunE: helpOnly,
	}
	cmd.AddCommand(newCertCA(), newCertServer())
	return cmd
}

func newCertCA() *cobra.Command {
	var cert, key string
	cmd := &cobra.Command{
		Use:   "ca",
		Short: "Make the authority: a certificate to hand out, and a key to keep",
		Args:  cobra.NoArgs,
	}
	cmd.Flags().StringVar(&cert, "cert", "ca.pem", "file of its certificate, for --ca of those that call")
	cmd.Flags().StringVar(&key, "key", "ca-key.pem", "file of its key: whoever has it can pose as every server")
	cmd.RunE = action(func(_ context.Context, cmd *cobra.Command, _ []string) error {
		return certMade(cmd, cert, key, server.CreateCA(cert, key))
	})
	return cmd
}

func newCertServer() *cobra.Command {
	var ca, caKey, cert, key string
	var hosts []string
	cmd := &cobra.Command{
		Use:   "server --host NAME",
		Short: "Make the certificate of a server",
		Args:  cobra.NoArgs,
	}
	cmd.Flags().StringSliceVar(&hosts, "host", nil, "name or address of the server, as those that call it write it; may be repeated")
	cmd.Flags().StringVar(&ca, "ca", "ca.pem", "file of the authority's certificate")
	cmd.Flags().StringVar(&caKey, "ca-key", "ca-key.pem", "file of the authority's key")
	cmd.Flags().StringVar(&cert, "cert", "server.pem", "file of the certificate")
	cmd.Flags().StringVar(&key, "key", "server-key.pem", "file of its key")
	cmd.RunE = action(func(_ context.Context, cmd *cobra.Command, _ []string) error {
		return certMade(cmd, cert, key, server.CreateCert(ca, caKey, cert, key, hosts))
	})
	return cmd
}

// certMade reports that both files were made, unless err says otherwise. The
// certificate is there to be handed out, so that everybody may read it.
func certMade(cmd *cobra.Command, cert, key string, err error) error {
	if err == nil {
		err = os.Chmod(cert, 0o644) //nolint:gosec // a certificate is public
	}
	if err != nil {
		return certError(err)
	}
	_, err = fmt.Fprintf(cmd.ErrOrStderr(), "%s, %s: made\n", escape(cert), escape(key))
	return err
}

// certError gives an error with files its exit code.
func certError(err error) error {
	var at *fs.PathError
	switch {
	case errors.Is(err, fs.ErrPermission):
		return failf(exitPermission, "%w", err)
	case errors.Is(err, fs.ErrNotExist) && errors.As(err, &at):
		return failf(exitUsage, "%s: no such file; \"tenure cert ca\" makes an authority", at.Path)
	case errors.Is(err, fs.ErrExist):
		return failf(exitUsage, "%s; give other names with --cert and --key, or remove it", strings.TrimSuffix(err.Error(), ": "+fs.ErrExist.Error()))
	case errors.Is(err, store.ErrInvalid):
		return err
	}
	return failf(exitUsage, "%w", err)
}
