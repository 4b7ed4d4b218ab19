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

// OpenRequest says how to open an epoch.
type OpenRequest struct {
	// From is "continue" (where the predecessor ended, the default),
	// "earliest", "latest" or an offset.
	From string `json:"from,omitempty"`
	// SameLog asserts that the log is the one that the predecessor read. It is for a log whose
	// retention has removed the record that would prove it.
	SameLog bool `json:"same_log,omitempty"`
	// DropOutbox gives up the predecessor's releases that are not published yet.
	DropOutbox bool `json:"drop_outbox,omitempty"`
	// Reason is recorded in the ledger.
	Reason string `json:"reason,omitempty"`

	unasked bool  // no operator asked for it
	output  int64 // releases that the ledger does not know are looked for from here, 0: everywhere
}
