package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
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
