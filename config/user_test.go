package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/persons"
	"github.com/streamdp/streamdp/matfact"
)

// TestUserIsAccepted: moments with protected persons are accepted. The keys are in the digest, with the topic as the
// population.
func TestUserIsAccepted(t *testing.T) {
	text := strings.Replace(orders, "step   = 100",
		"step = 100\nhorizon = 50\nuser = { key = \"record-key\", max_users = 5000 }", 1)
	if got := faults(t, text); len(got) > 0 {
		t.Fatalf("%q", got)
	}
	c, err := Parse("t", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	s := c.Streams[0]
	if got, want := string(s.Canonical(0)),
		`"user":{"cap":0,"key":"record-key","max_users":5000,"partitioner":"none","per_step":1,"population":"orders","separation":1}`; !strings.Contains(got, want) {
		t.Errorf("the digest is of %s, want in it %s", got, want)
	}
}

func TestUserFaults(t *testing.T) {
	orders := orders
	f := func(stream, user string, want ...string) {
		t.Helper()
		text := strings.Replace(orders, "step   = 100", stream+"\nuser = { "+user+" }", 1)
		var got []string
		for _, g := range faults(t, text) {
			if _, rest, ours := strings.Cut(g, ": stream.orders."); ours {
				got = append(got, rest)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s, %s:\n got %s\nwant %s", stream, user, strings.Join(got, "\n     "),
				strings.Join(want, "\n     "))
		}
	}
	const finite, good = "step = 100\nhorizon = 50", `key = "record-key", max_users = 5000`
	f(finite, good)
	f(finite, good+", separation = 10")
	f(finite, good+", cap = 3, per_step = 2, separation = 7, population = \"people\", partitioner = \"murmur2\"")
	f(finite, `key = "field:customer.id", max_users = 5000`)
	f(finite, `key = "header:user", max_users = 5000`)

	f(finite, "max_users = 5000", "user.key: required")
	f(finite, `key = "record-key"`, "user.max_users: required")
	f(finite, `key = "key", max_users = 5000`, `user.key: must be "record-key", "field:PATH" or "header:NAME" ("key")`)
	f(finite, `key = "field:", max_users = 5000`,
		`user.key: must be "record-key", "field:PATH" or "header:NAME" ("field:")`)
	f(finite, `key = "field:amount", max_users = 5000`,
		`user.key: must not be a column, nor be inside a column or contain one ("field:amount")`)
	f(finite, `key = "field:a..b", max_users = 5000`,
		`user.key: must be "field:" followed by a name, or by a path such as "a.b"; inside a name, write a backslash before . \ [ or ] ("field:a..b")`)
	f(finite, good+", cap = 16777216", "user.cap: must be 1 to 16777215 (16777216)")
	f(finite, good+", separation = 0", "user.separation: must be 1 to 4294967294 (0)")
	f(finite, good+", per_step = 256", "user.per_step: must be 1 to 255 (256)")
	f(finite, good+", partitioner = \"other\"", `user.partitioner: must be "none" or "murmur2" ("other")`)
	f(finite, `key = "header:u", max_users = 5000, partitioner = "murmur2"`,
		`user.partitioner: must be "none" unless key is "record-key" ("murmur2")`)
	f(finite, good+`, population = "a b"`,
		`user.population: must be 1 to 249 of letters, digits, ".", "_" and "-" ("a b")`)

	// max_users must leave room for all persons.
	f(finite, `key = "record-key", max_users = 999, separation = 10`,
		"user.max_users: must be at least 1000 (separation × step): a person refused for lack of room would change "+
			"which persons count later (999)")
	f(finite, `key = "record-key", max_users = 1000, separation = 10`)
	f(finite, `key = "record-key", max_users = 1000, separation = 10, cap = 5`)
	// With a cap below what the separation allows, the table remembers all persons.
	f(finite, `key = "record-key", max_users = 1000, separation = 10, cap = 4`)
	f("step = 100", good, "user.cap: required without a horizon or a period, or where epochs continue after it")
	f("step = 100", good+", cap = 3")
	f("step = 100\nhorizon = 5000000000", good+", cap = 3",
		"horizon: must be at most 4294967294 with [user] (5000000000)")
	// With a period, the room that is needed depends on its steps, not on the horizon.
	f("step = 100", `key = "record-key", max_users = 500, separation = 5, period = 20`)
	f("step = 100", `key = "record-key", max_users = 499, separation = 5, period = 20`,
		"user.max_users: must be at least 500 (separation × step): a person refused for lack of room would change "+
			"which persons count later (499)")
	f("step = 100", `key = "record-key", max_users = 2000, separation = 50, period = 20`)
	f(finite, good+", period = 50", "user.period: must be less than the horizon (50), or absent (50)")
	// A step by the clock has at most step_max records.
	const clock = "step = \"1m\"\nhorizon = 50\nstep_max = 60"
	f(clock, `key = "record-key", max_users = 600, separation = 10`)
	f(clock, `key = "record-key", max_users = 599, separation = 10`,
		"user.max_users: must be at least 600 (separation × step_max): a person refused for lack of room would "+
			"change which persons count later (599)")
	f(clock, `key = "record-key", max_users = 2999, cap = 2`)
	// In a merged stream each user key must count in only one partition, because otherwise the order of the partitions
	// would decide which records count. Tables must have room for all persons if replacing a person would change two
	// tables.
	const merged = finite + "\nmerge = true"
	f(merged, good,
		`merge: must be false with [user], unless user.partitioner is "murmur2": records of different partitions have no common order, so the order of reading would decide which of a person's records count; with "murmur2" all that count are in one partition`)
	f(merged, `key = "header:u", max_users = 5000, partitioner = "murmur2"`,
		`user.partitioner: must be "none" unless key is "record-key" ("murmur2")`)
	const home = `key = "record-key", partitioner = "murmur2", `
	f(merged, home+"max_users = 100")
	f(merged, home+"max_users = 99",
		"user.max_users: must be at least 100 (separation × step): a person refused for lack of room would change "+
			"which persons count later (99)")
	f(merged, home+"max_users = 5, cap = 2") // zero-out: one table changes, and the noise covers it
	const two = " with adjacency \"replace\" and merge = true: with full tables, replacing a person lets somebody " +
		"into one partition and keeps somebody out of another"
	orders = strings.Replace(orders, `"zero-out"`, `"replace"`, 1)
	f(finite, home+"max_users = 5, cap = 2")
	f(merged, home+"max_users = 5000, cap = 2")
	f(merged, home+"max_users = 4999, cap = 2", "user.max_users: must be at least 5000 (horizon × step)"+two+" (4999)")
	f(merged, home+"max_users = 100")
	f(merged, home+"max_users = 299, cap = 2, period = 3",
		"user.max_users: must be at least 300 (period × step)"+two+" (299)")
	f(merged, home+"max_users = 300, cap = 2, period = 3")
	f("step = 100\nmerge = true", home+"max_users = 5000, cap = 2",
		"user.max_users: cannot be large enough without a horizon or a period"+two+" (5000)")
	f(clock+"\nmerge = true", home+"max_users = 2999, cap = 2",
		"user.max_users: must be at least 3000 (horizon × step_max)"+two+" (2999)")
}

// TestUserOfRegressions: a solver that cannot protect persons gives the reason, and the required room follows from the
// size of steps.
func TestUserOfRegressions(t *testing.T) {
	amb := "[stream.orders.sgd]\nmethod = \"amb\"\ntarget = \"amount\"\nclip_x = 1\nradius = 1\n" +
		"amb = { curvature = 0.5, batch = 40000, bootstrap = 3000 }\n"
	for _, c := range []struct{ user, table, want string }{
		// A step of newton may have 16 times the slots of a search.
		{"cap = 2, max_users = 9999999", "[stream.orders.sgd]\ntarget = \"amount\"\nclip_x = 1\n", ""},
		{"max_users = 9, cap = 2, separation = 40", "[stream.orders.sgd]\ntarget = \"amount\"\nclip_x = 1\n",
			"(separation × records per step)"},
		// The first of the fifty steps is a search.
		{"max_users = 80000", amb, ""},
		{"max_users = 1963000, cap = 3", amb, ""},
		{"max_users = 999, separation = 10",
			"[stream.orders.refit]\ntarget = \"amount\"\nclip_x = 1\nclip_y = 1\nwindow = 100\nstride = 250\n",
			"user.max_users: must be at least 1000 (separation × window)"},
		{"max_users = 1000, separation = 10",
			"[stream.orders.refit]\ntarget = \"amount\"\nclip_x = 1\nclip_y = 1\nwindow = 100\nstride = 250\n", ""},
		{"per_step = 1",
			"[stream.orders.refit]\ntarget = \"amount\"\nclip_x = 1\nclip_y = 1\nwindow = 100\nsolver = \"linmix\"\n",
			"refit.solver: must be \"newton\", \"adassp\", \"dp-gd\" or \"dp-gd-residual\" if persons are " +
				"protected: a sketch"},
		{"max_users = 199999, separation = 4", amb,
			"user.max_users: must be at least 200000 (separation × records per step)"},
		{"max_users = 1962999, cap = 3", amb,
			"user.max_users: must be at least 1963000 (horizon × records per step) with adjacency \"zero-out\""},
		{"max_users = 99, cap = 3, period = 9", amb, "(period × records per step) with adjacency \"zero-out\""},
		{"max_users = 1, cap = 3", strings.Replace(amb, "radius = 1", "radius = 0", 1), "sgd.radius"},
		// Without a horizon the number of records in a period of a regression is unknown.
		{"max_users = 99, cap = 3, period = 9", strings.Replace(amb, "clip_x", "# no horizon\nclip_x", 1),
			"user.period: needs a horizon for sgd"},
	} {
		user := "horizon = 50\nuser = { key = \"record-key\", " + c.user + " }"
		if strings.Contains(c.table, "# no horizon") {
			user = strings.TrimPrefix(user, "horizon = 50\n")
		}
		if !strings.Contains(c.user, "max_users") {
			user = strings.Replace(user, " }", ", max_users = 5000 }", 1)
		}
		text := strings.Replace(orders, "step   = 100", user, 1)
		got := faults(t, text[:strings.Index(text, "[stream.orders.moments]")]+c.table)
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)) {
			t.Errorf("%s: %q, want %q", c.user, got, c.want)
		}
	}
}

// TestUserOfAdam: settings for which a person's charge is unknown are refused, and the rule for persons is passed to
// the optimiser.
func TestUserOfAdam(t *testing.T) {
	user := "step   = 64\nhorizon = 50\nuser = { key = \"header:u\", max_users = 640, separation = 10 }"
	for _, c := range []struct{ text, old, new, want string }{
		{gradients(), "dim  = 1000", "dim = 3\nfactorization = \"blt\"\nmethod = \"momentum\"", ""},
		{gradients(), "dim  = 1000", "dim = 3\nfactorization = \"blt\"\nmethod = \"jme_per_example\"",
			"adam.factorization: must be \"identity\" if persons are protected and both moments have noise"},
		{gradients(), "header:u", "field:u", "user.key: must not be a field: records of codec float32 have no fields"},
		{gradients(), "max_users = 640", "max_users = 639", "user.max_users: must be at least 640 (separation × step)"},
		{learning, "", "", ""},
		{learning, "[40, 3e4, 0.5]", "[\"auto\", 3e4, 0.5]",
			"user: must be absent if centre, scale or clip norm is \"auto\""},
	} {
		text := strings.Replace(strings.Replace(c.text, "step   = 64", user, 1), c.old, c.new, 1)
		got := faults(t, text)
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)) {
			t.Errorf("%q: %q, want %q", c.new, got, c.want)
		}
	}
}

// TestPopulations checks that streams of one topic must agree on their persons, and streams of one population on their
// limit.
func TestPopulations(t *testing.T) {
	user := func(s string) string {
		return strings.Replace(orders, "step   = 100", "step = 100\nhorizon = 50\n"+s, 1)
	}
	second := func(text, topic string) string {
		_, stream, _ := strings.Cut(text, "[stream.orders]")
		stream = strings.ReplaceAll("[stream.orders]"+stream, "stream.orders", "stream.second")
		stream = strings.Replace(stream, `topic = "orders"`, `topic = "`+topic+`"`, 1)
		return strings.Replace(stream, `"orders.dp"`, `"second.dp"`, 1)
	}
	const a = `user = { key = "record-key", max_users = 5000 }`
	for _, c := range []struct{ first, second, topic, limit, want string }{
		{a, a, "orders", "", ""},
		{a, a, "clicks", "", ""},
		{a, "", "orders", "", "must have [user] if and only if stream.orders, which reads the same topic, has it"},
		{a, "", "clicks", "", ""},
		{a, `user = { key = "header:u", max_users = 5000 }`, "orders", "",
			"must have the same key and population as stream.orders, which reads the same topic"},
		{a, `user = { key = "record-key", max_users = 5000, population = "p" }`, "orders", "",
			"must have the same key and population as stream.orders, which reads the same topic"},
		{a, `user = { key = "record-key", max_users = 5000, period = 9, population = "orders" }`, "clicks", "",
			"must have the same period as stream.orders, which has the same population"},
		{a, `user = { key = "record-key", max_users = 5000, population = "orders" }`, "clicks", "9.0",
			"must have the same limit and adjacency as stream.orders, which has the same population"},
	} {
		s := second(user(c.second), c.topic)
		if c.limit != "" {
			s = strings.Replace(s, "limit_epsilon = 3.0", "limit_epsilon = "+c.limit, 1)
		}
		got := faults(t, user(c.first)+"\n"+s)
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)) {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// ordersWith returns the example's stream with a user, as read from a manifest.
func ordersWith(t *testing.T, horizon, onHorizon, user string) *Stream {
	t.Helper()
	c, err := Parse("t", []byte(strings.Replace(orders, "step   = 100", "step = 100\n"+horizon, 1)))
	if err != nil {
		t.Fatal(err)
	}
	text := string(c.Streams[0].Canonical(0))
	text = strings.TrimSuffix(text, "}") + `,"user":` + user + "}"
	text = strings.Replace(text, `"on_horizon":"end"`, `"on_horizon":"`+onHorizon+`"`, 1)
	s, err := StreamOf("orders", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestUserCountsValid: with protected persons, count_valid is on by default, and an epoch keeps the setting with which
// it began. Streams without persons keep their digests.
func TestUserCountsValid(t *testing.T) {
	f := func(of string, valid *bool, count bool, digest string) {
		t.Helper()
		s := ordersWith(t, "horizon = 50", "end",
			`{"cap":0,"key":"record-key","max_users":5000,"partitioner":"none","per_step":1,"population":"orders","separation":1}`)
		if of == "records" {
			s.User, s.Moments.Person = nil, matfact.Participation{}
		}
		plain := s.Canonical(0)
		s.Moments.ValidCount = valid
		s.Moments.Defaults()
		text := s.Canonical(0)
		again, err := StreamOf("orders", text)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(s.Moments.Values(), "valid_count") != count ||
			slices.Contains(again.Moments.Values(), "valid_count") != count {
			t.Errorf("%s, %s: %q, and %q read again", of, text, s.Moments.Values(), again.Moments.Values())
		}
		if strings.Contains(string(plain), "valid_count") ||
			strings.Contains(string(text), "valid_count") != (digest != "") || !strings.Contains(string(text), digest) {
			t.Errorf("%s: the digest has %s, by default %s", of, text, plain)
		}
	}
	f("records", nil, false, "")
	f("records", new(false), false, "")
	f("records", new(true), true, `"valid_count":true`)
	f("persons", nil, true, "")
	f("persons", new(true), true, "")
	f("persons", new(false), false, `"valid_count":false`)
}

// TestUserStream checks that the digest contains every value, including defaults, and that the right participation
// follows from the values.
func TestUserStream(t *testing.T) {
	const user = `{"cap":0,"key":"record-key","max_users":5000,"partitioner":"none","per_step":2,"population":"orders","separation":10}`
	s := ordersWith(t, "horizon = 50", "end", user)
	if !strings.Contains(string(s.Canonical(0)), `"user":`+user) {
		t.Errorf("the digest has %s", s.Canonical(0))
	}
	if s.Moments.Person != (matfact.Participation{Count: 5, Separation: 10, PerStep: 2}) {
		t.Errorf("moments protect %+v", s.Moments.Person)
	}
	if s.Privacy.Adjacency != dp.ZeroOut {
		t.Fatal(s.Privacy.Adjacency)
	}
	for _, c := range []struct {
		on           string
		cap, max     uint64
		count        uint64
		wantCap, use uint64
	}{
		{"end", 0, 5000, 5, 0, 1000}, {"end", 5, 1000, 5, 0, 1000}, {"end", 9, 1000, 5, 0, 1000},
		{"end", 4, 5000, 4, 4, 5000}, {"end", 4, 100, 4, 4, 100}, {"end", 4, 9999, 4, 4, 5000},
		{"continue", 5, 1000, 5, 5, 1000},
	} {
		s.OnHorizon, s.User.Cap, s.User.MaxUsers = c.on, c.cap, c.max
		want := persons.Rule{Cap: c.wantCap, Separation: 10, PerStep: 2, Users: c.use}
		if got := s.PersonRule(); got != want || s.Participation().Count != c.count {
			t.Errorf("%+v: %+v and %+v", c, got, s.Participation())
		}
	}
	// With a period, all records of a unit are within the steps of one period. If the persons of a period fill the map,
	// zero-out costs as much as replace.
	for _, c := range []struct {
		on                       string
		cap, period, max         uint64
		count, wantCap, wantUser uint64
		crowds                   bool
	}{
		{"end", 0, 0, 5000, 5, 0, 1000, false}, {"end", 4, 0, 5000, 4, 4, 5000, false},
		{"end", 4, 0, 4999, 4, 4, 4999, true},
		{"continue", 5, 0, 5000, 5, 5, 5000, true},
		{"end", 0, 25, 5000, 3, 0, 1000, false}, {"continue", 0, 25, 5000, 3, 0, 1000, false},
		{"continue", 9, 5, 5000, 1, 0, 500, false},
		{"continue", 2, 25, 5000, 2, 2, 2500, false}, {"continue", 2, 25, 2499, 2, 2, 2499, true},
		{"end", 2, 25, 2499, 2, 2, 2499, true},
	} {
		s.OnHorizon, s.User.Cap, s.User.Period, s.User.MaxUsers = c.on, c.cap, c.period, c.max
		want := persons.Rule{Cap: c.wantCap, Separation: 10, PerStep: 2, Period: c.period, Users: c.wantUser}
		if got := s.PersonRule(); got != want || s.Participation().Count != c.count || s.Crowds() != c.crowds ||
			(s.Params().Adjacency == dp.Replace) != c.crowds {
			t.Errorf("%+v: %+v and %+v, crowds %v", c, got, s.Participation(), s.Crowds())
		}
		if s.Privacy.Adjacency = dp.Replace; s.Crowds() {
			t.Errorf("%+v: replace crowds", c)
		}
		s.Privacy.Adjacency = dp.ZeroOut
	}
	s.User = nil
	if s.Participation() != (matfact.Participation{}) {
		t.Error("a stream without persons protects some")
	}
}

// TestUserCrowds: for a refit a step is a window, so zero-out costs as much as replace unless there is room for all
// records of all windows.
func TestUserCrowds(t *testing.T) {
	for user, want := range map[string]bool{
		"cap = 2, max_users = 50000":              false,
		"cap = 2, max_users = 49999":              true,
		"cap = 2, max_users = 9999, period = 10":  true,
		"cap = 2, max_users = 10000, period = 10": false,
	} {
		text := strings.Replace(orders, "step   = 100", "horizon = 50\nuser = { key = \"record-key\", "+user+" }", 1)
		text = text[:strings.Index(text, "[stream.orders.moments]")] +
			"[stream.orders.refit]\ntarget = \"amount\"\nclip_x = 1\nclip_y = 1\nwindow = 1000\n"
		c, err := Parse("t", []byte(text))
		if err != nil {
			t.Fatalf("%s: %v", user, err)
		}
		s := c.Streams[0]
		if s.Crowds() != want || s.Refuses() != want {
			t.Errorf("%s: the table may be full: %v and %v", user, s.Crowds(), s.Refuses())
		}
	}
}

// TestUserRefuses: a table may become full unless max_users is at least the number of all records. If only the
// separation limits persons, the number of records in one separation suffices.
func TestUserRefuses(t *testing.T) {
	for user, want := range map[string]bool{
		"separation = 10, max_users = 1000":          false, // a step has 100 records
		"cap = 5, separation = 10, max_users = 1000": false, // with this separation, 5 is no limit
		"cap = 2, max_users = 5000":                  false,
		"cap = 2, max_users = 4999":                  true,
	} {
		text := strings.Replace(orders, "step   = 100",
			"step = 100\nhorizon = 50\nuser = { key = \"record-key\", "+user+" }", 1)
		text = strings.Replace(text, `adjacency = "zero-out"`, `adjacency = "replace"`, 1)
		c, err := Parse("t", []byte(text))
		if err != nil {
			t.Fatalf("%s: %v", user, err)
		}
		if got := c.Streams[0].Refuses(); got != want {
			t.Errorf("%s: the table may be full: %v", user, got)
		}
	}
}

// TestUserCrowdsWindows: the table of a refit may become full, because its steps are as large as its window.
// Then zero-out has the noise of replace.
func TestUserCrowdsWindows(t *testing.T) {
	for _, c := range []struct {
		users, stride string
		want          bool
	}{
		{"50000", "", false}, {"49999", "", true}, {"10", "", true},
		{"50000", "stride = 1500", false}, {"49999", "stride = 1500", true}, // records between windows need no room
	} {
		users, want := c.users, c.want
		text := orders[:strings.Index(orders, "[stream.orders.moments]")] +
			"[stream.orders.refit]\ntarget = \"amount\"\nclip_x = 1\nclip_y = 1\nwindow = 1000\n" + c.stride + "\n"
		text = strings.Replace(text, "step   = 100",
			"horizon = 50\nuser = { key = \"record-key\", cap = 2, max_users = "+users+" }", 1)
		c, err := Parse("t", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		s := c.Streams[0]
		if got := s.Crowds(); got != want || (s.Params().Adjacency == dp.Replace) != want {
			t.Errorf("%s persons, 50 windows of 1000 records: crowds %v, noise of %s", users, got, s.Params().Adjacency)
		}
		// The length of a step includes the gap after the window. With another stride, the same number of steps takes
		// another time.
		if got, want := s.StepLength(),
			map[bool]string{true: "1000 offsets", false: "1500 offsets"}[c.Streams[0].Refit.Stride == 0]; got != want {
			t.Errorf("steps of %s, want %s", got, want)
		}
	}
}
