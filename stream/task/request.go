package task

import (
	"errors"

	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/recovery"
)

// The kinds of requests.
const (
	RequestClose     = "close"
	RequestOpen      = "open"
	RequestRecover   = "recover"
	RequestRepublish = "republish"
)

// Request asks a task's owner to change the task's epoch, or to restore or republish something. As JSON, it is what
// a command sends to a running daemon. The kind is sent beside it.
type Request struct {
	Kind      string                    `json:"-"`
	Stream    string                    `json:"stream"`
	Partition int                       `json:"partition"`
	Open      epoch.OpenRequest         `json:"open"`
	Republish recovery.RepublishRequest `json:"republish"`
	From      *recovery.Export          `json:"from,omitempty"` // files to restore for recover; nil: none

	// Reply receives the answer of the task's runner. Who delivers the request makes it, with room for one error.
	Reply chan error `json:"-"`
}

// NewRequest returns a request of a kind for a task. The caller sets the fields that the kind needs.
func NewRequest(kind string, t core.Task) Request {
	return Request{Kind: kind, Stream: t.Stream, Partition: t.Partition}
}

// Task returns the task that the request is for.
func (q *Request) Task() core.Task { return core.Task{Stream: q.Stream, Partition: q.Partition} }

// ChangesEpoch reports whether an operator asks to open or close an epoch.
func (q *Request) ChangesEpoch() bool { return q.Kind == RequestOpen || q.Kind == RequestClose }

// Answer is the answer to a request, as a command receives it.
type Answer struct {
	Status string `json:"status"` // success, error
	Error  string `json:"error"`
	Reason string `json:"reason"` // of the halt that the request met
}

// NewAnswer returns the answer that reports err; nil: success.
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
