package persons

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// tagOf returns the tag of person u, 0 for nobody. If crowded is true, all tags have the same place (home) in a small
// table.
func tagOf(u int, crowded bool) (t Tag) {
	if u == 0 {
		return t
	}
	if !crowded {
		t[0] = byte(u * 37)
	}
	t[15] = byte(u)
	t[14] = byte(u >> 8)
	return t
}

// record is a record of a small log: its step and its person, 0 for none.
type record struct{ step, user int }

// counted reports which records of a log count according to the map.
func counted(t testing.TB, r Rule, log []record, crowded bool) []bool {
	t.Helper()
	m, err := NewMap(r)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]bool, len(log))
	for i, x := range log {
		for m.Step() < uint64(x.step) {
			if err := m.Open(m.Step() + 1); err != nil {
				t.Fatal(err)
			}
		}
		out[i] = m.Take(tagOf(x.user, crowded)) == Counts
	}
	if err := m.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// reference applies the rule literally, and never forgets a person.
func reference(r Rule, log []record) []bool {
	type person struct{ steps, last, in int }
	all := map[int]*person{}
	out := make([]bool, len(log))
	for i, x := range log {
		if i > 0 && r.Period > 0 && (x.step-1)/int(r.Period) > (log[i-1].step-1)/int(r.Period) {
			clear(all)
		}
		p := all[x.user]
		switch {
		case x.user == 0:
		case p == nil:
			if r.Cap == 0 || uint64(len(all)) < r.Users {
				all[x.user] = &person{1, x.step, 1}
				out[i] = true
			}
		case p.last == x.step:
			if out[i] = uint64(p.in) < r.PerStep; out[i] {
				p.in++
			}
		case (r.Cap == 0 || uint64(p.steps) < r.Cap) && uint64(x.step-p.last) >= r.Separation:
			*p = person{p.steps + 1, x.step, 1}
			out[i] = true
		}
	}
	return out
}

func TestMapIsTheRule(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(20, 1))
	for trial := range 2000 {
		steps, perStep, users := 1+rng.IntN(30), 1+rng.IntN(8), 1+rng.IntN(40)
		r := Rule{Cap: uint64(rng.IntN(5)), Separation: uint64(1 + rng.IntN(9)), PerStep: uint64(1 + rng.IntN(3))}
		r.Users = uint64(1 + rng.IntN(users))
		if trial%3 == 0 {
			r.Period = uint64(1 + rng.IntN(12))
		}
		if r.Cap == 0 {
			r.Users = r.Separation * uint64(perStep)
		}
		var log []record
		for step := 1; step <= steps; step++ {
			for range perStep {
				log = append(log, record{step, rng.IntN(users + 1)})
			}
		}
		want := reference(r, log)
		for _, crowded := range []bool{false, true} {
			if got := counted(t, r, log, crowded); !slices.Equal(got, want) {
				t.Fatalf("trial %d, %+v, crowded %v: the map deviates from the rule", trial, r, crowded)
			}
		}
	}
}

// admissible reports whether one person's counted records obey the rule. A Cap of 0 means that there is no cap.
func admissible(r Rule, log []record, counts []bool, user int) bool {
	steps, last, in := 0, -1<<30, 0
	for i, x := range log {
		if x.user != user || !counts[i] {
			continue
		}
		if x.step == last {
			if in++; uint64(in) > r.PerStep {
				return false
			}
			continue
		}
		if uint64(x.step-last) < r.Separation {
			return false
		}
		last, in = x.step, 1
		steps++
	}
	return r.Cap == 0 || uint64(steps) <= r.Cap
}

// TestStability enumerates all logs with six slots in three or six steps, where each record is that of one of three
// persons or of nobody. It compares each log with all its neighbours. The answers for other persons must be equal,
// and every person must obey the rule. With a cap and a full table, the answers may change for at most one other
// person. Without a cap, and with room for a whole separation, they change for none.
func TestStability(t *testing.T) {
	t.Parallel()
	const slots, users = 6, 3
	rules := []struct {
		Rule
		perStep int // number of slots per step
		others  int // number of other persons whose answers may change
	}{
		{Rule{Cap: 1, Separation: 1, PerStep: 1, Users: 9}, 2, 0},
		{Rule{Cap: 2, Separation: 1, PerStep: 2, Users: 9}, 2, 0},
		{Rule{Cap: 2, Separation: 2, PerStep: 1, Users: 9}, 1, 0},
		{Rule{Cap: 3, Separation: 3, PerStep: 1, Users: 9}, 1, 0},
		{Rule{Separation: 1, PerStep: 1, Users: 2}, 2, 0},
		{Rule{Separation: 2, PerStep: 1, Users: 4}, 2, 0},
		{Rule{Separation: 2, PerStep: 2, Users: 2}, 1, 0},
		{Rule{Separation: 4, PerStep: 1, Users: 4}, 1, 0},
		{Rule{Cap: 2, Separation: 2, PerStep: 1, Users: 1}, 1, 1},
		{Rule{Cap: 2, Separation: 1, PerStep: 1, Users: 2}, 2, 1},
	}
	for _, r := range rules {
		// This computes the answers for each log. A log's number has its users as digits, in base users+1.
		base, total := users+1, 1
		for range slots {
			total *= base
		}
		log := func(n int) []record {
			l := make([]record, slots)
			for i := range l {
				l[i] = record{1 + i/r.perStep, n % base}
				n /= base
			}
			return l
		}
		all := make([][]bool, total)
		for n := range all {
			l := log(n)
			all[n] = counted(t, r.Rule, l, n%2 == 0)
			for u := 1; u <= users; u++ {
				if !admissible(r.Rule, l, all[n], u) {
					t.Fatalf("%+v: the counted records of person %d of %v break the rule: %v", r.Rule, u, l, all[n])
				}
			}
		}
		worst := 0
		for n := range all {
			l := log(n)
			// In a neighbour, u's records are replaced: nobody, a new person or u itself has records at any of the
			// slots of u and of nobody.
			for u := 1; u <= users; u++ {
				neighbours(l, u, base, func(other []record, fresh int) {
					k := 0
					for i := slots - 1; i >= 0; i-- {
						k = k*base + other[i].user
					}
					changed := 0
					for v := 1; v <= users; v++ {
						if v == u || v == fresh {
							continue
						}
						for i := range l {
							if l[i].user == v && all[n][i] != all[k][i] {
								changed++
								break
							}
						}
					}
					worst = max(worst, changed)
				})
			}
		}
		if worst > r.others {
			t.Errorf("%+v: one person changes the counted records of %d others, must be at most %d", r.Rule,
				worst, r.others)
		}
		if r.others > 0 && worst == 0 {
			t.Errorf("%+v: the table never became full", r.Rule)
		}
	}
}

// neighbours calls f with every log in which the records of u are replaced by records of one person, at any of the
// slots of u and of nobody. That person is nobody (0), u itself, or somebody who is not in the log.
func neighbours(log []record, u, base int, f func(other []record, fresh int)) {
	var free []int
	present := make([]bool, base)
	for i, x := range log {
		present[x.user] = true
		if x.user == u || x.user == 0 {
			free = append(free, i)
		}
	}
	other := slices.Clone(log)
	for v := 1; v < base; v++ {
		if v != u && present[v] {
			continue
		}
		for set := range 1 << len(free) {
			for j, i := range free {
				other[i].user = 0
				if set>>j&1 == 1 {
					other[i].user = v
				}
			}
			f(other, v)
		}
	}
}

// TestStabilityOfPeriods: with periods, a unit is one person in one period. It enumerates all logs of six slots over
// two persons and nobody, with all neighbours. In a neighbour, a unit's records are replaced, within its period, by
// records of nobody or of one person without other records in that period. The answers for other units must be the
// same, even for units of the same person, and each unit must obey the rule.
func TestStabilityOfPeriods(t *testing.T) {
	t.Parallel()
	const slots, users, base = 6, 2, 3
	for _, c := range []struct {
		Rule
		perStep, others int
	}{
		{Rule{Cap: 1, Separation: 1, PerStep: 1, Period: 2, Users: 9}, 1, 0},
		{Rule{Cap: 2, Separation: 1, PerStep: 2, Period: 2, Users: 9}, 2, 0},
		{Rule{Cap: 2, Separation: 2, PerStep: 1, Period: 3, Users: 9}, 1, 0},
		{Rule{Cap: 1, Separation: 2, PerStep: 1, Period: 1, Users: 9}, 2, 0},
		{Rule{Separation: 2, PerStep: 1, Period: 3, Users: 2}, 1, 0},
		{Rule{Separation: 3, PerStep: 2, Period: 2, Users: 4}, 2, 0},
		{Rule{Cap: 1, Separation: 1, PerStep: 1, Period: 3, Users: 1}, 1, 1},
	} {
		period := func(i int) int { return i / c.perStep / int(c.Period) } // period of a slot
		total := 1
		for range slots {
			total *= base
		}
		log := func(n int) []record {
			l := make([]record, slots)
			for i := range l {
				l[i] = record{1 + i/c.perStep, n % base}
				n /= base
			}
			return l
		}
		all := make([][]bool, total)
		for n := range all {
			l := log(n)
			all[n] = counted(t, c.Rule, l, n%2 == 0)
			for p := 0; p <= period(slots-1); p++ {
				first := slices.IndexFunc(l, func(r record) bool { return period((r.step-1)*c.perStep) == p })
				end := first
				for end < slots && period(end) == p {
					end++
				}
				for u := 1; u <= users; u++ {
					if !admissible(c.Rule, l[first:end], all[n][first:end], u) {
						t.Fatalf("%+v: the counted records of person %d of %v break the rule in period %d: "+
							"%v", c.Rule, u,
							l, p, all[n])
					}
				}
			}
		}
		worst := 0
		for n := range all {
			l := log(n)
			for p := 0; p <= period(slots-1); p++ {
				for u := 1; u <= users; u++ {
					var inside []record
					var at []int
					for i, x := range l {
						if period(i) == p {
							inside, at = append(inside, x), append(at, i)
						}
					}
					neighbours(inside, u, base, func(other []record, fresh int) {
						whole, k := slices.Clone(l), 0
						for j, i := range at {
							whole[i] = other[j]
						}
						for i := slots - 1; i >= 0; i-- {
							k = k*base + whole[i].user
						}
						changed := map[[2]int]bool{}
						for i := range l {
							v := l[i].user
							if all[n][i] != all[k][i] && v > 0 && (period(i) != p || v != u && v != fresh) {
								changed[[2]int{v, period(i)}] = true
							}
						}
						worst = max(worst, len(changed))
					})
				}
			}
		}
		if worst > c.others {
			t.Errorf("%+v: one unit changes the counted records of %d others, must be at most %d", c.Rule,
				worst, c.others)
		}
		if c.others > 0 && worst == 0 {
			t.Errorf("%+v: the table never became full", c.Rule)
		}
	}
}

// TestRefusingBreaksStability: without a cap, one refusal can change the answers of more than one other person. So a
// map must report an error if it lacks room for a whole separation, and then nothing may be released.
func TestRefusingBreaksStability(t *testing.T) {
	t.Parallel()
	m, err := NewMap(Rule{Separation: 100, PerStep: 1, Users: 4})
	if err != nil {
		t.Fatal(err)
	}
	m.Open(1)
	for u := 1; u <= len(m.slots)+1; u++ {
		m.Take(tagOf(u, false))
	}
	if m.Err() == nil {
		t.Error("a map without a cap had no room but reports no error")
	}
	m.Open(2)
	if m.Err() == nil {
		t.Error("the next step loses the error")
	}
}

// TestSweep: without a cap, absent persons do not fill the table.
func TestSweep(t *testing.T) {
	t.Parallel()
	for _, separation := range []uint64{1, 3, 40} {
		const perStep = 50
		m, err := NewMap(Rule{Separation: separation, PerStep: 1, Users: perStep * separation})
		if err != nil {
			t.Fatal(err)
		}
		tagger := NewTagger(new([KeyBytes]byte))
		most := 0
		for step := range 10 * separation {
			m.Open(step + 1)
			for i := range perStep {
				m.Take(tagger.Tag(fmt.Append(nil, step, i)))
			}
			taken := 0
			for i := range m.slots {
				if m.slots[i].last != 0 {
					taken++
				}
			}
			most = max(most, taken)
		}
		if want := int(perStep*separation)*13/10 + perStep; most > want {
			t.Errorf("separation %d: %d of %d slots are taken, at most %d", separation, most, len(m.slots), want)
		}
	}
}

func TestRuleFaults(t *testing.T) {
	t.Parallel()
	good := Rule{Cap: 3, Separation: 2, PerStep: 1, Users: 10}
	for name, change := range map[string]func(*Rule){
		"cap": func(r *Rule) { r.Cap = MaxCap + 1 }, "separation": func(r *Rule) { r.Separation = 0 },
		"per_step": func(r *Rule) { r.PerStep = 0 }, "per_step large": func(r *Rule) { r.PerStep = 256 },
		"max_users": func(r *Rule) { r.Users = 0 }, "max_users large": func(r *Rule) { r.Users = MaxUsers + 1 },
	} {
		r := good
		change(&r)
		if _, err := NewMap(r); err == nil {
			t.Errorf("%s: a map of %+v", name, r)
		}
	}
	m, err := NewMap(good)
	if err != nil {
		t.Fatal(err)
	}
	if m.Take(tagOf(1, false)) == Counts {
		t.Error("a record counts before the first step")
	}
	for _, step := range []uint64{0, MaxStep + 1} {
		if m.Open(step) == nil {
			t.Errorf("step %d opens", step)
		}
	}
	if m.Open(5) != nil || m.Open(5) == nil || m.Open(4) == nil {
		t.Error("a step opens that does not follow the last one")
	}
}

// TestMemory: a person needs at least 32 and at most 64 bytes.
func TestMemory(t *testing.T) {
	t.Parallel()
	for users := uint64(1000); users < MaxUsers; users = users*5/4 + 1 {
		each := float64(Rule{Users: users}.Memory()) / float64(users)
		if each < 31.9 || each > 64.1 {
			t.Errorf("%d users: %.1f bytes each", users, each)
		}
	}
}

// TestLargestSteps: the fields of a slot can hold the largest values of a rule.
func TestLargestSteps(t *testing.T) {
	t.Parallel()
	m, err := NewMap(Rule{Cap: MaxCap, Separation: 1, PerStep: MaxPerStep, Users: 1})
	if err != nil {
		t.Fatal(err)
	}
	m.Open(MaxStep - MaxCap)
	m.Take(tagOf(1, false))
	tag := tagOf(1, false)
	s, _ := m.find(&tag)
	s.steps = MaxCap - 1 | oneRecord
	m.Open(MaxStep - 1)
	for i := range MaxPerStep + 1 {
		if got := m.Take(tagOf(1, false)) == Counts; got != (i < MaxPerStep) {
			t.Fatalf("record %d of a step: %v", i, got)
		}
	}
	m.Open(MaxStep)
	if m.Take(tagOf(1, false)) != OverCap {
		t.Error("a person counts in more steps than the cap")
	}
}

// TestMapAway: records whose user key belongs to another partition belong to nobody, and use no slot of the map.
func TestMapAway(t *testing.T) {
	m, err := NewMap(Rule{Cap: 1, Separation: 1, PerStep: 1, Users: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Open(1); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		tag  Tag
		want Answer
	}{{Away(), Foreign}, {Away(), Foreign}, {Tag{}, NoUser}, {Tag{1}, Counts}, {Tag{2}, Full}, {Tag{1}, OverCap},
		{Away(), Foreign}} {
		if got := m.Take(x.tag); got != x.want {
			t.Errorf("%x: %s, want %s", x.tag, got, x.want)
		}
	}
}
