package api

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/store"
)

// Config says how a Client reaches its server. Only Servers is needed.
type Config struct {
	// Servers are the base URLs of the replicas: http://, https://, or tenure://
	// and tenures:// for the same. The first is asked until it fails.
	Servers []string

	// Token is the bearer token; "" sends none. It is refused for a server that is
	// not on loopback and not reached over TLS.
	Token string

	// TLS is how servers are verified: nil means the system's authorities.
	TLS *tls.Config

	// AttemptTimeout is how long one replica may take to answer, where the call's
	// context leaves that long. A call that has several replicas left to ask gives
	// each an equal share of its time, if that is less. A Store asks one replica a
	// call and gives it all of the context's time, if that has an end. Default 5 s.
	// Longer waits longer for a dead replica; shorter takes a slow one for dead.
	AttemptTimeout time.Duration

	// MaxBody bounds an answer in bytes. Default 64 MiB.
	MaxBody int64

	// UserAgent names the program. Default "tenure".
	UserAgent string

	// Transport sends the requests in place of connections of the client's own, for
	// a program that serves the interface itself. TLS is not used then. It must be
	// safe for concurrent use.
	Transport http.RoundTripper

	// Wrap, if set, is given each pool of connections, and what it returns sends the
	// requests in its place: to trace them, for example.
	Wrap func(http.RoundTripper) http.RoundTripper
}

// Client speaks to the replicas of one server. It is safe for concurrent use and
// starts nothing but connections; Close drops those that are idle.
//
// Its methods return an *Error where a server refused, and an error matching
// store.ErrUnavailable where no answer was decoded: then a write may have been
// applied. A request that surely reached nobody goes to the next replica. One
// whose outcome is unknown does so only if it reads, or if the server recognises
// it: Submit (by the id of the work), Progress (by token and marker), and Cordon,
// Drain and Resume, which say what is to be.
type Client struct {
	replicas []*url.URL
	token    string
	timeout  time.Duration
	maxBody  int64
	agent    string
	current  atomic.Uint32 // index of the replica to ask first

	// Lanes keep apart what must not wait for one another. HTTP/1.1 on all of them:
	// a connection carries one request, and one whose request ran out of time is
	// closed with it (C04).
	beats, calls, streams lane
}

// lane is a pool of connections for one kind of request, and what sends over them.
type lane struct{ pool, transport http.RoundTripper }

// closeIdle drops the connections of a lane that no request uses.
func (l *lane) closeIdle() {
	if pool, ok := l.pool.(interface{ CloseIdleConnections() }); ok {
		pool.CloseIdleConnections()
	}
}

// NewClient returns a client. It sends nothing. The error matches store.ErrInvalid.
func NewClient(cfg Config) (*Client, error) {
	if len(cfg.Servers) == 0 {
		return nil, &store.InvalidError{Field: "server", Rule: "at least one URL, such as tenure://localhost:7070"}
	}
	if cfg.AttemptTimeout < 0 || cfg.MaxBody < 0 {
		return nil, &store.InvalidError{Field: "attempt_timeout", Value: cfg.AttemptTimeout.String(), Rule: "0 (the default) or more"}
	}
	c := &Client{token: cfg.Token, timeout: cfg.AttemptTimeout, maxBody: cfg.MaxBody, agent: cfg.UserAgent}
	if c.timeout == 0 {
		c.timeout = 5 * time.Second
	}
	if c.maxBody == 0 {
		c.maxBody = 64 << 20
	}
	if c.agent == "" {
		c.agent = "tenure"
	}
	if strings.ContainsFunc(cfg.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, &store.InvalidError{Field: "token", Rule: "printable ASCII without spaces"}
	}
	for _, server := range cfg.Servers {
		u, err := parseServer(server)
		if err != nil {
			return nil, err
		}
		if cfg.Token != "" && u.Scheme == "http" && !loopback(u.Hostname()) {
			return nil, &store.InvalidError{Field: "server", Value: server, Rule: "tenures:// or https://, as a token would travel readable to this host"}
		}
		c.replicas = append(c.replicas, u)
	}
	for _, l := range []*lane{&c.beats, &c.calls, &c.streams} {
		if l.pool = cfg.Transport; l.pool == nil {
			l.pool = newTransport(cfg.TLS)
		}
		if l.transport = l.pool; cfg.Wrap != nil {
			l.transport = cfg.Wrap(l.pool)
		}
	}
	return c, nil
}

// Servers returns the base URLs in use.
func (c *Client) Servers() []string {
	all := make([]string, len(c.replicas))
	for i, u := range c.replicas {
		all[i] = u.String()
	}
	return all
}

// Close drops idle connections. Requests under way go on.
func (c *Client) Close() error {
	for _, l := range []*lane{&c.beats, &c.calls, &c.streams} {
		l.closeIdle()
	}
	return nil
}

// parseServer reads a base URL.
func parseServer(s string) (*url.URL, error) {
	bad := func(rule string) error {
		return &store.InvalidError{Field: "server", Value: s, Rule: rule}
	}
	u, err := url.Parse(s)
	if err != nil {
		return nil, &store.InvalidError{Field: "server", Rule: "a URL such as tenure://localhost:7070"} // whose text may hold a password
	}
	if u.User != nil {
		return nil, &store.InvalidError{Field: "server", Value: u.Redacted(), Rule: "no user or password: the token is given apart"}
	}
	switch u.Scheme {
	case "tenure":
		u.Scheme = "http"
	case "tenures":
		u.Scheme = "https"
	case "http", "https":
	default:
		return nil, bad("a URL that begins with tenure://, tenures://, http:// or https://")
	}
	if u.Host == "" || u.Opaque != "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, bad("a host and a port, without query or fragment")
	}
	u.Path, u.RawPath = strings.TrimSuffix(u.Path, "/"), ""
	return u, nil
}

// ParseServers splits a URL with several hosts, tenure://a:7070,b:7070, into the
// URLs of the replicas.
func ParseServers(s string) ([]string, error) {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return nil, &store.InvalidError{Field: "server", Value: s, Rule: "a URL such as tenure://localhost:7070"}
	}
	var all []string
	for host := range strings.SplitSeq(rest, ",") {
		one := scheme + "://" + host
		if _, err := parseServer(one); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func newTransport(config *tls.Config) *http.Transport {
	if config != nil {
		config = config.Clone()
		config.NextProtos = nil
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSClientConfig:        config,
		TLSHandshakeTimeout:    10 * time.Second,
		Protocols:              &protocols,
		MaxIdleConnsPerHost:    4,
		IdleConnTimeout:        90 * time.Second,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// call is one request of the interface.
type call struct {
	lane   *lane
	method string
	path   string // below the base URL, escaped
	query  url.Values
	body   any // nil: none
	// again: sent twice, it does what it does once.
	again bool
	// once: one replica only, whatever happens.
	once bool
	// wait is how long the server may keep the request before it answers.
	wait time.Duration
	// also is a status beside 200 with which the answer may come.
	also int
	// unknown, if set, tells that a try may have been applied without an answer.
	unknown *bool
}

var (
	// errUnsent reports a request that reached nobody for sure.
	errUnsent = errors.New("not sent")
	// errGarbled reports an answer that is none of tenure's.
	errGarbled = errors.New("this is no answer of a tenure server")
)

// send sends r to one replica after the other until one answers, or until
// sending it again could do harm, and decodes the answer into out. check says
// what is wrong with an answer that could be decoded, "" if nothing is.
func (c *Client) send(ctx context.Context, r call, out any, check func() string) error {
	var body []byte
	if r.body != nil {
		var err error
		if body, err = json.Marshal(r.body); err != nil {
			return fmt.Errorf("api: %s %s: %w", r.method, r.path, err)
		}
	}
	left := max(len(c.replicas), 2) // a single one gets a second, fresh connection
	if r.once {
		left = 1
	}
	for {
		i := c.current.Load()
		base := c.replicas[int(i)%len(c.replicas)]
		err := c.attempt(ctx, base, r, body, left, out, check)
		if err == nil {
			return nil
		}
		refusal, refused := errors.AsType[*Error](err)
		if refused && !refusal.elsewhere() {
			return err
		}
		if errors.Is(ctx.Err(), context.Canceled) {
			return c.failed(base, r, ctx, err) // the caller gave up, which says nothing of the replica
		}
		c.current.CompareAndSwap(i, (i+1)%uint32(len(c.replicas)))
		left--
		// A replica that is not ready has done nothing.
		undone := errors.Is(err, errUnsent) || refused && refusal.Code == CodeNotReady
		if r.unknown != nil && !undone {
			*r.unknown = true
		}
		if left <= 0 || ctx.Err() != nil || !undone && !r.again {
			return c.failed(base, r, ctx, err)
		}
	}
}

// elsewhere reports whether another replica may do better.
func (e *Error) elsewhere() bool {
	return e.Code == CodeNotReady || e.Code == CodeFault || e.Code == string(store.CodeNoContact)
}

// failed says what was tried. A refusal stays as it is.
func (c *Client) failed(base *url.URL, r call, ctx context.Context, err error) error {
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		err = fmt.Errorf("%w (%w)", ctx.Err(), err)
	}
	return fmt.Errorf("api: %s %s at %s: %w: %w", r.method, r.path, base.Host, store.ErrUnavailable, err)
}

// attempt sends r to one replica, with left tries to come, this one included.
func (c *Client) attempt(ctx context.Context, base *url.URL, r call, body []byte, left int, out any, check func() string) error {
	limit := c.timeout + r.wait
	if deadline, ok := ctx.Deadline(); ok && r.once {
		limit = time.Until(deadline) // the caller's to choose: a large batch takes its time
	} else if ok && left > 1 {
		limit = min(limit, time.Until(deadline)/time.Duration(left))
	}
	attempt, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	resp, sent, err := c.roundTrip(attempt, base, r, body)
	if err == nil {
		err = c.decode(resp, r.also, out, check)
		_ = resp.Body.Close()
	}
	if err == nil {
		return nil
	}
	if attempt.Err() != nil {
		// Whatever else stands in the pool may be as dead as this one.
		r.lane.closeIdle()
	}
	if !sent {
		err = fmt.Errorf("%w: %w", errUnsent, err)
	}
	return err
}

// roundTrip sends one request and reads the head of the answer. sent is false if
// the replica cannot have got anything of it.
func (c *Client) roundTrip(ctx context.Context, base *url.URL, r call, body []byte) (resp *http.Response, sent bool, err error) {
	var connected atomic.Bool
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }}
	target := base.String() + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	var reader io.Reader
	if body != nil {
		reader = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), r.method, target, reader)
	if err != nil {
		return nil, false, err
	}
	req.Header.Set("User-Agent", c.agent)
	req.Header.Set("Accept", "application/json, "+ProblemType+", text/event-stream")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err = r.lane.transport.RoundTrip(req) // which follows no redirect
	return resp, connected.Load(), err
}

// decode reads a whole answer into out, or returns the *Error that it is.
func (c *Client) decode(resp *http.Response, also int, out any, check func() string) error {
	body, err := io.ReadAll(io.LimitReader(resp.Body, c.maxBody+1))
	if err != nil {
		return err
	}
	if int64(len(body)) > c.maxBody {
		return fmt.Errorf("%w: it is larger than %d bytes", errGarbled, c.maxBody)
	}
	mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if (resp.StatusCode == http.StatusOK || resp.StatusCode == also) && mediaType == "application/json" {
		if err := whole(body, out); err != nil {
			return err
		}
		if wrong := check(); wrong != "" {
			return fmt.Errorf("%w: %s", errGarbled, wrong)
		}
		return nil
	}
	return refusal(resp.StatusCode, mediaType, body)
}

// whole decodes one JSON value and nothing after it.
func whole(body []byte, out any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	if err := d.Decode(out); err != nil {
		return fmt.Errorf("%w: %w", errGarbled, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: more follows its JSON", errGarbled)
	}
	return nil
}

// refusal returns what an answer with another status than 200 means.
func refusal(status int, mediaType string, body []byte) error {
	if mediaType == ProblemType {
		var p Problem
		if err := whole(body, &p); err == nil {
			if e, ok := p.Error(status); ok {
				return e
			}
		}
	}
	switch status { // of a proxy that wants a credential
	case http.StatusUnauthorized:
		return Refuse(CodeUnauthorized, "api: status 401 without tenure's answer: something on the way wants a credential")
	case http.StatusForbidden:
		return Refuse(CodeForbidden, "api: status 403 without tenure's answer: something on the way refuses the request")
	}
	return fmt.Errorf("%w: status %d, %q", errGarbled, status, mediaType)
}

// jitter returns a random time between half of d and d.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// pause waits for d, and returns the context's error if it ends before.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
