package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// generated compares the part of a document between its two markers with what
// the program says, and writes it with -update.
func generated(t *testing.T, path, marker, want string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := fmt.Sprintf("<!-- %s: begin -->\n", marker), fmt.Sprintf("<!-- %s: end -->\n", marker)
	before, rest, ok := strings.Cut(string(text), begin)
	got, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s: the markers %q and %q are missing", path, begin, end)
	}
	if got == want {
		return
	}
	if !*update {
		t.Errorf("%s: the part %q is stale: run \"make generate\"; got\n%s\nwant\n%s", path, marker, got, want)
		return
	}
	if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestStoresTable(t *testing.T) {
	r := cli(t, "doctor", "--table")
	r.want(t, exitOK)
	generated(t, "../../docs/STORES.md", "guarantees", r.out)
}

func TestExitTable(t *testing.T) {
	var b strings.Builder
	b.WriteString("| Code | Meaning |\n|---|---|\n")
	for _, c := range exitCodes {
		fmt.Fprintf(&b, "| %d | %s |\n", c.code, c.meaning)
	}
	generated(t, "../../README.md", "exit codes", b.String())
}
