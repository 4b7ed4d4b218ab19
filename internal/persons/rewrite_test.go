package persons

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// again fills a map by reading a log from its beginning, like a process that lost the files, and returns a journal for
// it at an old position.
func again(d *simDisk, r Rule, log [][]Tag, at Position) (*Journal, error) {
	m, err := NewMap(r)
	if err != nil {
		return nil, err
	}
	j, err := OpenJournal(d, simDir, simPrefix, m, at)
	if err != nil {
		return nil, err
	}
	for step := m.Step(); step < uint64(len(log)); step++ {
		if err := m.Open(step + 1); err != nil {
			return nil, err
		}
		for _, tag := range log[step] {
			m.Take(tag)
		}
		m.Close()
		m.Forget()
		if len(m.fresh) > 0 {
			return nil, errors.New("entries pile up")
		}
	}
	return j, nil
}

// TestRewrite stops the machine before every operation while the files are rewritten. Until the new checkpoint is
// durable, the files must fit the old checkpoint, and afterwards the new one. From either, a process must continue with
// the answers of a process that never stopped.
func TestRewrite(t *testing.T) {
	lowSnapshots(t)
	for _, r := range simRules {
		log := simLog(r)
		want, err := new(run).from(newSimDisk(), r, log, checkpoint{})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{0, 1, 7, 12} { // number of steps before the rewrite
			whole := newSimDisk()
			p := &run{}
			if _, err := p.from(whole, r, log[:n+2], checkpoint{}); err != nil {
				t.Fatal(err)
			}
			old := p.checkpoints[0] // the checkpoint at step n+1
			rewrite := func(d *simDisk, at Position) ([]byte, error) {
				j, err := again(d, r, log[:n+2], at)
				if err != nil {
					return nil, err
				}
				position, err := j.Rewrite()
				if err != nil {
					return nil, err
				}
				data := mustBinary(position)
				if err := d.do(); err != nil { // stands for the write of the checkpoint
					return nil, err
				}
				return data, j.Committed()
			}
			var from Position
			if n > 0 && n%2 == 0 {
				if err := from.UnmarshalBinary(old.position); err != nil {
					t.Fatal(err)
				}
			}
			for crash := range 40 {
				d := whole.reboot(crashLost, nil)
				d.crash = crash
				data, err := rewrite(d, from)
				rng := rand.New(rand.NewPCG(uint64(crash), 3))
				after := d.reboot(crash%crashModes, rng)
				what := fmt.Sprintf("%+v, step %d, operation %d", r, n, crash)
				if err == nil {
					if len(after.names) != 1 {
						t.Fatalf("%s: %d files", what, len(after.names))
					}
					answers := want[:simRows*(n+2)]
					got, err := new(run).from(after, r, log, checkpoint{data, n + 2, answers})
					if err != nil || !slices.Equal(got, want) {
						t.Fatalf("%s: afterwards: %v, or different answers", what, err)
					}
					break
				}
				if !errors.Is(err, errCrashed) || crash == 39 {
					t.Fatalf("%s: %v, want a crash", what, err)
				}
				if data != nil {
					continue // the new checkpoint was durable, and the files belong to it
				}
				got, err := new(run).from(after, r, log, old)
				if err != nil || !slices.Equal(got, want) {
					t.Fatalf("%s: from the old checkpoint: %v, or different answers", what, err)
				}
			}
		}
	}
}

// TestCheck: Check detects changed bytes and missing or truncated files, and changes nothing.
func TestCheck(t *testing.T) {
	lowSnapshots(t)
	for _, r := range simRules {
		d := newSimDisk()
		p := &run{}
		if _, err := p.from(d, r, simLog(r), checkpoint{}); err != nil {
			t.Fatal(err)
		}
		var at Position
		if err := at.UnmarshalBinary(p.checkpoints[0].position); err != nil {
			t.Fatal(err)
		}
		ops := d.ops
		if err := Check(d, simDir, simPrefix, at); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
		for _, s := range at.Segments {
			i := d.names[fmt.Sprint(simDir, "/", simPrefix, s.Number)]
			data := i.data
			for _, bad := range [][]byte{nil, data[:s.Length-1],
				append(slices.Clone(data[:s.Length-1]), data[s.Length-1]^1)} {
				if i.data = bad; !errors.Is(Check(d, simDir, simPrefix, at), ErrDamaged) {
					t.Errorf("%+v, segment %d: %d of %d bytes pass", r, s.Number, len(bad), s.Length)
				}
			}
			i.data = data
		}
		if d.ops != ops {
			t.Errorf("%+v: %d operations", r, d.ops-ops)
		}
	}
}
