package browsertest

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// browser is one tab. What its page complains of fails the test.
type browser struct {
	t   testing.TB
	ctx context.Context

	*complaints
}

// complaints are what pages complained of.
type complaints struct {
	mu         sync.Mutex
	complaints []string
}

// of is the browser for a part of a test.
func (b *browser) of(t testing.TB) *browser {
	return &browser{t: t, ctx: b.ctx, complaints: b.complaints}
}

// newBrowser starts Chromium, which is looked for in PATH.
func newBrowser(t testing.TB) *browser {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		if os.Getenv("TENURE_TEST_STRICT") == "1" {
			t.Fatal("chromium is not in PATH; tools/need chromium installs it")
		}
		t.Skip("chromium is not in PATH; tools/need chromium installs it")
	}
	for try := 1; ; try++ {
		b, err := startBrowser(t, path)
		if err == nil {
			b.do(call(log.Enable, cdp.Empty{}), call(runtime.Enable, cdp.Empty{}), call(page.Enable, page.EnableParams{}))
			return b
		}
		if try == 3 {
			t.Fatal(err)
		}
		t.Logf("%s crashed as it started, once more: %v", path, err) // it does, now and then
	}
}

func startBrowser(t testing.TB, path string) (*browser, error) {
	t.Helper()
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.DisableGPU, chromedp.WindowSize(1440, 900),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.UserDataDir(t.TempDir()), chromedp.WSURLReadTimeout(2*time.Minute))
	if os.Geteuid() == 0 {
		opts = append(opts, chromedp.NoSandbox)
	}
	allocator, stop := chromedp.NewExecAllocator(context.Background(), opts...)
	ctx, end := chromedp.NewContext(allocator)
	b := &browser{t: t, ctx: ctx, complaints: &complaints{}}
	if err := chromedp.Listen(ctx, b.listen); err != nil { // which starts the browser, and must have no bound
		end()
		stop()
		return nil, err
	}
	t.Cleanup(stop)
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // waits until the browser has ended
		end()
	})
	return b, nil
}

// call is a command of the protocol as an action.
func call[P, R any](command cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, command, params)
		return err
	})
}

func (b *browser) listen(event any) {
	complain := func(format string, args ...any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.complaints.complaints = append(b.complaints.complaints, fmt.Sprintf(format, args...))
	}
	switch e := event.(type) {
	case *log.EventEntryAdded:
		if e.Entry.Source == log.EntrySourceSecurity || e.Entry.Level == log.EntryLevelError && e.Entry.Source != log.EntrySourceNetwork {
			complain("%s: %s", e.Entry.Source, e.Entry.Text)
		}
	case *runtime.EventExceptionThrown:
		text, _ := json.Marshal(e.ExceptionDetails)
		complain("exception: %s", text)
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			text, _ := json.Marshal(e.Args)
			complain("console: %s", text)
		}
	case *page.EventJavascriptDialogOpening:
		complain("dialog: %s", e.Message)
		go func() {
			_, _ = chromedp.Call(b.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: true})
		}()
	}
}

// quiet fails if a page complained.
func (b *browser) quiet() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.complaints.complaints {
		b.t.Errorf("the page complains: %s", c)
	}
	b.complaints.complaints = nil
}

// do runs actions within a bound.
func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatalf("browser: %v", err)
	}
}

// open shows a page.
func (b *browser) open(url string) {
	b.t.Helper()
	b.do(chromedp.Navigate(url))
	b.until("the page "+url, "document.getElementById('main') !== null")
}

// eval returns the value of an expression.
func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	return get(b, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// get returns the value of an action within a bound.
func get[T any](b *browser, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	out, err := chromedp.Run(ctx, action)
	if err != nil {
		b.t.Fatalf("browser: %v", err)
	}
	return out
}

// until polls an expression until it is true. One that fails, as it may while a
// page is loaded, is not.
func (b *browser) until(what, expression string) {
	b.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	tried := "(async () => { try { return Boolean(await (" + expression + ")) } catch { return false } })()"
	for bound := time.Now().Add(time.Minute); !eval[bool](b, tried); <-tick.C {
		if time.Now().After(bound) {
			b.quiet()
			b.t.Fatalf("not in time: %s; the page says %.600q", what, eval[string](b, "document.body.innerText"))
		}
	}
}

// says waits until the page that is loaded has a text.
func (b *browser) says(what string) {
	b.t.Helper()
	b.until(what, fmt.Sprintf("document.readyState === 'complete' && document.body.innerText.includes(%q)", what))
}

// fill fills the fields of a form, and sends it.
func (b *browser) fill(form string, fields map[string]string) {
	b.t.Helper()
	script := fmt.Sprintf("(() => { const f = document.querySelector(%q);", `form[action="`+form+`"]`)
	for name, value := range fields {
		script += fmt.Sprintf("f.elements[%q].value = %q;", name, value)
	}
	eval[bool](b, script+"f.requestSubmit(); return true; })()")
}

// login sends a token, once the page for that is there.
func (b *browser) login(token string) {
	b.t.Helper()
	b.until("the login", "document.readyState === 'complete' && location.pathname === '/ui/login'")
	eval[bool](b, fmt.Sprintf("document.querySelector('input[name=token]').value = %q; document.querySelector('form.stack').requestSubmit(); true", token))
}

// legends fails for a chart whose legend has a value that says nothing, or two
// series of one colour.
func (b *browser) legends(look string) {
	b.t.Helper()
	b.until("values in the legends", "[...document.querySelectorAll('.u-value')].every(v => v.textContent !== '--' && v.textContent !== '')")
	for _, chart := range eval[[]struct {
		ID             string
		Values, Labels []string
		Colours        []string
	}](b, `[...document.querySelectorAll('.chart')].filter(c => c.querySelector('.u-legend')).map(c => ({ID: c.id,
		Values: [...c.querySelectorAll('.u-value')].map(v => v.textContent), Labels: [...c.querySelectorAll('.u-label')].map(l => l.textContent),
		Colours: [...c.querySelectorAll('.u-series')].slice(1).map(s => getComputedStyle(s.querySelector('.u-marker')).borderTopColor)}))`) {
		seen := map[string]bool{}
		for i, c := range chart.Colours {
			if seen[c] {
				b.t.Errorf("%s: %s: two of the series %q have the colour %s", look, chart.ID, chart.Labels[1:], c)
			}
			seen[c] = true
			if v := chart.Values[i+1]; strings.Trim(v, "–—- ") == "" {
				b.t.Errorf("%s: %s: %q says %q", look, chart.ID, chart.Labels[i+1], v)
			}
		}
		if len(chart.Colours) == 0 {
			b.t.Errorf("%s: %s has no series", look, chart.ID)
		}
	}
}

// size sets the viewport, as that of a phone if it is narrow, and light or dark.
func (b *browser) size(width, height int64, dark bool) {
	b.t.Helper()
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	b.do(call(emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1, Mobile: width < 600}),
		call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}))
}

//go:embed testdata/axe/axe-4.14.1.min.js
var axeScript string

// axe fails for what axe-core finds serious or critical in the page as it is.
func (b *browser) axe(look string) {
	b.t.Helper()
	eval[bool](b, axeScript+"; true")
	found := eval[[]struct {
		ID, Impact, Help string
		Nodes            []struct{ HTML, FailureSummary string }
	}](b, `axe.run(document, {resultTypes: ["violations"]}).then(r => r.violations.map(v => ({ID: v.id, Impact: v.impact, Help: v.help,
		Nodes: v.nodes.slice(0, 3).map(n => ({HTML: n.html.slice(0, 300), FailureSummary: n.failureSummary}))})))`)
	for _, v := range found {
		if v.Impact == "serious" || v.Impact == "critical" {
			b.t.Errorf("%s: axe: %s (%s): %s: %+v", look, v.ID, v.Impact, v.Help, v.Nodes)
		}
	}
}

// shoot writes a picture of the whole page to the folder that TENURE_SCREENSHOTS
// names, or to one of the test.
func (b *browser) shoot(name string) {
	b.t.Helper()
	dir := os.Getenv("TENURE_SCREENSHOTS")
	if dir == "" {
		dir = b.t.TempDir()
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	picture := get(b, chromedp.FullScreenshot(100))
	if err := os.WriteFile(filepath.Join(dir, name+".png"), picture, 0o644); err != nil {
		b.t.Fatal(err)
	}
}
