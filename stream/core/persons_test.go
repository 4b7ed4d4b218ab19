package core

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/persons"
)

// personStream is a stream of moments that protects persons. A person contributes in at most three steps, which are two
// apart, and with at most two records in each.
func personStream(t testing.TB, user string) *config.Stream {
	t.Helper()
	s := parsed(t, `
[stream.orders]
input = { topic = "orders", codec = "float64", columns = ["a", "b"] }
step = 4
horizon = 9
[stream.orders.privacy]
epsilon = 1.0
delta = 1e-8
adjacency = "zero-out"
[stream.orders.moments]
clip = 1.0
`)
	text := strings.TrimSuffix(string(s.Canonical(0)), "}") + `,"user":` + user + "}"
	protected, err := config.StreamOf("orders", []byte(text))
	must(t, err)
	return protected
}

const threeSteps = `{"cap":3,"key":"record-key","max_users":36,"partitioner":"none","per_step":2,"population":"orders","separation":2}`

// recorder keeps the rows that a mechanism gets, nil for records without a row.
type recorder struct {
	Estimator
	rows [][]float64
}

func (r *recorder) Add(slot uint64, row []float64) {
	r.rows = append(r.rows, slices.Clone(row))
	r.Estimator.Add(slot, row)
}

// personCore returns a core of the stream at its first step, and the recorder of its rows.
func personCore(t testing.TB, s *config.Stream) (*Core, *recorder) {
	t.Helper()
	mech, err := NewMechanism(s, nil, nil)
	must(t, err)
	rec := &recorder{Estimator: mech.Estimator}
	mech.Estimator = rec
	keys, err := dp.NewEpoch(&[32]byte{1}, &[32]byte{2}, "orders", 1, [16]byte{3}, [32]byte{4})
	must(t, err)
	m := &Manifest{Format: ManifestFormat, Stream: "orders", Epoch: 1, Source: Source{"cluster", "orders", 0},
		Cost: mech.Cost(), Base: 100, Partitions: 1, Mechanism: "moments"}
	c, err := New(s, m, []byte("manifest"), mech, keys)
	must(t, err)
	return c, rec
}

// personRecord is a slot of a log: the record's person (0: none, −1: no record), and whether the record has a row.
type personRecord struct {
	user  int
	valid bool
}

func randomLog(rng *rand.Rand, n int) (log []personRecord) {
	for range n {
		log = append(log, personRecord{rng.IntN(5), rng.IntN(4) > 0})
	}
	return log
}

// runLog adds records from an offset on, and closes steps of four.
func runLog(t testing.TB, c *Core, tagger *persons.Tagger, log []personRecord, from int) (out []Message) {
	t.Helper()
	for i := from; i < len(log); i++ {
		var row []float64
		if log[i].valid {
			row = []float64{float64(log[i].user) / 10, 1 / float64(2+i)}
		}
		var tag persons.Tag
		if u := log[i].user; u > 0 {
			tag = tagger.Tag(fmt.Append(nil, "user ", u))
		}
		if log[i].user >= 0 {
			c.AddOf(int64(100+i), row, tag)
		}
		if i%4 == 3 {
			messages, err := c.Close()
			must(t, err)
			out = append(out, messages...)
		}
	}
	return out
}

// TestPersonsAreHeld: the mechanism gets the rows of records that count, and nil for all other records. The others are
// still included in the number of records.
func TestPersonsAreHeld(t *testing.T) {
	t.Parallel()
	s := personStream(t, threeSteps)
	rng := rand.New(rand.NewPCG(20, 3))
	for range 50 {
		log := randomLog(rng, 36)
		c, rec := personCore(t, s)
		key := c.UserKey()
		runLog(t, c, persons.NewTagger(&key), log, 0)
		if len(rec.rows) != len(log) {
			t.Fatalf("%d rows of %d records", len(rec.rows), len(log))
		}
		steps, last, in := map[int]int{}, map[int]int{}, map[int]int{}
		for i, x := range log {
			u, step, counts := x.user, 1+i/4, false
			switch {
			case u == 0:
			case last[u] == step:
				counts = in[u] < 2
			case steps[u] < 3 && (last[u] == 0 || step-last[u] >= 2):
				steps[u], last[u], in[u], counts = steps[u]+1, step, 0, true
			}
			if counts {
				in[u]++
			}
			if (rec.rows[i] != nil) != (counts && x.valid) {
				t.Fatalf("record %d of %+v: the mechanism got %v", i, log, rec.rows[i])
			}
		}
	}
}

// TestPersonsNeighbours: replacing all records of a person by null records removes that person's counted rows, and
// changes no other row.
func TestPersonsNeighbours(t *testing.T) {
	t.Parallel()
	s := personStream(t, threeSteps)
	rng := rand.New(rand.NewPCG(20, 4))
	for range 50 {
		log := randomLog(rng, 36)
		other := slices.Clone(log)
		for i := range other {
			if other[i].user == 1 {
				other[i] = personRecord{}
			}
		}
		rows := func(log []personRecord) [][]float64 {
			c, rec := personCore(t, s)
			key := c.UserKey()
			runLog(t, c, persons.NewTagger(&key), log, 0)
			return rec.rows
		}
		with, without := rows(log), rows(other)
		for i := range log {
			if log[i].user != 1 && !slices.Equal(with[i], without[i]) {
				t.Fatalf("record %d of %+v belongs to another person, but changed", i, log)
			}
			if log[i].user == 1 && without[i] != nil {
				t.Fatal("a record without a person has a row")
			}
		}
	}
}

// TestPersonsResume: a process that resumes from any checkpoint, with the map from the journal, makes the same bytes.
// If the map does not belong to the checkpoint, the process refuses to resume.
func TestPersonsResume(t *testing.T) {
	t.Parallel()
	for _, user := range []string{threeSteps, strings.Replace(threeSteps, `"cap":3`, `"cap":0`, 1)} {
		s := personStream(t, user)
		log := randomLog(rand.New(rand.NewPCG(20, 5)), 36)
		for i := range 4 { // a step without records
			log[8+i] = personRecord{user: -1}
		}
		whole, _ := personCore(t, s)
		key := whole.UserKey()
		tagger := persons.NewTagger(&key)
		want := runLog(t, whole, tagger, log, 0)

		d := osFiles{t.TempDir()}
		c, _ := personCore(t, s)
		j, err := persons.OpenJournal(d, d.dir, "users-1.", c.Persons()[0], persons.Position{})
		must(t, err)
		got := []Message{}
		for at := 0; at < len(log); at += 4 {
			got = append(got, runLog(t, c, tagger, log[:at+4], at)...)
			position, err := j.Append()
			must(t, err)
			state, err := c.AppendState(nil)
			must(t, err)
			step, h := c.Step(), c.Transcript()

			c, _ = personCore(t, s)
			if err := c.Resume(state, step, h, []int64{int64(104 + at)}); err == nil {
				t.Fatal("a core resumes without its persons")
			}
			c, _ = personCore(t, s)
			j, err = persons.OpenJournal(d, d.dir, "users-1.", c.Persons()[0], *position)
			must(t, err)
			must(t, c.Resume(state, step, h, []int64{int64(104 + at)}))
		}
		if len(got) != len(want) || len(want) != 9 {
			t.Fatalf("%d releases, %d without a stop", len(got), len(want))
		}
		for i := range got {
			if !bytes.Equal(got[i].Value, want[i].Value) {
				t.Errorf("release %d has other bytes after restarts", i+1)
			}
		}
	}
}

// TestPersonRelease: a release says that persons are the unit, which of their records count, and what is not promised.
// A release of a stream without persons says none of this.
func TestPersonRelease(t *testing.T) {
	t.Parallel()
	s := personStream(t, threeSteps)
	mech, err := NewMechanism(s, nil, nil)
	must(t, err)
	m := goldenManifest(t)
	m.Persons = []Person{{2, new(2.708)}, {10, nil}}
	e, err := newEncoder(s, m, mech)
	must(t, err)
	var head struct{ Privacy releasePrivacy }
	must(t, json.Unmarshal(append(append([]byte("{"), e.head...), '}'), &head))
	p := head.Privacy
	if p.Person == nil || p.Person.EpsilonRecord == nil {
		t.Fatalf("a release says of persons %+v", p.Person)
	}
	want := Protected{"record-key", 3, 2, 2, 0, 36, mech.norm, p.Person.EpsilonRecord, "orders", "none"}
	if p.Unit != "person" || *p.Person != want || !slices.Equal(p.Persons, []releaseGroup{{2, 2.708}}) {
		t.Errorf("a release says %s, %+v, %+v", p.Unit, p.Person, p.Persons)
	}
	// A record is in one of three steps, and is one of two in that step.
	if e := *p.Person.EpsilonRecord; e >= 0.4*p.Epsilon || e <= 0 {
		t.Errorf("one record costs %g, all records of a person %g", e, p.Epsilon)
	}
	// The noise is for a person: it exceeds the noise for a record by at least the norm of three steps with two records
	// in each.
	if least := 2 * math.Sqrt(3); mech.norm < least || mech.sensitivity < mech.norm {
		t.Errorf("norm %g, must be at least %g, and sensitivity %g", mech.norm, least, mech.sensitivity)
	}
	for _, part := range []string{
		"differentially private with respect to replacing all records of one person by null records, which take " +
			"their places and add nothing, or the reverse (unit: person)",
		"A person is all records of the epoch with one user key (the record's key).",
		"in at most 3 steps, at least 2 apart, at most 2 in each",
		"k persons together are protected less: (2.708, 1e-08) for k = 2.", "over the population orders the limit",
	} {
		if !strings.Contains(strings.Join(p.Statements, " "), part) {
			t.Errorf("%q is not in %q", part, p.Statements)
		}
	}
	if strings.Contains(strings.Join(p.Statements, " "), "A person with") {
		t.Error("a release that protects persons has the statement about records")
	}
	e, err = newEncoder(goldenStream(t), m, goldenMechanism())
	must(t, err)
	if strings.Contains(string(e.head), `"person"`) || strings.Contains(string(e.head), `"persons"`) ||
		!strings.Contains(string(e.head), `"unit":"record"`) {
		t.Errorf("without persons a release has %s", e.head)
	}
}

// TestPersonsNeedTags: records without a person add nothing, whether added directly or by leaves. Mechanisms that
// cannot protect persons refuse such a stream.
func TestPersonsNeedTags(t *testing.T) {
	t.Parallel()
	s := personStream(t, threeSteps)
	c, rec := personCore(t, s)
	c.Add(100, []float64{1, 1})
	c.mech.Estimator = rec.Estimator
	sum, err := c.NewSum()
	must(t, err)
	part := &partRecorder{Part: sum.part}
	sum.part = part
	leaf := c.Leaves()[0]
	leaf.Into(sum)
	if leaf.Add(100, []float64{1, 1}); part.row != nil {
		t.Error("a leaf adds a row without a person")
	}
	if len(rec.rows) != 1 || rec.rows[0] != nil {
		t.Errorf("a record without a person has the row %v", rec.rows)
	}
	if f := FormatOf(s); f.User != "record-key" {
		t.Errorf("records have their user key in %q", f.User)
	}
	other := parsed(t,
		"[stream.x]\ninput = { topic = \"t\", columns = [\"a\", \"y\"] }\n[stream.x.privacy]\nepsilon = 1\n"+
			"delta = 1e-8\nadjacency = \"replace\"\n[stream.x.refit]\nsolver = \"ihm\"\nwindow = 100\n"+
			"target = \"y\"\nclip_x = 1\nclip_y = 1\n")
	other.User = s.User
	if _, err := NewMechanism(other, nil, nil); err == nil {
		t.Error("a sketch protects persons")
	}
}

// partRecorder keeps the last row.
type partRecorder struct {
	dp.Part
	row []float64
}

func (p *partRecorder) Add(slot uint64, row []float64) {
	p.row = row
	p.Part.Add(slot, row)
}

// osFiles is a directory for a journal. Its guarantees in a crash are tested elsewhere.
type osFiles struct{ dir string }

func (osFiles) Open(name string) (io.ReadCloser, error) { return os.Open(name) }
func (osFiles) Create(name string) (persons.File, error) {
	return os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
}
func (osFiles) Append(name string) (persons.File, error) {
	return os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0o600)
}
func (osFiles) Truncate(name string, size int64) error { return os.Truncate(name, size) }
func (osFiles) Remove(name string) error               { return os.Remove(name) }
func (osFiles) SyncDir(string) error                   { return nil }
func (osFiles) ReadDir(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// TestPersonsByLeaf: with steps by the clock, a leaf gives the same bytes as a core that takes the records itself, also
// if the leaf is ahead.
func TestPersonsByLeaf(t *testing.T) {
	t.Parallel()
	s := personStream(t, threeSteps)
	s.Step, s.StepMax = config.Every(time.Minute), 4
	log := randomLog(rand.New(rand.NewPCG(20, 6)), 36)
	one, _ := personCore(t, s)
	key := one.UserKey()
	tagger := persons.NewTagger(&key)
	var want []Message
	for at := 0; at < len(log); at += 4 {
		must(t, one.Until(int64(104+at)))
		want = append(want, runLog(t, one, tagger, log[:at+4], at)...)
	}
	c, rec := personCore(t, s)
	c.mech.Estimator = rec.Estimator
	leaf := c.Leaves()[0]
	sums := make([]*Sum, 3)
	for step := range 9 {
		if step%3 == 0 { // three steps ahead
			for i := range sums {
				var err error
				sums[i], err = c.NewSum()
				must(t, err)
				must(t, leaf.Until(leaf.First()+4))
				leaf.Into(sums[i])
				for at := leaf.First(); at < leaf.End(); at++ {
					x := log[at-100]
					var row []float64
					if x.valid {
						row = []float64{float64(x.user) / 10, 1 / float64(2+at-100)}
					}
					var tag persons.Tag
					if x.user > 0 {
						tag = tagger.Tag(fmt.Append(nil, "user ", x.user))
					}
					leaf.AddOf(at, row, tag)
				}
				leaf.Close()
			}
		}
		if ahead := c.Persons()[0].Closed(); ahead != uint64(step) {
			t.Fatalf("the journal was given step %d before its release", ahead)
		}
		got, err := c.Merge(sums[step%3:step%3+1], nil)
		must(t, err)
		if len(got) != 1 || !bytes.Equal(got[0].Value, want[step].Value) {
			t.Errorf("step %d has other bytes", step+1)
		}
	}
	if _, err := c.Merge(sums[:2], nil); err == nil {
		t.Error("sums of two partitions are merged in an epoch over one partition")
	}
}

// TestPersonsCrowd: if the table can fill up, zero-out has the noise of replace at the cost of zero-out. Removing a
// person changes which records count for at most one other person. Releases say so.
func TestPersonsCrowd(t *testing.T) {
	t.Parallel()
	s := personStream(t, strings.Replace(threeSteps, `"max_users":36`, `"max_users":2`, 1))
	crowded, err := NewMechanism(s, nil, nil)
	must(t, err)
	replace := *s
	replace.Privacy.Adjacency = dp.Replace
	want, err := NewMechanism(&replace, nil, nil)
	must(t, err)
	roomy, err := NewMechanism(personStream(t, threeSteps), nil, nil)
	must(t, err)
	if crowded.sensitivity != want.sensitivity || crowded.sensitivity < 1.2*roomy.sensitivity {
		t.Errorf("sensitivity %g, of replace %g, with room for all %g", crowded.sensitivity, want.sensitivity,
			roomy.sensitivity)
	}
	if c := crowded.Cost(); c.Adjacency != dp.ZeroOut || c.Mu != roomy.Cost().Mu ||
		want.Cost().Adjacency != dp.Replace {
		t.Errorf("it costs %+v", c)
	}
	rng, most := rand.New(rand.NewPCG(20, 7)), 0
	for range 50 {
		log := randomLog(rng, 36)
		other := slices.Clone(log)
		for i := range other {
			other[i].valid, log[i].valid = true, true
			if other[i].user == 1 {
				other[i] = personRecord{}
			}
		}
		rows := func(log []personRecord) [][]float64 {
			c, rec := personCore(t, s)
			key := c.UserKey()
			runLog(t, c, persons.NewTagger(&key), log, 0)
			return rec.rows
		}
		with, without := rows(log), rows(other)
		changed := map[int]bool{}
		for i := range log {
			if u := log[i].user; u != 1 && (with[i] == nil) != (without[i] == nil) {
				changed[u] = true
			}
		}
		most = max(most, len(changed))
	}
	if most != 1 {
		t.Errorf("removing a person changes %d others", most)
	}
	if text := personsInWords(s, nil); !strings.Contains(text,
		"When the records of 2 persons count, those of others do not") {
		t.Errorf("a release says %s", text)
	}
}

// TestPersonPeriod: a release says that the unit is a person's records of one period. The noise is calibrated for the
// steps of a period.
func TestPersonPeriod(t *testing.T) {
	t.Parallel()
	s := personStream(t,
		strings.NewReplacer(`"cap":3`, `"cap":0`, `"per_step":2`, `"per_step":2,"period":4`).Replace(threeSteps))
	mech, err := NewMechanism(s, nil, nil)
	must(t, err)
	whole, err := NewMechanism(personStream(t, threeSteps), nil, nil)
	must(t, err)
	if least := 2 * math.Sqrt(2); mech.norm < least || mech.norm > 0.99*whole.norm {
		t.Errorf("norm %g, but that of three steps is %g", mech.norm, whole.norm)
	}
	e, err := newEncoder(s, goldenManifest(t), mech)
	must(t, err)
	var head struct{ Privacy releasePrivacy }
	must(t, json.Unmarshal(append(append([]byte("{"), e.head...), '}'), &head))
	p := head.Privacy
	if p.Unit != "person-period" || p.Person == nil || p.Person.Period != 4 || p.Person.Cap != 2 {
		t.Errorf("a release says %s, %+v", p.Unit, p.Person)
	}
	for _, part := range []string{
		"all records that one person has in one period", "(unit: person-period)",
		"Periods of 4 steps follow one another from step 1 on",
		"Somebody with records in k periods is k persons here",
		"for what a person has in one period of each epoch of a stretch, which is epochs of a stream and partition " +
			"in a row with 4 steps or more, the limit enforced",
	} {
		if !strings.Contains(strings.Join(p.Statements, " "), part) {
			t.Errorf("%q is not in %q", part, p.Statements)
		}
	}
}
