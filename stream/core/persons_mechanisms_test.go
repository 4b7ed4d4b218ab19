package core

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/persons"
)

// protecting holds a stream that protects persons for each mechanism. Each has two columns, and steps of four records.
var protecting = map[string]string{
	"adam, gradients": `input = { topic = "orders", codec = "float64" }
step = 4
adam = { clip = 1.0, rate = 0.1, dim = 1, max_staleness = 9 }`,
	"adam, model": `input = { topic = "orders", codec = "float64", columns = ["a", "b"] }
step = 4
adam = { mode = "model", method = "momentum", factorization = "blt", clip = 1.0, rate = 0.1, model = { loss = "linear", target = "b" } }`,
	"sgd, amb": `input = { topic = "orders", codec = "float64", columns = ["a", "b"] }
sgd = { method = "amb", target = "b", clip_x = 1.0, radius = 1.0, amb = { clip = "fixed", zeta = 1.0, bands = 1, curvature = 0.5 } }`,
	"sgd, newton": `input = { topic = "orders", codec = "float64", columns = ["a", "b"] }
sgd = { target = "b", clip_x = 1.0 }`,
	"refit, newton": `input = { topic = "orders", codec = "float64", columns = ["a", "b"] }
refit = { target = "b", clip_x = 1.0, clip_y = 1.0, window = 4 }`,
	"refit, dp-gd": `input = { topic = "orders", codec = "float64", columns = ["a", "b"] }
refit = { solver = "dp-gd", target = "b", clip_x = 1.0, clip_y = 1.0, window = 4 }`,
	"refit, dp-gd-residual": `input = { topic = "orders", codec = "float64", columns = ["a", "b"] }
refit = { solver = "dp-gd-residual", target = "b", clip_x = 1.0, clip_y = 1.0, window = 4 }`,
	"refit, adassp": `input = { topic = "orders", codec = "float64", columns = ["a", "b"] }
refit = { solver = "adassp", target = "b", clip_x = 1.0, clip_y = 1.0, window = 4 }`,
}

// protected returns the stream of a table, with the given user table as it is in a manifest; "" for none.
func protected(t testing.TB, table, adjacency, user string) *config.Stream {
	t.Helper()
	s := parsed(t,
		"[stream.orders]\nhorizon = 9\nprivacy = { epsilon = 1.0, delta = 1e-8, adjacency = \""+adjacency+
			"\" }\n"+table+"\n")
	if user == "" {
		return s
	}
	text := strings.TrimSuffix(string(s.Canonical(0)), "}") + `,"user":` + user + "}"
	s, err := config.StreamOf("orders", []byte(text))
	must(t, err)
	return s
}

// TestPersonsOfMechanisms: every mechanism gets the rows of exactly the records that count. Its releases state who is
// protected, and its noise is calibrated for a person.
func TestPersonsOfMechanisms(t *testing.T) {
	t.Parallel()
	for name, table := range protecting {
		for _, adjacency := range []string{"zero-out", "replace"} {
			s := protected(t, table, adjacency, threeSteps)
			if f := FormatOf(s); f.User != "record-key" {
				t.Errorf("%s: records have their user key in %q", name, f.User)
			}
			rng := rand.New(rand.NewPCG(20, 6))
			log := randomLog(rng, 36)
			c, rec := personCore(t, s)
			key := c.UserKey()
			tagger := persons.NewTagger(&key)
			out := runLog(t, c, tagger, log, 0)
			counted, err := persons.NewMap(s.PersonRule())
			must(t, err)
			for i, x := range log {
				if i%4 == 0 {
					must(t, counted.Open(uint64(i/4)+1))
				}
				var tag persons.Tag
				if x.user > 0 {
					tag = tagger.Tag(fmt.Append(nil, "user ", x.user))
				}
				if counts := counted.Take(tag) == persons.Counts; (rec.rows[i] != nil) != (counts && x.valid) {
					t.Fatalf("%s: record %d of %+v: the mechanism got %v", name, i, log, rec.rows[i])
				}
			}
			// The release describes persons, with the norm that the noise uses.
			if len(out) == 0 {
				t.Fatalf("%s: no release", name)
			}
			var r struct{ Privacy releasePrivacy }
			must(t, json.Unmarshal(out[0].Value, &r))
			single, err := NewMechanism(protected(t, table, adjacency, ""), nil, nil)
			must(t, err)
			p := r.Privacy
			if p.Unit != "person" || p.Person == nil || p.Person.Cap != 3 || p.Person.Norm != c.mech.norm {
				t.Fatalf("%s: a release says %s, %+v", name, p.Unit, p.Person)
			}
			// At most six of a person's records count, so one record costs much less than the person's ε.
			if e := p.Person.EpsilonRecord; e == nil || !(*e > 0 && *e < 0.7*p.Epsilon) {
				t.Errorf("%s, %s: the cost of one record is missing or too large", name, adjacency)
			}
			// ε is the same, so noise and sensitivity grow by the same factor: three steps with two records each.
			if math.Abs(c.mech.Cost().Mu/single.Cost().Mu-1) > 1e-12 || c.mech.norm < 2*math.Sqrt(3) {
				t.Errorf("%s: cost %+v, a single record's %+v; norm %g", name, c.mech.Cost(), single.Cost(),
					c.mech.norm)
			}
			for array, sd := range single.Noise {
				if c.mech.Method == "newton" && array != "gradient" {
					continue // skip: each array has its own factor
				}
				if c.mech.Method == "adassp" && adjacency == "replace" {
					sd *= 2 // in units of zero-out's sensitivity
				}
				noise, sensitivity := c.mech.Noise[array]/sd, c.mech.sensitivity/single.sensitivity
				if math.Abs(noise/sensitivity-1) > 1e-3 || noise < 2*math.Sqrt(3) {
					t.Errorf("%s, %s: %s has %g times the noise of single records, and %g times their sensitivity",
						name, adjacency, array, noise, sensitivity)
				}
			}
		}
	}
}

// TestPersonsBetweenWindows: a record that is in no window does not use up a contribution of its person.
func TestPersonsBetweenWindows(t *testing.T) {
	t.Parallel()
	s := protected(t, `input = { topic = "orders", codec = "float64", columns = ["a", "b"] }
refit = { target = "b", clip_x = 1.0, clip_y = 1.0, window = 2, stride = 4 }`, "replace", threeSteps)
	c, rec := personCore(t, s)
	key := c.UserKey()
	tag := persons.NewTagger(&key).Tag([]byte("ann"))
	// The first window is two records. Two records that are in no window follow, then the second window.
	for i := range 6 {
		if i == 2 {
			_, err := c.Close()
			must(t, err)
		}
		user := tag
		if i < 2 {
			user = persons.Tag{}
		}
		c.AddOf(int64(100+i), []float64{0.1, 0.1}, user)
	}
	for i, row := range rec.rows {
		if (row != nil) != (i >= 4) {
			t.Errorf("record %d has the row %v", i, row)
		}
	}
}

// TestPersonsOneNumber: noise, sensitivity and charge agree, with and without a full table and periods. The noise
// follows from the sensitivity and the charge. With a full table, zero-out has the noise and sensitivity of replace.
// Release and manifest state the charge. A stream parsed from a manifest has the same rule for persons, and the
// mechanism made from the recorded plan has the same charge.
func TestPersonsOneNumber(t *testing.T) {
	t.Parallel()
	tables := maps.Clone(protecting)
	tables["moments"] = "input = { topic = \"orders\", codec = \"float64\", columns = [\"a\", \"b\"] }\nstep = 4\n" +
		"moments = { clip = 1.0 }"
	for name, table := range tables {
		if strings.HasPrefix(name, "sgd") {
			continue // this mechanism refuses zero-out if the table may be full
		}
		for _, period := range []string{"", `"period":8,`} {
			user := strings.Replace(threeSteps, `"population"`, period+`"population"`, 1)
			full := strings.Replace(user, `"max_users":36`, `"max_users":5`, 1)
			made := map[string]*Mechanism{}
			for what, s := range map[string]*config.Stream{
				"room": protected(t, table, "zero-out", user), "full": protected(t, table, "zero-out", full),
				"replace": protected(t, table, "replace", full),
			} {
				m, err := NewMechanism(s, nil, nil)
				must(t, err)
				made[what] = m
				cost := m.Cost()
				if eps, err := cost.Epsilon(1e-8); err != nil || !(eps <= 1 && eps > 0.999) ||
					cost.Adjacency != s.Privacy.Adjacency {
					t.Errorf("%s, %s: charged %+v, epsilon %g", name, what, cost, eps)
				}
				again, err := config.StreamOf("orders", s.Canonical(0))
				must(t, err)
				if again.PersonRule() != s.PersonRule() || again.Refuses() != s.Refuses() ||
					again.Crowds() != s.Crowds() {
					t.Errorf("%s, %s: the manifest's rule differs", name, what)
				}
				kept, err := CostOf(again, m.Plan)
				must(t, err)
				if !kept.Cost().Equal(cost) {
					t.Errorf("%s, %s: charged %+v, and by the plan %+v", name, what, cost, kept.Cost())
				}
				e, err := newEncoder(s, &Manifest{Stream: "orders", Epoch: 1, Cost: cost}, m)
				must(t, err)
				var head struct{ Privacy releasePrivacy }
				must(t, json.Unmarshal(append(append([]byte("{"), e.head...), '}'), &head))
				if p := head.Privacy; p.Mu != cost.Mu || p.Adjacency != cost.Adjacency ||
					p.Sensitivity != m.sensitivity || p.Person.Norm != m.norm {
					t.Errorf("%s, %s: a release says %+v", name, what, p)
				}
				// For rows, gradients and statistics, the charge is the sensitivity divided by the noise.
				if sd := m.Noise["first"]; sd > 0 && math.Abs(m.sensitivity/sd/cost.Mu-1) > 1e-5 {
					t.Errorf("%s, %s: sensitivity %g, noise %g, charged mu %g", name, what, m.sensitivity, sd, cost.Mu)
				}
			}
			room, crowd, replace := made["room"], made["full"], made["replace"]
			if crowd.sensitivity != replace.sensitivity || !maps.Equal(crowd.Noise, replace.Noise) ||
				crowd.Cost().Mu != replace.Cost().Mu || crowd.norm != replace.norm {
				t.Errorf("%s: a full table has sensitivity %g and noise %v, replace has %g and %v", name,
					crowd.sensitivity, crowd.Noise, replace.sensitivity, replace.Noise)
			}
			if !(crowd.sensitivity > 1.2*room.sensitivity) {
				t.Errorf("%s: a full table has sensitivity %g, one with room for all %g", name, crowd.sensitivity,
					room.sensitivity)
			}
			for array, sd := range room.Noise {
				// The arrays full and valid_count have a different share of the budget then.
				if !(crowd.Noise[array] > sd) && array != "full" && array != "valid_count" {
					t.Errorf("%s: a full table has noise %g of %s, one with room for all %g", name,
						crowd.Noise[array], array, sd)
				}
			}
		}
	}
}
