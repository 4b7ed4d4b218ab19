package httpapi

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/monitor"
)

// PatternStatus is the status of a pattern. It depends only on the names of topics, so all of it is public.
type PatternStatus struct {
	Pattern string `json:"pattern"` // name of the pattern's table in the configuration
	Topics  string `json:"topics"`  // the pattern's regular expression
	Most    int    `json:"max_topics"`
	Taken   int    `json:"taken"`
	// Beyond is the number of matching topics that are not taken because Most topics are taken already.
	Beyond  int `json:"beyond"`
	Refused int `json:"refused"` // number of matching topics that are not taken for another reason
	// Missing lists some of the topics counted in Beyond and Refused, with the reasons.
	Missing []config.Refusal `json:"missing,omitempty"`
}

// ReloadRequest asks a daemon to read its configuration again.
type ReloadRequest struct {
	// Open lets added streams open their first epochs, as when a daemon starts. This includes streams that an earlier
	// reload added and that still wait to open.
	Open bool `json:"open,omitempty"`
	// DryRun asks only for a report of the changes; none is made.
	DryRun bool `json:"dry_run,omitempty"`
}

// Reload is the difference between the configuration that was read again and the running one.
type Reload struct {
	Added   []string       `json:"added"` // names of added streams
	Removed []string       `json:"removed"`
	Changed []StreamChange `json:"changed"`
	// Process lists the changed keys outside of streams.
	Process []config.Difference `json:"process"`
	// Opened lists the tasks that waited for a request to open their epoch and now open it. If a stream's partitions
	// are not known yet, its name stands for all of its tasks.
	Opened []string `json:"opened"`
	// Unopened lists the tasks that still wait for such a request: their next epoch would be the first, or the first
	// after a horizon. If the topics of a stream or pattern are not known yet, its name stands for its tasks.
	Unopened []string `json:"unopened"`
	// Refused lists the reasons why nothing was changed. If it is empty, all changes were made.
	Refused []string `json:"refused"`
}

// StreamChange lists the changed keys of a stream.
type StreamChange struct {
	Stream string              `json:"stream"`
	Keys   []config.Difference `json:"keys"`
}

// RefusedError is the error of a reload that changed nothing because a running daemon cannot make some of the changes.
type RefusedError struct {
	Reload *Reload
}

// Error returns one line for each reason.
func (e *RefusedError) Error() string {
	return "nothing was changed: " + strings.Join(e.Reload.Refused, "\n")
}

// streamSeries answers with the published values of a task over time.
func (s *Server) streamSeries(w http.ResponseWriter, req *http.Request) {
	found, err := s.streamRunners(req)
	if err != nil {
		refuse(w, http.StatusNotFound, err)
		return
	}
	if len(found) > 1 {
		refuse(w, http.StatusBadRequest, errors.New("the stream has several partitions: select one with ?partition=P"))
		return
	}
	var after uint64
	if text := req.URL.Query().Get("after"); text != "" {
		if after, err = strconv.ParseUint(text, 10, 64); err != nil {
			refuse(w, http.StatusBadRequest, errors.New("parameter \"after\" must be a whole number: the n of a "+
				"release"))
			return
		}
	}
	success(w, struct {
		Started  time.Time       `json:"started"` // start time of the process; the numbers n of releases count from it
		Releases []monitor.Point `json:"releases"`
	}{s.Started.UTC(), found[0].After(req.Context(), after)})
}
