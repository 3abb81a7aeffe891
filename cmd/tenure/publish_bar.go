package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/tenurehq/tenure/fence/publish"
)

// bar shows the progress of a transfer on a terminal, and nothing elsewhere. It is
// for one goroutine at a time.
type bar struct {
	w        io.Writer
	terminal bool
	stage    string
	began    time.Time
	drawn    time.Time
	first    int64 // bytes that were there at the first drawing: no part of the speed
}

// show draws p under the heading stage, at most ten times a second.
func (b *bar) show(stage string, p publish.Progress) {
	now := time.Now()
	if stage != b.stage {
		b.stage, b.began, b.first, b.drawn = stage, now, p.Bytes, time.Time{}
	}
	if !b.terminal || now.Sub(b.drawn) < 100*time.Millisecond {
		return
	}
	b.drawn = now
	fmt.Fprint(b.w, "\r\x1b[K"+barLine(stage, p, p.Bytes-b.first, now.Sub(b.began)))
}

// clear removes the line.
func (b *bar) clear() {
	if b.terminal && !b.drawn.IsZero() {
		fmt.Fprint(b.w, "\r\x1b[K")
	}
	b.stage = ""
}

// barLine is what is drawn: moved bytes took that long.
func barLine(stage string, p publish.Progress, moved int64, took time.Duration) string {
	const width = 24
	full := int(min(width*p.Bytes/max(p.AllBytes, 1), width))
	line := fmt.Sprintf("%-9s [%s%s] %3d%%  %d of %d files  %s of %s", stage,
		strings.Repeat("#", full), strings.Repeat(".", width-full),
		min(100*p.Bytes/max(p.AllBytes, 1), 100), p.Files, p.AllFiles, byteSize(p.Bytes), byteSize(p.AllBytes))
	if moved > 0 && took >= time.Second {
		speed := float64(moved) / took.Seconds()
		line += "  " + byteSize(int64(speed)) + "/s"
		if rest := time.Duration(float64(p.AllBytes-p.Bytes) / speed * float64(time.Second)); rest >= time.Second {
			line += "  " + shortDuration(rest.Round(time.Second)) + " left"
		}
	}
	return line
}

// byteSize shows a number of bytes in binary units.
func byteSize(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f := float64(n)
	for _, unit := range []string{"KiB", "MiB", "GiB"} {
		if f /= 1024; f < 1024 {
			return fmt.Sprintf("%.1f %s", f, unit)
		}
	}
	return fmt.Sprintf("%.1f TiB", f/1024)
}
