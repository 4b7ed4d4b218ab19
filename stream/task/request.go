package task

import (
	"context"
	"errors"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/recovery"
)

// The kinds of requests.
const (
	RequestClose     = "close"
	RequestOpen      = "open"
	RequestRecover   = "recover"
	RequestRepublish = "republish"
)

// Request asks a task's owner to change the task's epoch, to restore its state, or to publish something again. A
// command sends it to a running daemon as JSON, and the kind separately.
type Request struct {
	Kind      string                    `json:"-"`
	Stream    string                    `json:"stream"`
	Partition int                       `json:"partition"`
	Open      epoch.OpenRequest         `json:"open"`
	Republish recovery.RepublishRequest `json:"republish"`
	From      *recovery.Export          `json:"from,omitempty"` // files to restore for recover; nil: none

	// Reply receives the answer of the task's runner. The sender of the request makes the channel, with room for one
	// error.
	Reply chan error `json:"-"`
}

// NewRequest returns a request of a kind for a task. The caller sets the fields that the kind needs.
func NewRequest(kind string, t core.Task) Request {
	return Request{Kind: kind, Stream: t.Stream, Partition: t.Partition}
}

// Task returns the task that the request is for.
func (q *Request) Task() core.Task { return core.Task{Stream: q.Stream, Partition: q.Partition} }

// ChangesEpoch reports whether the request opens or closes an epoch.
func (q *Request) ChangesEpoch() bool { return q.Kind == RequestOpen || q.Kind == RequestClose }

// ErrGone says that the task moved to another process while a request waited. The ledger shows whether the request was
// carried out.
var ErrGone = errors.New("the task moved to another instance: send the request again")

// Ask gives a request to the task's owner and waits for the answer. ctx is the daemon's context; patience ends the
// wait.
// Errors: the error in the answer, ErrGone, an error that says that the daemon is stopping, or the error of patience.
func (r *Runner) Ask(ctx, patience context.Context, q Request) error {
	select {
	case r.requests <- q:
	case <-r.gone:
		return ErrGone
	case <-ctx.Done():
		return errors.New("the daemon is stopping")
	case <-patience.Done():
		return patience.Err()
	}
	select {
	case err := <-q.Reply:
		return err
	case <-r.gone:
		return ErrGone
	case <-ctx.Done():
		return errors.New("the daemon is stopping")
	case <-patience.Done():
		return patience.Err()
	}
}

// Serve answers a request while no epoch is running.
func (r *Runner) Serve(ctx context.Context, q Request) error {
	if q.ChangesEpoch() {
		r.D.Ledger.AcceptKey()
	}
	if q.Kind == RequestOpen {
		if err := r.D.Mirror.Adopt(ctx); err != nil {
			return err
		}
	}
	if err := r.FinishClosings(ctx); err != nil {
		return err
	}
	switch q.Kind {
	case RequestRecover:
		return recovery.Restorer{Keeper: r.Keeper}.Recover(ctx, q.From)
	case RequestRepublish:
		return recovery.Restorer{Keeper: r.Keeper}.Republish(ctx, q.Republish)
	}
	last := r.D.Ledger.Newest(r.Task)
	if last == nil || last.Kind != ledger.KindOpen {
		if q.Kind == RequestClose {
			return errors.New("the task has no open epoch")
		}
		return r.Open(ctx, q.Open)
	}
	var logs []kafka.Offsets
	for _, src := range last.Sources() {
		log, err := r.D.Client.Offsets(ctx, src.Topic, int32(src.Partition))
		if err != nil {
			log = kafka.Offsets{Start: -1, Stable: -1, End: -1}
		}
		logs = append(logs, log)
	}
	ends, steps := r.Reached(last)
	if q.Kind == RequestOpen {
		if err := r.Acceptable(ctx, q.Open, last, ends, steps, logs); err != nil {
			return err
		}
	}
	if err := r.CloseStopped(ctx, last, q.Open.DropOutbox); err != nil {
		return err
	}
	if q.Kind == RequestClose {
		return nil
	}
	return r.Open(ctx, q.Open)
}

// Answer is the answer to a request, as a command receives it.
type Answer struct {
	Status string `json:"status"` // success, error
	Error  string `json:"error"`
	Reason string `json:"reason"` // the halt's reason, if the request met a halt
}

// NewAnswer returns the answer that reports err. A nil err is success.
func NewAnswer(err error) Answer {
	if err == nil {
		return Answer{Status: "success"}
	}
	a := Answer{Status: "error", Error: err.Error()}
	if h := (*failure.Halt)(nil); errors.As(err, &h) {
		a.Reason = h.Reason
	}
	return a
}

// Err returns the error that the answer reports. It is a [failure.Halt] if the request met one.
func (a *Answer) Err() error {
	switch err := errors.New(a.Error); {
	case a.Status == "success":
		return nil
	case a.Reason != "":
		return &failure.Halt{Reason: a.Reason, Err: err}
	default:
		return err
	}
}
