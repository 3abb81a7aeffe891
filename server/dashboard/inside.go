package dashboard

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync"

	"github.com/tenurehq/tenure/api"
)

// inside sends requests to a handler of this process. host is that by which the
// viewer has reached us: who may ask can depend on it.
type inside struct {
	handler http.Handler
	host    string
}

// client returns a client of the interface with a viewer's credential, "" for none.
func (d *Dashboard) client(host, token string) (*api.Client, error) {
	return api.NewClient(api.Config{
		Servers: []string{"http://localhost"}, Token: token, UserAgent: "tenure-dashboard",
		Transport: inside{d.api, host},
	})
}

// RoundTrip is of http.RoundTripper. The handler runs until the answer's body is
// closed or the request's context ends.
func (t inside) RoundTrip(req *http.Request) (*http.Response, error) {
	if trace := httptrace.ContextClientTrace(req.Context()); trace != nil && trace.GotConn != nil {
		trace.GotConn(httptrace.GotConnInfo{Reused: true}) // from here on it may have been applied
	}
	ctx, cancel := context.WithCancel(req.Context())
	in := req.Clone(ctx)
	in.Host, in.RequestURI, in.RemoteAddr = t.host, req.URL.RequestURI(), "127.0.0.1:0"
	if in.Body == nil {
		in.Body = http.NoBody
	}
	reader, writer := io.Pipe()
	w := &answer{header: http.Header{}, body: writer, began: make(chan struct{})}
	go func() {
		err := io.EOF
		defer func() {
			if fault := recover(); fault != nil {
				err = errAborted
			}
			w.WriteHeader(http.StatusOK)
			_ = writer.CloseWithError(err)
		}()
		t.handler.ServeHTTP(w, in)
	}()
	select {
	case <-w.began:
	case <-ctx.Done():
		cancel()
		_ = reader.CloseWithError(ctx.Err())
		return nil, ctx.Err()
	}
	return &http.Response{
		Status: http.StatusText(w.status), StatusCode: w.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.sent, Body: &body{reader, cancel}, ContentLength: -1, Request: req,
	}, nil
}

var errAborted = errors.New("dashboard: the interface cut the answer off")

// answer is an http.ResponseWriter whose reader is in this process.
type answer struct {
	header http.Header
	body   *io.PipeWriter
	once   sync.Once
	began  chan struct{} // closed when status and sent are set
	status int
	sent   http.Header
}

// Header is of http.ResponseWriter.
func (w *answer) Header() http.Header { return w.header }

// WriteHeader is of http.ResponseWriter.
func (w *answer) WriteHeader(status int) {
	w.once.Do(func() {
		w.status, w.sent = status, w.header.Clone()
		close(w.began)
	})
}

// Write is of http.ResponseWriter.
func (w *answer) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

// Flush is of http.Flusher: what was written has been read.
func (w *answer) Flush() { w.WriteHeader(http.StatusOK) }

// body ends the handler when it is closed.
type body struct {
	*io.PipeReader
	cancel context.CancelFunc
}

// Close is of io.Closer.
func (b *body) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}
