package endpoint

import (
	"net/http"
	"path"

	"github.com/tenurehq/tenure/api"
)

// Router answers from mux, and with a problem where mux would redirect, or has
// no such path or method.
func Router(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := r.URL.Path
		if clean := path.Clean(p); p == "" || p[0] != '/' || clean != p && clean+"/" != p {
			Problem(w, api.Refuse(api.CodeNoSuchPath, "no such path: it has an empty, \".\" or \"..\" segment; names with slashes go into the query"))
			return
		}
		if _, pattern := mux.Handler(r); pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
			other := r.Clone(r.Context())
			other.Method = method
			if _, pattern := mux.Handler(other); pattern != "" {
				w.Header().Set("Allow", method)
				Problem(w, api.Refuse(api.CodeNoSuchMethod, "this path takes %s, not %s", method, r.Method))
				return
			}
		}
		Problem(w, api.Refuse(api.CodeNoSuchPath, "no such path: %q", shorten(p)))
	})
}
