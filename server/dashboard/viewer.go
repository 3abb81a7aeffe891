package dashboard

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/tenurehq/tenure/api"
)

// cookieName is of the cookie with the bearer token of who has logged in.
const cookieName = "tenure_token"

// viewer is who looks. The zero viewer is nobody.
type viewer struct {
	Role     string
	LoggedIn bool // by a token
	client   *api.Client
	token    string
}

// Operator reports whether the viewer may change anything.
func (v *viewer) Operator() bool { return v.Role == "operator" }

// identify asks the interface whom it takes the sender of r for.
func (d *Dashboard) identify(ctx context.Context, r *http.Request, token string) (*viewer, error) {
	c, err := d.client(r.Host, token)
	if err != nil {
		return nil, err
	}
	id, err := c.Whoami(ctx)
	if err != nil {
		return nil, err
	}
	return &viewer{Role: id.Role, LoggedIn: token != "", client: c, token: token}, nil
}

// viewed serves those whom the interface lets in, and leads the others to the login.
func (d *Dashboard) viewed(serve func(http.ResponseWriter, *http.Request, *viewer)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := ""
		if c, err := r.Cookie(cookieName); err == nil {
			token, _ = url.QueryUnescape(c.Value) // "" is nobody's
		}
		v, err := d.identify(r.Context(), r, token)
		switch refusal, refused := errors.AsType[*api.Error](err); {
		case err == nil:
			serve(w, r, v)
		case refused && refusal.Code == api.CodeUnauthorized:
			to := "/ui/login"
			if r.Method == http.MethodGet && r.Header.Get("HX-Request") == "" && !strings.HasPrefix(r.URL.Path, "/ui/data/") {
				to += "?next=" + url.QueryEscape(r.URL.RequestURI())
			}
			if r.Header.Get("HX-Request") != "" {
				w.Header().Set("HX-Redirect", to)
				w.WriteHeader(http.StatusNoContent)
				return
			}
			http.Redirect(w, r, to, http.StatusSeeOther)
		default:
			d.refuse(w, r, &viewer{}, err)
		}
	})
}

// local returns where to go after the login: a page of ours, whatever was asked for.
func local(next string) string {
	u, err := url.Parse(next)
	if err != nil || u.IsAbs() || u.Host != "" || !strings.HasPrefix(u.Path, "/ui/") || strings.Contains(u.Path, "..") || strings.ContainsAny(next, "\\\r\n") {
		return "/ui/"
	}
	return u.RequestURI()
}

type loginForm struct {
	Next  string
	Wrong string
}

func (d *Dashboard) showLogin(w http.ResponseWriter, r *http.Request) {
	d.answer(w, r, &viewer{}, d.render(view{title: "Log in", template: "login", data: loginForm{Next: local(r.URL.Query().Get("next"))}}, &viewer{}))
}

func (d *Dashboard) login(w http.ResponseWriter, r *http.Request) {
	token, next := strings.TrimSpace(r.PostFormValue("token")), local(r.PostFormValue("next"))
	if _, err := d.identify(r.Context(), r, token); err != nil || token == "" {
		wrong := "This token is not one of the server's."
		if refusal, ok := errors.AsType[*api.Error](err); ok && refusal.Code != api.CodeUnauthorized {
			wrong = refusal.Message
		}
		d.answer(w, r, &viewer{}, d.render(view{title: "Log in", template: "login", status: http.StatusUnauthorized, data: loginForm{next, wrong}}, &viewer{}))
		return
	}
	http.SetCookie(w, d.cookie(r, token, 0))
	http.Redirect(w, r, next, http.StatusSeeOther)
}

func (d *Dashboard) logout(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, d.cookie(r, "", -1))
	http.Redirect(w, r, "/ui/login", http.StatusSeeOther)
}

// cookie keeps a token until the browser ends. It travels over TLS only, but for a
// server that is reached without it, by a name of this host.
func (d *Dashboard) cookie(r *http.Request, token string, age int) *http.Cookie {
	return &http.Cookie{
		Name: cookieName, Value: url.QueryEscape(token), Path: "/ui/", MaxAge: age, HttpOnly: true,
		Secure: r.TLS != nil || !loopback(r.Host), SameSite: http.SameSiteStrictMode,
	}
}

func loopback(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}
