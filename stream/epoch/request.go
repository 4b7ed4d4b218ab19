package epoch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
)

// OpenRequest says how to open an epoch.
type OpenRequest struct {
	// From is "continue" (where the epoch before ended, the default), "earliest", "latest" or an offset.
	From string `json:"from,omitempty"`
	// SameLog asserts that the log is the one that the epoch before read. An operator sets it if retention has removed
	// the proof.
	SameLog bool `json:"same_log,omitempty"`
	// DropOutbox discards the unpublished releases of the epoch before.
	DropOutbox bool `json:"drop_outbox,omitempty"`
	// Reason is recorded in the ledger.
	Reason string `json:"reason,omitempty"`

	automatic bool // opened without a request
	// SearchFrom is the output offset from which to look for releases that the ledger does not know; 0: everywhere.
	SearchFrom int64 `json:"-"`
}

// MeasureTime is the longest time to wait for the cluster when asking for the ends of logs.
const MeasureTime = 2 * time.Second

// Acceptable refuses a request that would close the task's open epoch and then fail to open the next one. The open
// epoch will have at least the given steps, and end at or after ends, one offset per partition. logs holds the offsets
// of these partitions' logs, or −1 if unknown. For partitions that only the next epoch reads, Acceptable asks the
// cluster, for at most MeasureTime.
func (k *Keeper) Acceptable(ctx context.Context, q OpenRequest, opened *ledger.Entry, ends []ledger.EntryPart,
	steps uint64, logs []kafka.Offsets) error {
	if err := k.D.ledgerIsNewest(); err != nil {
		return err
	}
	var at config.Start
	continues := q.From == "" || q.From == "continue"
	if !continues {
		if err := at.UnmarshalText([]byte(q.From)); err != nil {
			return err
		}
	}
	if at >= 0 && opened.Partition == core.Merged && !continues {
		return errMergedFrom()
	}
	if opened.Source.Topic != k.S.Input.Topic {
		_, err := core.NewMechanism(k.S.Over(k.numbers(opened)), nil, nil)
		if err != nil {
			return failure.Haltf(failure.Configuration, "%w", err)
		}
		return nil // the start of the next epoch is known only when it opens
	}
	numbers, added, err := k.added(ctx, q, opened)
	if err != nil {
		return err
	}
	mech, err := core.NewMechanism(k.S.Over(numbers), nil, nil)
	if err != nil {
		return failure.Haltf(failure.Configuration, "%w", err)
	}
	parts := added
	sources := opened.Sources()
	for i, v := range opened.Views() {
		if !slices.Contains(numbers, v.Partition) {
			continue
		}
		p := begin{partition: v.Partition, incarnation: v.Incarnation, base: int64(at)}
		switch log := logs[i]; {
		case continues:
			p.base = ends[i].End
		case at == config.Earliest:
			p.base = log.Start
		case at == config.Latest:
			p.base = log.Stable
		case log.Stable >= 0 && (p.base < log.Start || p.base > log.Stable):
			return notInLog(p.base, sources[i], log.Start, log.Stable)
		}
		if p.base < 0 {
			return nil
		}
		parts = append(parts, p)
	}
	slices.SortFunc(parts, func(a, b begin) int { return a.partition - b.partition })
	partitions, err := k.partitionsNow(ctx)
	if err != nil {
		return err
	}
	e, err := k.charge(mech, opened.Source, partitions, parts)
	if err != nil {
		return err
	}
	if err := k.D.Ledger.Affords(e, opened, ends, steps); err != nil {
		if budget := (*ledger.ErrBudget)(nil); errors.As(err, &budget) {
			return failure.Haltf(failure.Budget, "%w", err)
		}
		return err
	}
	return nil
}

// partitionsNow asks the cluster for the input's number of partitions, for at most MeasureTime. It returns 0 if the
// stream protects records, because the charge then does not depend on the number.
func (k *Keeper) partitionsNow(ctx context.Context) (int, error) {
	if k.S.User == nil {
		return 0, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, MeasureTime,
		errors.New("cannot find out how many partitions the input has: the cluster does not answer; try again later"))
	defer cancel()
	t, err := k.D.Client.Topic(ctx, k.S.Input.Topic)
	switch {
	case err != nil && ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case err == nil && len(t.Partitions) == 0:
		return 0, fmt.Errorf("input topic %s does not exist", k.S.Input.Topic)
	}
	return len(t.Partitions), err
}

// numbers returns the partitions of an epoch.
func (k *Keeper) numbers(opened *ledger.Entry) (all []int) {
	for _, src := range opened.Sources() {
		all = append(all, src.Partition)
	}
	return all
}

// added returns the partitions that the task's next epoch would read. For those that the open epoch does not read, it
// also returns where the next epoch would begin.
func (k *Keeper) added(ctx context.Context, req OpenRequest, opened *ledger.Entry) (numbers []int, parts []begin,
	err error) {
	if k.Task.Partition != core.Merged {
		return []int{k.Task.Partition}, nil, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, MeasureTime,
		errors.New(
			"cannot find out which partitions the next epoch would read: the cluster does not answer; try again later"))
	defer cancel()
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
	}()
	if numbers = k.Reads(); numbers == nil {
		t, err := k.D.Client.Topic(ctx, k.S.Input.Topic)
		if err != nil {
			return nil, nil, err
		}
		if len(t.Partitions) == 0 {
			return nil, nil, fmt.Errorf("input topic %s does not exist", k.S.Input.Topic)
		}
		for p := range t.Partitions {
			numbers = append(numbers, p)
		}
	}
	var id string
	for _, p := range numbers {
		src := opened.Source
		if src.Partition = p; opened.Concerns(src) {
			continue
		}
		if id == "" {
			if id, err = k.topicID(ctx); err != nil {
				return nil, nil, err
			}
		}
		log, err := k.offsets(ctx, src)
		if err != nil {
			return nil, nil, err
		}
		b := begin{partition: p}
		if b.incarnation, b.anchor, err = k.incarnation(ctx, src, id, req.SameLog); err != nil {
			return nil, nil, err
		}
		if b.base, err = k.baseOffset(req.From, src, b.incarnation, log); err != nil {
			return nil, nil, err
		}
		parts = append(parts, b)
	}
	return numbers, parts, nil
}
