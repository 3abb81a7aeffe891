package main

import (
	"cmp"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// verdict says whether a target was met.
type verdict string

const (
	met     verdict = "met"
	missed  verdict = "**not met**"
	noQuest verdict = "–" // nothing was promised
)

func judge(ok bool) verdict {
	if ok {
		return met
	}
	return missed
}

// row is one figure beside its peer and its target.
type row struct {
	id, what, figure, peer, target string
	verdict                        verdict
}

// table is what a figure was computed from.
type table struct {
	title  string
	header []string
	rows   [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// section is what one part measured.
type section struct {
	id     string
	rows   []row
	how    []string // paragraphs
	tables []table
}

// report becomes the document.
type report struct {
	facts    [][2]string
	command  string
	began    time.Time
	rough    bool
	sections []section
}

// add takes in a section; those of one part stand together.
func (r *report) add(s section) {
	if s.id == "" {
		return
	}
	for i := range r.sections {
		if have := &r.sections[i]; have.id == s.id {
			have.rows = append(have.rows, s.rows...)
			have.how = append(have.how, s.how...)
			have.tables = append(have.tables, s.tables...)
			return
		}
	}
	r.sections = append(r.sections, s)
	slices.SortFunc(r.sections, func(a, b section) int { return cmp.Compare(a.id, b.id) })
}

func (r *report) markdown() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# Benchmarks\n")
	line("Written by `%s` in `bench/`: each number below was measured by that run, on the", r.command)
	line("machine below, client and servers on the same processors. Compare the ratios; the")
	line("absolute figures are this machine's. `make bench` measures again.\n")
	if r.rough {
		line("**A rough run (`-short`): too few and too short repetitions to cite.**\n")
	}
	line("| | |\n|---|---|")
	line("| date | %s, %s long |", r.began.UTC().Format(time.DateTime+" UTC"), time.Since(r.began).Round(time.Second))
	for _, f := range r.facts {
		line("| %s | %s |", f[0], f[1])
	}
	for _, p := range peerVersions() {
		line("| %s | %s |", p[0], p[1])
	}
	line("\n## Figures\n")
	t := table{header: []string{"#", "figure", "tenure", "peer", "target", ""}}
	for _, s := range r.sections {
		for _, w := range s.rows {
			t.add(strings.ToUpper(w.id), w.what, w.figure, w.peer, w.target, string(w.verdict))
		}
	}
	b.WriteString(t.markdown())
	for _, s := range r.sections {
		line("\n## %s", strings.ToUpper(s.id))
		for _, p := range s.how {
			line("\n%s", wrap(p))
		}
		for _, t := range s.tables {
			line("\n%s:\n", t.title)
			b.WriteString(t.markdown())
		}
	}
	return b.String()
}

func (t *table) markdown() string {
	var b strings.Builder
	write := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	write(t.header)
	b.WriteString("|" + strings.Repeat("---|", len(t.header)) + "\n")
	for _, cells := range t.rows {
		write(cells)
	}
	return b.String()
}

// wrap breaks a paragraph into lines of at most 88 characters.
func wrap(text string) string {
	var b strings.Builder
	width := 0
	for i, word := range strings.Fields(text) {
		switch n := len([]rune(word)); {
		case i == 0:
			width = n
		case width+1+n > 88:
			b.WriteByte('\n')
			width = n
		default:
			b.WriteByte(' ')
			width += 1 + n
		}
		b.WriteString(word)
	}
	return b.String()
}

// peerVersions are those of the modules that this program was built with.
func peerVersions() [][2]string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	var list [][2]string
	for _, path := range []string{"cirello.io/pglock", "k8s.io/client-go", "github.com/jackc/pgx/v5", "modernc.org/sqlite"} {
		for _, m := range info.Deps {
			if m.Path == path {
				list = append(list, [2]string{path, m.Version})
			}
		}
	}
	return list
}
