package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/server/registry"
	"github.com/tenurehq/tenure/store"
)

// featuresJSON is what a store can ensure, as -o json prints it.
type featuresJSON struct {
	Backend      string          `json:"backend"`
	Clock        store.ClockKind `json:"clock"`
	MinTTL       int64           `json:"min_ttl_ms"`
	Granularity  int64           `json:"granularity_ns"`
	BatchRenew   bool            `json:"batch_renew"`
	Watch        bool            `json:"watch"`
	JoinedFence  bool            `json:"joined_fence"`
	Reach        string          `json:"reach"`
	TokensReset  string          `json:"tokens_reset"`
	LosesWrites  string          `json:"loses_writes"`
	ClockCaution string          `json:"clock_caution"`
}

// findingJSON is one finding of a doctor, as -o json prints it.
type findingJSON struct {
	Code     string         `json:"code"`
	Severity store.Severity `json:"severity"`
	Text     string         `json:"text"`
	Fix      string         `json:"fix"`
}

func newDoctor() *cobra.Command {
	var markdown bool
	cmd := &cobra.Command{
		Use:   "doctor [STORE]",
		Short: "Say what a store can ensure, and what weakens it",
		Long: fmt.Sprintf(`Show what the store can and cannot ensure, and what its settings weaken. Changes
nothing. The exit code is %d without a warning, %d with one, and %d if a promise
does not hold.`, exitOK, exitWarnings, exitBroken),
		Args: cobra.MaximumNArgs(1),
	}
	timeout, out := addTimeout(cmd), addFormat(cmd)
	cmd.Flags().BoolVar(&markdown, "table", false, "print the table of all backends for docs/STORES.md and ask no store")
	must(cmd.Flags().MarkHidden("table"))
	cmd.RunE = action(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		if markdown {
			return printGuarantees(ctx, cmd.OutOrStdout())
		}
		if err := takeStore(cmd, args); err != nil {
			return err
		}
		loc, err := chosenStore(cmd)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		st, closeStore, fresh, err := openUnchecked(ctx, loc, false)
		if err != nil {
			return err
		}
		defer closeStore()
		if fresh {
			if err := st.Migrate(ctx); err != nil {
				return explain(loc, err)
			}
		}
		var findings []store.Finding
		if d, ok := st.(store.Doctor); ok {
			if findings, err = d.Diagnose(ctx); err != nil {
				return explain(loc, err)
			}
		}
		more, err := diagnoseFleet(ctx, st)
		if err != nil {
			return explain(loc, err)
		}
		findings = append(findings, more...)
		for i := range findings {
			f := &findings[i]
			f.Text, f.Fix = loc.complete(words(f.Text)), loc.complete(f.Fix)
		}
		if err := printDiagnosis(cmd.OutOrStdout(), *out, loc, st.Features(), findings); err != nil {
			return err
		}
		return severityExit(findings)
	})
	return cmd
}

// diagnoseFleet says what a server would miss in the database. Leases alone need
// none of it.
func diagnoseFleet(ctx context.Context, st backend) ([]store.Finding, error) {
	f, ok := st.(fleetBackend)
	if !ok {
		return nil, nil
	}
	reg, err := f.Fleet()
	if err != nil {
		return nil, err
	}
	err = reg.Check(ctx)
	if errors.Is(err, registry.ErrNoFleet) {
		return []store.Finding{{
			Code: "no_fleet", Severity: store.Info, Text: "no fleet here yet: jobs need none, tenure server and tenure up do", Fix: "tenure migrate",
		}}, nil
	}
	if errors.Is(err, store.ErrSchema) || errors.Is(err, store.ErrPermission) {
		return []store.Finding{{
			Code: "no_fleet", Severity: store.Info, Text: "no tenure server can use it yet: " + words(err.Error()), Fix: "tenure migrate",
		}}, nil
	}
	return nil, err
}

// severityExit is the exit of a diagnosis: by its worst finding.
func severityExit(findings []store.Finding) error {
	code := exitOK
	for _, f := range findings {
		switch f.Severity {
		case store.Warning:
			code = max(code, exitWarnings)
		case store.Broken:
			code = max(code, exitBroken)
		}
	}
	if code == exitOK {
		return nil
	}
	return &exitError{code: code}
}

func printDiagnosis(w io.Writer, out format, loc location, f store.Features, findings []store.Finding) error {
	if out == asJSON {
		list := []findingJSON{}
		for _, x := range findings {
			list = append(list, findingJSON{x.Code, x.Severity, x.Text, x.Fix})
		}
		return printJSON(w, map[string]any{
			"store": loc.String(),
			"features": featuresJSON{
				Backend: f.Backend, Clock: f.Clock, MinTTL: millis(f.MinTTL), Granularity: f.Granularity.Nanoseconds(),
				BatchRenew: f.BatchRenew, Watch: f.Watch, JoinedFence: f.JoinedFence, Reach: f.Reach,
				TokensReset: f.TokensReset, LosesWrites: f.LosesWrites, ClockCaution: f.ClockCaution,
			},
			"findings": list,
		})
	}
	rows := [][2]string{{"store", loc.String()}}
	for _, g := range guarantees {
		rows = append(rows, [2]string{g.title, g.value(f)})
	}
	if err := pairs(w, rows); err != nil {
		return err
	}
	if len(findings) == 0 {
		_, err := fmt.Fprintln(w, "\nno findings")
		return err
	}
	lines := [][]string{{"SEVERITY", "CODE", "FINDING", "NEXT STEP"}}
	for _, x := range findings {
		lines = append(lines, []string{string(x.Severity), x.Code, x.Text, x.Fix})
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return table(w, lines)
}

// guarantees are the rows of the table of what stores ensure.
var guarantees = []struct {
	title string
	value func(store.Features) string
}{
	{"backend", func(f store.Features) string { return f.Backend }},
	{"who can share it", func(f store.Features) string { return f.Reach }},
	{"whose clock decides", func(f store.Features) string { return string(f.Clock) }},
	{"a step of that clock", func(f store.Features) string { return f.ClockCaution }},
	{"shortest TTL", func(f store.Features) string { return shortDuration(f.MinTTL) }},
	{"clock granularity", func(f store.Features) string { return f.Granularity.String() }},
	{"many renewals in one request", func(f store.Features) string { return yesNo(f.BatchRenew) }},
	{"tells waiters", func(f store.Features) string { return yesNo(f.Watch) }},
	{"fence in the same transaction", func(f store.Features) string { return yesNo(f.JoinedFence) }},
	{"tokens start over", func(f store.Features) string { return f.TokensReset }},
	{"acknowledged writes are lost", func(f store.Features) string { return f.LosesWrites }},
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// printGuarantees writes the features of every backend as a Markdown table. No
// server is asked.
func printGuarantees(ctx context.Context, w io.Writer) error {
	all, err := allFeatures(ctx)
	if err != nil {
		return err
	}
	var b strings.Builder
	for i, g := range guarantees {
		b.WriteString("| " + g.title + " |")
		for _, f := range all {
			b.WriteString(" " + strings.ReplaceAll(g.value(f), "|", `\|`) + " |")
		}
		b.WriteString("\n")
		if i == 0 {
			b.WriteString("|" + strings.Repeat("---|", len(all)+1) + "\n")
		}
	}
	_, err = io.WriteString(w, b.String())
	return err
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
