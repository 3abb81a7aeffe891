package server

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// TableRefusals says how often a guarded table of an application has refused a
// statement.
type TableRefusals struct {
	Table    string
	Guarding bool
	Refused  map[string]int64 // by reason
}

const (
	tablesAge   = 15 * time.Second // how old a reading may be
	tablesLimit = 2 * time.Second  // of a reading
	maxTables   = 200              // that are shown
)

// tables shows the guarded tables of applications. While they cannot be read it
// shows none.
type tables struct {
	read            func(context.Context) ([]TableRefusals, error)
	refused, guards *prometheus.Desc
	texts           []metricText

	mu   sync.Mutex // held while it reads, so that it reads once
	last []TableRefusals
	at   time.Time
}

func newTables(read func(context.Context) ([]TableRefusals, error)) *tables {
	t := &tables{read: read}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		t.texts = append(t.texts, metricText{"tenure_" + name, help})
		return prometheus.NewDesc("tenure_"+name, help, labels, nil)
	}
	t.refused = desc("table_refusals_total", "Stale writes that a guarded table of an application refused, by reason; not there while the database does not tell.", "table", "reason")
	t.guards = desc("table_guarded", "Whether the guard of such a table is in force.", "table")
	return t
}

// Describe is of prometheus.Collector.
func (t *tables) Describe(ch chan<- *prometheus.Desc) {
	ch <- t.refused
	ch <- t.guards
}

// Collect is of prometheus.Collector.
func (t *tables) Collect(out chan<- prometheus.Metric) {
	ch := sink(out)
	for _, table := range t.now() {
		ch.gauge(t.guards, truth(table.Guarding), table.Table)
		for reason, n := range table.Refused {
			ch.count(t.refused, float64(n), table.Table, reason)
		}
	}
}

func (t *tables) now() []TableRefusals {
	if t.read == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); t.at.IsZero() || now.Sub(t.at) >= tablesAge {
		ctx, cancel := context.WithTimeout(context.Background(), tablesLimit)
		defer cancel()
		read, err := t.read(ctx)
		if err != nil {
			read = nil
		}
		t.last, t.at = read[:min(len(read), maxTables)], now
	}
	return t.last
}
