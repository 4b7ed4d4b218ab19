package ledger_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/simdisk"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
)

// personEpoch has the fields of an opening for persons that affect its charge.
type personEpoch struct {
	stream, topic string
	partition     int
	partitioner   string
	partitions    int
	refuses       bool
	mu            float64
	adjacency     dp.Adjacency
	first, end    int64
	incarnation   uint64
}

// entry returns the opening of the epoch.
func (p personEpoch) entry(epoch uint64) ledger.Entry {
	key := "record-key"
	return ledger.Entry{
		Kind: ledger.KindOpen, Stream: p.stream,
		Source: core.Source{Cluster: "c", Topic: p.topic, Partition: p.partition}, Epoch: epoch,
		Incarnation: max(1, p.incarnation), First: p.first, End: p.end, Mechanism: "moments",
		Cost: dp.Cost{Adjacency: p.adjacency, Mu: p.mu},
		Unit: ledger.UnitPerson,
		Person: &ledger.EntryPerson{Population: "members", Key: key, Cap: 5, Separation: 1, PerStep: 1,
			Partitioner: p.partitioner, Partitions: p.partitions, Refuses: p.refuses},
		Epsilon: 1, Delta: 1e-8, LimitEpsilon: 1e6, LimitDelta: 1e-8,
	}
}

var members = ledger.Account{Population: "members"}

func emptyLedger(t testing.TB) *ledger.Ledger {
	t.Helper()
	l, err := ledger.Open(simdisk.NewSimDisk("/s"), "/s", nil)
	fixtures.Must(t, err)
	return l
}

// chargedMu returns the μ that a person of the population has paid.
func chargedMu(t testing.TB, l *ledger.Ledger, a dp.Adjacency) float64 {
	t.Helper()
	c, err := l.Charged(members, a, 1e-8, nil)
	fixtures.Must(t, err)
	return c.Mu
}

// atLeast reports whether a charge has the wanted value, or exceeds it only by rounding.
func atLeast(got, want float64) bool { return got >= want && got <= want*(1+1e-12) }

// TestPopulationCharge: a person pays for all epochs of the population, whatever their offsets, partitions, topics and
// incarnations are. If a user key counts in one partition only, a person pays the largest sum of any partition.
func TestPopulationCharge(t *testing.T) {
	t.Parallel()
	base := personEpoch{stream: "a", topic: "in", partitioner: "none", partitions: 4, mu: 3, adjacency: dp.ZeroOut,
		first: 0, end: 100}
	with := func(change func(*personEpoch)) personEpoch {
		p := base
		change(&p)
		return p
	}
	enforced := with(func(p *personEpoch) { p.partitioner = "murmur2" })
	for _, c := range []struct {
		name      string
		EpochList []personEpoch
		want      float64
	}{
		{"one", []personEpoch{base}, 3},
		{"two partitions", []personEpoch{base, with(func(p *personEpoch) { p.partition, p.mu = 1, 4 })}, 5},
		{"disjoint offsets",
			[]personEpoch{base, with(func(p *personEpoch) { p.stream, p.first, p.end, p.mu = "b", 500, 600, 4 })}, 5},
		{"another topic",
			[]personEpoch{base, with(func(p *personEpoch) { p.stream, p.topic, p.mu = "b", "other", 4 })}, 5},
		{"another incarnation",
			[]personEpoch{base, with(func(p *personEpoch) { p.stream, p.incarnation, p.mu = "b", 2, 4 })}, 5},
		{"enforced, one partition",
			[]personEpoch{enforced, with(func(p *personEpoch) { p.stream, p.partitioner, p.mu = "b", "murmur2", 4 })},
			5},
		{"enforced, two partitions",
			[]personEpoch{enforced, with(func(p *personEpoch) { p.partition, p.partitioner, p.mu = 1, "murmur2", 4 })},
			4},
		{"enforced, the first is the worst",
			[]personEpoch{with(func(p *personEpoch) { p.partitioner, p.mu = "murmur2", 4 }),
				with(func(p *personEpoch) { p.partition, p.partitioner = 1, "murmur2" })}, 4},
		{"enforced, of tables that may be full", []personEpoch{
			with(func(p *personEpoch) { p.partitioner, p.adjacency, p.refuses = "murmur2", dp.Replace, true }),
			with(func(p *personEpoch) {
				p.partition, p.partitioner, p.mu, p.adjacency, p.refuses = 1, "murmur2", 4, dp.Replace, true
			}),
		}, 5},
		{"enforced, of full tables that nobody comes to", []personEpoch{
			with(func(p *personEpoch) { p.partitioner, p.refuses = "murmur2", true }),
			with(func(p *personEpoch) { p.partition, p.partitioner, p.mu, p.refuses = 1, "murmur2", 4, true }),
		}, 4},
		{"one is not enforced", []personEpoch{enforced, with(func(p *personEpoch) { p.partition, p.mu = 1, 4 })}, 5},
		{"other numbers of partitions",
			[]personEpoch{enforced,
				with(func(p *personEpoch) { p.partition, p.partitioner, p.partitions, p.mu = 1, "murmur2", 5, 4 })}, 5},
		{"enforced in two topics", []personEpoch{enforced, with(func(p *personEpoch) {
			p.stream, p.topic, p.partition, p.partitioner, p.mu = "b", "other", 1, "murmur2", 4
		})}, 5},
		// 2·1.5 under replace
		{"another adjacency",
			[]personEpoch{with(func(p *personEpoch) { p.mu = 1.5 }),
				with(func(p *personEpoch) { p.partition, p.mu, p.adjacency = 1, 4, dp.Replace })}, 5},
		{"enforced, another adjacency with less",
			[]personEpoch{with(func(p *personEpoch) { p.partitioner, p.mu = "murmur2", 1.6 }),
				with(func(p *personEpoch) { p.partition, p.partitioner, p.mu = 1, "murmur2", 1.5 }),
				with(func(p *personEpoch) {
					p.stream, p.partition, p.partitioner, p.mu, p.adjacency = "b", 1, "murmur2", 4, dp.Replace
				})}, 5},
	} {
		a := c.EpochList[len(c.EpochList)-1].adjacency
		for _, closed := range []bool{false, true} {
			l := emptyLedger(t)
			for i, p := range c.EpochList {
				_, err := l.Open(p.entry(uint64(i) + 1))
				fixtures.Must(t, err)
			}
			for i, p := range c.EpochList {
				e := p.entry(uint64(i) + 1)
				if closed {
					fixtures.Must(t,
						l.Append(
							ledger.Entry{Kind: ledger.KindClose, Stream: e.Stream, Source: e.Source, Epoch: e.Epoch,
								End: e.First + 1}))
				}
			}
			if got := chargedMu(t, l, a); !atLeast(got, c.want) {
				t.Errorf("%s, closed %t: mu %g is charged, want %g", c.name, closed, got, c.want)
			}
			data, err := l.Disk.ReadFile(l.Path)
			fixtures.Must(t, err)
			again, err := ledger.Parse(data, nil)
			fixtures.Must(t, err)
			if got, was := chargedMu(t, again, a), chargedMu(t, l, a); got != was {
				t.Errorf("%s: read again, mu %g is charged, not %g", c.name, got, was)
			}
		}
	}
}

// TestPopulationRandom compares the charge with a sum over all lines, for random epochs of two streams over four
// partitions. Some epochs are closed, some void, some without a step.
func TestPopulationRandom(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(20, 6))
	for range 60 {
		l := emptyLedger(t)
		mixed := rng.IntN(2) == 0
		numbers := map[core.Task]uint64{}
		type paid struct {
			p     personEpoch
			state string
		}
		var all []paid
		for range 12 {
			p := personEpoch{stream: []string{"a", "b"}[rng.IntN(2)], topic: "in", partition: rng.IntN(4),
				partitioner: "murmur2", partitions: 4,
				mu: 0.1 + rng.Float64(), adjacency: dp.ZeroOut, first: int64(rng.IntN(50)), end: -1}
			if mixed && rng.IntN(4) == 0 {
				p.partitions = 8
			}
			task := core.Task{Stream: p.stream, Partition: p.partition}
			numbers[task]++
			e := p.entry(numbers[task])
			_, err := l.Open(e)
			fixtures.Must(t, err)
			state := []string{"open", "closed", "void", "empty"}[rng.IntN(4)]
			switch state {
			case "closed":
				fixtures.Must(t,
					l.Append(
						ledger.Entry{Kind: ledger.KindClose, Stream: e.Stream, Source: e.Source, Epoch: e.Epoch,
							End: []int64{-1, p.first + 10}[rng.IntN(2)]}))
			case "empty":
				fixtures.Must(t,
					l.Append(
						ledger.Entry{Kind: ledger.KindClose, Stream: e.Stream, Source: e.Source, Epoch: e.Epoch,
							End: p.first}))
			case "void":
				fixtures.Must(t,
					l.Append(ledger.Entry{Kind: ledger.KindVoid, Stream: e.Stream, Source: e.Source, Epoch: e.Epoch}))
			}
			all = append(all, paid{p, state})

			total, by, counts := 0.0, map[int]float64{}, map[int]bool{}
			for _, x := range all {
				if x.state != "void" {
					counts[x.p.partitions] = true
				}
				if x.state == "open" || x.state == "closed" {
					total += x.p.mu * x.p.mu
					by[x.p.partition] += x.p.mu * x.p.mu
				}
			}
			want := total
			if len(counts) == 1 {
				want = 0
				for _, v := range by {
					want = max(want, v)
				}
			}
			if got := chargedMu(t, l, dp.ZeroOut); !atLeast(got*(1+1e-14), math.Sqrt(want)) {
				t.Fatalf("mu %g is charged, want %g, after %+v", got, math.Sqrt(want), all)
			}
		}
	}
}

// TestPopulationLimit: the limit applies to the population. If an epoch in any partition or stream would exceed the
// limit for a person, it is refused and leaves no line.
func TestPopulationLimit(t *testing.T) {
	t.Parallel()
	mu, err := dp.Mu(1, 1e-8)
	fixtures.Must(t, err)
	limited := func(p personEpoch, epoch uint64, limit float64) ledger.Entry {
		e := p.entry(epoch)
		e.LimitEpsilon = limit
		return e
	}
	base := personEpoch{stream: "a", topic: "in", partitioner: "none", partitions: 4, mu: mu,
		adjacency: dp.ZeroOut, end: 100}
	second, other := base, base
	second.partition = 1
	other.stream, other.topic = "b", "other"

	l := emptyLedger(t)
	charged, err := l.Open(limited(base, 1, 1.5))
	if err != nil || math.Abs(charged-1) > 1e-9 {
		t.Errorf("the first epoch is charged %g, %v", charged, err)
	}
	var over *ledger.ErrBudget
	for _, p := range []personEpoch{second, other} {
		if _, err := l.Open(limited(p, 1, 1.4)); !errors.As(err, &over) ||
			!((*over.Spent()) > 1.43 && (*over.Spent()) < 1.45) ||
			!strings.Contains(err.Error(), "budget of population members spent") ||
			!strings.Contains(err.Error(), "bring a person to epsilon 1.4") {
			t.Errorf("an epoch of %s/%d: %v", p.topic, p.partition, err)
		}
	}
	// If the first epoch ended before its first step, the limit allows the second; if it had a step, it does not.
	if err := l.Affords(limited(second, 1, 1.4), &l.Entries[0], []ledger.EntryPart{{End: 0}}, 0); err != nil {
		t.Errorf("after an epoch without a release: %v", err)
	}
	if err := l.Affords(limited(second, 1, 1.4), &l.Entries[0], []ledger.EntryPart{{End: 1}}, 0); err == nil {
		t.Error("it fits after an epoch with a release")
	}
	if n := len(l.Entries); n != 1 {
		t.Errorf("%d lines", n)
	}
	// A limit is recorded once for all tasks of the population, and never below the amount already paid.
	line := ledger.Entry{Kind: ledger.KindLimit, Stream: "a", Source: base.entry(1).Source, Epoch: 1, LimitEpsilon: 0.9,
		LimitDelta: 1e-8}
	if err := l.SetLimitLine(line, dp.ZeroOut); err == nil ||
		!strings.Contains(err.Error(), "below what persons of population members have paid: 1 (zero-out)") {
		t.Errorf("a limit of 0.9: %v", err)
	}
	_, err = l.Open(limited(second, 1, 1.5))
	fixtures.Must(t, err)
	line.LimitEpsilon = 1.6
	fixtures.Must(t, l.SetLimitLine(line, dp.ZeroOut))
	line.Source.Partition = 1
	fixtures.Must(t, l.SetLimitLine(line, dp.ZeroOut))
	if n := len(l.Entries); n != 3 {
		t.Errorf("%d lines, want one limit for both tasks", n)
	}
	// If partitions are enforced, the limit allows an epoch in the second partition, but no second epoch in the first.
	free := emptyLedger(t)
	base.partitioner, second.partitioner = "murmur2", "murmur2"
	for _, p := range []personEpoch{base, second} {
		if charged, err := free.Open(limited(p, 1, 1.4)); err != nil || math.Abs(charged-1) > 1e-9 {
			t.Errorf("partition %d: charged %g, %v", p.partition, charged, err)
		}
	}
	if _, err := free.Open(limited(base, 2, 1.4)); !errors.As(err, &over) {
		t.Errorf("a second epoch: %v", err)
	}
	// An epoch that would end the enforcement is charged on top of all others.
	base.stream, base.partitioner, base.mu = "c", "none", mu/100
	if _, err := free.Open(limited(base, 1, 1.4)); !errors.As(err, &over) || !((*over.Spent()) > 1.43) {
		t.Errorf("a small epoch that is not enforced: %v", err)
	}
}

// TestUnitsDoNotMix: all epochs over a topic protect its records, or all protect the persons of one population by the
// same key.
func TestUnitsDoNotMix(t *testing.T) {
	t.Parallel()
	person := personEpoch{stream: "p", topic: "orders", partition: 1, partitioner: "none", partitions: 4, mu: 0.1,
		adjacency: dp.ZeroOut, end: 100}.entry(1)
	otherKey, otherPopulation, otherTopic := person, person, person
	otherKey.Stream, otherKey.Person = "q",
		&ledger.EntryPerson{Population: "members", Key: "field:id", Cap: 5, Separation: 1, PerStep: 1, Period: 0,
			Step: "", Partitioner: "none", Partitions: 4, Refuses: false}
	otherPopulation.Stream, otherPopulation.Person = "q",
		&ledger.EntryPerson{Population: "guests", Key: "record-key", Cap: 5, Separation: 1, PerStep: 1, Period: 0,
			Step: "", Partitioner: "none", Partitions: 4, Refuses: false}
	otherTopic.Stream, otherTopic.Topic, otherTopic.Person = "q", "elsewhere", otherKey.Person
	record := streamtest.Charging(1, 0, 10, dp.ZeroOut, 0.1)
	void := func(e ledger.Entry) ledger.Entry {
		return ledger.Entry{Kind: ledger.KindVoid, Stream: e.Stream, Source: e.Source, Epoch: e.Epoch}
	}
	next := func(e ledger.Entry) ledger.Entry { e.Epoch++; return e }
	closed := func(e ledger.Entry) ledger.Entry {
		return ledger.Entry{Kind: ledger.KindClose, Stream: e.Stream, Source: e.Source, Epoch: e.Epoch, End: 10}
	}
	for _, c := range []struct {
		name   string
		before []ledger.Entry
		e      ledger.Entry
		words  string // "": accepted
	}{
		{"persons after records", []ledger.Entry{record}, person, "protect single records"},
		{"persons after closed records", []ledger.Entry{record, closed(record)}, person, "protect single records"},
		{"records after persons", []ledger.Entry{person, closed(person)}, record, "protect persons"},
		{"another key", []ledger.Entry{person}, otherKey, `by key "record-key"`},
		{"another population", []ledger.Entry{person}, otherPopulation, "population guests"},
		{"another key in another topic", []ledger.Entry{person}, otherTopic, ""},
		{"after records that never were", []ledger.Entry{record, void(record)}, person, ""},
		{"after persons that never were", []ledger.Entry{person, void(person)}, record, ""},
		{"another key after one that never was", []ledger.Entry{person, void(person)}, otherKey, ""},
		{"still that of one that was", []ledger.Entry{person, closed(person), next(person), void(next(person))},
			otherKey, `by key "record-key"`},
	} {
		l := emptyLedger(t)
		for _, e := range c.before {
			fixtures.Must(t, l.Append(e))
		}
		c.e.LimitEpsilon = 10
		_, err := l.Open(c.e)
		var h *failure.Halt
		switch {
		case c.words == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.words != "" &&
			(!errors.As(err, &h) || h.Reason != failure.Configuration || !strings.Contains(err.Error(), c.words) ||
				len(l.Entries) != len(c.before)):
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestOpeningIsCharged: the check command reports the same charge for an opening as the ledger makes. If each person is
// in one partition, it is the charge of one partition's epoch; otherwise it is the sum over all partitions.
func TestOpeningIsCharged(t *testing.T) {
	t.Parallel()
	for _, adjacency := range []string{"zero-out", "replace"} {
		for _, partitioner := range []string{"none", "murmur2"} {
			for _, room := range []uint64{7, 400} { // tables of persons with room for 7 and for 400 users
				s := userStream(t, fmt.Sprintf(`privacy = { epsilon = 1.0, delta = 1e-8, adjacency = %q }
user = { key = "record-key", cap = 3, max_users = %d, partitioner = %q }`, adjacency, room, partitioner))
				d, err := core.Describe(s, nil)
				fixtures.Must(t, err)
				l := emptyLedger(t)
				for i := range s.Input.Partitions {
					e := personEpoch{stream: "orders", topic: "orders", partition: i, mu: d.Mu, adjacency: d.Adjacency,
						end: -1}.entry(1)
					e.Unit, e.Person = ledger.PersonOf(s, len(s.Input.Partitions))
					e.Person.Population = "members"
					_, err := l.Open(e)
					fixtures.Must(t, err)
				}
				if got := chargedMu(t, l, d.Adjacency); math.Abs(got/d.Person.OpeningMu-1) > 1e-9 {
					t.Errorf("%s, %s, %d persons: check says mu %g for an opening, the ledger charges %g", adjacency,
						partitioner, room, d.Person.OpeningMu, got)
				}
			}
		}
	}
}

// userStream returns a stream of 40 steps of 10 records over four partitions.
func userStream(t testing.TB, more string) *config.Stream {
	t.Helper()
	c, err := config.Parse("c.toml", []byte(`
kafka = { brokers = ["127.0.0.1:1"] }
state = { dir = "/s", key_file = "/k" }
[stream.orders]
input = { topic = "orders", codec = "json", columns = ["x"], partition = [0, 1, 2, 3] }
output = { topic = "out" }
step = 10
horizon = 40
moments = { clip = 1.0, factorization = "identity" }
`+more))
	fixtures.Must(t, err)
	return c.Streams[0]
}

// TestPersonLines: lines with a unit that this version does not know are refused, and lines about records have not
// changed.
func TestPersonLines(t *testing.T) {
	t.Parallel()
	good := personEpoch{stream: "p", topic: "orders", partitioner: "murmur2", partitions: 4, mu: 0.1,
		adjacency: dp.ZeroOut, end: 100}.entry(1)
	for name, change := range map[string]func(e *ledger.Entry){
		"":                 func(*ledger.Entry) {},
		"another unit":     func(e *ledger.Entry) { e.Unit = "household" },
		"no unit":          func(e *ledger.Entry) { e.Unit = "" },
		"no person":        func(e *ledger.Entry) { e.Person = nil },
		"no population":    func(e *ledger.Entry) { e.Person.Population = "" },
		"no key":           func(e *ledger.Entry) { e.Person.Key = "" },
		"partitioner":      func(e *ledger.Entry) { e.Person.Partitioner = "sticky" },
		"murmur2 of field": func(e *ledger.Entry) { e.Person.Key = "field:id" },
		"no partitions":    func(e *ledger.Entry) { e.Person.Partitions = 0 },
	} {
		e := good
		p := *good.Person
		e.Person = &p
		change(&e)
		if _, err := ledger.Parse(rechain(t, []ledger.Entry{e}), nil); (err == nil) != (name == "") ||
			err != nil && !errors.Is(err, ledger.ErrLedger) {
			t.Errorf("%q: %v", name, err)
		}
		if err := emptyLedger(t).Append(e); (err == nil) != (name == "") {
			t.Errorf("%q, appended: %v", name, err)
		}
	}
	line := string(rechain(t, []ledger.Entry{good}))
	if want :=
		`"unit":"person","person":{"population":"members","key":"record-key","cap":5,"separation":1,"per_step":1,"partitioner":"murmur2","partitions":4}`; !strings.Contains(line, want) {
		t.Errorf("the line is %s, want in it %s", line, want)
	}
	end := closingOf(good)
	end.Unit, end.Person = good.Unit, good.Person
	if _, err := ledger.Parse(rechain(t, []ledger.Entry{good, end}), nil); !errors.Is(err, ledger.ErrLedger) {
		t.Errorf("a closing with persons: %v", err)
	}
}

func closingOf(e ledger.Entry) ledger.Entry {
	return ledger.Entry{Kind: ledger.KindClose, Stream: e.Stream, Source: e.Source, Epoch: e.Epoch, End: e.First + 10}
}

// TestPopulationHistory: the status shows, for each line of a population, the charge after that line. The time to add
// one more line does not grow with the ledger.
func TestPopulationHistory(t *testing.T) {
	t.Parallel()
	l := emptyLedger(t)
	var want []float64
	mus := 0.0
	note := func() {
		eps, err := dp.Epsilon(1e-8, math.Sqrt(mus))
		fixtures.Must(t, err)
		want = append(want, eps)
	}
	for epoch := range uint64(4) {
		for partition := range 2 {
			p := personEpoch{stream: "a", topic: "in", partition: partition, partitioner: "none", partitions: 2,
				mu: 0.3, adjacency: dp.ZeroOut, first: 100 * int64(epoch), end: -1}
			e := p.entry(epoch + 1)
			_, err := l.Open(e)
			fixtures.Must(t, err)
			mus += 0.09
			note()
			fixtures.Must(t, l.Append(closingOf(e)))
			note()
		}
	}
	got, err := l.BudgetOf(members, 0)
	fixtures.Must(t, err)
	if len(got) != len(want) {
		t.Fatalf("%d events, want %d", len(got), len(want))
	}
	for i, e := range got {
		if math.Abs(e.ChargedEpsilon-want[i]) > 2e-5*want[i] {
			t.Errorf("event %d (%s): epsilon %g, want %g", i, e.Kind, e.ChargedEpsilon, want[i])
		}
	}
	few, err := l.BudgetOf(members, 3)
	fixtures.Must(t, err)
	if !slices.Equal(few, got[len(got)-3:]) {
		t.Errorf("the newest: %+v", few)
	}
	if n := l.Touched([]ledger.Account{members}); n != len(l.Entries) {
		t.Errorf("%d lines concern the population, of %d", n, len(l.Entries))
	}
	for src := range maps.Keys(l.Index().Sources) {
		if a := l.Index().Accounts[streamtest.OfRecords(src)]; a != nil {
			t.Errorf("%v has an account of records", src)
		}
	}
	if n := len(l.Index().Accounts[members].Settled); n != 2 {
		t.Errorf("%d sums for two partitions", n)
	}
}
