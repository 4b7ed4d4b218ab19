package persons

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
)

const (
	simDir    = "/task"
	simPrefix = "users-7."
	simSteps  = 16
	simRows   = 4 // records per step
)

// simLog returns the tags of a log, by step.
func simLog(r Rule) (log [][]Tag) {
	rng := rand.New(rand.NewPCG(20, r.Cap))
	for range simSteps {
		step := make([]Tag, simRows)
		for i := range step {
			step[i] = tagOf(rng.IntN(12), i%2 == 0)
		}
		log = append(log, step)
	}
	return log
}

// simRules exercise everything that a journal does: dropping segments, and snapshots.
var simRules = []Rule{
	{Separation: 5, PerStep: 1, Users: 5 * simRows},
	{Separation: 12, PerStep: 2, Users: 12 * simRows},
	{Cap: 3, Separation: 2, PerStep: 1, Users: 50},
	{Cap: 9, Separation: 1, PerStep: 1, Users: 4},
	{Cap: 2, Separation: 1, PerStep: 1, Period: 5, Users: 5},
	{Separation: 9, PerStep: 1, Period: 7, Users: 7 * simRows},
}

// run is a process: a journal on a disk, and its durable checkpoints as bytes. Here a checkpoint consists of a position
// and all answers so far.
type run struct {
	every       int           // steps per commit; 0 stands for one
	spill       bool          // true: spill without a checkpoint, except at every fifth step
	checkpoints [2]checkpoint // the last two checkpoints, the older first
}

type checkpoint struct {
	position []byte
	step     int
	answers  []Answer
}

// from continues from checkpoint c to the end of the log, and returns all answers.
func (p *run) from(d *simDisk, r Rule, log [][]Tag, c checkpoint) ([]Answer, error) {
	var at Position
	if c.position != nil {
		if err := at.UnmarshalBinary(c.position); err != nil {
			return nil, err
		}
	}
	m, err := NewMap(r)
	if err != nil {
		return nil, err
	}
	j, err := OpenJournal(d, simDir, simPrefix, m, at)
	if err != nil {
		return nil, err
	}
	answers, every := slices.Clone(c.answers), p.every
	for step := c.step + 1; step <= len(log); step++ {
		records := log[step-1]
		if m.Step() == uint64(step) {
			records = records[1:] // the first one was already taken before a commit
		} else if err := m.Open(uint64(step)); err != nil {
			return nil, err
		}
		for _, tag := range records {
			answers = append(answers, m.Take(tag))
		}
		m.Close()
		// There is a commit at every step or at every third one. Some commits happen during the next step.
		if step < len(log) && every > 1 && step%every != 0 && !j.SnapshotDue() {
			continue
		}
		ahead := 0
		if every > 1 && step%2 == 0 && step < len(log) && !j.SnapshotDue() {
			m.Open(uint64(step + 1))
			answers = append(answers, m.Take(log[step][0]))
			ahead = 1
		}
		if p.spill && step%5 > 0 {
			err := j.Spill()
			if errors.Is(err, syscall.ENOSPC) {
				err = j.Spill()
			}
			if err != nil {
				return nil, err
			}
			if len(m.fresh) > 0 {
				return nil, errors.New("entries wait after a spill")
			}
			continue
		}
		position, err := j.Append()
		if errors.Is(err, syscall.ENOSPC) { // a full disk is temporary
			position, err = j.Append()
		}
		if err != nil {
			return nil, err
		}
		data, _ := position.AppendBinary(nil)
		// The write of the checkpoint is one atomic operation.
		if err := d.do(); err != nil && !errors.Is(err, syscall.ENOSPC) {
			return nil, err
		} else if err == nil {
			p.checkpoints[0] = p.checkpoints[1]
			p.checkpoints[1] = checkpoint{data, step, slices.Clone(answers[:len(answers)-ahead])}
			if err := j.Committed(); err != nil && !errors.Is(err, syscall.ENOSPC) {
				return nil, err
			}
		}
		if again, err := j.Append(); err != nil || !bytes.Equal(mustBinary(again), data) {
			return nil, errors.New("to append a step again changes something")
		}
	}
	return answers, nil
}

func mustBinary(p *Position) []byte {
	b, _ := p.AppendBinary(nil)
	return b
}

// lowSnapshots makes a snapshot due every few steps. Tests that use it must not run in parallel.
func lowSnapshots(t *testing.T) {
	before := SnapshotLeast
	SnapshotLeast = 20 * simRows * 5
	t.Cleanup(func() { SnapshotLeast = before })
}

// TestJournalCrashes stops the machine before every operation, in three ways each, and continues from each of the last
// two checkpoints. The answers must equal those of a process that never stopped.
func TestJournalCrashes(t *testing.T) {
	lowSnapshots(t)
	for i, r := range slices.Repeat(simRules, 3) {
		every, spill := i/len(simRules)%2*3, i/len(simRules) == 2
		log := simLog(r)
		whole := newSimDisk()
		want, err := (&run{every: every, spill: spill}).from(whole, r, log, checkpoint{})
		if err != nil {
			t.Fatalf("%+v: %v", r, err)
		}
		crashes := 0
		for op := range whole.ops {
			for mode := range crashModes {
				d := newSimDisk()
				d.crash = op
				p := &run{every: every, spill: spill}
				if _, err := p.from(d, r, log, checkpoint{}); !errors.Is(err, errCrashed) {
					t.Fatalf("%+v, operation %d: %v, want a crash", r, op, err)
				}
				crashes++
				rng := rand.New(rand.NewPCG(uint64(op), uint64(mode)))
				for back, c := range p.checkpoints {
					after := d.reboot(mode, rng)
					if back == 0 && c.position == nil {
						continue // there is no earlier checkpoint yet
					}
					next := run{every, spill, [2]checkpoint{{}, c}}
					got, err := next.from(after, r, log, c)
					if err == nil { // the files can be read
						_, err = new(run).from(after.reboot(crashLost, rng), r, log, next.checkpoints[1])
					}
					if err != nil || !slices.Equal(got, want) {
						t.Fatalf("%+v, operation %d, mode %d, from step %d: %v; the answers differ", r, op, mode,
							c.step, err)
					}
				}
				// A second crash happens during the repair after the first.
				after := d.reboot(mode, rng)
				after.crash = op % 3
				if _, err := new(run).from(after, r, log, p.checkpoints[1]); err != nil && !errors.Is(err, errCrashed) {
					t.Fatal(err)
				}
				got, err := new(run).from(after.reboot(mode, rng), r, log, p.checkpoints[1])
				if after.ops < 3 && (err != nil || !slices.Equal(got, want)) {
					t.Fatalf("%+v, operation %d, mode %d, twice: %v", r, op, mode, err)
				}
			}
		}
		if crashes < 50 {
			t.Errorf("%+v: %d crashes", r, crashes)
		}
	}
}

// TestJournalFullDisk makes every operation fail once with a full disk: the process continues with the same answers.
func TestJournalFullDisk(t *testing.T) {
	lowSnapshots(t)
	for i, r := range slices.Repeat(simRules, 2) {
		spill := i >= len(simRules)
		log := simLog(r)
		whole := newSimDisk()
		want, err := (&run{spill: spill}).from(whole, r, log, checkpoint{})
		if err != nil {
			t.Fatal(err)
		}
		for op := range whole.ops {
			d := newSimDisk()
			d.crash, d.refuse = op, syscall.ENOSPC
			p := &run{spill: spill}
			got, err := p.from(d, r, log, checkpoint{})
			if err != nil || !slices.Equal(got, want) {
				t.Fatalf("%+v, operation %d fails: %v", r, op, err)
			}
			if got, err := new(run).from(d.reboot(crashLost, nil), r, log, p.checkpoints[1]); err != nil ||
				!slices.Equal(got, want) {
				t.Fatalf("%+v, operation %d fails, then a restart: %v", r, op, err)
			}
		}
	}
}

// TestJournalFiles: the number of files is as documented, their bytes do not depend on restarts, and Erase removes all.
func TestJournalFiles(t *testing.T) {
	lowSnapshots(t)
	for _, r := range simRules {
		log := simLog(r)
		whole := newSimDisk()
		if _, err := new(run).from(whole, r, log, checkpoint{}); err != nil {
			t.Fatal(err)
		}
		d := newSimDisk()
		p := &run{}
		for step := 1; step <= len(log); step++ {
			if _, err := p.from(d, r, log[:step], p.checkpoints[1]); err != nil {
				t.Fatal(err)
			}
			var total uint64
			for _, i := range d.names {
				total += uint64(len(i.data))
			}
			most := (r.Separation*5/4+4)*simRows*entryBytes + 20*uint64(len(journalMagic))
			if r.Cap > 0 {
				most = 2*(r.snapshotAfter()*entryBytes+r.Users*snapshotBytes) + 2*simRows*entryBytes + 200
			}
			if total > most {
				t.Errorf("%+v, step %d: %d bytes of files, at most %d", r, step, total, most)
			}
		}
		if len(d.names) != len(whole.names) {
			t.Errorf("%+v: %d files with restarts, %d without", r, len(d.names), len(whole.names))
		}
		for name, i := range whole.names {
			if d.names[name] == nil || !bytes.Equal(d.names[name].data, i.data) {
				t.Errorf("%+v: %s has other bytes with restarts", r, name)
			}
		}
		d.names[simDir+"/users-77.1"] = &inode{}
		if err := Erase(d, simDir, simPrefix); err != nil || len(d.names) != 1 {
			t.Errorf("%d files after Erase, %v; want only that of another epoch", len(d.names), err)
		}
	}
}

// TestSpill: without checkpoints the disk holds as little as with commits, and the files of the last two checkpoints
// stay.
func TestSpill(t *testing.T) {
	lowSnapshots(t)
	for _, r := range simRules {
		log := simLog(r)
		d := newSimDisk()
		p := &run{}
		if _, err := p.from(d, r, log[:6], checkpoint{}); err != nil {
			t.Fatal(err)
		}
		var at Position
		if err := at.UnmarshalBinary(p.checkpoints[1].position); err != nil {
			t.Fatal(err)
		}
		m, err := NewMap(r)
		if err != nil {
			t.Fatal(err)
		}
		j, err := OpenJournal(d, simDir, simPrefix, m, at)
		if err != nil {
			t.Fatal(err)
		}
		most := 0
		for step := uint64(7); step < 200; step++ {
			if err := m.Open(step); err != nil {
				t.Fatal(err)
			}
			for i := range simRows {
				m.Take(tagOf(int(step)*simRows+i, true))
			}
			m.Close()
			if err := j.Spill(); err != nil {
				t.Fatal(err)
			}
			most = max(most, len(d.names))
		}
		if most > 14 {
			t.Errorf("%+v: %d files", r, most)
		}
		for _, c := range p.checkpoints {
			if got, err := new(run).from(d.reboot(crashArrived, nil), r, log, c); err != nil ||
				len(got) != len(log)*simRows {
				t.Errorf("%+v: from step %d: %v", r, c.step, err)
			}
		}
	}
}

// TestJournalDamage: any changed byte, missing file or truncated file is detected at once.
func TestJournalDamage(t *testing.T) {
	lowSnapshots(t)
	for _, r := range simRules {
		log := simLog(r)
		whole := newSimDisk()
		p := &run{}
		if _, err := p.from(whole, r, log, checkpoint{}); err != nil {
			t.Fatal(err)
		}
		var at Position
		if err := at.UnmarshalBinary(p.checkpoints[1].position); err != nil {
			t.Fatal(err)
		}
		try := func(what string, change func(d *simDisk, name string, s Segment)) {
			for _, s := range at.Segments {
				d := whole.reboot(crashArrived, nil)
				change(d, fmt.Sprint(simDir, "/", simPrefix, s.Number), s)
				m, _ := NewMap(r)
				if _, err := OpenJournal(d, simDir, simPrefix, m, at); !errors.Is(err, ErrDamaged) {
					t.Errorf("%+v, segment %d, %s: %v", r, s.Number, what, err)
				}
			}
		}
		try("missing", func(d *simDisk, name string, _ Segment) { delete(d.names, name) })
		try("cut", func(d *simDisk, name string, s Segment) { d.names[name].data = d.names[name].data[:s.Length-1] })
		for _, from := range []int{0, 17, 19, 35} {
			try(fmt.Sprint("byte ", from), func(d *simDisk, name string, s Segment) {
				d.names[name].data[min(from, int(s.Length)-1)] ^= 1
			})
		}
	}
}

func FuzzPosition(f *testing.F) {
	p := Position{Step: 9, Seen: 3,
		Segments: []Segment{{Number: 4, Snapshot: true, First: 5, Length: 100}, {Number: 5, First: 6, Length: 39}}}
	f.Add(mustBinary(&p))
	f.Add(mustBinary(&Position{}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var p Position
		if p.UnmarshalBinary(b) != nil {
			return
		}
		if again := mustBinary(&p); !bytes.Equal(again, b) {
			t.Fatalf("%x reads and writes as %x", b, again)
		}
	})
}

// FuzzSegment: arbitrary bytes in a segment are either reported as damage, or give a map that obeys the rule. Written
// and read again, that map must be equal.
func FuzzSegment(f *testing.F) {
	entries := appendEntry(slices.Clone(journalMagic), &Tag{1}, 3)
	f.Add(appendEntry(entries, &Tag{2}, 4), true)
	f.Add(append(appendEntry(slices.Clone(snapshotMagic), &Tag{1}, 3), 2, 0, 0, 0), true)
	f.Add([]byte(strings.Repeat("x", 60)), false)
	f.Fuzz(func(t *testing.T, data []byte, capped bool) {
		if len(data) < len(journalMagic) {
			return
		}
		r := Rule{Separation: 3, PerStep: 1, Users: 12}
		if capped {
			r.Cap = 3
		}
		s := Segment{Number: 1, Snapshot: bytes.HasPrefix(data, snapshotMagic), First: 1, Length: uint64(len(data))}
		if s.Snapshot {
			s.First = 100
		}
		m, err := NewMap(r)
		if err != nil {
			t.Fatal(err)
		}
		// The hash is wrong, so the result must be ErrDamaged. Code that runs before the hash is checked must not
		// panic.
		if _, _, err := m.readSegment(bytes.NewReader(data), &s, 100); !errors.Is(err, ErrDamaged) {
			t.Fatal(err)
		}
		for _, x := range m.slots {
			if x.last > 100 ||
				x.last != 0 && r.Cap > 0 && (x.steps&stepsMask == 0 || uint64(x.steps&stepsMask) > r.Cap) {
				t.Fatalf("a slot of step %d and %d steps", x.last, x.steps&stepsMask)
			}
		}
		if r.Cap == 0 {
			return
		}
		var out, again bytes.Buffer
		n, err := m.writeTo(&out)
		if err != nil || n != uint64(out.Len()) {
			t.Fatal(n, err)
		}
		s = Segment{Number: 1, Snapshot: true, First: 100, Length: n}
		other, _ := NewMap(r)
		other.readSegment(bytes.NewReader(out.Bytes()), &s, 100)
		if other.writeTo(&again); !bytes.Equal(again.Bytes(), out.Bytes()) {
			t.Fatal("a snapshot differs after reading and writing it")
		}
	})
}

// TestJournalPeriods: a process that starts in a period without entries has an empty map.
func TestJournalPeriods(t *testing.T) {
	t.Parallel()
	r := Rule{Cap: 1, Separation: 1, PerStep: 1, Period: 2, Users: 1}
	d := newSimDisk()
	m, err := NewMap(r)
	if err != nil {
		t.Fatal(err)
	}
	j, err := OpenJournal(d, simDir, simPrefix, m, Position{})
	if err != nil {
		t.Fatal(err)
	}
	m.Open(1)
	m.Take(tagOf(1, false))
	for step := uint64(2); step <= 3; step++ {
		m.Open(step)
	}
	m.Close()
	at, err := j.Append()
	if err != nil {
		t.Fatal(err)
	}
	if m, err = NewMap(r); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenJournal(d, simDir, simPrefix, m, *at); err != nil {
		t.Fatal(err)
	}
	m.Open(4)
	for u, want := range []Answer{NoUser, Counts, Full} {
		if got := m.Take(tagOf(u, false)); got != want {
			t.Errorf("person %d: %v, want %v", u, got, want)
		}
	}
}
