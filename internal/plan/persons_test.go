package plan

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/stream/dryrun"
)

const personsToml = `
[kafka]
brokers = ["127.0.0.1:1"]
[state]
dir = "/s"
key_file = "/k"
[stream.s]
input = { topic = "in", codec = "json", columns = ["x"], partition = PARTITIONS }
output = { topic = "out" }
step = 1000
horizon = 8760
user = { key = "record-key", max_users = 9000000, USER }
[stream.s.privacy]
epsilon = 1.0
delta = 1e-6
adjacency = "zero-out"
limit_epsilon = 5.0
[stream.s.moments]
clip = 1.0
`

func personsConfig(t *testing.T, partitions, user string) *config.Config {
	t.Helper()
	c, err := config.Parse("p.toml",
		[]byte(strings.NewReplacer("PARTITIONS", partitions, "USER", user).Replace(personsToml)))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestPlanPersons: the noise of a rule agrees with the measurements of the design over a year of hourly steps.
func TestPlanPersons(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		user         string
		noise, floor float64
	}{
		{"cap = 1", 3.98, 3.98},
		{"cap = 12, separation = 720", 19.7, 1.64},
		{"cap = 52, separation = 168", 64.7, 1.24},
		{"cap = 365, separation = 24", 387, 1.06},
		{"cap = 52, separation = 168, per_step = 2", 2 * 64.7, 1.24},
	} {
		cfg := personsConfig(t, "0", c.user)
		p, err := Of(cfg, cfg.Streams[0], Options{Steps: []uint64{1, 8760}})
		if err != nil {
			t.Fatal(err)
		}
		own := 0
		for _, x := range p.OfPersons.Caps {
			if x.Configured {
				own++
				if math.Abs(x.Noise/c.noise-1) > 0.006 || math.Abs(x.OverFloor/c.floor-1) > 0.01 ||
					math.Abs(x.OverRecords/(c.noise/3.98)-1) > 0.01 {
					t.Errorf("%s: noise %.4g, %.4g times that of records, %.4g times the floor; want %g and %g", c.user,
						x.Noise, x.OverRecords, x.OverFloor, c.noise, c.floor)
				}
				if d := p.Description; math.Abs(x.Norm/d.Person.Norm-1) > 1e-6 {
					t.Errorf("%s: norm %g, the mechanism has %g", c.user, x.Norm, d.Person.Norm)
				}
			}
		}
		if own != 1 || len(p.OfPersons.Caps) < 4 {
			t.Errorf("%s: caps %+v", c.user, p.OfPersons.Caps)
		}
	}
	// The compared rules are possible: in a period no steps are farther apart than the period.
	cfg := personsConfig(t, "0", "cap = 12, separation = 8, period = 100")
	if p, err := Of(cfg, cfg.Streams[0], Options{Steps: []uint64{8760}}); err != nil || len(p.OfPersons.Caps) != 4 {
		t.Errorf("%v, %+v", err, p.OfPersons)
	} else {
		for _, x := range p.OfPersons.Caps {
			if (x.Cap-1)*x.Separation >= 100 {
				t.Errorf("%d steps, %d apart, in a period of 100", x.Cap, x.Separation)
			}
		}
	}
	var out bytes.Buffer
	cfg = personsConfig(t, "0", "cap = 12, separation = 720")
	p, err := Of(cfg, cfg.Streams[0], Options{Steps: []uint64{8760}})
	if err == nil {
		err = p.Print(&out)
	}
	if err != nil || !strings.Contains(out.String(), "12*") ||
		!strings.Contains(out.String(), "times the least possible") ||
		strings.Contains(out.String(), "of the input partition") {
		t.Errorf("%v\n%s", err, &out)
	}
}

// TestCheckPersons: an opening over several partitions costs the root of their number, unless a user key counts in one
// partition only. The limit allows as many openings as the ledger would accept.
func TestCheckPersons(t *testing.T) {
	t.Parallel()
	mu, err := dp.Mu(1, 1e-6)
	if err != nil {
		t.Fatal(err)
	}
	most, err := dp.Mu(5, 1e-6)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		partitions, user string
		root             float64
		words            string
	}{
		{"[0]", "cap = 5", 1, "the population: 18"},
		{"[0, 1, 2, 3]", "cap = 5", 2, "is 4 epochs; a person pays for all: mu 0.473"},
		{"[0, 1, 2, 3]", `cap = 5, partitioner = "murmur2"`, 1, "a person pays for one"},
		{"[0, 1, 2, 3]", `cap = 5, partitioner = "murmur2", full`, 1, "a person pays for one"},
		{"[0, 1, 2, 3]", `cap = 5, partitioner = "murmur2", full, replace`, 2, "a person pays for all"},
		{`"all"`, "cap = 5", 1, "mu times the root of their number"},
		{`"all"`, `cap = 5, partitioner = "murmur2"`, 1, "a person pays for one"},
		{"[0]", "cap = 5, period = 100", 1, "100 steps, after which counting starts again for every person"},
		{"[0]", "cap = 5, period = 100", 1,
			"the limit allows before it starts again, if nobody else charges the population: 18"},
	} {
		user, replace := strings.CutSuffix(c.user, ", replace")
		user, full := strings.CutSuffix(user, ", full")
		s := personsConfig(t, c.partitions, user).Streams[0]
		if replace {
			s.Privacy.Adjacency = dp.Replace
		}
		if full { // the table may be full
			s.User.MaxUsers = 1000
		}
		d, err := dryrun.Describe(s)
		if err != nil {
			t.Fatal(err)
		}
		p := d.Person
		if math.Abs(p.OpeningMu/(c.root*mu)-1) > 1e-4 {
			t.Errorf("%s, %s: an opening costs mu %g, want %g", c.partitions, c.user, p.OpeningMu, c.root*mu)
		}
		n := uint64(math.Pow(most/p.OpeningMu, 2))
		fits := func(n uint64) bool {
			ok, err := dp.Cost{Adjacency: dp.ZeroOut, Mu: p.OpeningMu * math.Sqrt(float64(n))}.Within(5, 1e-6)
			return err == nil && ok
		}
		if p.Openings != n || !fits(n) || fits(n+1) {
			t.Errorf("%s: %d openings fit, want %d", c.partitions, p.Openings, n)
		}
		var out bytes.Buffer
		if err := PrintGuarantee(&out, d, "configuration", ""); err != nil ||
			!strings.Contains(out.String(), c.words) || !strings.Contains(out.String(), "of population in") ||
			!strings.Contains(out.String(), " of memory and at most") ||
			strings.Contains(out.String(), "input partition") {
			t.Errorf("%v\n%s", err, &out)
		}
	}
	if eps, err := dp.Epsilon(1e-6, mu); err != nil || math.Abs(eps-1) > 1e-6 {
		t.Fatal(eps, err)
	}
}
