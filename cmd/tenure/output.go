package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// format is the value of -o.
type format string

const (
	asTable format = "table"
	asJSON  format = "json"
)

func (f *format) String() string { return string(*f) }
func (f *format) Type() string   { return "format" }

func (f *format) Set(s string) error {
	switch format(s) {
	case asTable, asJSON:
		*f = format(s)
		return nil
	}
	return errors.New("must be table or json")
}

func addFormat(cmd *cobra.Command) *format {
	f := asTable
	cmd.Flags().VarP(&f, "output", "o", "what to print: table, or json with snake_case keys, tokens as strings and durations in milliseconds")
	must(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp)))
	return &f
}

// must is for errors that only a fault in this program can cause.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// table writes rows in columns; the first row is the heading. Every cell is
// escaped.
func table(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if i > 0 {
				fmt.Fprint(t, "\t")
			}
			fmt.Fprint(t, escape(cell))
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

// pairs writes names and values below each other and leaves out empty values.
func pairs(w io.Writer, rows [][2]string) error {
	var full [][]string
	for _, row := range rows {
		if row[1] != "" {
			full = append(full, []string{row[0] + ":", row[1]})
		}
	}
	return table(w, full)
}

// printJSON writes v indented; every rune that a terminal could act on is a \u escape.
func printJSON(w io.Writer, v any) error { return writeJSON(w, v, "  ") }

// printJSONLine writes v on one line.
func printJSONLine(w io.Writer, v any) error { return writeJSON(w, v, "") }

func writeJSON(w io.Writer, v any, indent string) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encode as JSON: %w", err)
	}
	_, err := io.WriteString(w, escapeJSON(b.String()))
	return err
}

// escape returns s with every rune that is not printable (control characters,
// ANSI sequences, direction marks) and every invalid byte written as an escape
// sequence, so that nothing which somebody else chose can act on the terminal.
func escape(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case strconv.IsPrint(r):
			b.WriteRune(r)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
		s = s[n:]
	}
	return b.String()
}

// escapeJSON does the same for encoded JSON, where such runes can only stand
// inside strings.
func escapeJSON(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n' || strconv.IsPrint(r):
			b.WriteRune(r)
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		}
	}
	return b.String()
}

// millis returns d in milliseconds, rounded up: who waits that long has waited enough.
func millis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// instant is a time of the store's clock in JSON; null if it is not set.
type instant time.Time

// MarshalJSON writes RFC 3339 in UTC.
func (i instant) MarshalJSON() ([]byte, error) {
	t := time.Time(i)
	if t.IsZero() {
		return []byte("null"), nil
	}
	return json.Marshal(t.UTC())
}

// clockTime shows an instant in a table; "" if it is not set.
func clockTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// left shows a remaining duration in a table, to a tenth of a second, rounded up.
func left(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	const unit = 100 * time.Millisecond
	return shortDuration((d + unit - 1).Truncate(unit))
}

var (
	_ pflag.Value = (*format)(nil)
	_ pflag.Value = (*durationFlag)(nil)
	_ pflag.Value = (*countFlag)(nil)
	_ pflag.Value = (*shareFlag)(nil)
)
