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

// Retrier retries calls that fail for a temporary reason, and keeps a list of the failing calls. It is safe for
// concurrent use.
type Retrier struct {
	Log     *slog.Logger
	failed  func(error) // called with each failure; may be nil
	changed func()      // called when the list has changed

	mu       sync.Mutex
	troubles map[string]string // last error of each failing call
}

// NewRetrier returns a retrier that logs to log. It calls failed with each failure, and changed when the list has
// changed.
func NewRetrier(log *slog.Logger, failed func(error), changed func()) *Retrier {
	return &Retrier{Log: log, failed: failed, changed: changed, troubles: map[string]string{}}
}

// Do retries a call while it fails because of the cluster or with a [Later]. Meanwhile status and readiness show the
// name `what`. Do returns any other error, or that of ctx.
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

// Later is an error that ends once the operator changes the cluster or makes room, so the call is retried.
type Later struct{ Err error }

// Unwrap returns the cause.
func (e *Later) Unwrap() error { return e.Err }

// Error returns the message of the cause.
func (e *Later) Error() string { return e.Err.Error() }

// Failing records that a call is being retried, and logs it once.
func (r *Retrier) Failing(what string, err error) {
	if r.failed != nil {
		r.failed(err)
	}
	r.mu.Lock()
	was, known := r.troubles[what]
	r.troubles[what] = err.Error()
	r.mu.Unlock()
	if !known {
		r.Log.Warn("call failed: retrying", "what", what, "error", err.Error())
	}
	if was != err.Error() {
		r.changed()
	}
}

// Recovered records that a call is no longer being retried, and logs it if it was.
func (r *Retrier) Recovered(what string) {
	r.mu.Lock()
	_, known := r.troubles[what]
	delete(r.troubles, what)
	r.mu.Unlock()
	if known {
		r.Log.Info("call succeeds again", "what", what)
		r.changed()
	}
}

// Forget clears the list of failing calls, after a request has interrupted them.
func (r *Retrier) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.troubles)
}

// IsFailing reports whether a call is being retried.
func (r *Retrier) IsFailing(what string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, known := r.troubles[what]
	return known
}

// DoDisk retries a write while the disk is full. It returns any other error, or that of ctx.
func (r *Retrier) DoDisk(ctx context.Context, call func() error) error {
	return r.Do(ctx, "disk", func() error {
		err := call()
		if DiskFull(err) {
			return &Later{err}
		}
		return err
	})
}

// Waiting returns the failing calls and their errors as text, or "" if there are none.
func (r *Retrier) Waiting() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for _, what := range slices.Sorted(maps.Keys(r.troubles)) {
		all = append(all, what+": "+r.troubles[what])
	}
	return strings.Join(all, "; ")
}
