//go:build linux

package conformance_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/pgtest"
)

// block is one code block of a document.
type block struct {
	line       int
	lang, file string // of its first line: ```sql jobs.sql
	text       string
}

var blockRule = regexp.MustCompile("(?ms)^```(\\w*)(?: (\\S+))?\n(.*?)^```$")

func blocks(t *testing.T, path string) []block {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var list []block
	for _, m := range blockRule.FindAllSubmatchIndex(b, -1) {
		part := func(i int) string {
			if m[2*i] < 0 {
				return ""
			}
			return string(b[m[2*i]:m[2*i+1]])
		}
		list = append(list, block{1 + bytes.Count(b[:m[0]], []byte("\n")), part(1), part(2), part(3)})
	}
	if n := bytes.Count(b, []byte("```")); n != 2*len(list) {
		t.Fatalf("%s: %d marks of code, and %d blocks", path, n, len(list))
	}
	return list
}

// TestFencingPage runs every example of docs/FENCING.md: a block with a file name
// is written, a sh block is run, and the text block after it is what it printed.
// Every file must be used, and every sh block must have its text.
func TestFencingPage(t *testing.T) {
	t.Parallel()
	const page = "../docs/FENCING.md"
	need(t, "psql", "postgresql-client")
	if err := exec.Command("/usr/bin/python3", "-c", "import psycopg2").Run(); err != nil {
		missing(t, "python3 with psycopg2", "python3-psycopg2")
	}
	url := pgtest.Database(t)
	dir := t.TempDir()
	writeModule(t, dir)
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"tenure": tenureBinary(t), "python3": "/usr/bin/python3"} {
		if err := os.Symlink(target, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "TENURE_") && !strings.HasPrefix(kv, "PG") {
			env = append(env, kv)
		}
	}
	env = append(env, "PATH="+bin+":"+os.Getenv("PATH"), "DATABASE_URL="+url, "TENURE_STORE="+url, "GOWORK=off", "GOFLAGS=-mod=mod", "TENURE_CONFIG=", "HOME="+os.Getenv("HOME"))

	unused := map[string]int{}
	list := blocks(t, page)
	for i, b := range list {
		at := fmt.Sprintf("%s:%d", page, b.line)
		switch {
		case b.lang == "text":
			if i == 0 || list[i-1].lang != "sh" {
				t.Errorf("%s: this text is printed by nothing", at)
			}
		case b.lang == "sh":
			if i+1 == len(list) || list[i+1].lang != "text" {
				t.Fatalf("%s: nothing says what this prints", at)
			}
			for file := range unused {
				if strings.Contains(b.text, "-f "+file) || strings.Contains(b.text, "python3 "+file) || strings.HasSuffix(file, "/main.go") && strings.Contains(b.text, "go run ./"+filepath.Dir(file)) {
					delete(unused, file)
				}
			}
			out, errs, err := runExample(t, dir, env, b.text)
			if want := list[i+1].text; err != nil || out != want {
				t.Fatalf("%s: %v; it printed\n%s\nwant\n%s\nand to standard error\n%s", at, err, out, want, errs)
			}
		case b.file == "":
			t.Errorf("%s: a block of %q runs in no test: give it a file name, and use it", at, b.lang)
		default:
			path := filepath.Join(dir, filepath.FromSlash(b.file))
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(b.text), 0o644); err != nil {
				t.Fatal(err)
			}
			if b.lang == "go" {
				if out, err := exec.Command("gofmt", "-l", path).CombinedOutput(); err != nil || len(out) > 0 {
					t.Errorf("%s: gofmt: %v %s", at, err, out)
				}
			}
			unused[b.file] = b.line
		}
	}
	for file, line := range unused {
		t.Errorf("%s:%d: no example uses %s", page, line, file)
	}
}

// writeModule makes dir a module with what the tests of this one have.
func writeModule(t *testing.T, dir string) {
	t.Helper()
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	for name, adapt := range map[string]func(string) string{
		"go.mod": func(s string) string {
			s = strings.Replace(s, "module github.com/tenurehq/tenure/conformance", "module example", 1)
			return regexp.MustCompile(`=> (\.\.\S*)`).ReplaceAllStringFunc(s, func(m string) string {
				return "=> " + filepath.Join(here, strings.TrimPrefix(m, "=> "))
			})
		},
		"go.sum": func(s string) string { return s },
	} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(adapt(string(b))), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func runExample(t *testing.T, dir string, env []string, script string) (out, errs string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-e", "-c", script)
	cmd.Dir, cmd.Env = dir, env
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = 10 * time.Second
	err = cmd.Run()
	return stdout.String(), stderr.String(), err
}

// need skips, or fails where nothing may be skipped, without program.
func need(t *testing.T, program, deb string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		missing(t, program, deb)
	}
}

func missing(t *testing.T, what, deb string) {
	t.Helper()
	if os.Getenv("TENURE_TEST_STRICT") == "1" {
		t.Fatalf("%s is missing; run: apt-get install -y %s", what, deb)
	}
	t.Skipf("%s is missing; run: apt-get install -y %s", what, deb)
}
