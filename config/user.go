package config

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/column"
	"github.com/streamdp/streamdp/internal/persons"
	"github.com/streamdp/streamdp/internal/toml"
	"github.com/streamdp/streamdp/matfact"
)

// User is the table [stream.NAME.user]. It makes persons the unit of the guarantee, and says which of their records
// count.
type User struct {
	// Key says where a record names its person: UserRecordKey, or UserField or UserHeader followed by a name. Required.
	Key string `toml:"key"`
	// Cap is the largest number of steps in which a person counts. Default 0: as many as horizon and separation allow.
	Cap uint64 `toml:"cap"`
	// Separation is the smallest distance between two steps in which a person counts. Default 1.
	Separation uint64 `toml:"separation"`
	// PerStep is the largest number of a person's records that count in a step. Default 1.
	PerStep uint64 `toml:"per_step"`
	// Period is the number of steps after which counting starts again for every person. With it, the unit of the
	// guarantee is a person's records of one period, and the limit starts again once epochs have had that number of
	// steps. Default 0: the unit is the whole epoch.
	Period uint64 `toml:"period"`
	// MaxUsers is the largest number of persons that a task remembers for one partition. Required.
	MaxUsers uint64 `toml:"max_users"`
	// Partitioner is "none" (the default) or "murmur2".
	Partitioner string `toml:"partitioner"`
	// Population is the name of the persons' population. Default: the input's topic.
	Population string `toml:"population"`
}

// These are the places of a user key. The last two are prefixes of a name.
const (
	UserRecordKey = "record-key"
	UserField     = "field:"
	UserHeader    = "header:"
)

// last returns the step after which an epoch always ends. It returns 0 if the epoch may continue.
func (s *Stream) last() uint64 {
	if s.OnHorizon == "continue" {
		return 0
	}
	return s.Horizon
}

// Participation returns the rule for the steps in which a person may count. It is zero if the unit of the guarantee is
// a record.
func (s *Stream) Participation() matfact.Participation {
	if s.User == nil {
		return matfact.Participation{}
	}
	p := matfact.Participation{Count: s.User.Cap, Separation: s.User.Separation, PerStep: s.User.PerStep}
	if p.Count == 0 {
		p.Count = s.span() // lowered below if persons have a cap
	}
	return p.Within(s.span())
}

// span returns the largest number of steps that can hold records of one unit: the steps of a period, or those of the
// epoch. It returns 0 if the epoch may continue.
func (s *Stream) span() uint64 {
	n := s.last()
	if p := s.User.Period; p > 0 && (n == 0 || p < n) {
		return p
	}
	return n
}

// Crowds reports whether, under adjacency zero-out, one more person in the map may keep another person out. If so,
// leaving out a person lets another one in, which costs as much as replacing a person. checkUser refuses such a
// configuration for an online regression, because the lengths of its steps depend on the charge.
func (s *Stream) Crowds() bool {
	if s.User == nil || s.SGD != nil || s.Privacy.Adjacency != dp.ZeroOut || s.separated() {
		return false
	}
	n := s.span()
	return n == 0 || s.User.MaxUsers < times(n, s.longest())
}

// longest returns the largest number of offsets of a step, for mechanisms other than online regression.
func (s *Stream) longest() uint64 {
	if s.Refit != nil { // the records between windows do not count
		return max(s.Refit.Window, s.Slots())
	}
	return s.Slots()
}

// PersonRule returns the rule that decides which records of persons count. It applies to an epoch of one partition, or
// to one partition of a merged epoch. s.User must not be nil.
func (s *Stream) PersonRule() persons.Rule {
	u, n := s.User, s.span()
	r := persons.Rule{Cap: u.Cap, Separation: u.Separation, PerStep: u.PerStep, Period: u.Period, Users: u.MaxUsers}
	if n == 0 {
		return r
	}
	remembered := n
	if s.separated() {
		r.Cap, remembered = 0, min(u.Separation, n)
	}
	if room, known := s.room(remembered); known {
		r.Users = min(r.Users, room)
	}
	return r
}

// Refuses reports whether the map of persons may become full, so that leaving out one person lets another one in.
// s.User must not be nil.
func (s *Stream) Refuses() bool {
	n := s.span()
	if s.separated() {
		return false
	}
	all, known := s.room(n)
	return n == 0 || !known || s.User.MaxUsers < all
}

// room returns an upper bound on the records that the given number of consecutive steps can hold. known is false if
// there is none.
func (s *Stream) room(steps uint64) (records uint64, known bool) {
	if m, _ := s.mechanism(); m != nil && m.slots != nil {
		return m.slots(s, steps)
	}
	return times(steps, s.longest()), true
}

// StepLength describes the length of a step: a period of the clock, or the largest number of offsets from the end of
// one step to the end of the next. It returns "" if the length is not known.
func (s *Stream) StepLength() string {
	if d := s.Step.Clock(); d > 0 {
		return d.String()
	}
	if n, known := s.room(1); known {
		if s.Refit != nil { // a step includes the gap between windows
			n = max(n, s.Refit.Stride)
		}
		return fmt.Sprintf("%d offsets", n)
	}
	return ""
}

// stepsOf returns the name of the unit that a stream counts in its steps.
func (s *Stream) stepsOf() string {
	switch {
	case s.Step.Clock() > 0:
		return "step_max"
	case s.Mechanism() == "sgd":
		return "records per step"
	case s.Mechanism() == "refit":
		return "window"
	}
	return "step"
}

// separated reports whether the separation alone limits the steps in which a person counts, so that a cap would never
// be reached.
func (s *Stream) separated() bool {
	n := s.span()
	return n > 0 && (s.User.Cap == 0 || s.User.Cap >= 1+(n-1)/max(1, s.User.Separation))
}

// times returns a·b. On overflow it returns a number that is larger than any rule allows.
func times(a, b uint64) uint64 {
	if a > 0 && b > 1<<62/a {
		return 1 << 62
	}
	return a * b
}

var populationName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

// checkUser reports settings that cannot protect persons.
func (d *document) checkUser(c *Config, s *Stream, key toml.Key) {
	u, here := s.User, under(key, "user")
	if u == nil {
		return
	}
	sound := func(names ...string) bool {
		return !slices.ContainsFunc(names, func(name string) bool { return !d.Sound(under(here, name)) })
	}
	if m, _ := s.mechanism(); m != nil && !m.persons {
		d.Add(here, -1, "must be absent: "+m.name+" cannot protect persons", nil)
		return
	}
	if u.Population == "" {
		u.Population = s.Input.Topic
	} else if sound("population") && !populationName.MatchString(u.Population) {
		d.Add(under(here, "population"), -1, "must be 1 to 249 of letters, digits, \".\", \"_\" and \"-\"",
			u.Population)
	}
	if sound("key", "partitioner") && u.Partitioner == "murmur2" && u.Key != UserRecordKey {
		d.Add(under(here, "partitioner"), -1, "must be \"none\" unless key is \"record-key\"", u.Partitioner)
	}
	if s.Automatic() {
		d.Note(here, -1,
			"must be absent if centre, scale or clip norm is \"auto\": the warm-up that finds them "+
				"protects only single records", nil)
	}
	if s.Merge && sound("partitioner") && u.Partitioner != "murmur2" {
		d.Add(under(key, "merge"), -1,
			"must be false with [user], unless user.partitioner is \"murmur2\": "+
				"records of different partitions have no common order, so the order of reading would decide which of "+
				"a person's records count; with \"murmur2\" all that count are in one partition", nil)
	}
	if c.State.Encrypt {
		d.Add(toml.Key{"state", "encrypt"}, -1,
			"must be false with [user]: the state that is kept about persons is not encrypted", true)
	}
	d.checkUserKey(s, key)

	horizon := under(key, "horizon")
	if !d.Sound(horizon) || !d.Sound(under(key, "on_horizon")) || !d.Sound(under(key, "step")) ||
		!d.Sound(under(key, "step_max")) {
		return
	}
	n := s.last()
	if n > persons.MaxStep {
		d.Add(horizon, -1, fmt.Sprintf("must be at most %d with [user]", uint64(persons.MaxStep)), n)
		return
	}
	if !sound("cap", "separation", "per_step", "period", "max_users") {
		return
	}
	if n > 0 && u.Period >= n {
		d.Add(under(here, "period"), -1,
			fmt.Sprintf("must be less than the horizon (%d), or absent", n), u.Period)
		return
	}
	n = s.span()
	users, slots := under(here, "max_users"), s.stepsOf()
	all, _ := s.room(n)
	needed, known := s.room(min(u.Separation, n))
	switch {
	case n > 0 && !known && s.last() == 0 && (s.separated() || s.Privacy.Adjacency == dp.ZeroOut):
		d.Add(under(here, "period"), -1,
			"needs a horizon for "+s.Mechanism()+": without it the number of records in a period is unknown",
			u.Period)
	case n > 0 && !known:
		return // another check reports this fault
	case n == 0 && u.Cap == 0:
		d.Add(under(here, "cap"), -1, "required without a horizon or a period, or where epochs continue after it", nil)
	case s.separated() && u.MaxUsers < needed:
		d.Add(users, -1,
			fmt.Sprintf("must be at least %d (separation × %s): a person refused for lack of room would change "+
				"which persons count later",
				needed, slots), u.MaxUsers)
	case s.SGD != nil && !s.separated() && d.Sound(under(key, "privacy", "adjacency")) &&
		s.Privacy.Adjacency == dp.ZeroOut && (n == 0 || u.MaxUsers < all):
		rule := "cannot be large enough for adjacency \"zero-out\" without a horizon or a period: with a full table, " +
			"leaving out one person lets another one in"
		if n > 0 {
			rule = fmt.Sprintf(
				"must be at least %d (%s × %s) with adjacency \"zero-out\": with a full table, leaving out one "+
					"person lets another one in", all, s.spanOf(), slots)
		}
		d.Add(users, -1, rule, u.MaxUsers)
	case s.Merge && d.Sound(under(key, "privacy", "adjacency")) && s.Privacy.Adjacency == dp.Replace && s.Refuses():
		rule := "cannot be large enough without a horizon or a period"
		if n > 0 {
			rule = fmt.Sprintf("must be at least %d (%s × %s)", all, s.spanOf(), slots)
		}
		d.Add(users, -1,
			rule+
				" with adjacency \"replace\" and merge = true: with full tables, replacing a person lets somebody "+
				"into one partition and keeps somebody out of another", u.MaxUsers)
	}
}

// spanOf describes in words the number that span returns.
func (s *Stream) spanOf() string {
	if s.User.Period > 0 {
		return "period"
	}
	return "horizon"
}

// checkUserKey reports a user key at a place that the codec's decoder cannot read.
func (d *document) checkUserKey(s *Stream, key toml.Key) {
	at := under(key, "user", "key")
	path, isField := strings.CutPrefix(s.User.Key, UserField)
	if !isField || !d.Sound(at) || !d.Sound(under(key, "input", "codec")) || !d.Sound(under(key, "input", "columns")) {
		return
	}
	switch s.Input.Codec {
	case "json":
		names, ok := column.Parse(path)
		if !ok || column.Indexed(names) {
			d.Add(at, -1,
				`must be "field:" followed by a name, or by a path such as "a.b"; inside a name, `+
					"write a backslash before . \\ [ or ]", s.User.Key)
			return
		}
		for _, c := range s.Input.Fields() {
			other, _ := column.Parse(c)
			if k := min(len(names), len(other)); slices.Equal(names[:k], other[:k]) ||
				len(other) > 0 && other[0].Index >= 0 {
				d.Add(at, -1, "must not be a column, nor be inside a column or contain one", s.User.Key)
			}
		}
	case "csv":
		if _, ok := column.Position(path); !ok || slices.Contains(s.Input.Fields(), path) {
			d.Add(at, -1, `must be "field:" and a position that is not a column, for codec "csv"`, s.User.Key)
		}
	default:
		d.Add(at, -1, "must not be a field: records of codec "+s.Input.Codec+" have no fields", s.User.Key)
	}
}

// checkPopulations checks two rules. Streams of one population must state the same limit and adjacency. Streams with
// the same topic must agree on its persons, because the ledger charges either a topic's records or its persons, never
// both.
func (d *document) checkPopulations(c *Config) {
	topics, populations := map[string]*Stream{}, map[string]*Stream{}
	for _, s := range d.byLine(c) {
		key := toml.Key{"stream", s.Name}
		if !d.Sound(under(key, "input", "topic")) {
			continue
		}
		other := topics[s.reads()]
		switch {
		case other == nil:
			topics[s.reads()] = s
		case (s.User == nil) != (other.User == nil):
			d.Note(key, -1,
				"must have [user] if and only if stream."+other.Name+", which reads the same topic, has it", nil)
		case s.User != nil && (s.User.Key != other.User.Key || s.User.Population != other.User.Population):
			d.Note(under(key, "user"), -1,
				"must have the same key and population as stream."+other.Name+", which reads the same topic", nil)
		}
		if s.User == nil {
			continue
		}
		population := cmp.Or(s.User.Population, s.reads())
		first := populations[population]
		if first == nil {
			populations[population] = s
			continue
		}
		if s.User.Period != first.User.Period {
			d.Note(under(key, "user"), -1,
				"must have the same period as stream."+first.Name+", which has the same population", nil)
		}
		if first.reads() != s.reads() && !s.Privacy.agrees(first.Privacy) {
			d.Note(under(key, "privacy"), -1,
				"must have the same limit and adjacency as stream."+first.Name+", which has the same population",
				nil)
		}
	}
}
