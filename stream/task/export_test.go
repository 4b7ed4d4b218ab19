package task

// This file shows the tests in package task_test what they look into.

import (
	"time"

	"github.com/streamdp/streamdp/stream/epoch"
)

type LetterReference = letterReference

const DeadLetterSchema = deadLetterSchema

// Waits reports whether a task waits for the broker, and for a commit, if so many bytes wait for each of them.
func Waits(r *Runner, bytes int) (choked, full bool) {
	w := &committer{r: r, epoch: &epoch.OpenEpoch{}, period: time.Second, outboxBytes: bytes, pendingBytes: bytes}
	return w.choked(), w.full()
}
