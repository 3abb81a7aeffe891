package endpoint_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server/endpoint"
)

type input struct {
	ID    string `path:"id"`
	After uint64 `query:"after"`
	Wait  int64  `query:"wait_ms" minimum:"0" maximum:"60000"`
	Last  bool   `query:"last"`
	Body  body
}

type body struct {
	Name  string `json:"name"`
	Parts []part `json:"parts,omitempty"`
	One   *part  `json:"one,omitempty"`
	N     int    `json:"n,omitempty" minimum:"2" maximum:"5"`
}

type part struct {
	Size int64 `json:"size" minimum:"1" maximum:"10"`
}

type output struct {
	Status int
	Body   map[string]any
}

func server(t *testing.T, register func(huma.API)) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	config := huma.DefaultConfig("test", "1")
	config.CreateHooks = nil
	register(humago.New(mux, config))
	srv := httptest.NewServer(endpoint.Router(mux))
	t.Cleanup(srv.Close)
	return srv
}

func post(t *testing.T, url, text string) (int, http.Header, string) {
	t.Helper()
	resp, err := http.Post(url, "application/json; charset=utf-8", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(b)
}

func TestRegister(t *testing.T) {
	t.Parallel()
	srv := server(t, func(a huma.API) {
		endpoint.Register(a, huma.Operation{OperationID: "put", Method: "POST", Path: "/v1/x/{id}"}, func(_ context.Context, in *input) (*output, error) {
			switch in.Body.Name {
			case "full":
				e := api.Refuse(fleet.CodeNoCapacity, "no node has room")
				e.RetryAfter, e.Counts = 1500*time.Millisecond, map[fleet.Code]int{fleet.CodeCordoned: 2}
				return nil, e
			case "unready":
				return &output{Status: http.StatusServiceUnavailable, Body: map[string]any{"eligible": false}}, nil
			}
			return &output{Body: map[string]any{"id": in.ID, "after": fmt.Sprint(in.After), "wait": in.Wait, "last": in.Last, "name": in.Body.Name}}, nil
		}, nil)
	})
	for _, c := range []struct {
		path, body string
		status     int
		want       string // in the answer
	}{
		{"/a%2Fb?after=18446744073709551615&wait_ms=60000&last=true", `{"name":"x"}`, 200, `{"after":"18446744073709551615","id":"a/b","last":true,"name":"x","wait":60000}`},
		{"/a", `{"name":"unready"}`, 503, `"eligible":false`},
		{"/a", `{"name":"full"}`, 503, `"counts":{"cordoned":2}`},
		{"/a?after=-1", `{}`, 400, `"field":"after"`},
		{"/a?wait_ms=60001", `{}`, 400, `from 0 to 60000`},
		{"/a?last=1", `{}`, 400, `true or false`},
		{"/a", `{"parts":[{"size":1},{"size":11}]}`, 400, `"field":"parts[1].size"`},
		{"/a", `{"parts":[{"size":1e1}]}`, 400, `from 1 to 10`},
		{"/a", `{"one":{"size":0}}`, 400, `"field":"one.size"`},
		{"/a", `{"n":1}`, 400, `"field":"n"`},
		{"/a", `{"n":"3"}`, 400, `from 2 to 5`},
	} {
		status, h, got := post(t, srv.URL+"/v1/x"+c.path, c.body)
		if status != c.status || !strings.Contains(got, c.want) {
			t.Errorf("POST %s %s: got %d %s, want %d with %s", c.path, c.body, status, got, c.status, c.want)
		}
		if c.body == `{"name":"full"}` && (h.Get("Retry-After") != "2" || h.Get("Content-Type") != api.ProblemType) {
			t.Errorf("no room: got the head %v, want to be asked back after 2 s", h)
		}
	}
}

// TestSlowBody: a body that does not arrive does not hold a request up for long.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	srv := server(t, func(a huma.API) {
		endpoint.Register(a, huma.Operation{OperationID: "put", Method: "POST", Path: "/v1/x/{id}", BodyReadTimeout: 50 * time.Millisecond},
			func(context.Context, *input) (*output, error) { return &output{}, nil }, nil)
	})
	conn, err := net.Dial("tcp", strings.TrimPrefix(srv.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST /v1/x/a HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var p api.Problem
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || resp.StatusCode != http.StatusBadRequest || p.Field != "body" {
		t.Errorf("got %d %+v and error %v, want 400 about the body", resp.StatusCode, p, err)
	}
}

func TestStream(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	srv := server(t, func(a huma.API) {
		endpoint.Stream(a, huma.Operation{OperationID: "follow", Method: "GET", Path: "/v1/stream"}, func(ctx context.Context, in *struct {
			Kind string `query:"kind"`
		}) (<-chan endpoint.Event[part], error) {
			if in.Kind == "bad" {
				return nil, api.RefuseInvalid("kind", in.Kind, "another one")
			}
			context.AfterFunc(ctx, func() { close(ended) })
			events := make(chan endpoint.Event[part], 2)
			events <- endpoint.Event[part]{ID: 7, Data: part{Size: 1}}
			events <- endpoint.Event[part]{Data: part{Size: 2}}
			return events, nil
		}, nil)
	})
	resp, err := http.Get(srv.URL + "/v1/stream?kind=bad")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("a stream that cannot open: got %d, want 400", resp.StatusCode)
	}
	if resp, err = http.Get(srv.URL + "/v1/stream"); err != nil {
		t.Fatal(err)
	}
	const want = ": open\n\nid: 7\ndata: {\"size\":1}\n\ndata: {\"size\":2}\n\n"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != want || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("got %q and error %v, want %q", got, err, want)
	}
	resp.Body.Close()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Error("the stream goes on 30 s after its reader has gone")
	}
}
