package group

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// group simulates the instances of a group: their profiles, and which of them are present.
type group struct {
	t          *testing.T
	shards     int
	generation int32
	members    []candidate
	last       plan
	r          *rand.Rand
}

func (g *group) join(instance string, change func(*profile)) {
	p := profile{generation: -1, key: "k", digest: "d", instance: instance, reads: []int{1}, writes: []int{1}}
	if change != nil {
		change(&p)
	}
	g.members = append(g.members, candidate{id: fmt.Sprintf("%s-%d", instance, g.generation), says: p})
}

func (g *group) leave(instance string) {
	g.members = slices.DeleteFunc(g.members, func(c candidate) bool { return c.says.instance == instance })
}

// rebalance divides the shards and tells the members that take part. It returns how many shards have another owner now,
// not counting shards whose owner left.
func (g *group) rebalance(deaf ...string) (moved int) {
	g.t.Helper()
	g.generation++
	before := map[int]string{}
	owners := map[int]int{}
	for _, m := range g.members {
		for _, s := range m.says.owned {
			before[s] = m.id
			owners[s]++
		}
	}
	if g.r == nil {
		g.r = rand.New(rand.NewPCG(1, 1))
	}
	g.r.Shuffle(len(g.members), func(i, j int) { g.members[i], g.members[j] = g.members[j], g.members[i] })
	p := balance(g.members, g.shards)
	g.r.Shuffle(len(g.members), func(i, j int) { g.members[i], g.members[j] = g.members[j], g.members[i] })
	if again := balance(g.members, g.shards); !reflect.DeepEqual(p, again) {
		g.t.Fatalf("the plan depends on the order of members: %+v, %+v", p, again)
	}
	if len(p.owner) != g.shards || len(p.members) != len(g.members) {
		g.t.Fatalf("%d shards and %d members in a plan of %d and %d", g.shards, len(g.members), len(p.owner),
			len(p.members))
	}
	took := map[int]int{}
	for s, i := range p.owner {
		if i < 0 {
			if p.members[0].standby == "" {
				g.t.Fatalf("shard %d has no owner", s)
			}
			continue
		}
		m := p.members[i]
		if m.standby != "" {
			g.t.Fatalf("shard %d is given to %s, which stands by: %s", s, m.id, m.standby)
		}
		if b, ok := before[s]; ok && owners[s] == 1 && b != m.id {
			moved++
		}
		took[i]++
	}
	low, high := g.shards, 0
	for i, m := range p.members {
		if m.standby == "" {
			low, high = min(low, took[i]), max(high, took[i])
			if i > 0 && p.members[i-1].standby != "" {
				g.t.Fatal("a member that takes part comes after one that stands by")
			}
		}
	}
	if high > low+1 {
		g.t.Fatalf("one member has %d shards, another %d", high, low)
	}
	for i := range g.members {
		at := slices.IndexFunc(p.members, func(m planned) bool { return m.id == g.members[i].id })
		if at < 0 {
			g.t.Fatalf("member %s is in no plan", g.members[i].id)
		}
		if slices.Contains(deaf, g.members[i].says.instance) {
			continue
		}
		g.members[i].says.generation, g.members[i].says.owned = g.generation, nil
		for s, owner := range p.owner {
			if owner == at {
				g.members[i].says.owned = append(g.members[i].says.owned, s)
			}
		}
	}
	g.last = p
	return moved
}

func (g *group) standby(instance string) string {
	for _, m := range g.last.members {
		if m.says.instance == instance {
			return m.standby
		}
	}
	g.t.Fatalf("%s is no member", instance)
	return ""
}

// After any sequence of joins, deaths and members that missed a generation, every shard has one owner, the shares
// differ by at most one, and no shard moves if nothing changed.
func TestBalanceSequences(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		g := group{t: t, shards: 1 + r.IntN(40)}
		for step, next := 0, 0; step < 40; step++ {
			switch r.IntN(4) {
			case 0, 1:
				g.join(fmt.Sprintf("i%03d", next), nil)
				next++
			case 2:
				if len(g.members) > 1 {
					g.leave(g.members[r.IntN(len(g.members))].says.instance)
				}
			}
			if len(g.members) == 0 {
				continue
			}
			// A suspended member misses a generation, and comes back with old claims.
			if r.IntN(3) == 0 {
				g.rebalance(g.members[r.IntN(len(g.members))].says.instance)
			}
			g.rebalance()
			if moved := g.rebalance(); moved != 0 {
				t.Fatalf("seed %d, step %d: %d shards moved although nothing changed", seed, step, moved)
			}
		}
	}
}

// A plan moves as few shards as any other even plan. This is checked against all plans.
func TestBalanceMovesLeast(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	for range 300 {
		n, shards := 1+r.IntN(4), 1+r.IntN(6)
		members := make([]candidate, n)
		at := make([]int, shards)
		for i := range members {
			members[i] = candidate{id: fmt.Sprint(i),
				says: profile{instance: fmt.Sprint(i), key: "k", reads: []int{1}, writes: []int{1}}}
		}
		for s := range at {
			if at[s] = r.IntN(n+1) - 1; at[s] >= 0 {
				members[at[s]].says.owned = append(members[at[s]].says.owned, s)
			}
		}
		kept := func(owner []int) (k int) {
			for s, i := range owner {
				if i == at[s] {
					k++
				}
			}
			return k
		}
		best := 0
		for code, all := 0, pow(n, shards); code < all; code++ {
			owner, load, low, high := make([]int, shards), make([]int, n), shards, 0
			for s, c := 0, code; s < shards; s, c = s+1, c/n {
				owner[s] = c % n
				load[c%n]++
			}
			for _, l := range load {
				low, high = min(low, l), max(high, l)
			}
			if high <= low+1 {
				best = max(best, kept(owner))
			}
		}
		if got := kept(balance(members, shards).owner); got != best {
			t.Fatalf("%d members, shards at %v: %d stay, %d could", n, at, got, best)
		}
	}
}

func pow(n, k int) int {
	p := 1
	for range k {
		p *= n
	}
	return p
}

// A new member takes no more than its share, and a member that leaves gives its shards to the others.
func TestBalanceMovesOnlyShares(t *testing.T) {
	g := group{t: t, shards: 64}
	for n := 1; n <= 12; n++ {
		g.join(fmt.Sprintf("i%02d", n), nil)
		if moved := g.rebalance(); n > 1 && moved != 64/n {
			t.Errorf("member %d: %d shards moved, its share is %d", n, moved, 64/n)
		}
	}
	for n := 12; n > 1; n-- {
		g.leave(fmt.Sprintf("i%02d", n))
		if moved := g.rebalance(); moved != 0 {
			t.Errorf("%d members of %d: %d shards of the living moved", n-1, n, moved)
		}
	}
}

// If a change of the configuration or of the key is rolled out instance by instance, the shards move once, when more
// than half of the instances have the change. Before that, no instance with the change owns a shard.
func TestBalanceRollout(t *testing.T) {
	for _, c := range []struct {
		reason string
		change func(*profile)
	}{
		// The digest is smaller, too, but size and ownership decide first.
		{StandbyConfiguration, func(p *profile) { p.digest = "c" }},
		{StandbyConfiguration, func(p *profile) { p.digest = "e" }},
		{StandbyKey, func(p *profile) { p.key = "j" }},
		{StandbyKey, func(p *profile) { p.key, p.digest = "l", "e" }},
	} {
		for _, n := range []int{1, 2, 3, 4, 5} {
			g := group{t: t, shards: 16}
			for i := range n {
				g.join(fmt.Sprint(i), nil)
			}
			g.rebalance()
			handed := 0
			for i := range n {
				g.leave(fmt.Sprint(i))
				if len(g.members) > 0 {
					g.rebalance()
				}
				g.join(fmt.Sprint(i), c.change)
				g.rebalance()
				g.rebalance() // and no member changes back
				done := i + 1
				// While instance i restarts, n−i−1 instances are old and i are new.
				if changed := g.standby(fmt.Sprint(i)) == ""; changed != (done > n-done || done-1 > n-done) {
					t.Errorf("%s: %d of %d changed, and the new ones own all: %v", c.reason, done, n, changed)
				} else if changed {
					handed++
				} else if s := g.standby(fmt.Sprint(i)); s != c.reason {
					t.Errorf("%s: a changed one stands by because of %q", c.reason, s)
				}
				for j := range n {
					if (g.standby(fmt.Sprint(j)) == "") != ((j <= i) == (g.standby(fmt.Sprint(i)) == "")) {
						t.Errorf("%s: of %d, %d changed: instance %d: %q", c.reason, n, done, j,
							g.standby(fmt.Sprint(j)))
					}
				}
			}
			if handed == 0 {
				t.Errorf("%s: %d instances never changed", c.reason, n)
			}
		}
	}
	// If two equal halves own nothing, the smaller digest wins, then the smaller key.
	a := candidate{id: "a", says: profile{key: "k", digest: "x", reads: []int{1}, writes: []int{1}}}
	b := candidate{id: "b", says: profile{key: "j", digest: "y", reads: []int{1}, writes: []int{1}}}
	if p := balance([]candidate{b, a}, 1); p.members[p.owner[0]].id != "a" {
		t.Error("the larger digest is taken")
	}
	b.says.digest = "x"
	if p := balance([]candidate{a, b}, 1); p.members[p.owner[0]].id != "b" {
		t.Error("the larger key is taken")
	}
}

// New formats are written only when all members read them. A member that has no format in common with the others is on
// standby.
func TestBalanceFormats(t *testing.T) {
	g := group{t: t, shards: 4}
	can := func(reads, writes []int) func(*profile) {
		return func(p *profile) { p.reads, p.writes = reads, writes }
	}
	expect := func(format int, standby string) {
		t.Helper()
		g.rebalance()
		var all string
		for _, m := range g.last.members {
			if m.standby != "" {
				if all += m.says.instance; m.standby != StandbyFormat && m.standby != StandbyConfiguration {
					t.Errorf("%s stands by because of %q", m.says.instance, m.standby)
				}
			}
		}
		if g.last.format != format || all != standby {
			t.Errorf("format %d, standing by %q; want %d and %q", g.last.format, all, format, standby)
		}
	}
	old, new := []int{1}, []int{1, 2}
	g.join("a", can(old, old))
	g.join("b", can(old, old))
	expect(1, "")
	g.join("c", can(new, new))
	expect(1, "")
	g.leave("a")
	g.leave("b")
	g.join("d", func(p *profile) { p.digest, p.reads, p.writes = "other", old, old })
	g.join("e", can(new, new))
	expect(1, "d") // d is on standby but may take over at any time
	g.leave("d")
	expect(2, "")
	g.join("f", can(old, old))
	expect(1, "")
	g.leave("f")
	g.leave("c")
	g.join("h", can([]int{3}, []int{3}))
	expect(2, "h") // as many members have format 3 as format 2, but members with 2 own the shards
	g.join("i", can(new, old))
	expect(1, "h") // and i only reads 2
	g.leave("i")
	g.leave("e")
	expect(3, "")
}

// A member whose profile cannot be read gets no shards, and does not affect the others.
func TestBalanceUnreadable(t *testing.T) {
	b := &balancer{topic: "g.state"}
	d, topics, err := b.MemberBalancer(joined(map[string][]byte{
		"a": encodeProfile("g.state", profile{instance: "a", key: "k", reads: []int{1}, writes: []int{1}}),
		"b": {9, 9}, "c": nil, "d": kgo.RangeBalancer().JoinGroupMetadata([]string{"g.state"}, nil, 0),
	}))
	if _, ok := topics["g.state"]; err != nil || !ok {
		t.Fatal(topics, err)
	}
	d.(*division).SetBalanceInfo(info(7))
	for _, a := range d.Balance(map[string]int32{"g.state": 5}).IntoSyncAssignment() {
		g, err := decodeAssignment(a.MemberAssignment)
		if err != nil || g.Number != 7 || g.Active() != 1 || len(g.Members) != 4 {
			t.Fatalf("%s: %+v, %v", a.MemberID, g, err)
		}
		// Kafka's tools show the same assignment.
		shown, err := kgo.ParseConsumerSyncAssignment(a.MemberAssignment)
		if err != nil || len(shown["g.state"]) != len(g.Shards) {
			t.Errorf("%s: %v, %v", a.MemberID, shown, err)
		}
		for i, s := range shown["g.state"] {
			if int(s) != g.Shards[i] {
				t.Errorf("%s: %v for %v", a.MemberID, shown, g.Shards)
			}
		}
		if want := map[string]int{"a": 5}[a.MemberID]; len(g.Shards) != want ||
			(want == 0) != (g.Standby == StandbyUnreadable) {
			t.Errorf("%s has %v, %q", a.MemberID, g.Shards, g.Standby)
		}
	}
	// Without an active member, no shard has an owner.
	p := balance([]candidate{{id: "b", bad: true}}, 2)
	if g, err := parseAssignment(p.appendAssignment(nil, 1, 0)); err != nil || !slices.Equal(g.Unowned, []int{0, 1}) ||
		g.Active() != 0 {
		t.Errorf("%+v, %v", g, err)
	}
}

// If two members claim a shard, the one that learned it in the later generation gets it, because the other was
// suspended.
func TestBalanceBelievesTheNewer(t *testing.T) {
	zombie := candidate{id: "a",
		says: profile{instance: "a", key: "k", generation: 4, owned: []int{0, 1, 2, 3}, reads: []int{1},
			writes: []int{1}}}
	b := candidate{id: "b",
		says: profile{instance: "b", key: "k", generation: 5, owned: []int{1, 3}, reads: []int{1}, writes: []int{1}}}
	for _, members := range [][]candidate{{zombie, b}, {b, zombie}} {
		if p := balance(members, 4); !slices.Equal(p.owner, []int{0, 1, 0, 1}) {
			t.Errorf("%v", p.owner)
		}
	}
	// Its claims do not make its class larger than the other's.
	zombie.says.digest = "x"
	b.says.owned = []int{0, 1, 2, 3}
	if p := balance([]candidate{zombie, b}, 4); p.members[0].id != "b" || p.members[1].standby != StandbyConfiguration {
		t.Errorf("%+v", p.members)
	}
}
