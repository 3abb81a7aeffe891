package main

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// deploy is the folder with what a fleet is run by.
const deploy = "../../deploy"

func deployFiles(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(deploy, pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %v, error %v; want files", pattern, files, err)
	}
	return files
}

// TestUnits: systemd has nothing to say against the units. That what they start is a
// command line of this program is TestCommandLines.
func TestUnits(t *testing.T) {
	t.Parallel()
	units := append(deployFiles(t, "systemd/*.service"), deployFiles(t, "systemd/*.timer")...)
	verifier, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze here: the units are not verified by systemd itself")
	}
	// It also says that programs and man pages are not there, which they need not be.
	out, _ := exec.Command(verifier, append([]string{"verify", "--man=no"}, units...)...).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		ours := false
		for _, path := range units {
			ours = ours || strings.Contains(line, filepath.Base(path))
		}
		if ours && !strings.Contains(line, "is not executable") {
			t.Errorf("systemd-analyze: %s", strings.TrimSpace(line))
		}
	}
}

// TestAlertRules: the rules are well-formed, and fire when they should and only
// then.
func TestAlertRules(t *testing.T) {
	t.Parallel()
	tool, err := exec.LookPath("promtool")
	if err != nil {
		if tool, err = filepath.Abs(filepath.Join(repo, "bin", "promtool")); err == nil {
			_, err = os.Stat(tool)
		}
	}
	if err != nil {
		if os.Getenv("TENURE_TEST_STRICT") == "1" {
			t.Fatal("promtool: not found; run tools/need promtool")
		}
		t.Skip("promtool: not found, so the rules are not tested; run tools/need promtool")
	}
	dir := filepath.Join(deploy, "prometheus")
	for _, args := range [][]string{{"check", "rules", "tenure.rules.yml"}, {"test", "rules", "tenure.rules.test.yml"}} {
		cmd := exec.Command(tool, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

var metricName = regexp.MustCompile(`\btenure_[a-z0-9_]+`)

// TestMetricNames: rules and board ask for metrics that exist, and each rule has a
// test in which it fires.
func TestMetricNames(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	resp, err := http.Get(strings.Replace(url, "tenure://", "http://", 1) + "/v1/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	document, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, name := range metricName.FindAllString(string(document), -1) {
		known[name] = true
	}
	for _, path := range []string{filepath.Join(repo, "adapters", "prometheus", "doc.go"), "run_metrics.go"} {
		for _, name := range metricName.FindAllString(readText(t, path), -1) {
			known[name] = true // of those who hold terms
		}
	}
	if len(known) < 30 {
		t.Fatalf("the document of the interface names %d metrics, want at least 30", len(known))
	}
	rules := readText(t, filepath.Join(deploy, "prometheus", "tenure.rules.yml"))
	for place, text := range map[string]string{"rules": rules, "board": string(boardJSON())} {
		for _, name := range metricName.FindAllString(text, -1) {
			base := name
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if known[strings.TrimSuffix(name, suffix)] {
					base = strings.TrimSuffix(name, suffix)
				}
			}
			if !known[base] {
				t.Errorf("%s: no metric %s", place, name)
			}
		}
	}
	// A value that a killed process left in a file is believed by none of them.
	for _, gauge := range []string{"tenure_lease_held ", "tenure_lease_held)", "tenure_lease_confirmed_age_seconds", "tenure_lease_trust_seconds"} {
		for _, query := range queries(t, rules) {
			if strings.Contains(query, gauge) && !strings.Contains(query, "and on (instance, job, lease) tenure_lease_trusted_until_timestamp_seconds > time()") {
				t.Errorf("%q takes %s for true after the time up to which it can be believed", query, gauge)
			}
		}
	}
	tests := readText(t, filepath.Join(deploy, "prometheus", "tenure.rules.test.yml"))
	for _, m := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(rules, -1) {
		if !strings.Contains(tests, `alertname="`+m[1]+`"`) {
			t.Errorf("no test in which %s fires", m[1])
		}
	}
}

// queries are those of the rules and of the board.
func queries(t *testing.T, rules string) []string {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []struct{ Expr string }
		}
	}
	if err := yaml.Unmarshal([]byte(rules), &file); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			all = append(all, r.Expr)
		}
	}
	for _, row := range board {
		for _, p := range row.panels {
			for _, q := range p.queries {
				all = append(all, q[0])
			}
		}
	}
	return all
}
