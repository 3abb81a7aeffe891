package tenure_test

import (
	"bufio"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

const module = "github.com/tenurehq/tenure"

// TestImports holds the tree to the table "Imports" of docs/ARCHITECTURE.md, and
// to the rules beside it. It reads the source of all modules of go.work for
// all systems, whether it compiles or not.
func TestImports(t *testing.T) {
	t.Parallel()
	tree := readTree(t)
	report := func(t *testing.T, broken []string) {
		t.Helper()
		for _, b := range broken {
			t.Error(b)
		}
	}
	t.Run("root module requires nothing", func(t *testing.T) {
		t.Parallel()
		gomod, err := os.ReadFile("go.mod")
		if err != nil {
			t.Fatal(err)
		}
		report(t, requirements(string(gomod)))
	})
	t.Run("direction", func(t *testing.T) {
		t.Parallel()
		report(t, tree.wrongImports(readTable(t)))
	})
	t.Run("pure packages", func(t *testing.T) {
		t.Parallel()
		report(t, tree.impurities())
	})
	t.Run("only the program names backends", func(t *testing.T) {
		t.Parallel()
		report(t, tree.namedBackends())
	})
	t.Run("vocabulary", func(t *testing.T) {
		t.Parallel()
		report(t, tree.foreignWords())
	})
}

// TestImportsBites shows each rule a tree that breaks it.
func TestImportsBites(t *testing.T) {
	t.Parallel()
	table := []rule{{"fence", nil}, {"store", []string{"fence"}}, {"cmd", []string{"store", "fence"}}}
	parse := func(dir, src string) tree {
		f, err := parser.ParseFile(token.NewFileSet(), dir+"/x.go", src, 0)
		if err != nil {
			t.Fatal(err)
		}
		return tree{{path: dir, module: ".", name: dir + "/x.go", ast: f}}
	}
	for _, tc := range []struct {
		what   string
		broken []string
	}{
		{"a requirement", requirements("module m\nrequire example.com/x v1.0.0\n")},
		{"a block of requirements", requirements("module m\n\nrequire (\n\texample.com/x v1.0.0\n)\n")},
		{"an import backwards", parse("fence", `package fence; import _ "`+module+`/store"`).wrongImports(table)},
		{"a package outside the table", parse("other", `package other`).wrongImports(table)},
		{"a third party in the root module", parse("store", `package store; import _ "example.com/x"`).wrongImports(table)},
		{"the clock in a pure package", parse("fence", `package fence; import "time"; var x = time.Now()`).impurities()},
		{"a clock under another name", parse("fence", `package fence; import t "time"; var x = t.Since`).impurities()},
		{"input in a pure package", parse("fence", `package fence; import _ "net/http"`).impurities()},
		{"a goroutine in a pure package", parse("fence", `package fence; func f() { go f() }`).impurities()},
		{"our clock in a pure package", parse("fence", `package fence; import "`+module+`/internal/clock"; var x = clock.Now()`).impurities()},
		{"a backend outside the program", parse("agent", `package agent; import _ "`+module+`/store/sqlite"`).namedBackends()},
		{"a foreign word in a type", parse("store", `package store; type LeaderInfo struct{}`).foreignWords()},
		{"a foreign word in a method", parse("store", `package store; type T int; func (T) Unlock() {}`).foreignWords()},
		{"a verdict", parse("store", `package store; type T int; func (T) IsAlive() {}`).foreignWords()},
		{"a foreign word in a field", parse("store", `package store; type T struct{ SessionID int }`).foreignWords()},
	} {
		if len(tc.broken) != 1 {
			t.Errorf("%s: got %q, want one complaint", tc.what, tc.broken)
		}
	}
	good := `package store; import ("time"; "` + module + `/fence"); type Clock struct{ Blocked time.Duration; T fence.Token }`
	if b := slices.Concat(parse("store", good).wrongImports(table), parse("store", good).foreignWords()); len(b) > 0 {
		t.Errorf("a tree that keeps the rules: got %q, want nothing", b)
	}
}

// requirements complains of each requirement of a go.mod.
func requirements(gomod string) (broken []string) {
	for _, m := range regexp.MustCompile(`(?m)^\s*require\b.*$`).FindAllString(gomod, -1) {
		broken = append(broken, "go.mod: the root module imports the standard library only, so it has no "+strings.TrimSpace(m))
	}
	return broken
}

// file is one Go file of the workspace.
type file struct {
	path   string // of the package, relative to the root: "." or "store/sqlite"
	module string // directory of the module, relative to the root
	name   string
	test   bool
	ast    *ast.File
}

type tree []file

func readTree(t *testing.T) tree {
	t.Helper()
	modules := map[string]bool{}
	var all tree
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // a file of a neighbouring test that is gone again
			}
			return err
		}
		if d.IsDir() {
			if base := d.Name(); path != "." && (strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata" || base == "bin") {
				return fs.SkipDir
			}
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil {
				modules[path] = true
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		pkg := filepath.ToSlash(filepath.Dir(path))
		all = append(all, file{path: pkg, module: moduleOf(pkg, modules), name: path, test: strings.HasSuffix(path, "_test.go"), ast: f})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// moduleOf returns the innermost module that holds dir.
func moduleOf(dir string, modules map[string]bool) string {
	for dir != "." && !modules[dir] {
		dir = filepath.ToSlash(filepath.Dir(dir))
	}
	return dir
}

// rule is a row of the table: packages at or below path may import those at or
// below the paths in may, and each other.
type rule struct {
	path string
	may  []string
}

// readTable reads the table of docs/ARCHITECTURE.md, in which each row begins
// with a package in backquotes.
func readTable(t *testing.T) []rule {
	t.Helper()
	f, err := os.Open("docs/ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	quoted := regexp.MustCompile("`([^`]+)`")
	var rules []rule
	inside := false
	for s := bufio.NewScanner(f); s.Scan(); {
		switch line := s.Text(); {
		case strings.HasPrefix(line, "## "):
			inside = line == "## Imports"
		case inside && strings.HasPrefix(line, "| `"):
			cells := strings.Split(line, "|")
			var r rule
			for i, m := range quoted.FindAllStringSubmatch(strings.Join(cells[1:3], "|"), -1) {
				name := strings.TrimSuffix(m[1], "/…")
				if name == "tenure" {
					name = "."
				}
				if i == 0 {
					r.path = name
				} else {
					r.may = append(r.may, name)
				}
			}
			rules = append(rules, r)
		}
	}
	if len(rules) < 5 {
		t.Fatalf("docs/ARCHITECTURE.md: got %d rows under \"## Imports\", want the table", len(rules))
	}
	return rules
}

// find returns the rule with the longest path at or above pkg.
func find(rules []rule, pkg string) (best rule, ok bool) {
	for _, r := range rules {
		if covers(r.path, pkg) && (!ok || len(r.path) > len(best.path)) {
			best, ok = r, true
		}
	}
	return best, ok
}

// covers reports whether pkg is at or below path. The root package has none below it.
func covers(path, pkg string) bool {
	return path == pkg || path != "." && strings.HasPrefix(pkg, path+"/")
}

// local returns the path of a package of this workspace, relative to the root.
func local(path string) (string, bool) {
	if path == module {
		return ".", true
	}
	return strings.CutPrefix(path, module+"/")
}

func (f *file) imports() []string {
	var all []string
	for _, spec := range f.ast.Imports {
		path, _ := strconv.Unquote(spec.Path.Value)
		all = append(all, path)
	}
	return all
}

// wrongImports complains of imports that the table does not allow, and of third
// parties in the root module, its tests included.
func (fs tree) wrongImports(rules []rule) (broken []string) {
	for _, f := range fs {
		r, ok := find(rules, f.path)
		if !ok {
			broken = append(broken, fmt.Sprintf("%s: package %s is not in the table of docs/ARCHITECTURE.md", f.name, f.path))
			continue
		}
		for _, path := range f.imports() {
			to, ours := local(path)
			if !ours {
				if first, _, _ := strings.Cut(path, "/"); f.module == "." && strings.Contains(first, ".") {
					broken = append(broken, fmt.Sprintf("%s: the root module imports the standard library only, not %s", f.name, path))
				}
				continue
			}
			// A test may use any package of the workspace to try its own.
			if f.test || covers(r.path, to) {
				continue
			}
			target, ok := find(rules, to)
			if !ok || !slices.Contains(r.may, target.path) {
				broken = append(broken, fmt.Sprintf("%s: %s may import %q of this workspace, not %s", f.name, r.path, r.may, to))
			}
		}
	}
	return broken
}

// pure packages take the time as an argument and do no I/O.
var pure = []string{"fence", "detect", "fleet", "sim", "internal/term"}

var (
	impureImports = []string{"os", "net", "log", "syscall", "database/sql", "io/ioutil", "math/rand", "math/rand/v2", "crypto/rand"}
	clockCalls    = map[string][]string{
		"time":                     {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"},
		module + "/internal/clock": {"Now", "Boot"},
	}
)

// impurities complains of I/O, clocks and goroutines in pure packages.
func (fs tree) impurities() (broken []string) {
	for _, f := range fs {
		if f.test || !slices.Contains(pure, f.path) {
			continue
		}
		complain := func(what string) {
			broken = append(broken, fmt.Sprintf("%s: package %s is pure: %s", f.name, f.path, what))
		}
		called := map[string][]string{} // by the name under which the file knows the package
		for i, path := range f.imports() {
			if slices.ContainsFunc(impureImports, func(p string) bool { return covers(p, path) }) {
				complain("it does not import " + path)
			}
			name := path[strings.LastIndexByte(path, '/')+1:]
			if n := f.ast.Imports[i].Name; n != nil {
				name = n.Name
			}
			if names, ok := clockCalls[path]; ok {
				called[name] = names
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				complain("it starts no goroutine")
			case *ast.SelectorExpr:
				if id, ok := n.X.(*ast.Ident); ok && slices.Contains(called[id.Name], n.Sel.Name) {
					complain("it reads no clock and sets no timer: " + id.Name + "." + n.Sel.Name)
				}
			}
			return true
		})
	}
	return broken
}

// namedBackends complains of concrete backends outside the program, the
// conformance tests and the benchmarks.
func (fs tree) namedBackends() (broken []string) {
	portable := []string{"store/storetest", "store/register"}
	for _, f := range fs {
		if f.test || covers("cmd/tenure", f.path) || covers("conformance", f.path) || covers("bench", f.path) {
			continue
		}
		for _, path := range f.imports() {
			to, _ := local(path)
			if strings.HasPrefix(to, "store/") && !slices.Contains(portable, to) && !covers(to, f.path) {
				broken = append(broken, fmt.Sprintf("%s: only cmd/tenure names a backend, not %s: %s", f.name, f.path, to))
			}
		}
	}
	return broken
}

// foreign are words that others use for what DESIGN calls a lease, a holder, a
// term or a token. See "Words" in docs/ARCHITECTURE.md.
var foreign = []string{"lock", "locks", "locker", "locked", "unlock", "mutex", "master", "leader", "leaders", "leadership", "epoch", "session", "sessions"}

// verdicts are exported names that claim what nobody can know. That a node counts
// as alive is a state; that it is alive is not ours to say.
var verdicts = []string{"IsAlive"}

// notOurs are exported names in which such a word names something of a database
// or a system, and none of our concepts.
var notOurs = []string{
	"LockRow", // store/storetest: a row lock that somebody else holds in the database
}

// theirWords are the packages that name things as somebody else does.
var theirWords = []string{
	"bench",           // names what it measures tenure against
	"adapters/gocron", // has the types and methods that gocron asks for
}

// foreignWords complains of exported names that hold such a word.
func (fs tree) foreignWords() (broken []string) {
	for _, f := range fs {
		theirs := slices.ContainsFunc(theirWords, func(p string) bool { return covers(p, f.path) })
		if f.test || theirs || f.ast.Name.Name == "main" {
			continue
		}
		names := map[string]bool{}
		add := func(ids ...*ast.Ident) {
			for _, id := range ids {
				if id.IsExported() && !slices.Contains(notOurs, id.Name) {
					names[id.Name] = true
				}
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				add(n.Name)
				return false // what is inside is not seen from outside
			case *ast.TypeSpec:
				add(n.Name)
			case *ast.ValueSpec:
				add(n.Names...)
			case *ast.Field:
				add(n.Names...)
			}
			return true
		})
		for _, name := range slices.Sorted(maps.Keys(names)) {
			if slices.Contains(verdicts, name) {
				broken = append(broken, fmt.Sprintf("%s: %s is a name that docs/ARCHITECTURE.md keeps out", f.name, name))
			}
			for _, w := range words(name) {
				if slices.Contains(foreign, w) {
					broken = append(broken, fmt.Sprintf("%s: %s holds the word %q, which docs/ARCHITECTURE.md keeps out", f.name, name, w))
				}
			}
		}
	}
	return broken
}

// words splits an exported name where a capital begins a word, in lower case.
func words(name string) []string {
	var all []string
	runes := []rune(name)
	begin := 0
	for i := 1; i <= len(runes); i++ {
		boundary := i == len(runes) || runes[i] == '_' ||
			unicode.IsUpper(runes[i]) && (unicode.IsLower(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1]))
		if boundary {
			all = append(all, strings.ToLower(strings.Trim(string(runes[begin:i]), "_")))
			begin = i
		}
	}
	return all
}
