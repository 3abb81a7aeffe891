package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

// order of an operator, as a form sends it.
type form struct {
	*api.Client
	r *http.Request
}

func (f form) id() string             { return f.r.PathValue("id") }
func (f form) get(name string) string { return strings.TrimSpace(f.r.PostFormValue(name)) }

// actFunc does what a form asks for, and returns the page that shows what came of it.
type actFunc func(ctx context.Context, f form) (page string, err error)

// action serves a form. What it says is judged by the interface.
func (d *Dashboard) action(act actFunc) http.Handler {
	return d.viewed(func(w http.ResponseWriter, r *http.Request, v *viewer) {
		page, err := act(r.Context(), form{v.client, r})
		d.live.next() // what was made before shows something that may be over
		if err != nil {
			d.refuse(w, r, v, err)
			return
		}
		http.Redirect(w, r, page, http.StatusSeeOther)
	})
}

func nodeURL(id string) string { return "/ui/nodes/" + url.PathEscape(id) }
func workURL(id string) string { return "/ui/work/" + url.PathEscape(id) }

func cordon(ctx context.Context, f form) (string, error) {
	_, err := f.Cordon(ctx, f.id(), api.CordonRequest{Actor: f.get("actor"), Reason: f.get("reason")})
	return nodeURL(f.id()), err
}

func drain(ctx context.Context, f form) (string, error) {
	r := api.DrainRequest{Actor: f.get("actor"), Reason: f.get("reason"), Move: f.get("move") != ""}
	if text := f.get("deadline"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			return "", api.RefuseInvalid("deadline", text, "a positive duration, such as 30m or 2h")
		}
		r.DeadlineMS = d.Milliseconds()
	}
	_, err := f.Drain(ctx, f.id(), r)
	return nodeURL(f.id()), err
}

func resume(ctx context.Context, f form) (string, error) {
	if f.get("reason") == "" {
		return "", api.RefuseInvalid("reason", "", "say why: it is shown to whoever asks")
	}
	_, err := f.Resume(ctx, f.id(), api.ResumeRequest{Actor: f.get("actor"), Reason: f.get("reason"), What: f.get("what")})
	return nodeURL(f.id()), err
}

func stopWork(ctx context.Context, f form) (string, error) {
	_, err := f.StopWork(ctx, f.id(), api.WorkOrder{Actor: f.get("actor"), Reason: f.get("reason")})
	return workURL(f.id()), err
}

func moveWork(ctx context.Context, f form) (string, error) {
	_, err := f.MoveWork(ctx, f.id(), api.WorkOrder{Actor: f.get("actor"), Reason: f.get("reason")})
	return workURL(f.id()), err
}

// revoke ends the term with the token that was shown, and no other.
func revoke(ctx context.Context, f form) (string, error) {
	name, why, by := f.get("name"), f.get("reason"), f.get("actor")
	if why == "" || by == "" {
		return "", api.RefuseInvalid("reason", why, "say who you are and why: it is shown to whoever asks")
	}
	if f.get("confirm") != name {
		return "", api.RefuseInvalid("confirm", f.get("confirm"), "write the name of the lease to confirm")
	}
	err := api.NewStore(f.Client).Revoke(ctx, name, tokenOf(f.get("token")), store.Revocation{Why: why, By: by, Now: f.get("now") != ""})
	return link("/ui/lease", "name", name), err
}

func confirmBrake(ctx context.Context, f form) (string, error) {
	_, err := f.ConfirmBrake(ctx, brakeRequest(f))
	return "/ui/brake", err
}

func releaseBrake(ctx context.Context, f form) (string, error) {
	_, err := f.ReleaseBrake(ctx, brakeRequest(f))
	return "/ui/brake", err
}

func brakeRequest(f form) api.BrakeRequest {
	domain := f.get("domain")
	if domain == "" {
		domain = fleet.DomainAll
	}
	return api.BrakeRequest{Domain: domain, Actor: f.get("actor"), Reason: f.get("reason")}
}
