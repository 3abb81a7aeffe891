package dashboard

import (
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
)

//go:embed templates
var templateFiles embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"asset": assetPath, "span": span, "spanMS": spanMS, "spanUS": spanUS, "when": when, "clock": clock, "ago": ago, "url": link,
	"count": count, "plural": plural, "share": share, "str": func(v any) string { return fmt.Sprint(v) },
	"severity": severity, "len64": func(n int) int64 { return int64(n) }, "traits": api.NodeTraits, "reasons": reasonCodes,
	"millis": func(us int64) string { return fmt.Sprintf("%.1f ms", float64(us)/1000) },
	"legend": func() []string { return []string{"held", "released", "expired", "revoked", "replaced", "gap"} },
	"next":   func(s string) string { return strings.TrimPrefix(strings.TrimSpace(s), "next: ") }, "section": func(path, prefix string) bool { return path == prefix || strings.HasPrefix(path, prefix+"/") },
}).ParseFS(templateFiles, "templates/*.html"))

// layout is what surrounds a page.
type layout struct {
	Title, Path, URL string
	Viewer           *viewer
	Main             template.HTML
}

// trusted marks what a template of ours has made.
func trusted(made []byte) template.HTML { return template.HTML(made) }

// shown is what a template gets.
type shown struct {
	Viewer *viewer
	Title  string
	Data   any
}

// render makes the part of a page that changes.
func (d *Dashboard) render(v view, who *viewer) rendered {
	var b bytes.Buffer
	if v.status == 0 {
		v.status = http.StatusOK
	}
	if err := templates.ExecuteTemplate(&b, v.template, shown{who, v.title, v.data}); err != nil {
		d.log.Error("dashboard page", "template", v.template, "err", err)
		b.Reset()
		b.WriteString("<h1>This page cannot be shown</h1><p>The server failed by a defect of its own; its log says more.</p>")
		v.status = http.StatusInternalServerError
	}
	main := visible(b.Bytes())
	return rendered{title: v.title, status: v.status, main: main, gzipped: compressed(main)}
}

// asJSON is what a chart gets. What it cannot show is empty.
func asJSON(figures any, err error) rendered {
	made := rendered{status: http.StatusOK}
	if err != nil {
		made.status = http.StatusServiceUnavailable
		if refusal, ok := errors.AsType[*api.Error](err); ok {
			made.status = refusal.Status
		}
		figures = struct{}{}
	}
	if made.main, err = json.Marshal(figures); err != nil {
		made.status, made.main = http.StatusInternalServerError, []byte("{}")
	}
	made.gzipped = compressed(made.main)
	return made
}

// compressed returns content in gzip's form; nil if that is not worth it.
func compressed(content []byte) []byte {
	if len(content) < 1<<10 {
		return nil
	}
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err == nil {
		_, err = z.Write(content)
	}
	if err != nil || z.Close() != nil {
		return nil
	}
	return b.Bytes()
}

// visible writes out every character of a page that could act on how others are
// shown, be it a control character, an escape sequence or a mark of direction. Our
// own texts have none but the ends of lines.
func visible(page []byte) []byte {
	clean := func(r rune) bool { return r == '\n' || strconv.IsPrint(r) && r != utf8.RuneError }
	if bytes.IndexFunc(page, func(r rune) bool { return !clean(r) }) < 0 {
		return page
	}
	out := make([]byte, 0, len(page)+64)
	for len(page) > 0 {
		r, n := utf8.DecodeRune(page)
		switch {
		case r == utf8.RuneError && n == 1:
			out = fmt.Appendf(out, `\x%02x`, page[0])
		case clean(r) || r == utf8.RuneError:
			out = append(out, page[:n]...)
		case r < 0x80:
			out = fmt.Appendf(out, `\x%02x`, r)
		case r <= 0xffff:
			out = fmt.Appendf(out, `\u%04x`, r)
		default:
			out = fmt.Appendf(out, `\U%08x`, r)
		}
		page = page[n:]
	}
	return out
}

// span writes a duration for people: "3.2s", "34s", "5m10s", "3h5m", "2d4h".
func span(d time.Duration) string {
	two := func(d, big time.Duration, bigName string, small time.Duration, smallName string) string {
		s := fmt.Sprintf("%d%s", d/big, bigName)
		if rest := d % big / small; rest > 0 {
			s += fmt.Sprintf("%d%s", rest, smallName)
		}
		return s
	}
	switch d = max(d, 0); {
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Round(100*time.Millisecond).Seconds(), 'f', -1, 64) + "s"
	case d.Round(time.Second) < time.Minute:
		return fmt.Sprintf("%ds", d.Round(time.Second)/time.Second)
	case d.Round(time.Second) < time.Hour:
		return two(d.Round(time.Second), time.Minute, "m", time.Second, "s")
	case d.Round(time.Minute) < 48*time.Hour:
		return two(d.Round(time.Minute), time.Hour, "h", time.Minute, "m")
	default:
		return two(d.Round(time.Hour), 24*time.Hour, "d", time.Hour, "h")
	}
}

func spanMS(ms int64) string { return span(time.Duration(ms) * time.Millisecond) }
func spanUS(us int64) string { return span(time.Duration(us) * time.Microsecond) }

// when writes an instant in full, for people and machines.
func when(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }

// clock writes an instant as briefly as the day allows.
func clock(t time.Time) string {
	t = t.UTC()
	if now := time.Now().UTC(); t.YearDay() != now.YearDay() || t.Year() != now.Year() {
		return t.Format("2006-01-02 15:04:05")
	}
	return t.Format("15:04:05")
}

func ago(t time.Time) string { return span(time.Since(t)) + " ago" }

// link returns a path with a query of names and values, without those that are "".
func link(path string, pairs ...any) string {
	query := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if value := fmt.Sprint(pairs[i+1]); value != "" {
			query.Set(fmt.Sprint(pairs[i]), value)
		}
	}
	if len(query) == 0 {
		return path
	}
	return path + "?" + query.Encode()
}

// count writes a number with a mark at each thousand.
func count(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return count(n) + " " + one + "s"
}

// share is part of whole in percent, from 0 to 100.
func share(part, whole int64) int64 {
	if whole <= 0 {
		return 0
	}
	return min(max(part*100/whole, 0), 100)
}

// reasonCodes are the reasons for which a node of its own gets no new work.
func reasonCodes() []string {
	var codes []string
	for _, r := range fleet.Reasons() {
		if r.Own {
			codes = append(codes, string(r.Code))
		}
	}
	return codes
}

// severity says how grave a reason is, for the style of its mark.
func severity(code fleet.Code) fleet.Severity {
	r, ok := fleet.ReasonOf(code)
	if !ok {
		return fleet.Notice
	}
	return r.Severity
}
