package epoch

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/streamdp/streamdp/internal/credentials"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/keys"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/state"
)

// incarnation returns the number under which the ledger counts this log. The number stays the same if the log still
// holds the record at which the last epoch ended. It is the next number if that record is gone or nothing proves that
// the log is the same. With sameLog, the operator asserts that the log is the same although retention, a lost
// checkpoint or a new master key has removed the proof. incarnation also returns an anchor of the record found.
func (k *Keeper) incarnation(ctx context.Context, src core.Source, topicID string, sameLog bool) (number uint64,
	anchor *kafka.Anchor, err error) {
	log, err := k.offsets(ctx, src)
	if err != nil {
		return 0, nil, err
	}
	n, recorded, last, lastKey, unproven := k.D.Ledger.LastIncarnation(src)
	if recorded != "" && topicID != "" && recorded != topicID {
		return n + 1, nil, nil // the topic was created again, no matter what it holds
	}
	w := &logProbe{r: k, src: src, log: log}
	others, err := k.anchorsOfOthers(ctx, w, n, &unproven)
	if err != nil || others == recordOther {
		return n + 1, nil, err
	}
	if last == nil && !unproven && others == recordThere {
		return n, w.anchor, nil
	}
	found := recordGone
	switch {
	case last == nil:
	case lastKey != "" && lastKey != credentials.KeyID(k.D.Key) && last.AnchorOffset < log.End:
		// The anchor's MAC was made with a former master key, so it cannot be checked.
	default:
		if found, err = w.look(ctx, last.AnchorOffset,
			func(h [32]byte) bool { return k.AnchorMAC(h) == last.Anchor }); err != nil {
			return 0, nil, err
		}
	}
	if found == recordThere && unproven {
		found = recordGone
	}
	if found == recordThere || found == recordGone && sameLog {
		return n, w.anchor, nil
	}
	return n + 1, nil, nil
}

// probeResult says whether a log still holds a record that was read from it.
type probeResult int

const (
	recordThere probeResult = iota // the record is there
	recordOther                    // a different record is there, or the log ends before it
	recordGone                     // retention has deleted it
)

// logProbe checks whether a log still holds records that were read from it.
type logProbe struct {
	r      *Keeper
	src    core.Source
	log    kafka.Offsets
	anchor *kafka.Anchor // the last record found
}

// look checks whether the record at an offset is still there. The function `is` recognises it by its hash.
func (w *logProbe) look(ctx context.Context, offset int64, is func(hash [32]byte) bool) (probeResult, error) {
	switch {
	case offset < w.log.Start:
		return recordGone, nil
	case offset >= w.log.End:
		return recordOther, nil
	}
	found := recordOther
	err := w.r.D.Client.ReadBackTo(ctx, w.src.Topic, int32(w.src.Partition), offset, w.log.End,
		func(rec *kafka.Record) error {
			if rec.Offset == offset && is(rec.Hash()) {
				found, w.anchor = recordThere, kafka.AnchorOf(rec)
			}
			return failure.ErrStop
		})
	var gap *kafka.GapError
	switch {
	case errors.As(err, &gap):
		return recordGone, nil
	case err != nil && !errors.Is(err, failure.ErrStop):
		return recordOther, err
	}
	return found, nil
}

// anchorsOfOthers looks for the anchors of other streams' open epochs on this incarnation. It reads them from the
// checkpoints, because this process may not run those streams. It returns recordOther if an anchor shows that the log
// is a different one, recordGone if retention has deleted the records of all anchors, and recordThere if one is left or
// no stream has an anchor. It sets unproven to true if a checkpoint is damaged.
func (k *Keeper) anchorsOfOthers(ctx context.Context, w *logProbe, n uint64, unproven *bool) (probeResult, error) {
	gone, there := false, false
	for _, t := range k.D.Ledger.Tasks() {
		opened := k.D.Ledger.Newest(t)
		if t == k.Task || opened == nil || opened.Kind != ledger.KindOpen {
			continue
		}
		if v, reads := opened.View(w.src); !reads || v.Incarnation != n {
			continue
		}
		cp, err := k.D.CheckpointOf(t)
		if errors.Is(err, state.ErrCheckpoint) {
			*unproven = true
			continue
		}
		if err != nil {
			return recordOther, err
		}
		if cp == nil || cp.Of(w.src.Partition).Position.Anchor == nil {
			continue // the epoch has read nothing
		}
		a := cp.Of(w.src.Partition).Position.Anchor
		switch found, err := w.look(ctx, a.Offset, func(h [32]byte) bool { return h == a.Hash }); {
		case err != nil || found == recordOther:
			return recordOther, err
		case found == recordGone:
			gone = true
		default:
			there = true
		}
	}
	if gone && !there {
		return recordGone, nil
	}
	return recordThere, nil
}

// provenLog looks for the older anchors of a checkpoint in the log. The records that retention has left must be
// unchanged. A compacted log need not keep any of them.
func (k *Keeper) provenLog(ctx context.Context, m *core.Manifest, cp *state.Checkpoint) error {
	if k.S.Input.AllowCompacted {
		return nil
	}
	all := cp.All()
	return forEachConcurrently(len(all), func(i int) error {
		src := m.Source
		if src.Partition == core.Merged {
			src.Partition = all[i].Partition
		}
		return k.proven(ctx, src, all[i].Older)
	})
}

// concurrently calls two functions concurrently, and cancels the other when one fails. It returns first's error, unless
// first only failed because second did.
func concurrently(ctx context.Context, first, second func(context.Context) error) error {
	both, stop := context.WithCancel(ctx)
	defer stop()
	var err error
	var calls sync.WaitGroup
	calls.Go(func() {
		if err = second(both); err != nil {
			stop()
		}
	})
	failed := first(both)
	if failed != nil {
		stop()
	}
	calls.Wait()
	if failed != nil && (err == nil || ctx.Err() != nil || !errors.Is(failed, context.Canceled)) {
		return failed
	}
	return err
}

// mostConcurrent is the largest number of logs that a task examines concurrently.
const mostConcurrent = 8

// forEachConcurrently calls f with each number below n, at most mostConcurrent calls at a time. If several calls fail,
// it returns the error of the smallest number.
func forEachConcurrently(n int, f func(i int) error) error {
	errs := make([]error, n)
	var next atomic.Int64
	var calls sync.WaitGroup
	for range min(n, mostConcurrent) {
		calls.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				errs[i] = f(i)
			}
		})
	}
	calls.Wait()
	return cmp.Or(errs...)
}

// proven looks for older anchors in the log of a source.
func (k *Keeper) proven(ctx context.Context, src core.Source, older []kafka.Anchor) error {
	if len(older) == 0 {
		return nil
	}
	var log kafka.Offsets
	if err := k.Do(ctx, "input", func() (err error) {
		log.Start, log.End, err = k.D.Client.Bounds(ctx, src.Topic, int32(src.Partition))
		return err
	}); err != nil {
		return err
	}
	return forEachConcurrently(len(older), func(i int) error {
		a := older[i]
		if a.Offset >= log.End {
			return nil // the log is truncated; the reader will report it
		}
		w := &logProbe{r: k, src: src, log: log}
		found, err := w.look(ctx, a.Offset, func(h [32]byte) bool { return h == a.Hash })
		if err != nil {
			return err
		}
		if found == recordOther {
			return failure.Haltf(failure.Replaced,
				"%s/%d has a different record at offset %d from the one that was read, so it is a different log; open "+
					"a new epoch: streamdp epoch open %s",
				src.Topic, src.Partition, a.Offset, failure.EpochArgs(k.Task))
		}
		return nil
	})
}

// AnchorMAC returns the HMAC of a record's hash under the master key. A plain hash would let anybody confirm a guess of
// the record.
func (k *Keeper) AnchorMAC(hash [32]byte) string {
	key := keys.Derive(k.D.Key, keys.ForAnchors, nil)
	mac := hmac.New(sha256.New, key[:])
	mac.Write(hash[:])
	return hex.EncodeToString(mac.Sum(nil))
}
