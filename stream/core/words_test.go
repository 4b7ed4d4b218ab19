package core

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/config"
)

// TestComputes: every example has a sentence about what it computes.
func TestComputes(t *testing.T) {
	want := map[string]string{
		"orders.toml": "Means, second moments and covariances of amount, items and weight over all records of " +
			"the epoch so far: a release every 100 offsets.",
		"demand.toml":     "Linear regression of sold on price, weekday and stock, updated as records come in.",
		"demand-amb.toml": "Linear regression of sold on price, weekday and stock, updated as records come in.",
		"refit.toml": "Linear regression of sold on price, weekday and stock, solved separately for each window of " +
			"20000 offsets.",
		"churn.toml": "logistic regression of ",
	}
	for name, sentence := range want {
		path := filepath.Join("..", "..", "examples", name)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		c, err := config.Parse(path, text)
		if err != nil {
			t.Fatal(err)
		}
		if got := Computes(c.Streams[0]); !strings.Contains(got, sentence) || !strings.HasSuffix(got, ".") {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestComputesMoments: the sentence depends on the workload and the published values.
func TestComputesMoments(t *testing.T) {
	for keys, want := range map[string]string{
		`workload = "sum"`: "Sums and second moments of a and b over all records of the " +
			"epoch so far: a release every 10 offsets.",
		"workload = \"window\"\nwindow = 5": "Means, second moments and covariances of a and b over the " +
			"last 5 steps: a release every 10 offsets.",
		"workload = \"exponential\"\n" +
			"decay = 0.5": "Means, second moments and covariances of a and b over the records of the epoch, each " +
			"step counting 0.5 times the next one: a release every 10 offsets.",
		"covariance = false\n#": "Means and second moments of a and b over all records of the epoch so far: a " +
			"release every 10 offsets.",
		"step 1h": "Means, second moments and covariances of a and b over all records of the epoch so " +
			"far: a release every 1h by the clock.",
		"step 90s": "Means, second moments and covariances of a and b over all records of the epoch so " +
			"far: a release every 1m30s by the clock.",
		"step 10m": "Means, second moments and covariances of a and b over all records of the epoch so " +
			"far: a release every 10m by the clock.",
		"#values = [\"mean\"]": "Means of a and b over all records of the epoch so far: a " +
			"release every 10 offsets.",
		"#values = [\"covariance\", \"full_share\"]": "Covariances of a and b over all records of the epoch so far: " +
			"a release every 10 offsets.",
	} {
		output := `topic = "o"`
		if values, ok := strings.CutPrefix(keys, "#"); ok {
			output += ", " + values
		}
		step, ok := strings.CutPrefix(keys, "step ")
		if ok {
			step, keys = "\""+step+"\"", ""
		} else {
			step = "10"
		}
		c, err := config.Parse("t.toml",
			[]byte(
				"[kafka]\nboundary_topic = \"b\"\nbrokers = [\"127.0.0.1:1\"]\n[state]\ndir = \"/s\"\n"+
					"key_file = \"/k\"\n[stream.s]\nstep = "+step+"\n"+
					"input = { topic = \"i\", codec = \"json\", columns = [\"a\", \"b\"] }\noutput = { "+output+" }\n"+
					"[stream.s.privacy]\nepsilon = 1.0\ndelta = 1e-8\nadjacency = \"replace\"\nlimit_epsilon = 1.0\n"+
					"[stream.s.moments]\nclip = 1.0\n"+keys+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		if got := Computes(c.Streams[0]); got != want {
			t.Errorf("%s: %q, want %q", keys, got, want)
		}
	}
}

// TestPower: the bound is the smaller of the two lines of the trade-off. It is never below a random guess or above 1,
// and no test against a Gaussian mechanism with that (ε, δ) exceeds it.
func TestPower(t *testing.T) {
	for _, x := range []struct{ alpha, epsilon, delta, want float64 }{
		{0.05, 0, 0, 0.05},
		{0.05, 1, 0, 0.05 * math.E},
		{0.05, 5, 0, 1 - math.Exp(-5)*0.95},
		{0.05, 1, 0.5, 0.05*math.E + 0.5},
		{0.05, 0, 1, 1},
	} {
		if got := Power(x.alpha, x.epsilon, x.delta); math.Abs(got-x.want) > 1e-12 {
			t.Errorf("%+v: %g", x, got)
		}
	}
	// A Gaussian with μ = 0.196 is (1, 1e-8)-private. Its best test has power Φ(Φ⁻¹(α) + μ).
	phi := func(x float64) float64 { return math.Erfc(-x/math.Sqrt2) / 2 }
	for _, alpha := range []float64{0.001, 0.05, 0.5, 0.9} {
		quantile := -math.Sqrt2 * math.Erfcinv(2*alpha)
		if best := phi(quantile + 0.19606656); best > Power(alpha, 1, 1e-8) {
			t.Errorf("alpha %g: a test has power %g, above the bound %g", alpha, best, Power(alpha, 1, 1e-8))
		}
	}
	s := personStream(t, threeSteps)
	if text := Computes(s); !strings.HasSuffix(text,
		"a release every 4 offsets. A person counts in at most 3 steps, at least 2 apart, with at most 2 "+
			"records in each.") {
		t.Error(text)
	}
	s.User.Cap, s.User.PerStep = 1, 1
	if text := Computes(s); !strings.HasSuffix(text,
		" A person counts in at most 1 step, with at most 1 record in each.") {
		t.Error(text)
	}
	s.User.Cap, s.User.Period = 2, 7
	if text := Computes(s); !strings.HasSuffix(text,
		" A person counts in at most 2 steps, at least 2 apart, with at most 1 record in each; every person may "+
			"contribute again after 7 steps.") {
		t.Error(text)
	}
	if text := Promise("person-period", 1, 1e-8); !strings.Contains(text,
		"of one given person were counted in one given period") || !strings.Contains(text, "at most 13.6%") {
		t.Error(text)
	}
	if text := Promise("record", 1, 1e-8); !strings.Contains(text, "one given record") ||
		!strings.Contains(text, "at most 13.6%") {
		t.Error(text)
	}
	if text := Promise("person-period", 1, 1e-8); !strings.Contains(text,
		"one given person were counted in one given period, and") {
		t.Error(text)
	}
	if text := Promise("person", 1e6, 0.5); !strings.Contains(text, "one given person") ||
		!strings.Contains(text, "at most 100%") {
		t.Error(text)
	}
}
