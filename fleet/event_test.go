package fleet_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"

	"github.com/tenurehq/tenure/fleet"
)

// Each kind that the source declares is listed once: what asks for a kind is checked
// against the list.
func TestEventKindsAreComplete(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "event.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var declared []fleet.EventKind
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "EventKind" {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			declared = append(declared, fleet.EventKind(value))
		}
		return false
	})
	if got := fleet.EventKinds(); len(declared) == 0 || !slices.Equal(got, declared) {
		t.Errorf("got kinds %v, want those declared, %v", got, declared)
	}
}
