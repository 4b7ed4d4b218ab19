package task

import (
	"context"
	"errors"

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

// Request asks a task's owner to change its epoch, or to restore or republish something.
type Request struct {
	Kind      string                    // one of the kinds
	Open      epoch.OpenRequest         // of RequestOpen; RequestClose reads DropOutbox alone
	From      *recovery.Export          // of RequestRecover: the files to bring back; nil: none
	Republish recovery.RepublishRequest // of RequestRepublish
	Reply     chan error                // for Ask: has room for the answer
}

// ChangesEpoch reports whether an operator asks to open or close an epoch.
func (q *Request) ChangesEpoch() bool { return q.Kind == RequestOpen || q.Kind == RequestClose }

// ErrGone says that a task left this process while a request waited. Whether the request was
// met, its ledger says.
var ErrGone = errors.New("the task has left this instance: ask again")

// Ask gives a request to the task's owner and waits for the answer. ctx is that of the daemon.
//
// Errors: the answer; ErrGone; that the daemon stops; the end of the caller's patience.
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
	var logs []core.Offsets
	for _, src := range last.Sources() {
		log, err := r.D.OffsetsOf(ctx, src.Topic, src.Partition)
		if err != nil {
			log = core.Offsets{Start: -1, Stable: -1, End: -1}
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

// ControlRequest is a command's request to a running daemon, as it is sent. Its kind is sent beside it.
type ControlRequest struct {
	Stream    string                    `json:"stream"`
	Partition int                       `json:"partition"`
	Open      epoch.OpenRequest         `json:"open"`
	Republish recovery.RepublishRequest `json:"republish"`
	// From holds the files to restore for recover; nil: none.
	From *recovery.Export `json:"from,omitempty"`
}

// Task returns the task that is asked.
func (q *ControlRequest) Task() core.Task {
	return core.Task{Stream: q.Stream, Partition: q.Partition}
}

// Request returns the request for the task's owner.
func (q *ControlRequest) Request(kind string) Request {
	return Request{Kind: kind, Open: q.Open, Republish: q.Republish, From: q.From, Reply: make(chan error, 1)}
}

// ControlAnswer is the daemon's answer to a ControlRequest.
type ControlAnswer struct {
	Status string `json:"status"` // success, error
	Error  string `json:"error"`
	Reason string `json:"reason"` // of the halt that the request met
}

// Err returns the error of the request, as [Runner.Ask] returned it: nil for success, *failure.Halt with its reason.
func (a *ControlAnswer) Err() error {
	switch err := errors.New(a.Error); {
	case a.Status == "success":
		return nil
	case a.Reason != "":
		return &failure.Halt{Reason: a.Reason, Err: err}
	default:
		return err
	}
}
