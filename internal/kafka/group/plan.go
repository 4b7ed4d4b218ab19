package group

import (
	"cmp"
	"slices"
)

// Reasons why a member has no shards. They are labels of a metric, so they are few and fixed.
const (
	// StandbyKey: most members have another master key.
	StandbyKey = "key"
	// StandbyConfiguration: most members have another configuration, with the same key.
	StandbyConfiguration = "configuration"
	// StandbyFormat: the member does not read and write the format of states that most members use.
	StandbyFormat = "format"
	// StandbyUnreadable: the leader could not read the member's profile.
	StandbyUnreadable = "unreadable"
)

// candidate is a member before the division.
type candidate struct {
	id   string // the member id that the broker assigned
	says profile
	bad  bool // the profile could not be read
}

// plan is the division of shards in one generation.
type plan struct {
	format  int
	members []planned // active members first, then standby; each part ordered by instance, then id
	owner   []int     // owner[shard] is an index of members; -1: nobody
}

type planned struct {
	id      string
	says    profile
	standby string
}

// balance gives each shard to one member. The result depends on the set of members, not on their order.
//
// Members that have the same key and configuration form a class. Only the members of the largest class get shards.
// Between classes of equal size the one that owns most shards wins, then the one with the smaller digest, then the one
// with the smaller key id. So if a new configuration is rolled out instance by instance, all shards move once, when
// more than half of the instances have it.
//
// The numbers of shards of two active members differ by at most one. Among such plans, the result moves the fewest
// shards. If two members claim the same shard, the claim from the newer generation counts, because the other member was
// suspended meanwhile.
func balance(members []candidate, shards int) plan {
	members = slices.Clone(members)
	slices.SortFunc(members, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.says.instance, b.says.instance), cmp.Compare(a.id, b.id))
	})
	held := claims(members, shards)
	standby := make([]string, len(members))
	takes := divide(members, held, standby)
	format, takes := settle(members, held, takes, standby)

	p := plan{format: format, owner: make([]int, shards)}
	for i := range p.owner {
		p.owner[i] = -1
	}
	for _, i := range takes {
		p.members = append(p.members, planned{members[i].id, members[i].says, ""})
	}
	for i, m := range members {
		if standby[i] != "" {
			p.members = append(p.members, planned{m.id, m.says, standby[i]})
		}
	}
	if len(takes) > 0 {
		share(p.owner, takes, held)
	}
	return p
}

// claims returns the shards that each member owns, after conflicting claims are resolved.
func claims(members []candidate, shards int) [][]int {
	best := make([]int, shards)
	for i := range best {
		best[i] = -1
	}
	for i, m := range members {
		for _, s := range m.says.owned {
			if m.bad || s >= shards {
				continue
			}
			if b := best[s]; b < 0 || members[b].says.generation < m.says.generation {
				best[s] = i
			}
		}
	}
	held := make([][]int, len(members))
	for s, i := range best {
		if i >= 0 {
			held[i] = append(held[i], s)
		}
	}
	return held
}

// divide returns the members of the class that gets shards. For each other member it sets, in standby, the reason why
// it gets none.
func divide(members []candidate, held [][]int, standby []string) (takes []int) {
	type class struct{ digest, key string }
	type size struct{ members, shards int }
	of := func(i int) class { return class{members[i].says.digest, members[i].says.key} }
	sizes := map[class]size{}
	for i, m := range members {
		if !m.bad {
			s := sizes[of(i)]
			sizes[of(i)] = size{s.members + 1, s.shards + len(held[i])}
		}
	}
	var most class
	for c, s := range sizes {
		b := sizes[most]
		if order := cmp.Or(cmp.Compare(s.members, b.members), cmp.Compare(s.shards, b.shards),
			cmp.Compare(most.digest, c.digest), cmp.Compare(most.key, c.key)); order > 0 {
			most = c
		}
	}
	for i, m := range members {
		switch {
		case m.bad:
			standby[i] = StandbyUnreadable
		case m.says.key != most.key:
			standby[i] = StandbyKey
		case m.says.digest != most.digest:
			standby[i] = StandbyConfiguration
		default:
			takes = append(takes, i)
		}
	}
	return takes
}

// settle returns the format in which to write states, and the members that read and write it. It is the newest format
// that all members read. Members on standby count too, because they may take over at any time. If the members have no
// format in common, not all of them can work together. Then the format that most members use decides or, if numbers are
// equal, the format of the members that own most shards; the other members go on standby.
func settle(members []candidate, held [][]int, takes []int, standby []string) (format int, remain []int) {
	able := func(i, f int) bool {
		return slices.Contains(members[i].says.reads, f) && slices.Contains(members[i].says.writes, f)
	}
	type support struct{ members, shards, readers, format int }
	best := support{format: -1}
	for _, i := range takes {
		for _, f := range members[i].says.writes {
			s := support{format: f}
			for _, j := range takes {
				if able(j, f) {
					s.members++
					s.shards += len(held[j])
				}
			}
			for _, m := range members {
				if !m.bad && slices.Contains(m.says.reads, f) {
					s.readers++
				}
			}
			if cmp.Or(cmp.Compare(s.members, best.members), cmp.Compare(s.shards, best.shards),
				cmp.Compare(s.readers, best.readers), cmp.Compare(s.format, best.format)) > 0 {
				best = s
			}
		}
	}
	for _, i := range takes {
		if able(i, best.format) {
			remain = append(remain, i)
		} else {
			standby[i] = StandbyFormat
		}
	}
	return max(best.format, 0), remain
}

// share sets each element of owner to an index of takes. Each member keeps the shards that it has, up to an even share;
// the remaining shards go to the members with the fewest shards.
func share(owner []int, takes []int, held [][]int) {
	// If the shards do not divide evenly, the members that own most keep one more than the others.
	byHeld := make([]int, len(takes))
	for k := range takes {
		byHeld[k] = k
	}
	slices.SortStableFunc(byHeld, func(a, b int) int { return cmp.Compare(len(held[takes[b]]), len(held[takes[a]])) })
	load := make([]int, len(takes))
	for place, k := range byHeld {
		quota := len(owner) / len(takes)
		if place < len(owner)%len(takes) {
			quota++
		}
		for _, s := range held[takes[k]][:min(quota, len(held[takes[k]]))] {
			owner[s] = k
			load[k]++
		}
	}
	for s := range owner {
		if owner[s] < 0 {
			least := slices.Index(load, slices.Min(load))
			owner[s] = least
			load[least]++
		}
	}
}
