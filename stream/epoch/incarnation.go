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

// incarnation returns the number under which the ledger counts this log: the
// last one where the record that the last epoch ended with is still there, and
// the next one where it is not, or nothing proves it. SameLog is the operator's
// word for what retention, a lost checkpoint or a new master key took the proof of.
// With the number comes that record, where it is there.
func (k *Keeper) incarnation(ctx context.Context, src core.Source, topicID string, sameLog bool) (number uint64,
	anchor *kafka.Anchor, err error) {
	log, err := k.offsets(ctx, src)
	if err != nil {
		return 0, nil, err
	}
	n, recorded, last, lastKey, unproven := k.D.Ledger.LastIncarnation(src)
	if recorded != "" && topicID != "" && recorded != topicID {
		return n + 1, nil, nil // made anew, whatever is in it
	}
	w := &witness{r: k, src: src, log: log}
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
		// Its anchor is under a former key, with which alone it could be recognised.
	default:
		if found,
			err = w.look(ctx, last.AnchorOffset,
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

// testimony is the answer of a log to the question whether a record was read from it.
type testimony int

const (
	recordThere testimony = iota // it is there
	recordOther                  // another one is, or none ever was
	recordGone                   // retention has taken it
)

// witness looks in a log for records that were read from it.
type witness struct {
	r      *Keeper
	src    core.Source
	log    kafka.Offsets
	anchor *kafka.Anchor // the last record that was found
}

// look looks for the record at an offset, which it recognises by its hash.
func (w *witness) look(ctx context.Context, offset int64, is func(hash [32]byte) bool) (testimony, error) {
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

// anchorsOfOthers looks for the anchors of other streams' open epochs on this
// incarnation: they are in their checkpoints, also where this process does not run
// them. It returns recordOther where one of them was read from another log; recordGone
// where retention took one, and none is left, so that nothing tells; and recordThere
// where one is left, or there never was one. It sets unproven where a checkpoint can't
// tell.
func (k *Keeper) anchorsOfOthers(ctx context.Context, w *witness, n uint64, unproven *bool) (testimony, error) {
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
			continue // it has read nothing
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

// provenLog looks for the older anchors of a checkpoint in the log, as far as
// retention has left them. Each must be there unchanged. A compacted log keeps none.
func (k *Keeper) provenLog(ctx context.Context, m *core.Manifest, cp *state.Checkpoint) error {
	if k.S.Input.AllowCompacted {
		return nil
	}
	all := cp.All()
	return abreast(len(all), func(i int) error {
		src := m.Source
		if src.Partition == core.Merged {
			src.Partition = all[i].Partition
		}
		return k.proven(ctx, src, all[i].Older)
	})
}

// atOnce calls two functions at the same time, and ends the other one where one fails. It returns the error of the
// first, unless that is only because the second has failed.
func atOnce(ctx context.Context, first, second func(context.Context) error) error {
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

// mostAbreast is how many looks at a log, of one kind, a task has under way.
const mostAbreast = 8

// abreast calls f with each number below n, some at a time, and returns the error of the least.
func abreast(n int, f func(i int) error) error {
	errs := make([]error, n)
	var next atomic.Int64
	var calls sync.WaitGroup
	for range min(n, mostAbreast) {
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
	return abreast(len(older), func(i int) error {
		a := older[i]
		if a.Offset >= log.End {
			return nil // the log is truncated, which the reader says
		}
		w := &witness{r: k, src: src, log: log}
		found, err := w.look(ctx, a.Offset, func(h [32]byte) bool { return h == a.Hash })
		if err != nil {
			return err
		}
		if found == recordOther {
			return failure.Haltf(failure.Replaced,
				"%s/%d has another record at offset %d than the one that was read: it is another log; a new epoch is "+
					"needed: streamdp epoch open %s",
				src.Topic, src.Partition, a.Offset, failure.EpochArgs(k.Task))
		}
		return nil
	})
}

// AnchorMAC returns the HMAC of a record's hash under the master key. With the plain hash,
// anybody who guesses the record could confirm the guess.
func (k *Keeper) AnchorMAC(hash [32]byte) string {
	key := keys.Derive(k.D.Key, keys.ForAnchors, nil)
	mac := hmac.New(sha256.New, key[:])
	mac.Write(hash[:])
	return hex.EncodeToString(mac.Sum(nil))
}
