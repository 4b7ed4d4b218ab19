package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/core"
)

// acceptable refuses a request that would close the task's open epoch and then fail. The open
// epoch ends at these ends or later, one for each partition, after so many steps or more. logs has the offsets of their
// logs, −1 where they are not known. Of partitions that only the next epoch reads it asks
// the cluster, for at most measureTime.
func (r *keeper) acceptable(ctx context.Context, q OpenRequest, opened *Entry, ends []EntryPart, steps uint64, logs []offsets) error {
	if err := r.d.ledgerIsNewest(); err != nil {
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
	if opened.Source.Topic != r.s.Input.Topic {
		_, err := core.NewMechanism(r.s.Over(r.numbers(opened)), nil, nil)
		if err != nil {
			return halted(haltConfiguration, "%w", err)
		}
		return nil // where it begins is known only when it opens
	}
	numbers, added, err := r.added(ctx, q, opened)
	if err != nil {
		return err
	}
	mech, err := core.NewMechanism(r.s.Over(numbers), nil, nil)
	if err != nil {
		return halted(haltConfiguration, "%w", err)
	}
	parts := added
	sources := opened.sources()
	for i, v := range opened.views() {
		if !slices.Contains(numbers, v.Partition) {
			continue
		}
		p := begin{partition: v.Partition, incarnation: v.Incarnation, base: int64(at)}
		switch log := logs[i]; {
		case continues:
			p.base = ends[i].End
		case at == config.Earliest:
			p.base = log.start
		case at == config.Latest:
			p.base = log.stable
		case log.stable >= 0 && (p.base < log.start || p.base > log.stable):
			return notInLog(p.base, sources[i], log.start, log.stable)
		}
		if p.base < 0 {
			return nil
		}
		parts = append(parts, p)
	}
	slices.SortFunc(parts, func(a, b begin) int { return a.partition - b.partition })
	partitions, err := r.partitionsNow(ctx)
	if err != nil {
		return err
	}
	e, err := r.charge(mech, opened.Source, partitions, parts)
	if err != nil {
		return err
	}
	if err := r.d.ledger.affords(e, opened, ends, steps); err != nil {
		if budget := (*errBudget)(nil); errors.As(err, &budget) {
			return halted(haltBudget, "%w", err)
		}
		return err
	}
	return nil
}

// partitionsNow asks the cluster, for at most measureTime, how many partitions the input has,
// where what persons pay depends on it. Where records are protected it returns 0.
func (r *keeper) partitionsNow(ctx context.Context) (int, error) {
	if r.s.User == nil {
		return 0, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, measureTime, errors.New("the cluster does not answer, so nobody knows how many partitions the input has: ask again later"))
	defer cancel()
	t, err := r.d.client.Topic(ctx, r.s.Input.Topic)
	switch {
	case err != nil && ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case err == nil && len(t.Partitions) == 0:
		return 0, fmt.Errorf("input topic %s does not exist", r.s.Input.Topic)
	}
	return len(t.Partitions), err
}

// numbers returns the partitions of an epoch.
func (r *keeper) numbers(opened *Entry) (all []int) {
	for _, src := range opened.sources() {
		all = append(all, src.Partition)
	}
	return all
}

// added returns the partitions that the task's next epoch would read, and where it would
// begin in those of them that its open epoch does not read.
func (r *keeper) added(ctx context.Context, req OpenRequest, opened *Entry) (numbers []int, parts []begin, err error) {
	if r.task.Partition != core.Merged {
		return []int{r.task.Partition}, nil, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, measureTime, errors.New("the cluster does not answer, so nobody knows which partitions the next epoch would read: ask again later"))
	defer cancel()
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
	}()
	if numbers = r.reads(); numbers == nil {
		t, err := r.d.client.Topic(ctx, r.s.Input.Topic)
		if err != nil {
			return nil, nil, err
		}
		if len(t.Partitions) == 0 {
			return nil, nil, fmt.Errorf("input topic %s does not exist", r.s.Input.Topic)
		}
		for p := range t.Partitions {
			numbers = append(numbers, p)
		}
	}
	var id string
	for _, p := range numbers {
		src := opened.Source
		if src.Partition = p; opened.concerns(src) {
			continue
		}
		if id == "" {
			if id, err = r.topicID(ctx); err != nil {
				return nil, nil, err
			}
		}
		log, err := r.offsets(ctx, src)
		if err != nil {
			return nil, nil, err
		}
		b := begin{partition: p}
		if b.incarnation, b.anchor, err = r.incarnation(ctx, src, id, req.SameLog); err != nil {
			return nil, nil, err
		}
		if b.base, err = r.baseOffset(req.From, src, b.incarnation, log); err != nil {
			return nil, nil, err
		}
		parts = append(parts, b)
	}
	return numbers, parts, nil
}
