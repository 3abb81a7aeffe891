package main

import (
	"context"
	"fmt"
	gofmt "go/format"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

const repo = "../.."

// pages returns the pages of docs/, as paths from here.
func pages(t *testing.T) []string {
	t.Helper()
	list, err := filepath.Glob(repo + "/docs/*.md")
	if err != nil || len(list) == 0 {
		t.Fatalf("got %v, %v, want pages", list, err)
	}
	return list
}

// texts returns the pages of docs/, the README, and all files of deploy/.
func texts(t *testing.T) []string {
	t.Helper()
	list := append(pages(t), repo+"/README.md")
	err := filepath.WalkDir(repo+"/deploy", func(path string, d os.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil || d.IsDir() || strings.HasSuffix(path, ".go") || strings.HasSuffix(path, ".json") {
			return err
		}
		list = append(list, path)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// block is one code block of a document.
type block struct {
	line       int
	lang, file string // of its first line: ```sql jobs.sql
	text       string
}

var blockRule = regexp.MustCompile("(?ms)^```(\\w*)(?: (\\S+))?\n(.*?)^```$")

func blocks(t *testing.T, path string) []block {
	t.Helper()
	b := readText(t, path)
	var list []block
	for _, m := range blockRule.FindAllStringSubmatchIndex(b, -1) {
		part := func(i int) string {
			if m[2*i] < 0 {
				return ""
			}
			return b[m[2*i]:m[2*i+1]]
		}
		list = append(list, block{1 + strings.Count(b[:m[0]], "\n"), part(1), part(2), part(3)})
	}
	if n := strings.Count(b, "```"); n != 2*len(list) {
		t.Fatalf("%s: %d marks of code, and %d blocks", path, n, len(list))
	}
	return list
}

func readText(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestBlocks: each block of code of docs/ is of a kind that a test looks at.
//
//	sh       is run (TestPages; in FENCING.md by the conformance module)
//	text     is what the block before it prints
//	go       is gofmt's
//	yaml     is YAML
//	console, crontab, ini  cannot run here: their command lines name real flags (TestCommandLines)
//	sql, python  are of pages with tests of their own
//	(none)   is a drawing: no command line is in it
func TestBlocks(t *testing.T) {
	t.Parallel()
	own := map[string][]string{"FENCING.md": {"sql", "python"}, "STORES.md": {"sql"}}
	for _, page := range pages(t) {
		for _, b := range blocks(t, page) {
			at := fmt.Sprintf("%s:%d", page, b.line)
			switch b.lang {
			case "sh", "text", "console", "crontab", "ini":
			case "":
				if lines := commandLines(b.text); len(lines) > 0 {
					t.Errorf("%s: say of what kind this block is", at)
				}
			case "go":
				if got, err := gofmt.Source([]byte(b.text)); err != nil || string(got) != b.text {
					t.Errorf("%s: gofmt: %v, got\n%s", at, err, got)
				}
			case "yaml":
				if dec := yaml.NewDecoder(strings.NewReader(b.text)); dec != nil {
					if err := dec.Decode(new(any)); err != nil {
						t.Errorf("%s: %v", at, err)
					}
				}
			default:
				if !slices.Contains(own[filepath.Base(page)], b.lang) {
					t.Errorf("%s: no test looks at a block of %q", at, b.lang)
				}
			}
		}
	}
}

var (
	codeSpan = regexp.MustCompile("(?s)`([^`]+)`")
	linkRule = regexp.MustCompile(`\[[^\][]*(?:\[[^\][]*\])?[^\][]*\]\(([^()\s]+(?:\([^()\s]*\))?)\)`)
	heading  = regexp.MustCompile(`(?m)^#{1,6} (.*)$`)
)

// withoutCode returns the prose of a document, with as many lines.
func withoutCode(text string) string {
	blank := func(s string) string { return strings.Repeat("\n", strings.Count(s, "\n")) }
	return codeSpan.ReplaceAllStringFunc(blockRule.ReplaceAllStringFunc(text, blank), blank)
}

// slugs returns the anchors of a document as GitHub makes them.
func slugs(text string) map[string]bool {
	all := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(blockRule.ReplaceAllString(text, ""), -1) {
		var b strings.Builder
		for _, r := range strings.ToLower(linkRule.ReplaceAllString(m[1], "$0")) {
			switch {
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				b.WriteRune(r)
			case r == ' ':
				b.WriteByte('-')
			}
		}
		slug := b.String()
		for n := 1; all[slug]; n++ {
			slug = fmt.Sprintf("%s-%d", b.String(), n)
		}
		all[slug] = true
	}
	return all
}

// TestLinks: what a document links to is there, with its anchor; an address of the
// web is well formed. The index of docs/ names every page.
func TestLinks(t *testing.T) {
	t.Parallel()
	index := map[string]bool{}
	for _, path := range texts(t) {
		if filepath.Ext(path) != ".md" {
			continue
		}
		prose := withoutCode(readText(t, path))
		for _, m := range linkRule.FindAllStringSubmatchIndex(prose, -1) {
			target, at := prose[m[2]:m[3]], fmt.Sprintf("%s:%d", path, 1+strings.Count(prose[:m[0]], "\n"))
			u, err := url.Parse(target)
			if err != nil {
				t.Errorf("%s: %v", at, err)
				continue
			}
			if u.IsAbs() {
				if u.Scheme != "https" || u.Host == "" || !strings.Contains(u.Host, ".") {
					t.Errorf("%s: %s: want https and a host", at, target)
				}
				continue
			}
			file := path
			if u.Path != "" {
				file = filepath.Join(filepath.Dir(path), filepath.FromSlash(u.Path))
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: %s: %v", at, target, err)
				continue
			}
			if u.Fragment != "" && !slugs(readText(t, file))[u.Fragment] {
				t.Errorf("%s: %s has no heading #%s", at, file, u.Fragment)
			}
			if path == repo+"/docs/README.md" {
				index[filepath.Clean(file)] = true
			}
		}
	}
	for _, page := range pages(t) {
		if page = filepath.Clean(page); filepath.Base(page) != "README.md" && !index[page] {
			t.Errorf("docs/README.md does not name %s", page)
		}
	}
}

func TestSlugs(t *testing.T) {
	t.Parallel()
	got := slugs("# A `b` c\n## Cron, and more\n```sh\n# no\n```\n## Cron, and more\n## tenure's\n")
	for _, want := range []string{"a-b-c", "cron-and-more", "cron-and-more-1", "tenures"} {
		if !got[want] {
			t.Errorf("got %v, want %q", got, want)
		}
	}
	if got["no"] {
		t.Error("a line of code is taken for a heading")
	}
}

// TestCommandLines: each command line of tenure that a document, a unit, a manifest or a
// crontab shows has a verb and flags that the program has, with values that they take.
func TestCommandLines(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, path := range texts(t) {
		text := readText(t, path)
		check := func(line int, code string) {
			for _, words := range commandLines(code) {
				seen++
				if err := checkCommandLine(words); err != nil {
					t.Errorf("%s:%d: %q: %v", path, line, strings.Join(words, " "), err)
				}
			}
		}
		if filepath.Ext(path) != ".md" {
			check(1, yamlAsShell(path, text))
			continue
		}
		for _, b := range blocks(t, path) {
			switch b.lang {
			case "sh", "console", "crontab", "ini":
				check(b.line, b.text)
			case "yaml":
				check(b.line, yamlAsShell("x.yaml", b.text))
			}
		}
		prose := blockRule.ReplaceAllStringFunc(text, func(s string) string { return strings.Repeat("\n", strings.Count(s, "\n")) })
		for _, m := range codeSpan.FindAllStringSubmatchIndex(prose, -1) {
			if span := strings.Join(strings.Fields(prose[m[2]:m[3]]), " "); strings.HasPrefix(span, "tenure ") {
				check(1+strings.Count(prose[:m[0]], "\n"), span)
			}
		}
	}
	if seen < 100 {
		t.Errorf("%d command lines were found, want at least 100: the search has a fault", seen)
	}
}

// yamlAsShell returns the lists of words in YAML as lines, so that a container's
// command reads as one. Other files are as they are.
func yamlAsShell(path, text string) string {
	if ext := filepath.Ext(path); ext != ".yaml" && ext != ".yml" {
		return text
	}
	var b strings.Builder
	var walk func(n *yaml.Node)
	walk = func(n *yaml.Node) {
		if n.Kind == yaml.MappingNode {
			var command, args []string
			for i := 0; i+1 < len(n.Content); i += 2 {
				switch key, value := n.Content[i].Value, n.Content[i+1]; key {
				case "command", "args":
					for _, w := range value.Content {
						if key == "command" {
							command = append(command, quoted(w.Value))
						} else {
							args = append(args, quoted(w.Value))
						}
					}
				}
			}
			if len(command) > 0 {
				b.WriteString(strings.Join(append(command, args...), " ") + "\n")
			}
		}
		for _, c := range n.Content {
			walk(c)
		}
	}
	dec := yaml.NewDecoder(strings.NewReader(text))
	for {
		var n yaml.Node
		if dec.Decode(&n) != nil {
			return b.String()
		}
		walk(&n)
	}
}

func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// commandLines returns the words of each command of tenure in shell text, those in
// quoted parts of it included.
func commandLines(code string) (all [][]string) {
	code = strings.ReplaceAll(code, "\\\n", " ")
	for line := range strings.Lines(code) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			continue
		}
		words := shellWords(line)
		for i := 0; i < len(words); i++ {
			w := words[i]
			name := w.text[strings.LastIndex(w.text, "/")+1:]
			if name != "tenure" || w.quotes || i > 0 && words[i-1].text == "import" {
				if w.quotes && strings.Contains(w.text, "tenure ") {
					all = append(all, commandLines(w.text)...)
				}
				continue
			}
			if before := i - 1; before >= 0 && !commandPlace(words[:i]) {
				continue
			}
			var args []string
			for i++; i < len(words) && !words[i].operator; i++ {
				args = append(args, words[i].text)
				if words[i].quotes && strings.Contains(words[i].text, "tenure ") {
					all = append(all, commandLines(words[i].text)...)
				}
			}
			all = append(all, args)
		}
	}
	return all
}

var assignment = regexp.MustCompile(`^[A-Za-z_]\w*=`)

// commandPlace says whether the word after these is a command.
func commandPlace(before []shellToken) bool {
	last := before[len(before)-1]
	switch {
	case last.operator, assignment.MatchString(last.text), strings.HasPrefix(last.text, "ExecStart"), strings.HasPrefix(last.text, "ExecReload"):
		return true
	}
	switch last.text {
	case "run", "exec", "sudo", "then", "do", "else", "!", "$", "--", "env", "time":
		return true
	}
	return strings.Count(cronLine(before), " ") >= 4 // the five or six fields of a crontab
}

func cronLine(words []shellToken) string {
	var fields []string
	for _, w := range words {
		fields = append(fields, w.text)
	}
	line := strings.Join(fields, " ")
	if regexp.MustCompile(`^[-\d*/,@]`).MatchString(line) {
		return line
	}
	return ""
}

type shellToken struct {
	text             string
	quotes, operator bool
}

// shellWords splits a line into the words of a shell. It knows quotes, comments, and
// the operators that end a command.
func shellWords(line string) (words []shellToken) {
	var w shellToken
	in := false
	flush := func() {
		if in {
			words = append(words, w)
		}
		w, in = shellToken{}, false
	}
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == ' ' || c == '\t':
			flush()
		case c == '#' && !in:
			return words
		case c == '\'' || c == '"':
			end := strings.IndexByte(line[i+1:], c)
			if end < 0 {
				end = len(line) - i - 1
			}
			w.text, w.quotes, in = w.text+line[i+1:i+1+end], true, true
			i += end + 1
		case c == '\\' && i+1 < len(line):
			i++
			w.text, in = w.text+string(line[i]), true
		case strings.IndexByte(";|&()<>", c) >= 0:
			flush()
			words = append(words, shellToken{text: string(c), operator: true})
		default:
			w.text, in = w.text+string(c), true
		}
	}
	flush()
	return words
}

// checkCommandLine says what is wrong with the arguments of tenure: an unknown verb or
// flag. Brackets and bars, as in [--now] and {NAME|--all}, are those of a usage line.
func checkCommandLine(args []string) error {
	cmd := newRoot(console{})
	cmd.InitDefaultHelpCmd()
	cmd.InitDefaultVersionFlag()
	trim := strings.NewReplacer("[", "", "]", "", "{", "", "}", "", "|", " ", "…", "")
	var plain []string
	for _, a := range args {
		if strings.ContainsAny(a, " \t") { // it was quoted, and is one word
			plain = append(plain, a)
		} else {
			plain = append(plain, strings.Fields(trim.Replace(a))...)
		}
	}
	args = plain
	for len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		next, rest, err := cmd.Find(args[:1])
		if err != nil || next == cmd {
			break
		}
		cmd, args = next, append(rest, args[1:]...)
	}
	if cmd.HasSubCommands() && len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		return fmt.Errorf("%q has no verb %q", cmd.CommandPath(), args[0])
	}
	cmd.InitDefaultHelpFlag()
	flags := cmd.Flags()
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "--":
			return nil
		case !strings.HasPrefix(a, "-") || a == "-" || strings.ContainsAny(a, " \t"):
			continue
		}
		name, value, given := strings.Cut(strings.TrimLeft(a, "-"), "=")
		name = strings.TrimRight(name, ".,;:")
		f := flags.Lookup(name)
		if f == nil {
			f = cmd.InheritedFlags().Lookup(name)
		}
		if f == nil && !strings.HasPrefix(a, "--") && len(name) == 1 {
			f = flags.ShorthandLookup(name)
		}
		if f == nil {
			return fmt.Errorf("%q has no flag %q", cmd.CommandPath(), a)
		}
		if f.NoOptDefVal == "" && !given {
			if i++; i == len(args) {
				return fmt.Errorf("%q: flag %q has no value", cmd.CommandPath(), a)
			}
			value = args[i]
		}
		if err := checkValue(cmd, f, value); err != nil {
			return err
		}
	}
	return nil
}

var placeholder = regexp.MustCompile(`^[A-Z]+$|[$…]`)

// checkValue says what is wrong with the value of a flag, unless it stands for one.
func checkValue(cmd *cobra.Command, f *pflag.Flag, value string) error {
	if value == "" || placeholder.MatchString(value) {
		return nil
	}
	if err := f.Value.Set(value); err != nil {
		return fmt.Errorf("--%s %q: %w", f.Name, value, err)
	}
	complete, ok := cmd.GetFlagCompletionFunc(f.Name)
	if !ok || slices.Contains([]string{"node", "work", "owner"}, f.Name) { // which ask a server
		return nil
	}
	cmd.SetContext(context.Background())
	values, rest := complete(cmd, nil, "")
	if rest&cobra.ShellCompDirectiveNoFileComp != 0 && len(values) > 0 && !slices.Contains(values, value) {
		return fmt.Errorf("--%s %q: want one of %q", f.Name, value, values)
	}
	return nil
}

func TestCheckCommandLine(t *testing.T) {
	t.Parallel()
	for line, ok := range map[string]bool{
		"tenure lease ls": true, "tenure lease list --nosuch": false, "tenure lease nosuch": false, "tenure nosuch": false,
		"tenure run a --no-wait -- prog --nosuch": true, "FOO=1 tenure run a --nosuch -- true": false,
		"sh -c 'a && tenure nosuch'": false, "go run ./cmd/tenure up --demo": true, "go run ./cmd/tenure up --demos": false,
		`0 2 * * *  app  /usr/local/bin/tenure run x --slots "$(date +\%F)" -- y`: false,
		"ExecStart=/usr/local/bin/tenure agent --nodes x":                         false,
		"tenure lease revoke NAME --token N [--now]":                              true,
		"tenure run a --on-loss retry -- true":                                    false, "tenure run a --on-loss again -- true": true,
		"tenure run a --ttl 5 -- true": false, "tenure run a --ttl D -- true": true, "tenure lease revoke a --token x": false,
		"grep tenure nosuch": true, "tenure --version": true, "tenure help lease": true,
	} {
		err := error(nil)
		for _, words := range commandLines(line) {
			if e := checkCommandLine(words); e != nil {
				err = e
			}
		}
		if (err == nil) != ok {
			t.Errorf("%s: got %v, want a fault: %t", line, err, !ok)
		}
	}
}
