package dashboard

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/store"
)

//go:embed static
var static embed.FS

// Config sets a Dashboard up. Only API is needed.
type Config struct {
	// API is the interface: all of /v1. Requests for other paths than "/" and those
	// below "/ui/" go to it as they are.
	API http.Handler
	// Logger gets what went wrong. Nil discards.
	Logger *slog.Logger
}

// Dashboard serves the pages. It is safe for concurrent use. It starts one
// goroutine when somebody begins to watch a page, which ends with the last viewer.
type Dashboard struct {
	api    http.Handler
	log    *slog.Logger
	mux    *http.ServeMux
	cross  *http.CrossOriginProtection
	assets map[string]asset
	pages  cache
	live   live
	rates  rates
	pasts  pasts
}

// asset is a file of the binary. Its path has a sum of its content, so that a
// browser keeps it for good.
type asset struct {
	kind    string
	content []byte
	gzipped []byte
}

// New returns the pages over an interface.
func New(cfg Config) *Dashboard {
	d := &Dashboard{api: cfg.API, log: cfg.Logger, mux: http.NewServeMux(), cross: http.NewCrossOriginProtection()}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	d.live.d = d
	d.assets = loadAssets()
	d.mux.HandleFunc("GET /ui/static/{file}", d.serveAsset)
	d.mux.HandleFunc("GET /ui/login", d.showLogin)
	d.mux.HandleFunc("POST /ui/login", d.login)
	d.mux.HandleFunc("POST /ui/logout", d.logout)
	d.mux.Handle("GET /ui/live", d.viewed(d.live.serve))
	for pattern, show := range map[string]showFunc{
		"GET /ui/{$}":          showFleet,
		"GET /ui/brake":        showBrake,
		"GET /ui/nodes/{id}":   d.showNode,
		"GET /ui/leases":       d.showLeases,
		"GET /ui/lease":        showLease,
		"GET /ui/lease/revoke": showRevoke,
		"GET /ui/work":         d.showWorks,
		"GET /ui/work/{id}":    d.showWork,
		"GET /ui/events":       showEvents,
		"GET /ui/why":          showWhy,
	} {
		d.mux.Handle(pattern, d.page(show))
	}
	for pattern, read := range map[string]dataFunc{
		"GET /ui/data/ages":          agesData,
		"GET /ui/data/beats/{id}":    beatsData,
		"GET /ui/data/renewals/{id}": d.renewalsData,
		"GET /ui/data/progress/{id}": d.progressData,
	} {
		d.mux.Handle(pattern, d.data(read))
	}
	for pattern, act := range map[string]actFunc{
		"POST /ui/nodes/{id}/cordon": cordon,
		"POST /ui/nodes/{id}/drain":  drain,
		"POST /ui/nodes/{id}/resume": resume,
		"POST /ui/work/{id}/stop":    stopWork,
		"POST /ui/work/{id}/move":    moveWork,
		"POST /ui/lease/revoke":      revoke,
		"POST /ui/brake/confirm":     confirmBrake,
		"POST /ui/brake/release":     releaseBrake,
	} {
		d.mux.Handle(pattern, d.action(act))
	}
	d.mux.HandleFunc("GET /ui/", func(w http.ResponseWriter, r *http.Request) {
		d.refuse(w, r, &viewer{}, api.Refuse(api.CodeNoSuchPath, "There is no page of this name."))
	})
	return d
}

// policy lets a page load what is in the binary and nothing else, and run no
// script or style that stands in it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP serves the pages, and passes everything else on to the interface.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/":
		http.Redirect(w, r, "/ui/", http.StatusFound)
		return
	case r.URL.Path == "/ui":
		http.Redirect(w, r, "/ui/", http.StatusMovedPermanently)
		return
	case !strings.HasPrefix(r.URL.Path, "/ui/"):
		d.api.ServeHTTP(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	if err := d.cross.Check(r); err != nil {
		http.Error(w, "This request came from another site.", http.StatusForbidden)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
	d.mux.ServeHTTP(w, r)
}

// loadAssets reads the files of the binary, by the names that pages use.
func loadAssets() map[string]asset {
	kinds := map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".txt": "text/plain; charset=utf-8", ".svg": "image/svg+xml"}
	assets := map[string]asset{}
	err := fs.WalkDir(static, "static", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := static.ReadFile(name)
		assets[path.Base(name)] = asset{kinds[path.Ext(name)], content, compressed(content)}
		return err
	})
	if err != nil {
		panic(err) // what is embedded can be read
	}
	return assets
}

// assetPath returns the path of a file by its name.
func assetPath(name string) string {
	content, err := static.ReadFile("static/" + name)
	if err != nil {
		panic(err) // a template names a file that is not there; every test sees it
	}
	sum := sha256.Sum256(content)
	return "/ui/static/" + name + "?v=" + base64.RawURLEncoding.EncodeToString(sum[:9])
}

func (d *Dashboard) serveAsset(w http.ResponseWriter, r *http.Request) {
	a, ok := d.assets[r.PathValue("file")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", a.kind)
	if r.URL.Query().Has("v") {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	send(w, r, http.StatusOK, a.content, a.gzipped)
}

// send writes an answer, compressed if the reader takes that.
func send(w http.ResponseWriter, r *http.Request, status int, content, gzipped []byte) {
	w.Header().Set("Vary", "Accept-Encoding")
	if gzipped != nil && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
		content = gzipped
	}
	w.WriteHeader(status)
	_, _ = w.Write(content) // whoever asked is gone
}

// question is what a page is asked.
type question struct {
	*api.Client
	r      *http.Request // its URL alone may be used: others share the answer
	viewer *viewer
}

func (q *question) get(name string) string { return q.r.URL.Query().Get(name) }
func (q *question) id() string             { return q.r.PathValue("id") }

// view is what a page says.
type view struct {
	title    string
	template string
	data     any
	status   int // 0: 200
}

// showFunc asks the interface for what a page shows.
type showFunc func(ctx context.Context, q *question) (view, error)

// renderTime bounds how long a page may take to be made.
const renderTime = 10 * time.Second

// page serves what show returns: the whole page, or only what changes of it.
func (d *Dashboard) page(show showFunc) http.Handler {
	return d.viewed(func(w http.ResponseWriter, r *http.Request, v *viewer) {
		made := d.pages.get(d.key(r, v), func() rendered {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), renderTime)
			defer cancel()
			shown, err := show(ctx, &question{v.client, r, v})
			if err != nil {
				shown = failure(err)
			}
			return d.render(shown, v)
		})
		d.answer(w, r, v, made)
	})
}

// answer sends a page that was made, or the part of it that changes if a page that
// is shown asks for that.
func (d *Dashboard) answer(w http.ResponseWriter, r *http.Request, v *viewer, made rendered) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if r.Header.Get("HX-Request") != "" {
		send(w, r, made.status, made.main, made.gzipped)
		return
	}
	var whole bytes.Buffer
	err := templates.ExecuteTemplate(&whole, "layout", layout{Title: made.title, Path: r.URL.Path, URL: r.URL.RequestURI(), Viewer: v, Main: trusted(made.main)})
	if err != nil {
		d.log.Error("dashboard page", "path", r.URL.Path, "err", err)
		http.Error(w, "This page cannot be shown by a defect of the server; its log says more.", http.StatusInternalServerError)
		return
	}
	send(w, r, made.status, whole.Bytes(), compressed(whole.Bytes()))
}

// refuse shows an error as a page.
func (d *Dashboard) refuse(w http.ResponseWriter, r *http.Request, v *viewer, err error) {
	d.answer(w, r, v, d.render(failure(err), v))
}

// failure is the page of an error.
func failure(err error) view {
	v := view{title: "Not available", template: "failure", status: http.StatusServiceUnavailable, data: failed{Text: err.Error()}}
	if refusal, ok := errors.AsType[*api.Error](err); ok {
		v.status = refusal.Status
		v.data = failed{Code: refusal.Code, Text: refusal.Message}
	}
	if errors.Is(err, store.ErrInvalid) { // a name that nothing can have
		v.status = http.StatusBadRequest
		v.data = failed{Code: string(store.CodeInvalid), Text: err.Error()}
	}
	return v
}

type failed struct{ Code, Text string }

// dataFunc asks the interface for the figures of a chart.
type dataFunc func(ctx context.Context, q *question) (any, error)

// data serves the figures of a chart as JSON.
func (d *Dashboard) data(read dataFunc) http.Handler {
	return d.viewed(func(w http.ResponseWriter, r *http.Request, v *viewer) {
		made := d.pages.get(d.key(r, v), func() rendered {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), renderTime)
			defer cancel()
			figures, err := read(ctx, &question{v.client, r, v})
			return asJSON(figures, err)
		})
		w.Header().Set("Content-Type", "application/json")
		send(w, r, made.status, made.main, made.gzipped)
	})
}

func (d *Dashboard) key(r *http.Request, v *viewer) key {
	return key{url: r.URL.RequestURI(), role: v.Role, turn: d.live.turn.Load()}
}
