package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// aboutMachine returns what the figures depend on.
func aboutMachine() ([][2]string, error) {
	read := func(path string) string {
		b, err := os.ReadFile(path)
		if err != nil {
			return "unknown"
		}
		return strings.TrimSpace(string(b))
	}
	cpu := "unknown"
	for line := range strings.Lines(read("/proc/cpuinfo")) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			cpu = strings.TrimSpace(value)
			break
		}
	}
	load, _, _ := strings.Cut(read("/proc/loadavg"), " ")
	sync, err := syncTime()
	if err != nil {
		return nil, err
	}
	return [][2]string{
		{"processors", fmt.Sprintf("%d × %s", runtime.NumCPU(), cpu)},
		{"kernel", runtime.GOOS + " " + read("/proc/sys/kernel/osrelease") + " " + runtime.GOARCH},
		{"load at the start", load + " (1 minute)"},
		{"fsync of one page", short(sync) + " (median of 100), file system of the temporary directory"},
		{"Go", runtime.Version()},
	}, nil
}

// syncTime is how long one page needs to the disk on which the servers live.
func syncTime() (time.Duration, error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	f, err := os.Create(filepath.Join(dir, "page"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	page := make([]byte, 8192)
	var times []time.Duration
	for range 100 {
		start := time.Now()
		if _, err := f.WriteAt(page, 0); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		times = append(times, time.Since(start))
	}
	return median(times), nil
}
