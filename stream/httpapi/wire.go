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

// PatternStatus is what status says of a pattern. All of it is public: it follows from the names of
// topics.
type PatternStatus struct {
	Pattern string `json:"pattern"` // the name of its table
	Topics  string `json:"topics"`  // the regular expression
	Most    int    `json:"max_topics"`
	Taken   int    `json:"taken"`
	Beyond  int    `json:"beyond"`  // topics that match, and are not taken because Most are
	Refused int    `json:"refused"` // topics that match, and are not taken for another reason
	// Missing are some of those topics, with the reasons.
	Missing []config.Refusal `json:"missing,omitempty"`
}

// ReloadRequest asks a daemon to read its configuration again.
type ReloadRequest struct {
	// Open lets the streams that are added open their first epochs, as at a start, and those too that wait
	// for that since an earlier reload.
	Open bool `json:"open,omitempty"`
	// DryRun changes nothing.
	DryRun bool `json:"dry_run,omitempty"`
}

// Reload says in what a configuration that was read again differs from the one that runs.
type Reload struct {
	Added   []string       `json:"added"` // Streams
	Removed []string       `json:"removed"`
	Changed []StreamChange `json:"changed"`
	// Process are keys outside of streams that changed.
	Process []config.Difference `json:"process"`
	// Opened are tasks that waited for a request to open their epoch, and now do. A stream stands for all of
	// its tasks where its partitions are not known yet.
	Opened []string `json:"opened"`
	// Unopened are tasks that wait for that request: their next epoch would be the first, or one after a
	// horizon. Streams, and patterns whose topics are not known yet, stand for their tasks.
	Unopened []string `json:"unopened"`
	// Refused says why nothing was changed: one reason each. None: everything was.
	Refused []string `json:"refused"`
}

// StreamChange is how a stream changed.
type StreamChange struct {
	Stream string              `json:"stream"`
	Keys   []config.Difference `json:"keys"`
}

// RefusedError is the error of a reload that changed nothing because a running daemon cannot take
// the difference.
type RefusedError struct {
	Reload *Reload
}

// Error has a line for each reason.
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
		refuse(w, http.StatusBadRequest, errors.New("the stream has several partitions: name one with partition"))
		return
	}
	var after uint64
	if text := req.URL.Query().Get("after"); text != "" {
		if after, err = strconv.ParseUint(text, 10, 64); err != nil {
			refuse(w, http.StatusBadRequest, errors.New("after must be a whole number, the n of a release"))
			return
		}
	}
	success(w, struct {
		Started  time.Time       `json:"started"` // numbers n are of the process that began then
		Releases []monitor.Point `json:"releases"`
	}{s.Started.UTC(), found[0].After(req.Context(), after)})
}
