package api

import (
	"fmt"
	"strings"

	"github.com/tenurehq/tenure/fleet"
)

// Lines returns all of the answer in lines, for people: what Text says, the
// detector, the brake and the last events.
func (w *NodeWhy) Lines() []string {
	return lines(w.Text, "  detector:  "+w.Detector, w.Brake, w.Events)
}

// Lines returns all of the answer in lines, for people: what Text says, the brake
// and the last events.
func (w *WorkWhy) Lines() []string { return lines(w.Text, "", w.Brake, w.Events) }

func lines(text []string, detector string, brake *BrakeState, events []fleet.Event) []string {
	all := append([]string{}, text...)
	if detector != "" {
		all = append(all, detector)
	}
	if brake != nil {
		all = append(all, "  brake:     "+brake.Domain+": "+brake.Text)
	}
	if len(events) > 0 {
		all = append(all, "last events:")
	}
	for i := range events {
		all = append(all, "  "+EventLine(&events[i]))
	}
	return all
}

// EventLine returns an event on one line. What others wrote in it is as it came.
func EventLine(e *fleet.Event) string {
	parts := []string{e.At.UTC().Format("2006-01-02T15:04:05.000Z"), fmt.Sprintf("%-17s", e.Kind)}
	for _, p := range [][2]string{{"work ", e.Work}, {"node ", e.Node}, {"", string(e.Code)}, {"by ", e.Actor}} {
		if p[1] != "" {
			parts = append(parts, p[0]+p[1])
		}
	}
	if e.Token > 0 {
		parts = append(parts, "token "+e.Token.String())
	}
	line := strings.Join(parts, "  ")
	if e.Text != "" {
		line += ": " + e.Text
	}
	return line
}
