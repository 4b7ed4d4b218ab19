package stream

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/streamdp/streamdp/internal/kafka"
)

// repeater repeats calls that fail for a passing reason, and keeps a list of them.
type repeater struct {
	log     *slog.Logger
	failed  func(error) // sees each failure; nil: nobody does
	changed func()      // called when what is being repeated has changed

	mu       sync.Mutex
	troubles map[string]string // what is being repeated, and why
}

func newRepeater(log *slog.Logger, failed func(error), changed func()) *repeater {
	return &repeater{log: log, failed: failed, changed: changed, troubles: map[string]string{}}
}

// retry repeats a call for as long as the cluster is the reason that it fails. Meanwhile
// status and readiness show it.
func (r *repeater) retry(ctx context.Context, what string, call func() error) error {
	var pause kafka.Backoff
	for {
		err := call()
		var later *notYet
		if !kafka.Retriable(err) && !errors.As(err, &later) {
			r.untroubled(what)
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.troubled(what, err)
		if err := pause.Wait(ctx); err != nil {
			return err
		}
	}
}

// notYet is a condition of the cluster that the operator must change.
type notYet struct{ err error }

func (e *notYet) Unwrap() error { return e.err }

func (e *notYet) Error() string { return e.err.Error() }

// troubled records that something is being repeated, and logs it once.
func (r *repeater) troubled(what string, err error) {
	if r.failed != nil {
		r.failed(err)
	}
	r.mu.Lock()
	was, known := r.troubles[what]
	r.troubles[what] = err.Error()
	r.mu.Unlock()
	if !known {
		r.log.Warn("retrying", "what", what, "error", err.Error())
	}
	if was != err.Error() {
		r.changed()
	}
}

func (r *repeater) untroubled(what string) {
	r.mu.Lock()
	_, known := r.troubles[what]
	delete(r.troubles, what)
	r.mu.Unlock()
	if known {
		r.log.Info("works again", "what", what)
		r.changed()
	}
}

// forget clears the list of what is being repeated, after a request interrupted it.
func (r *repeater) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.troubles)
}

// write repeats a write as long as the disk is full.
func (r *repeater) write(ctx context.Context, call func() error) error {
	return r.retry(ctx, "disk", func() error {
		err := call()
		if full(err) {
			return &notYet{err}
		}
		return err
	})
}

// repeating returns what is being repeated, and why; empty: nothing.
func (r *repeater) repeating() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for _, what := range slices.Sorted(maps.Keys(r.troubles)) {
		all = append(all, what+": "+r.troubles[what])
	}
	return strings.Join(all, "; ")
}
