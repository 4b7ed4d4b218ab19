package failure

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

// Retrier repeats calls that fail for a passing reason, and keeps a list of them. It is safe for concurrent use.
type Retrier struct {
	Log     *slog.Logger
	failed  func(error) // sees each failure; nil: nobody does
	changed func()      // called when what is being repeated has changed

	mu       sync.Mutex
	troubles map[string]string // what is being repeated, and why
}

// NewRetrier returns a retrier that logs to log. It calls failed with each failure, and changed when the list has
// changed.
func NewRetrier(log *slog.Logger, failed func(error), changed func()) *Retrier {
	return &Retrier{Log: log, failed: failed, changed: changed, troubles: map[string]string{}}
}

// Do repeats a call for as long as the cluster is the reason that it fails, or a [Later]. Meanwhile
// status and readiness show what is being done. It returns any other error, or that of ctx.
func (r *Retrier) Do(ctx context.Context, what string, call func() error) error {
	var pause kafka.Backoff
	for {
		err := call()
		var later *Later
		if !kafka.Retriable(err) && !errors.As(err, &later) {
			r.Recovered(what)
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.Failing(what, err)
		if err := pause.Wait(ctx); err != nil {
			return err
		}
	}
}

// Later is an error that passes once the operator changes the cluster or makes room: the call is repeated.
type Later struct{ Err error }

// Unwrap returns the cause.
func (e *Later) Unwrap() error { return e.Err }

// Error returns the words of the cause.
func (e *Later) Error() string { return e.Err.Error() }

// Failing records that something is being repeated, and logs it once.
func (r *Retrier) Failing(what string, err error) {
	if r.failed != nil {
		r.failed(err)
	}
	r.mu.Lock()
	was, known := r.troubles[what]
	r.troubles[what] = err.Error()
	r.mu.Unlock()
	if !known {
		r.Log.Warn("retrying", "what", what, "error", err.Error())
	}
	if was != err.Error() {
		r.changed()
	}
}

// Recovered records that something is no longer repeated, and logs it if it was.
func (r *Retrier) Recovered(what string) {
	r.mu.Lock()
	_, known := r.troubles[what]
	delete(r.troubles, what)
	r.mu.Unlock()
	if known {
		r.Log.Info("works again", "what", what)
		r.changed()
	}
}

// Forget clears the list of what is being repeated, after a request interrupted it.
func (r *Retrier) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.troubles)
}

// IsFailing reports whether something is being repeated.
func (r *Retrier) IsFailing(what string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, known := r.troubles[what]
	return known
}

// DoDisk repeats a write as long as the disk is full. It returns any other error, or that of ctx.
func (r *Retrier) DoDisk(ctx context.Context, call func() error) error {
	return r.Do(ctx, "disk", func() error {
		err := call()
		if DiskFull(err) {
			return &Later{err}
		}
		return err
	})
}

// Waiting returns what is being repeated, and why; empty: nothing.
func (r *Retrier) Waiting() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for _, what := range slices.Sorted(maps.Keys(r.troubles)) {
		all = append(all, what+": "+r.troubles[what])
	}
	return strings.Join(all, "; ")
}
