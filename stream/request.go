package stream

// request asks a task's owner to change its epoch, or to restore or republish something.
type request struct {
	kind      string
	open      OpenRequest
	from      *Export // recover: brings back files; nil: none
	republish RepublishRequest
	reply     chan error
}

// changesEpoch reports whether an operator asks to open or close an epoch.
func (q *request) changesEpoch() bool { return q.kind == requestOpen || q.kind == requestClose }

const (
	requestClose     = "close"
	requestOpen      = "open"
	requestRecover   = "recover"
	requestRepublish = "republish"
)
