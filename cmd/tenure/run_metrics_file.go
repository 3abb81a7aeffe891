package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// metricsFile is a file for the node exporter, which runs of one crontab line share
// if they overlap. It belongs to the run that works under the lease, until that run
// has written how it ended; other runs write it only while it belongs to nobody.
// Whose it is says an flock on the file itself: nothing else is left beside it, and
// the lock ends with its process, however that ends. Each write puts a new file, with
// its lock, in the place of the old one. It is not safe for concurrent use.
type metricsFile struct {
	path string
	mine *os.File // locked, and what is at path; nil if the file is not ours
}

// errAtWork reports that the file belongs to another run.
var errAtWork = errors.New("metrics file: another run is at work")

// write replaces the file by what gather returns, and keeps the file if keep says so.
// gather is called while nobody else writes. The error is errAtWork, or that of the
// file system.
func (f *metricsFile) write(gather func() ([]byte, error), keep bool) error {
	if err := f.take(); err != nil {
		return err
	}
	next, err := f.replace(gather)
	f.mine.Close() // also after a failure, so that another may have more luck
	f.mine = nil
	if err != nil {
		return err
	}
	if keep {
		f.mine = next
		return nil
	}
	return next.Close()
}

// take makes the file ours, and makes one if there is none. Where the file system
// has no locks it belongs to whoever writes.
func (f *metricsFile) take() error {
	for f.mine == nil {
		// Without waiting for the other end of a named pipe, which is replaced too.
		file, err := os.OpenFile(f.path, os.O_RDONLY|os.O_CREATE|syscall.O_NONBLOCK, 0o644) //nolint:gosec // the node exporter is another user
		if err != nil {
			return err
		}
		if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
			file.Close()
			return errAtWork
		}
		locked, err := file.Stat()
		there, statErr := os.Stat(f.path)
		if err == nil && statErr == nil && os.SameFile(locked, there) {
			f.mine = file
		} else {
			file.Close() // it was replaced just before it was locked
		}
	}
	return nil
}

// replace puts a new file in the place of the old one and returns it, locked.
func (f *metricsFile) replace(gather func() ([]byte, error)) (next *os.File, err error) {
	text, err := gather()
	if err != nil {
		return nil, err
	}
	next, err = os.CreateTemp(filepath.Dir(f.path), filepath.Base(f.path)) // does not end in .prom
	if err != nil {
		return nil, err
	}
	_ = syscall.Flock(int(next.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) // fails only where there are no locks
	_, err = next.Write(text)
	if err == nil {
		err = next.Chmod(0o644)
	}
	if err == nil {
		err = os.Rename(next.Name(), f.path)
	}
	if err != nil {
		next.Close()
		_ = os.Remove(next.Name()) // the first error tells why
		return nil, err
	}
	return next, nil
}

// exposition returns what g has to show, as a node exporter reads it.
func exposition(g prometheus.Gatherer) ([]byte, error) {
	families, err := g.Gather()
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&text, family); err != nil {
			return nil, err
		}
	}
	return text.Bytes(), nil
}

// lastSuccess reads from a file of metrics when a run of lease last succeeded.
func lastSuccess(path, lease string) (at float64, ok bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return 0, false
	}
	for _, metric := range families[successes].GetMetric() {
		for _, l := range metric.GetLabel() {
			if l.GetName() == "lease" && l.GetValue() == lease {
				return metric.GetGauge().GetValue(), true
			}
		}
	}
	return 0, false
}
