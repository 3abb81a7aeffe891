package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
)

// ListenConfig says where a replica is reached, and how it knows its callers.
type ListenConfig struct {
	// Address is a host and a port: 127.0.0.1:7070, or :7070 for all addresses.
	Address string
	// CertFile and KeyFile are the server's certificate and key, in PEM
	// (--tls-cert, --tls-key).
	CertFile, KeyFile string
	// TokenFile holds the credentials; see ReadTokens (--tokens-file).
	TokenFile string
}

// Listen opens the listener, with TLS if there is a certificate, and returns the
// tokens for HTTPConfig. Loopback addresses may go without both; any other needs
// both, or nothing is opened and the error names the flags. The error matches
// ErrConfig where a setting is wrong.
func Listen(ctx context.Context, cfg ListenConfig) (net.Listener, Tokens, error) {
	bad := func(format string, args ...any) (net.Listener, Tokens, error) {
		return nil, nil, fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...))
	}
	host, _, err := net.SplitHostPort(cfg.Address)
	if err != nil {
		return bad("listen address %q: want a host and a port, such as 127.0.0.1:7070", cfg.Address)
	}
	if (cfg.CertFile == "") != (cfg.KeyFile == "") {
		return bad("--tls-cert and --tls-key go together; got %q and %q", cfg.CertFile, cfg.KeyFile)
	}
	if !loopback(host) && (cfg.CertFile == "" || cfg.TokenFile == "") {
		return bad("listen address %q can be reached from other hosts, so it needs a certificate (--tls-cert and --tls-key; tenure cert makes one) and credentials (--tokens-file); without them listen on 127.0.0.1", cfg.Address)
	}
	var tokens Tokens
	if cfg.TokenFile != "" {
		f, err := os.Open(cfg.TokenFile)
		if err != nil {
			return nil, nil, err
		}
		tokens, err = ReadTokens(f)
		f.Close()
		if err != nil {
			return bad("token file %s: %v", cfg.TokenFile, err)
		}
	}
	var security *tls.Config
	if cfg.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(cfg.CertFile, cfg.KeyFile)
		if err != nil {
			return bad("certificate %s: %v", cfg.CertFile, err)
		}
		// HTTP/1.1 alone: a request that runs out of time closes its own connection.
		security = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", cfg.Address)
	if err != nil {
		return nil, nil, err
	}
	// What a name stood for is known only now.
	if addr, ok := ln.Addr().(*net.TCPAddr); (!ok || !addr.IP.IsLoopback()) && (security == nil || tokens == nil) {
		ln.Close()
		return bad("listen address %q is %s, which is not loopback", cfg.Address, ln.Addr())
	}
	if security != nil {
		ln = tls.NewListener(ln, security)
	}
	return ln, tokens, nil
}
