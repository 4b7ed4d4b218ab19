package task

// This file exports internals to the tests in package task_test.

import (
	"time"

	"github.com/streamdp/streamdp/stream/epoch"
)

type LetterReference = letterReference

const DeadLetterSchema = deadLetterSchema

// Waits reports whether a task waits for the broker, and for a commit, if the given number of bytes waits for each.
func Waits(r *Runner, bytes int) (choked, full bool) {
	w := &committer{r: r, epoch: &epoch.OpenEpoch{}, period: time.Second, outboxBytes: bytes, pendingBytes: bytes}
	return w.choked(), w.full()
}
