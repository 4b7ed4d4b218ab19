package task

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/persons"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/simdisk"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/dryrun"
	"github.com/streamdp/streamdp/stream/input"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/output"
	"github.com/streamdp/streamdp/stream/state"
)

// userMachine is a machine whose stream protects persons.
func userMachine(t testing.TB, x userRule) *machine {
	t.Helper()
	user := fmt.Sprintf("user = { key = \"field:user\", max_users = %d, separation = %d", x.users, x.separation)
	if x.cap > 0 {
		user += fmt.Sprint(", cap = ", x.cap)
	}
	return newMachine(t, fixtures.With(fixtures.MachineStream, "step   = 7\n", "step = 7\n"+x.horizon+user+" }\n"), 1)
}

// userRules describes two streams: one with a cap and a full table, and one that forgets persons.
var userRules = []userRule{{"", 3, 6, 2}, {"horizon = 10\n", 0, 28, 4}}

type userRule struct {
	horizon                string
	cap, users, separation int
}

// userLog returns records of nine persons, and records without a person. Some records have no row.
func userLog(n int) []kafka.Record {
	rng := rand.New(rand.NewPCG(20, 9))
	log, _ := fixtures.RandomLog(rng, n)
	for i := range log {
		if u := rng.IntN(10); u > 0 && bytes.HasPrefix(log[i].Value, []byte(`{"a"`)) {
			log[i].Value = append(fmt.Appendf(nil, `{"user":"u%d",`, u), log[i].Value[1:]...)
		}
	}
	return log
}

// toEnd reads a log to its end, in responses of a few records, with a commit after some of them, until the disk stops.
func (m *machine) toEnd(log []kafka.Record, end int64) error {
	if err := m.publish(m.p.epoch.Cp.Outbox); err != nil { // a crash may have left releases in the outbox
		return err
	}
	rng := rand.New(rand.NewPCG(1, 9))
	for m.next() < end && !m.p.exhausted {
		b := &codec.Batch{}
		b.First, b.Next = m.next(), min(end, m.next()+1+rng.Int64N(12))
		for _, rec := range log {
			if rec.Offset >= b.First && rec.Offset < b.Next {
				b.Records = append(b.Records, rec)
				b.Bytes += len(rec.Value)
			}
		}
		m.decoder.Decode(b)
		m.p.applier.current, m.p.applier.next = b, 0
		for m.p.applier.current != nil && !m.p.exhausted {
			if err := m.p.apply(); err != nil {
				return err
			}
		}
		if m.p.committer.due() {
			if done, err := m.p.commit(time.Now()); err != nil || !done {
				return errors.Join(err, errors.New("no commit"))
			}
			if err := m.publish(m.p.committer.outbox); err != nil {
				return err
			}
			m.p.committer.outbox, m.p.committer.outboxBytes, m.p.committer.sent = nil, 0, 0
		}
		if !m.p.exhausted {
			<-m.p.applier.fetch.Free
		}
	}
	return nil
}

// publish treats releases as published. They must equal those published before.
func (m *machine) publish(list []state.Message) error {
	for _, rel := range list {
		if was, ok := m.releases[rel.Step]; ok && !bytes.Equal(was.Value, rel.Value) {
			return fmt.Errorf("step %d was released twice with different bytes", rel.Step)
		}
		m.releases[rel.Step] = rel
	}
	return nil
}

// TestUsersCrashes stops the machine before every operation of the disk. A new process continues from the last commit,
// or from a restored earlier one, and the releases have the bytes of a run without a stop.
func TestUsersCrashes(t *testing.T) {
	t.Parallel()
	const end = 75
	log := userLog(end)
	for _, c := range userRules {
		want := userMachine(t, c)
		begun := want.r.Store.Disk.(*simdisk.SimDisk).Ops
		if err := want.toEnd(log, end); err != nil {
			t.Fatal(err)
		}
		if len(want.releases) != 10 {
			t.Fatalf("%d releases", len(want.releases))
		}
		for _, rel := range want.releases {
			fixtures.Conforms(t, string(rel.Value))
		}
		whole := want.r.Store.Disk.(*simdisk.SimDisk)
		if len(whole.Holds(state.PersonsPrefix)) == 0 {
			t.Fatal("no files of persons")
		}
		restored := 0
		for op := begun; op < whole.Ops; op++ {
			mode := op % simdisk.CrashModes
			m := userMachine(t, c)
			d := m.r.Store.Disk.(*simdisk.SimDisk)
			d.Crash = op
			if err := m.toEnd(log, end); !errors.Is(err, simdisk.ErrCrashed) {
				t.Fatalf("operation %d: %v, want a crash", op, err)
			}
			var err error
			after := d.Reboot(mode, rand.New(rand.NewPCG(uint64(op), 1)))
			if m.r.Store, err = state.Open(after, m.r.Store.Dir, nil); err != nil {
				t.Fatal(err)
			}
			older := m.r.Store.Path(state.PreviousName)
			if after.Names[older] != nil && op%2 == 1 { // the operator restores the commit before
				fixtures.Must(t, after.Rename(older, m.r.Store.Path(state.CheckpointName)))
				restored++
			}
			m.restart()
			if err := m.toEnd(log, end); err != nil {
				t.Fatalf("operation %d, mode %d: %v", op, mode, err)
			}
			m.equals(fmt.Sprintf("operation %d, mode %d", op, mode), want)
		}
		if restored < 10 {
			t.Errorf("the commit before was restored %d times", restored)
		}
	}
}

// TestUsersRejected: a record that gave a row but does not count for its person is counted as rejected, once, with the
// reason that the map gives.
func TestUsersRejected(t *testing.T) {
	t.Parallel()
	const end = 140 // twice seven slots for each of ten steps
	log := userLog(end)
	for _, rule := range userRules {
		m := userMachine(t, rule)
		if err := m.toEnd(log, end); err != nil {
			t.Fatal(err)
		}
		own, err := persons.NewMap(m.r.S.PersonRule())
		fixtures.Must(t, err)
		decoder, err := codec.NewDecoder(core.FormatOf(m.r.S), 1)
		fixtures.Must(t, err)
		fixtures.Must(t, decoder.TagUsers(&[persons.KeyBytes]byte{1}))
		var b codec.Batch
		b.Records = log
		decoder.Decode(&b)
		var want [codec.Reasons]int
		for i, rec := range log {
			step := uint64(rec.Offset)/7 + 1
			if step > m.p.applier.core.Step() {
				break
			}
			for own.Step() < step {
				fixtures.Must(t, own.Open(own.Step()+1))
			}
			if why := own.Take(b.Tag(i)); b.Reasons[i] == codec.Decoded {
				switch why {
				case persons.NoUser:
					want[codec.NoUser]++
				case persons.OverCap:
					want[codec.OverCap]++
				case persons.Full:
					want[codec.Full]++
				}
			}
		}
		got := m.p.applier.work.Rejected
		if got != want || want[codec.NoUser] == 0 || want[codec.OverCap] == 0 ||
			(want[codec.Full] == 0) != (rule.cap == 0) {
			t.Errorf("%+v: rejected %v, want %v", rule, got, want)
		}
	}
	w := monitor.Counts{}
	w.Uncounted(codec.Malformed, persons.OverCap)
	if w.Uncounted(codec.Decoded, persons.Foreign); w.Rejected != [codec.Reasons]int{codec.Foreign: 1} {
		t.Errorf("rejected %v", w.Rejected)
	}
}

// moved makes a machine compare its releases with those of another output, up to a step. This happens when a copy is
// restored and its output changed. Meanwhile nothing is committed.
func (m *machine) moved(until uint64) error {
	m.p.epoch.Moved = true
	m.r.Guard.Found = map[string]output.Found{"later": {Step: until}}
	m.p.updateComparing()
	rng := rand.New(rand.NewPCG(2, 9))
	log := userLog(75)
	for m.p.applier.core.Step() < until {
		b := &codec.Batch{}
		b.First, b.Next = m.next(), m.next()+1+rng.Int64N(12)
		for _, rec := range log {
			if rec.Offset >= b.First && rec.Offset < b.Next {
				b.Records = append(b.Records, rec)
			}
		}
		m.decoder.Decode(b)
		m.p.applier.current, m.p.applier.next = b, 0
		for m.p.applier.current != nil {
			if err := m.p.apply(); err != nil {
				return err
			}
			if n := m.p.applier.core.Persons()[0].Waiting(); n > state.PersonsBytes+7*20 {
				return fmt.Errorf("%d bytes wait", n)
			}
			if m.p.committer.full() {
				if done, err := m.p.commit(time.Now()); err != nil || !done {
					return errors.Join(err, errors.New("no commit"))
				}
				if m.p.committer.full() {
					return errors.New("what was written still waits")
				}
			}
		}
		<-m.p.applier.fetch.Free
	}
	return nil
}

// TestUsersWhileOutputsAreCompared: while nothing may be committed, entries of persons do not accumulate in memory, and
// the last commit stays unchanged. Wherever the machine stops, it continues to the bytes of an uninterrupted run.
func TestUsersWhileOutputsAreCompared(t *testing.T) {
	t.Parallel()
	const end = 75
	for _, c := range userRules {
		want := userMachine(t, c)
		fixtures.Must(t, want.toEnd(userLog(end), end))
		begun := userMachine(t, c)
		first, err := begun.r.Store.Load()
		fixtures.Must(t, err)
		ops := begun.r.Store.Disk.(*simdisk.SimDisk).Ops
		fixtures.Must(t, begun.moved(9))
		whole := begun.r.Store.Disk.(*simdisk.SimDisk)
		if cp, err := begun.r.Store.Load(); err != nil || cp.Seq != first.Seq {
			t.Errorf("a commit while outputs are compared: %v", err)
		}
		if whole.Ops < ops+3 {
			t.Fatalf("%d operations: nothing was written", whole.Ops-ops)
		}
		for op := ops; op <= whole.Ops; op++ {
			m := userMachine(t, c)
			d := m.r.Store.Disk.(*simdisk.SimDisk)
			d.Crash = op
			if err := m.moved(9); op < whole.Ops != errors.Is(err, simdisk.ErrCrashed) {
				t.Fatalf("operation %d: %v", op, err)
			}
			m.r.Store, err = state.Open(d.Reboot(op%simdisk.CrashModes, rand.New(rand.NewPCG(uint64(op), 2))),
				m.r.Store.Dir, nil)
			fixtures.Must(t, err)
			m.restart()
			fixtures.Must(t, m.toEnd(userLog(end), end))
			m.equals(fmt.Sprint("operation ", op), want)
		}
	}
}

// TestUsersStateIsWhole: a task does not continue if the files of persons are missing or belong to another time, or if
// the checkpoint is of an epoch without persons.
func TestUsersStateIsWhole(t *testing.T) {
	t.Parallel()
	const end = 60
	m := userMachine(t, userRules[0])
	if err := m.toEnd(userLog(end), end); err != nil {
		t.Fatal(err)
	}
	cp, err := m.r.Store.Load()
	if err != nil {
		t.Fatal(err)
	}
	open := func(what string, cp *state.Checkpoint, change func(d *simdisk.SimDisk)) {
		t.Helper()
		s := *m.r.Store
		d := s.Disk.(*simdisk.SimDisk).Reboot(simdisk.CrashArrived, nil)
		s.Disk = d
		change(d)
		c := userMachine(t, userRules[0]).p.applier.core
		if _, err := state.OpenPersons(&s, c, cp); (err == nil) != (what == "") ||
			err != nil && !errors.Is(err, persons.ErrDamaged) {
			t.Errorf("%s: %v", what, err)
		}
	}
	files := m.r.Store.Disk.(*simdisk.SimDisk).Holds(state.PersonsPrefix)
	if !slices.Equal(files, []string{"users-1.2", "users-1.3"}) { // a snapshot, and the entries since then
		t.Fatalf("files %v", files)
	}
	name := m.r.Store.Path(files[1])
	open("", cp, func(*simdisk.SimDisk) {})
	open("missing", cp, func(d *simdisk.SimDisk) { delete(d.Names, name) })
	open("changed", cp, func(d *simdisk.SimDisk) { d.Names[name].Data[30] ^= 1 })
	open("older", cp, func(d *simdisk.SimDisk) { i := d.Names[name]; i.Data = i.Data[:len(i.Data)-20] })
	other := *cp
	other.Users = nil
	open("without", &other, func(*simdisk.SimDisk) {})
	other = *cp
	other.Step--
	open("another step", &other, func(*simdisk.SimDisk) {})

	if err := m.r.Store.Erase(); err != nil || len(m.r.Store.Disk.(*simdisk.SimDisk).Holds("")) > 0 {
		t.Errorf("after the epoch: %v, %v", m.r.Store.Disk.(*simdisk.SimDisk).Holds(""), err)
	}
}

// TestUsersReplay: a replay has no user keys, so it refuses such a stream.
func TestUsersReplay(t *testing.T) {
	t.Parallel()
	s := userMachine(t, userRules[0]).r.S
	seed := uint64(1)
	if _, err := dryrun.NewReplay(nil, s, "test", &seed, func([]byte) error { return nil }); err == nil {
		t.Error("a replay of a stream that protects persons")
	}
}

// noDisk discards all writes and holds nothing.
type noDisk struct{ state.Disk }

func (noDisk) Create(string) (state.File, error) { return noDisk{}, nil }
func (noDisk) Append(string) (state.File, error) { return noDisk{}, nil }
func (noDisk) ReadDir(string) ([]string, error)  { return nil, nil }
func (noDisk) Remove(string) error               { return nil }
func (noDisk) SyncDir(string) error              { return nil }
func (noDisk) Truncate(string, int64) error      { return nil }
func (noDisk) Write(p []byte) (int, error)       { return len(p), nil }
func (noDisk) Sync() error                       { return nil }
func (noDisk) Close() error                      { return nil }

// TestMergedUsersHome: a record counts in at most one partition of a merged epoch, determined by its key and the
// manifest's number of partitions, although the same key is in all partitions.
func TestMergedUsersHome(t *testing.T) {
	t.Parallel()
	m := newMachine(t,
		fixtures.With(fixtures.MachineStream, "step   = 7\n",
			"step = 7\nuser = { key = \"record-key\", partitioner = \"murmur2\", cap = 2, max_users = 20 }\n"), 1)
	const partitions, keys = 3, 30
	var homes [keys]int
	var first [partitions]int
	for p := range partitions {
		d, err := input.NewDecoder(new(connect.Schemas), m.r.S,
			&core.Manifest{Source: core.Source{Partition: core.Merged}, Partitions: partitions}, p, m.p.applier.core)
		fixtures.Must(t, err)
		var b codec.Batch
		for i := range keys {
			b.Records = append(b.Records,
				kafka.Record{Offset: int64(i), Key: fmt.Append(nil, "u", i), Value: []byte(`{"a":1,"b":2,"c":3}`)})
		}
		d.Decode(&b)
		for i := range keys {
			if b.Tag(i) != persons.Away() {
				homes[i]++
				first[p]++
			}
		}
	}
	if slices.Max(homes[:]) != 1 || slices.Min(homes[:]) != 1 || slices.Min(first[:]) == 0 {
		t.Errorf("keys are at home in %v partitions, partitions have %v", homes, first)
	}
}
