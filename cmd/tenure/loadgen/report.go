package loadgen

import (
	"slices"
	"time"
)

// Report is what a run measured. Durations and sizes carry their unit in the name.
type Report struct {
	Settings Settings `json:"settings"`
	Join     Join     `json:"join"`
	Steady   Steady   `json:"steady"`
	Memory   Memory   `json:"memory"`
	// Detection is of the nodes that were killed while all went on.
	Detection *Detection `json:"detection,omitempty"`
	// Restart is what came of killing each replica and starting it again.
	Restart *Restart `json:"restart,omitempty"`
	// FalseSuspicions names the nodes that lived and that some replica took for
	// suspect, from the time when all had joined.
	FalseSuspicions []string `json:"false_suspicions"`
	// Refused counts the refusals of beats and renewals in the whole run, by what
	// was refused and the code.
	Refused map[string]int `json:"refused"`
	// Lapses counts the nodes that could not renew in time, by their own clock.
	Lapses  int      `json:"lapses"`
	Trouble []string `json:"trouble,omitempty"` // the first warnings of replicas and nodes
}

// Settings are those of the run.
type Settings struct {
	Database       string `json:"database"`
	Nodes          int    `json:"nodes"`
	IntervalMS     int64  `json:"interval_ms"`
	SuspectAfterMS int64  `json:"suspect_after_ms"`
	NodeTTLMS      int64  `json:"node_ttl_ms"`
	Relay          int    `json:"relay"` // beats in a body
	Replicas       int    `json:"replicas"`
	Connections    int    `json:"connections"`
}

// Join is how the fleet came up: each node acquires its lease, alone, and joins
// with its first beat.
type Join struct {
	MS       int64   `json:"ms"`
	PerSec   float64 `json:"nodes_per_second"`
	ServerUS float64 `json:"server_cpu_us_per_node"`
}

// Steady is a time in which nothing but beats happens.
type Steady struct {
	Seconds        float64 `json:"seconds"`
	Load           float64 `json:"load_average"` // of the machine, at the end
	BeatsPerSec    float64 `json:"beats_per_second"`
	DuePerSec      float64 `json:"due_per_second"` // as the interval asks for
	ServerUS       float64 `json:"server_cpu_us_per_beat"`
	ServerCores    float64 `json:"server_cores"`
	GeneratorUS    float64 `json:"generator_cpu_us_per_beat"`
	DatabaseUS     float64 `json:"database_cpu_us_per_beat"` // negative if it is not known
	DatabaseCores  float64 `json:"database_cores"`           // likewise
	CommitsPerSec  float64 `json:"commits_per_second"`
	RowsPerSec     float64 `json:"rows_per_second"`      // likewise
	LogPerSec      float64 `json:"log_bytes_per_second"` // write-ahead log; likewise
	WrittenPerSec  float64 `json:"written_bytes_per_second"`
	RowsPerBeat    float64 `json:"rows_per_beat"`
	CommitsPerBeat float64 `json:"commits_per_beat"`
	Reply          Spread  `json:"reply"`          // from the send to the whole answer
	GeneratorLate  Spread  `json:"generator_late"` // by how much the generator sent later than was due
	Lost           int     `json:"lost"`           // beats without an answer
}

// Memory is what the replicas hold, in bytes.
type Memory struct {
	EmptyRSS    int64   `json:"empty_rss_bytes"` // before the first node
	RSS         int64   `json:"rss_bytes"`       // at the end of the steady time
	PerNode     float64 `json:"rss_bytes_per_node"`
	EmptyLive   uint64  `json:"empty_live_heap_bytes"`
	Live        uint64  `json:"live_heap_bytes"` // after a collection
	LivePerNode float64 `json:"live_heap_bytes_per_node"`
	Stacks      uint64  `json:"stack_bytes"`
	Goroutines  int     `json:"goroutines"`
}

// Spread is a distribution in milliseconds.
type Spread struct {
	P50  float64 `json:"p50_ms"`
	P99  float64 `json:"p99_ms"`
	Most float64 `json:"max_ms"`
}

// Detection is how long killed nodes stayed unsuspected, on each replica.
type Detection struct {
	Killed   int    `json:"killed"`
	Detected int    `json:"detected"` // by every replica
	Time     Spread `json:"time"`
}

// Restart is what happened when each replica in turn was ended by SIGKILL and
// started again, while the nodes went on.
type Restart struct {
	DownMS int64 `json:"down_ms"` // the longest that a replica did not serve
	// Gap is of the nodes that were killed while it was down, from their death.
	Gap *Detection `json:"killed_in_the_gap,omitempty"`
	// Lost are the beats without an answer.
	Lost            int `json:"lost"`
	FalseSuspicions int `json:"false_suspicions"`
}

func spread(h *histogram) Spread {
	return Spread{P50: milliseconds(h.quantile(0.5)), P99: milliseconds(h.quantile(0.99)), Most: milliseconds(h.Most)}
}

func spreadOf(list []time.Duration) Spread {
	if len(list) == 0 {
		return Spread{}
	}
	slices.Sort(list)
	at := func(q float64) float64 {
		i := int(q*float64(len(list))+0.999999) - 1
		return milliseconds(list[min(max(i, 0), len(list)-1)])
	}
	return Spread{P50: at(0.5), P99: at(0.99), Most: at(1)}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
