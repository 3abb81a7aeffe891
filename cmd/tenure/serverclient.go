package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

const (
	// defaultListen is where a server is reached if nobody says otherwise.
	defaultListen = "127.0.0.1:7470"
	defaultServer = "tenure://" + defaultListen

	envServer = "TENURE_SERVER"
	envToken  = "TENURE_SERVER_TOKEN"
	envCA     = "TENURE_SERVER_CA"
)

const serverHelp = `The server is named by --server or TENURE_SERVER, as tenure://HOST:PORT, or
tenures://HOST:PORT over TLS; more of its replicas follow after commas. Without
either it is the one that "tenure up" of this user has started, or else
` + defaultServer + `. The credential is in TENURE_SERVER_TOKEN or in the file of
--token-file; an authority of your own is in --ca or TENURE_SERVER_CA.`

// serverFlags say which server a command asks, and how.
type serverFlags struct {
	server    string
	tokenFile string
	ca        string
	timeout   time.Duration
	// wrap is api.Config.Wrap.
	wrap func(http.RoundTripper) http.RoundTripper
}

// addServer gives a command the flags that name its server.
func addServer(cmd *cobra.Command) *serverFlags {
	f := &serverFlags{}
	f.add(cmd.Flags())
	addDuration(cmd.Flags(), &f.timeout, "timeout", requestTime, 100*time.Millisecond, time.Hour, "how long the server may take to answer")
	return f
}

func (f *serverFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.server, "server", "", "URL of the server, or of its replicas, joined by commas (default $"+envServer+", else that of this user's \"tenure up\", else "+defaultServer+")")
	flags.StringVar(&f.tokenFile, "token-file", "", "file with the credential (default: $"+envToken+")")
	flags.StringVar(&f.ca, "ca", "", "file with the certificate of an authority to trust besides the system's (default $"+envCA+")")
}

// parseServers reads URLs joined by commas. One without a scheme has that of the
// one before it.
func parseServers(s string) ([]string, error) {
	var all []string
	scheme := "tenure"
	for part := range strings.SplitSeq(s, ",") {
		if before, _, ok := strings.Cut(part, "://"); ok {
			scheme = before
		} else {
			part = scheme + "://" + part
		}
		one, err := api.ParseServers(part)
		if err != nil {
			return nil, err
		}
		all = append(all, one...)
	}
	return all, nil
}

// serverFile is where "tenure up" of this user notes the URL of its server.
func serverFile() (string, error) {
	path, err := ownFile(os.Geteuid(), os.Getenv)
	return filepath.Join(filepath.Dir(path), "server"), err
}

// servers returns the URLs of the server.
func (f *serverFlags) servers() ([]string, error) {
	name := f.server
	if name == "" {
		env, set := os.LookupEnv(envServer)
		if set && env == "" {
			return nil, failf(exitUsage, "%s is set and empty: name a server in it, or unset it for the default one", envServer)
		}
		name = env
	}
	if name == "" {
		name = defaultServer
		if path, err := serverFile(); err == nil {
			if text, err := os.ReadFile(path); err == nil {
				name = strings.TrimSpace(string(text))
			}
		}
	}
	servers, err := parseServers(name)
	if err != nil {
		return nil, failf(exitUsage, "server %q: not a URL of the form tenure://HOST:PORT or tenures://HOST:PORT, without a user, a path or a query: %w", redact(name), err)
	}
	return servers, nil
}

// client returns a client of the server and the URLs that it asks.
func (f *serverFlags) client() (*api.Client, []string, error) {
	servers, err := f.servers()
	if err != nil {
		return nil, nil, err
	}
	c, err := newClient(servers, f.tokenFile, f.ca, f.wrap)
	return c, servers, err
}

// newClient makes a client with the credential and the authority that the flags
// or the environment name.
func newClient(servers []string, tokenFile, ca string, wrap func(http.RoundTripper) http.RoundTripper) (*api.Client, error) {
	cfg := api.Config{Servers: servers, Token: os.Getenv(envToken), UserAgent: "tenure/" + buildVersion().Version, Wrap: wrap}
	if tokenFile != "" {
		text, err := os.ReadFile(tokenFile)
		if err != nil {
			return nil, fileError("token file", tokenFile, err)
		}
		if cfg.Token = strings.TrimSpace(string(text)); cfg.Token == "" {
			return nil, failf(exitUsage, "token file %s: is empty; write the credential into it, and nothing else", tokenFile)
		}
	}
	if ca = cmp.Or(ca, os.Getenv(envCA)); ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			return nil, fileError("authority", ca, err)
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(text) {
			return nil, failf(exitUsage, "authority %s: holds no certificate in PEM", ca)
		}
		cfg.TLS = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return api.NewClient(cfg)
}

// closeClient drops connections, which has no news for anybody.
func closeClient(c *api.Client) { _ = c.Close() }

// fileError says what is wrong with a file that a flag names.
func fileError(what, path string, err error) error {
	code := exitUsage
	if errors.Is(err, fs.ErrPermission) {
		code = exitPermission
	}
	var at *fs.PathError
	if errors.As(err, &at) {
		err = at.Err
	}
	return failf(code, "%s %s: %w", what, path, err)
}

// connectTenure opens the store of a tenure server.
func connectTenure(target string) (backend, closeFunc, error) {
	servers, err := parseServers(target)
	if err != nil {
		return nil, nil, err
	}
	c, err := newClient(servers, "", "", nil)
	if err != nil {
		return nil, nil, err
	}
	return &tenureBackend{api.NewStore(c)}, func() { closeClient(c) }, nil
}

// tenureBackend is the store of a tenure server. Its tables are the server's.
type tenureBackend struct{ *api.Store }

// Migrate implements backend.
func (*tenureBackend) Migrate(context.Context) error {
	return failf(exitUsage, "a tenure server's store is set up on the server's side: run there \"tenure migrate\" with its --store")
}

// Check implements backend. The first request says what there is to say.
func (*tenureBackend) Check(context.Context) error { return nil }

// ask runs f with a client of the server, within the timeout.
func (f *serverFlags) ask(ctx context.Context, do func(context.Context, *api.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	return f.follow(ctx, do)
}

// follow is ask without a bound on the whole.
func (f *serverFlags) follow(ctx context.Context, do func(context.Context, *api.Client) error) error {
	c, servers, err := f.client()
	if err != nil {
		return err
	}
	defer closeClient(c)
	return explainServer(servers, do(ctx, c))
}

// explainServer adds to a refusal which server it came from, and what helps.
func explainServer(servers []string, err error) error {
	var coded *exitError
	if err == nil || errors.As(err, &coded) {
		return err
	}
	text, next := words(err.Error()), ""
	server := "server " + strings.Join(servers, ",")
	refusal, refused := errors.AsType[*api.Error](err)
	switch {
	case refused && refusal.Code == string(fleet.CodeNoCapacity):
		return asExit(&explained{msg: text + "; --queue stores it until there is room", err: err})
	case refused && refusal.Code == string(fleet.CodeNoSuchNode):
		return asExit(&explained{msg: text + "; \"tenure nodes ls\" shows the nodes", err: err})
	case refused && refusal.Code == string(fleet.CodeNoSuchWork):
		return asExit(&explained{msg: text + "; \"tenure work ls\" shows the work", err: err})
	case refused && refusal.Code == string(fleet.CodeWorkExists):
		return asExit(&explained{msg: text + "; choose another name, or, once it has ended, remove it with \"tenure work remove\"", err: err})
	case refused && refusal.Code == api.CodeUnauthorized:
		next = "; give it in " + envToken + " or with --token-file"
	case refused && refusal.Code == api.CodeNotReady:
		next = "; try again in a moment"
	case refused:
		return asExit(&explained{msg: text, err: err})
	case errors.Is(err, store.ErrInvalid):
		return asExit(&explained{msg: text, err: err})
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		next = "; start one here with \"tenure up\", or name another with --server"
		if hint := securityHint(err, servers); hint != "" {
			next = "; " + hint
		}
		return &exitError{code: exitUnavailable, err: &explained{msg: server + ": " + text + next, err: err}}
	}
	return asExit(&explained{msg: server + ": " + text + next, err: err})
}

// securityHint says what helps where a server answered, and TLS stood in the way;
// "" where it is something else.
func securityHint(err error, servers []string) string {
	var record tls.RecordHeaderError
	var name x509.HostnameError
	var authority x509.UnknownAuthorityError
	switch {
	case errors.As(err, &authority):
		return "name its authority with --ca"
	case errors.As(err, &name):
		names := slices.Clone(name.Certificate.DNSNames)
		for _, ip := range name.Certificate.IPAddresses {
			names = append(names, ip.String())
		}
		return fmt.Sprintf("its certificate is for %s: call it by that name, or make a certificate for %s", cmp.Or(strings.Join(names, ", "), "no name"), name.Host)
	case errors.As(err, &record) && strings.HasPrefix(string(record.RecordHeader[:]), "HTTP/"), strings.Contains(err.Error(), "HTTP response to HTTPS client"):
		return "it speaks without TLS: name it as " + strings.ReplaceAll(strings.Join(servers, ","), "tenures://", "tenure://")
	case strings.Contains(err.Error(), `status 400, ""`): // Go's answer to plain HTTP where TLS is spoken
		return "it seems to speak TLS: name it as " + strings.ReplaceAll(strings.Join(servers, ","), "tenure://", "tenures://")
	}
	return ""
}

// addMark gives a command the flags that say who wants something, and why.
func addMark(cmd *cobra.Command, mandatory bool) *fleet.Mark {
	m := &fleet.Mark{}
	usage := "why, for whoever asks later"
	if mandatory {
		usage += "; mandatory"
	}
	cmd.Flags().StringVar(&m.Reason, "reason", "", usage)
	cmd.Flags().StringVar(&m.Actor, "actor", "", "who wants it (default USER@HOST of this process)")
	return m
}

// filled checks a mark and fills in who this is.
func filled(m fleet.Mark, mandatory bool) (fleet.Mark, error) {
	m.Actor = cmp.Or(m.Actor, userAtHost())
	check := m
	if m.Reason == "" && !mandatory {
		check.Reason = "-"
	}
	if m.Reason == "" && mandatory {
		return m, failf(exitUsage, "--reason is mandatory: it is shown to whoever asks why")
	}
	return m, check.Check()
}

// userAtHost names who runs this process.
func userAtHost() string {
	name := fmt.Sprint("uid-", os.Geteuid())
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unnamed"
	}
	return name + "@" + host
}

// oneID wants the one argument of a command to be the id of a node or of a work item.
func oneID(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		usage := strings.TrimSuffix(cmd.UseLine(), " [flags]")
		switch len(args) {
		case 0:
			return fmt.Errorf("name the %s: %s", what, usage)
		case 1:
			if strings.Contains(args[0], "://") {
				return failf(exitUsage, "%q is a URL and no name: use --server", args[0])
			}
			return fleet.CheckID(what, args[0])
		}
		return fmt.Errorf("one %s, not %d: %s", what, len(args), usage)
	}
}

// completion offers names to the shell. A server that does not answer offers none.
type completion func(ctx context.Context, c *api.Client) ([]cobra.Completion, error)

func (f *serverFlags) complete(sources ...completion) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
		defer cancel()
		c, _, err := f.client()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer closeClient(c)
		var fit []cobra.Completion
		for _, source := range sources {
			all, err := source(ctx, c)
			if err != nil {
				break
			}
			for _, name := range all {
				if strings.HasPrefix(name, toComplete) {
					fit = append(fit, name)
				}
			}
		}
		return fit, cobra.ShellCompDirectiveNoFileComp
	}
}

func nodeNames(ctx context.Context, c *api.Client) (names []cobra.Completion, err error) {
	nodes, err := c.Nodes(ctx)
	for _, n := range nodes {
		if fleet.CheckID("node", n.ID) == nil {
			names = append(names, cobra.CompletionWithDesc(n.ID, string(n.Liveness)))
		}
	}
	return names, err
}

func workNames(ctx context.Context, c *api.Client) (names []cobra.Completion, err error) {
	page, err := c.Works(ctx, api.WorkQuery{})
	if err != nil {
		return nil, err
	}
	for _, w := range page.Work {
		if fleet.CheckID("work", w.ID) == nil {
			names = append(names, cobra.CompletionWithDesc(w.ID, string(w.State)))
		}
	}
	return names, nil
}
