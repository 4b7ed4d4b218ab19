package chaos

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// task is a stream and an input partition, as in a release's key.
type task struct{ stream, partition string }

func (t task) String() string { return t.stream + "/" + t.partition }

// release is a record of an output topic.
type release struct {
	task
	epoch, step uint64
	hash        [sha256.Size]byte // of the value
	offsets     [2]int64          // of the input, first and end of the step
	at          time.Time         // when it was appended
}

// parseRelease reads a record of an output topic.
func parseRelease(key, value []byte, at time.Time) (release, error) {
	words := strings.Split(string(key), "/")
	if len(words) != 4 {
		return release{}, fmt.Errorf("key %q is not the key of a release", key)
	}
	epoch, err := strconv.ParseUint(words[2], 10, 64)
	if err != nil {
		return release{}, err
	}
	step, err := strconv.ParseUint(words[3], 10, 64)
	if err != nil {
		return release{}, err
	}
	var v struct{ Offsets [2]int64 }
	if err := json.Unmarshal(value, &v); err != nil {
		return release{}, fmt.Errorf("%s: %w", key, err)
	}
	return release{task{words[0], words[1]}, epoch, step, sha256.Sum256(value), v.Offsets, at}, nil
}

// line is a ledger line, with the fields that the judge reads.
type line struct {
	Seq        uint64
	Prev       string
	Kind       string
	Stream     string
	Partition  int
	Epoch      uint64
	First, End int64
	raw        []byte
	at         time.Time // when it was appended
	sum        [sha256.Size]byte
}

// parseLine reads a line of a ledger. ok is false if it does not belong to a task.
func parseLine(raw []byte, at time.Time) (l line, ok bool, err error) {
	raw = []byte(strings.TrimSuffix(string(raw), "\n"))
	if err := json.Unmarshal(raw, &l); err != nil {
		return line{}, false, fmt.Errorf("cannot read a line of a ledger: %w", err)
	}
	l.raw, l.at, l.sum = raw, at, sha256.Sum256(raw)
	return l, l.Stream != "", nil
}

func (l *line) task() task {
	t := task{l.Stream, strconv.Itoa(l.Partition)}
	if l.Partition < 0 {
		t.partition = "merged"
	}
	return t
}

// evidence is everything that the judge sees: the records of the outputs, and the ledgers.
type evidence struct {
	releases []release
	ledgers  [][]line       // of each shard
	ends     map[task]int64 // the end of each task's input
	steps    uint64         // the largest number of steps of an epoch
	length   int64          // the number of offsets of a step
}

// verdict is the result of judge.
type verdict struct {
	faults     []string
	conflicts  int // keys with two different values
	releases   int // number of keys
	duplicates int // records with the key and the bytes of an earlier one
	epochs     int // number of epochs that are opened and not void
	voids      int
}

func (v *verdict) fault(format string, args ...any) {
	v.faults = append(v.faults, fmt.Sprintf(format, args...))
}

// epoch is the evidence on one epoch.
type epoch struct {
	opened, closed *line
	void           bool
	steps          map[uint64]release
}

// judge checks that
//
//   - every key has one value, because two values would be two draws of noise over the same records;
//   - every epoch with a release is charged once, before its first release, and is not void;
//   - every epoch that is charged and not void has all its steps, and these cover the offsets that the ledger states;
//   - the epochs of a task follow one another up to the end of the input, so that no record is charged twice or left
//     out;
//   - each ledger is one chain, and no task is in two ledgers.
func (e *evidence) judge() *verdict {
	v := new(verdict)
	epochs := map[task]map[uint64]*epoch{}
	of := func(t task, n uint64) *epoch {
		if epochs[t] == nil {
			epochs[t] = map[uint64]*epoch{}
		}
		if epochs[t][n] == nil {
			epochs[t][n] = &epoch{steps: map[uint64]release{}}
		}
		return epochs[t][n]
	}
	e.charges(v, of)
	conflict := map[string]bool{}
	for _, r := range e.releases {
		x := of(r.task, r.epoch)
		was, known := x.steps[r.step]
		key := fmt.Sprintf("%s/%d/%d", r.task, r.epoch, r.step)
		switch {
		case !known:
			v.releases++
			x.steps[r.step] = r
		case was.hash == r.hash:
			v.duplicates++
		case !conflict[key]:
			conflict[key] = true
			v.fault("%s has two values", key)
		}
		if x.opened != nil && r.at.Before(x.opened.at) {
			v.fault("%s was published before its epoch was charged", key)
		}
	}
	v.conflicts = len(conflict)
	for t := range e.ends {
		if epochs[t] == nil {
			v.fault("%s has neither releases nor charges", t)
		}
	}
	byName := func(a, b task) int { return strings.Compare(a.String(), b.String()) }
	for _, t := range slices.SortedFunc(maps.Keys(epochs), byName) {
		e.follow(v, t, epochs[t])
	}
	return v
}

// charges reads the ledgers.
func (e *evidence) charges(v *verdict, of func(task, uint64) *epoch) {
	home := map[task]int{}
	for shard, lines := range e.ledgers {
		for i := range lines {
			l := &lines[i]
			if i > 0 && (l.Seq != lines[i-1].Seq+1 || l.Prev != hex.EncodeToString(lines[i-1].sum[:])) {
				v.fault("ledger %d: line %d does not continue line %d", shard, l.Seq, lines[i-1].Seq)
			}
			if was, known := home[l.task()]; known && was != shard {
				v.fault("%s is in ledgers %d and %d", l.task(), was, shard)
			}
			home[l.task()] = shard
			x := of(l.task(), l.Epoch)
			switch l.Kind {
			case "open":
				if x.opened != nil {
					v.fault("%s: epoch %d was opened twice", l.task(), l.Epoch)
				}
				x.opened = l
			case "void":
				x.void = true
				v.voids++
			case "close":
				x.closed = l
			}
		}
	}
}

// follow judges the epochs of a task, one after the other.
func (e *evidence) follow(v *verdict, t task, epochs map[uint64]*epoch) {
	numbers := slices.Sorted(maps.Keys(epochs))
	var newest uint64 // the newest epoch that is not void
	for _, n := range numbers {
		if !epochs[n].void {
			newest = n
		}
	}
	end := int64(-1)
	for _, n := range numbers {
		x := epochs[n]
		steps := slices.Sorted(maps.Keys(x.steps))
		switch {
		case x.opened == nil:
			v.fault("%s: epoch %d has releases and was never charged", t, n)
			continue
		case x.void && len(steps) > 0:
			v.fault("%s: epoch %d has releases and is void", t, n)
			continue
		case x.void:
			continue
		}
		v.epochs++
		if end >= 0 && x.opened.First != end {
			v.fault("%s: epoch %d is charged from offset %d on, the one before ended at %d", t, n, x.opened.First, end)
		}
		end = x.opened.First
		for i, s := range steps {
			if s != uint64(i+1) {
				v.fault("%s: epoch %d lacks step %d", t, n, i+1)
				break
			}
			r := x.steps[s]
			if r.offsets[0] != end {
				v.fault("%s: step %d of epoch %d begins at offset %d, what is before it ends at %d", t, s, n,
					r.offsets[0], end)
			}
			end = r.offsets[1]
		}
		if x.closed != nil && x.closed.End != end {
			v.fault("%s: epoch %d was closed at offset %d, its releases end at %d", t, n, x.closed.End, end)
		}
		if n != newest && uint64(len(steps)) != e.steps {
			v.fault("%s: epoch %d has %d steps of %d, and another one followed", t, n, len(steps), e.steps)
		}
		if n != newest && x.closed == nil {
			v.fault("%s: epoch %d was never closed, and another one followed", t, n)
		}
	}
	if log, known := e.ends[t]; known && log-end >= e.length {
		v.fault("%s: releases end at offset %d, the input at %d", t, end, log)
	}
}

// quantile returns the q-quantile of durations, by rank.
func quantile(list []time.Duration, q float64) time.Duration {
	if len(list) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(list))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
