package fleet

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tenurehq/tenure/store"
)

// Limits of what a node or a work item may say.
const (
	MaxID        = store.MaxName - len(LeasePrefix) // bytes of the id of a node or a work item
	MaxBytes     = 64 << 10                         // of all text of a Spec or of Facts
	MaxArgs      = 256                              // of a command
	MaxEnv       = 128
	MaxLabels    = 64
	MaxFeatures  = 256
	MaxArtifacts = 1024
	MaxLeftovers = 100
	MaxExclude   = 256
	MaxResources = 32
	MaxAmount    = 1_000_000_000_000_000 // of a resource; sums fit 64 bits
	MaxText      = 1024                  // bytes of a label's value, a reason, an address, …
	MaxMarker    = 4096                  // bytes of a progress marker
	MaxGrace     = time.Hour
	MaxStuck     = 366 * 24 * time.Hour
	// DefaultGrace is between SIGTERM and SIGKILL.
	DefaultGrace = 2 * time.Second
)

// InvalidError names a field, its value and the rule that it breaks. It matches
// store.ErrInvalid.
type InvalidError struct {
	Field string // "id", "labels", "env[PATH]", …
	Value string // as given, shortened
	Rule  string
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("fleet: %s %q: %s", e.Field, e.Value, e.Rule)
}

func (e *InvalidError) Unwrap() error { return store.ErrInvalid }

// CheckID returns an error matching store.ErrInvalid unless id, of a node or of a
// work item, is 1–195 bytes of A–Z a–z 0–9 . _ - : @ +, beginning with a letter or
// digit: a lease name without "/". The error calls it field.
func CheckID(field, id string) error {
	if len(id) > MaxID || strings.Contains(id, "/") || store.CheckName(id) != nil {
		return invalid(field, id, "1 to 195 bytes of A-Z a-z 0-9 . _ - : @ +, beginning with a letter or digit")
	}
	return nil
}

// CheckMarker returns an error matching store.ErrInvalid unless a progress marker
// is at most 4 KiB of printable text. It may be empty.
func CheckMarker(marker string) error {
	return checkText("progress", marker, MaxMarker)
}

// Filled returns s with its defaults in place of empty fields.
func (s Spec) Filled() Spec {
	if s.OnLoss == "" {
		s.OnLoss = Keep
		if s.Movable {
			s.OnLoss = Stop
		}
	}
	if s.OnReturn == "" {
		s.OnReturn = KeepReplacement
	}
	if s.Request.Strategy == "" {
		s.Request.Strategy = MostFree
	}
	if s.GraceMS == 0 {
		s.GraceMS = DefaultGrace.Milliseconds()
	}
	return s
}

// Check returns an error matching store.ErrInvalid that names the first field
// which breaks its rule. Counts and bytes are looked at before what is in them.
func (s Spec) Check() error {
	c := checks{}
	c.id("id", s.ID)
	c.count("command", len(s.Command), MaxArgs)
	c.count("env", len(s.Env), MaxEnv)
	c.request(s.Request)
	c.bytes(s.Dir)
	c.bytes(s.Command...)
	for k, v := range s.Env {
		c.bytes(k, v)
	}
	c.within("command, env and request")
	if c.err != nil {
		return c.err
	}
	switch {
	case len(s.Command) == 0 || s.Command[0] == "":
		return invalid("command", "", "not empty: it is the program, and then its arguments")
	case s.Movable && s.Filled().OnLoss != Stop:
		return invalid("on_loss", string(s.OnLoss), `"stop" if the item is movable, so that it is ended before it runs elsewhere`)
	case s.Movable && s.Request.Node != "":
		return invalid("request.node", s.Request.Node, "empty if the item is movable: it could not move")
	case s.StuckAfterMS < 0 || s.StuckAfterMS > MaxStuck.Milliseconds():
		return invalid("stuck_after_ms", strconv.FormatInt(s.StuckAfterMS, 10), fmt.Sprintf("from 0 to %d", MaxStuck.Milliseconds()))
	case s.GraceMS < 0 || s.GraceMS > MaxGrace.Milliseconds():
		return invalid("grace_ms", strconv.FormatInt(s.GraceMS, 10), fmt.Sprintf("from 0 to %d", MaxGrace.Milliseconds()))
	}
	if err := oneOf("on_loss", s.OnLoss, Keep, Quiesce, Stop); err != nil {
		return err
	}
	if err := oneOf("on_return", s.OnReturn, KeepReplacement, KeepOriginal); err != nil {
		return err
	}
	for i, arg := range s.Command {
		if err := checkArg(fmt.Sprintf("command[%d]", i), arg); err != nil {
			return err
		}
	}
	for _, k := range slices.Sorted(maps.Keys(s.Env)) {
		switch {
		case k == "" || strings.ContainsAny(k, "=\x00") || !utf8.ValidString(k):
			return invalid("env", k, `names are not empty and hold no "=" and no NUL`)
		case strings.HasPrefix(k, "TENURE_"):
			return invalid("env", k, "names that begin with TENURE_ are set by the agent")
		}
		if err := checkArg("env["+shorten(k)+"]", s.Env[k]); err != nil {
			return err
		}
	}
	return checkArg("dir", s.Dir)
}

// Check returns an error matching store.ErrInvalid that names the first field
// which breaks its rule.
func (r Request) Check() error {
	c := checks{}
	c.request(r)
	c.within("request")
	return c.err
}

// Check returns an error matching store.ErrInvalid that names the first field
// which breaks its rule. More in use than there is breaks none: the node is then
// short of it. Counts and bytes are looked at before what is in them.
func (f Facts) Check() error {
	c := checks{}
	c.text("address", f.Address)
	c.labels("labels", f.Labels)
	c.names("features", f.Features, MaxFeatures)
	c.names("artifacts", f.Artifacts, MaxArtifacts)
	c.amounts("capacity", f.Capacity, 0)
	c.amounts("used", f.Used, 0)
	if f.Readiness.Reason != "" {
		c.name("readiness.reason", f.Readiness.Reason)
	}
	c.text("readiness.text", f.Readiness.Text)
	c.text("config", f.Config)
	c.within("facts")
	// Beyond the bytes, which the node's owner has a say in: these come on top of any.
	c.count("leftovers", len(f.Leftovers), MaxLeftovers)
	for i := 0; i < len(f.Leftovers) && c.err == nil; i++ {
		c.keep(CheckID("leftovers", f.Leftovers[i].Work))
	}
	return c.err
}

// Check returns an error matching store.ErrInvalid unless actor and reason are
// there, in one printable line each.
func (m Mark) Check() error {
	c := checks{}
	for _, f := range []struct{ field, s string }{{"actor", m.Actor}, {"reason", m.Reason}} {
		if strings.TrimSpace(f.s) == "" {
			c.fail(f.field, f.s, "mandatory: it is shown to whoever asks why")
		}
		c.text(f.field, f.s)
	}
	return c.err
}

// checks keeps the first error and the sum of bytes. After an error it looks at
// nothing more.
type checks struct {
	err error
	sum int
}

func (c *checks) fail(field, value, rule string) {
	if c.err == nil {
		c.err = invalid(field, value, rule)
	}
}

func (c *checks) keep(err error) {
	if c.err == nil {
		c.err = err
	}
}

func (c *checks) bytes(all ...string) {
	for _, s := range all {
		c.sum += len(s)
	}
}

func (c *checks) within(field string) {
	if c.sum > MaxBytes {
		c.fail(field, strconv.Itoa(c.sum)+" bytes", fmt.Sprintf("at most %d bytes in all", MaxBytes))
	}
}

func (c *checks) count(field string, n, most int) {
	if n > most {
		c.fail(field, strconv.Itoa(n)+" entries", fmt.Sprintf("at most %d", most))
	}
}

func (c *checks) id(field, id string) {
	c.bytes(id)
	c.keep(CheckID(field, id))
}

func (c *checks) name(field, name string) {
	c.bytes(name)
	if store.CheckName(name) != nil {
		c.fail(field, name, "1 to 200 bytes of A-Z a-z 0-9 . _ - / : @ +, beginning with a letter or digit, without an empty, \".\" or \"..\" segment")
	}
}

func (c *checks) text(field, s string) {
	c.bytes(s)
	c.keep(checkText(field, s, MaxText))
}

func (c *checks) names(field string, all []string, most int) {
	c.count(field, len(all), most)
	for i := 0; i < len(all) && c.err == nil; i++ {
		c.name(field, all[i])
	}
}

func (c *checks) labels(field string, all map[string]string) {
	c.count(field, len(all), MaxLabels)
	if c.err != nil {
		return
	}
	for _, k := range slices.Sorted(maps.Keys(all)) {
		c.name(field, k)
		c.text(field+"["+shorten(k)+"]", all[k])
	}
}

func (c *checks) amounts(field string, all Resources, least int64) {
	c.count(field, len(all), MaxResources)
	if c.err != nil {
		return
	}
	for _, k := range slices.Sorted(maps.Keys(all)) {
		c.name(field, k)
		if v := all[k]; v < least || v > MaxAmount {
			c.fail(field+"["+shorten(k)+"]", strconv.FormatInt(v, 10), fmt.Sprintf("from %d to %d", least, int64(MaxAmount)))
		}
	}
}

func (c *checks) request(r Request) {
	c.amounts("request.resources", r.Resources, 1)
	c.labels("request.labels", r.Labels)
	c.names("request.features", r.Features, MaxFeatures)
	c.names("request.artifacts", r.Artifacts, MaxArtifacts)
	c.count("request.exclude", len(r.Exclude), MaxExclude)
	for i := 0; i < len(r.Exclude) && c.err == nil; i++ {
		c.id("request.exclude", r.Exclude[i])
	}
	if r.Node != "" {
		c.id("request.node", r.Node)
		if slices.Contains(r.Exclude, r.Node) {
			c.fail("request.node", r.Node, "not one that the request excludes")
		}
	}
	c.keep(oneOf("request.strategy", r.Strategy, MostFree, Spread, BinPack))
}

// oneOf lets "" through, which means the default.
func oneOf[S ~string](field string, s S, all ...S) error {
	if s == "" || slices.Contains(all, s) {
		return nil
	}
	return invalid(field, string(s), fmt.Sprintf("one of %q", all))
}

// checkText refuses what would not be one printable line: control characters,
// escapes of terminals, and characters that turn the direction of writing.
func checkText(field, s string, most int) error {
	if len(s) > most {
		return invalid(field, s, fmt.Sprintf("at most %d bytes", most))
	}
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return invalid(field, s, "printable text without control characters")
	}
	return nil
}

// checkArg refuses what the system cannot hand to a program.
func checkArg(field, s string) error {
	if strings.ContainsRune(s, 0) || !utf8.ValidString(s) {
		return invalid(field, s, "UTF-8 without NUL")
	}
	return nil
}

func invalid(field, value, rule string) error {
	return &InvalidError{Field: field, Value: shorten(value), Rule: rule}
}

func shorten(s string) string {
	const most = 64
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
