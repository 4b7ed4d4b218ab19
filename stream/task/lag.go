package task

import (
	"context"
	"slices"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/monitor"
)

// measure updates the log ends in the status of a task that is not reading the log at the moment.
func (r *Runner) measure(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, epoch.MeasureTime)
	defer cancel()
	var at []int64
	var logs []kafka.Offsets
	for _, p := range r.lastRead() {
		log, err := r.D.Client.Offsets(ctx, r.S.Input.Topic, int32(p))
		if err != nil {
			return // keep showing the last known values
		}
		reached, known := r.stoppedAt[p]
		if !known {
			reached = log.Start // no epoch has read it
		}
		at, logs = append(at, reached), append(logs, log)
	}
	if r.Task.Partition != core.Merged {
		r.change(func(s *monitor.TaskStatus) { s.LogStart, s.LogEnd = logs[0].Start, logs[0].Stable })
		return
	}
	if len(logs) == 0 {
		return
	}
	v := monitor.LogLagOf(at, logs)
	r.change(func(s *monitor.TaskStatus) { s.LogStart, s.LogEnd, s.Lag = v.Start, v.End, v.Lag })
}

// lastRead returns the partitions that the task's last epoch read. If there was no epoch, it returns the partitions
// that the next one will read, or none if only the cluster knows them.
func (r *Runner) lastRead() (numbers []int) {
	last := r.D.Ledger.Newest(r.Task)
	if last == nil {
		return r.Reads()
	}
	for _, src := range last.Sources() {
		numbers = append(numbers, src.Partition)
	}
	return numbers
}

// lookForPartitions runs until the context ends. It shows in the status how many partitions of the input topic no
// stream of this configuration reads. It warns of partitions added since the epoch began. A merged stream reads added
// partitions only from its next epoch on.
func (r *Runner) lookForPartitions(ctx context.Context, m *core.Manifest) {
	known := m.Partitions
	tick := time.NewTicker(r.D.LookEvery)
	defer tick.Stop()
	for {
		t, err := r.D.Client.Topic(ctx, r.S.Input.Topic)
		if n := len(t.Partitions); err == nil && n > 0 {
			unread := connect.Unread(r.D.Config(), t)
			remedy := "input.partition"
			if m.Partition == core.Merged && r.S.Input.All() {
				unread = unread[:0]
				for p := range t.Partitions {
					if !slices.Contains(m.Numbers(), p) {
						unread = append(unread, p)
					}
				}
				remedy = "the next epoch reads them: streamdp epoch open " + failure.EpochArgs(r.Task)
			}
			r.change(func(s *monitor.TaskStatus) { s.Unread = len(unread) })
			if added := slices.DeleteFunc(slices.Clone(unread), func(p int) bool { return p < known }); len(added) > 0 {
				known = n
				r.Log.Warn(
					"the input topic has more partitions than when the epoch began, and no stream of this "+
						"configuration reads them",
					"topic", t.Name, "partitions", added, "remedy", remedy)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
