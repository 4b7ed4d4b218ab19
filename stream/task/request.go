package task

import (
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/recovery"
)

// Request asks a task's owner to change its epoch, or to restore or republish something.
type Request struct {
	Kind      string
	Open      epoch.OpenRequest
	From      *recovery.Export // Recover: brings back files; nil: none
	Republish recovery.RepublishRequest
	Reply     chan error
}

// ChangesEpoch reports whether an operator asks to open or close an epoch.
func (q *Request) ChangesEpoch() bool { return q.Kind == RequestOpen || q.Kind == RequestClose }

const (
	RequestClose     = "close"
	RequestOpen      = "open"
	RequestRecover   = "recover"
	RequestRepublish = "republish"
)
