package task

// This file exports internals to the tests in package task_test.

import (
	"time"

	"github.com/streamdp/streamdp/stream/epoch"
)

type LetterReference = letterReference

const DeadLetterSchema = deadLetterSchema

// Waits reports whether applying would wait for the broker, if its outbox holds the given number of bytes, and for a
// commit, if that many bytes are pending.
func Waits(r *Runner, bytes int) (choked, full bool) {
	w := &committer{r: r, epoch: &epoch.OpenEpoch{}, period: time.Second, outboxBytes: bytes, pendingBytes: bytes}
	return w.choked(), w.full()
}
