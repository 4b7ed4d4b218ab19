package core

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/streamdp/streamdp/config"
)

// Computes returns a sentence about what a stream publishes.
func Computes(s *config.Stream) string {
	text := fmt.Sprintf("Releases of the mechanism %s over %s.", MechanismName(s), enumerated(s.Input.Row()))
	if d := mechanismOf(s); d != nil && d.computes != nil {
		text = d.computes(s)
	}
	if s.User != nil {
		text += " A person counts in " + howOften(s) + "."
	}
	return text
}

// howOften returns a phrase that says in which steps a person's records count. The stream must protect persons.
func howOften(s *config.Stream) string {
	p := s.Participation()
	text := fmt.Sprintf("at most %s", counted(p.Count, "step"))
	if p.Separation > 1 && p.Count > 1 {
		text += fmt.Sprintf(", at least %d apart", p.Separation)
	}
	text += fmt.Sprintf(", with at most %s in each", counted(max(1, p.PerStep), "record"))
	if s.User.Period > 0 {
		text += fmt.Sprintf("; every person may contribute again after %s", counted(s.User.Period, "step"))
	}
	return text
}

// counted writes "1 step" or "3 steps".
func counted(n uint64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// enumerated writes "a, b and c".
func enumerated(names []string) string {
	switch n := len(names); n {
	case 0:
		return ""
	case 1:
		return names[0]
	default:
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	}
}

// features lists the columns except target.
func features(s *config.Stream, target string) string {
	return enumerated(slices.DeleteFunc(slices.Clone(s.Input.Row()), func(c string) bool { return c == target }))
}

// onlineComputed returns a sentence about what an online regression publishes.
func onlineComputed(s *config.Stream) string {
	return fmt.Sprintf("Linear regression of %s on %s, updated as records come in.", s.SGD.Target,
		features(s, s.SGD.Target))
}

// momentsComputed returns a sentence about what a stream of moments publishes.
func momentsComputed(s *config.Stream) string {
	m := s.Moments
	first, over := "Means", "over all records of the epoch so far"
	switch m.Workload {
	case "sum":
		first = "Sums"
	case "exponential":
		over = fmt.Sprintf("over the records of the epoch, each step counting %g times the next one", m.Decay)
	case "window":
		over = fmt.Sprintf("over the last %d steps", m.Window)
	}
	var what []string
	publishes := func(words string, names ...string) {
		if len(s.Output.Values) == 0 ||
			slices.ContainsFunc(names, func(n string) bool { return slices.Contains(s.Output.Values, n) }) {
			what = append(what, words)
		}
	}
	publishes(first, "mean", "sum", "mean_original")
	publishes("second moments", "second_moment", "second_moment_projected")
	if m.Covariance == nil || *m.Covariance {
		publishes("covariances", "covariance", "covariance_psd", "covariance_original")
	}
	if what == nil {
		what = []string{"Counts"}
	}
	every := fmt.Sprintf("%d offsets", s.Step)
	if clock := clockOf(s); clock != "" {
		every = Brief(clock) + " by the clock"
	}
	sentence := fmt.Sprintf("%s of %s %s: a release every %s.", enumerated(what), enumerated(s.Input.Row()),
		over, every)
	return strings.ToUpper(sentence[:1]) + sentence[1:]
}

// Brief drops the trailing zeros of a duration: 1h0m0s becomes 1h.
func Brief(duration string) string {
	duration = strings.Replace(duration, "m0s", "m", 1)
	return strings.Replace(duration, "h0m", "h", 1)
}

// Power returns the largest probability with which any test of everything published under (ε, δ) detects a given
// record, if the test has a false-alarm probability of alpha: min(e^ε·α + δ, 1 − e^−ε·(1 − δ − α)). This trade-off
// between the two errors is equivalent to (ε, δ)-differential privacy (Wasserman and Zhou, 2010; Kairouz, Oh and
// Viswanath, 2015).
func Power(alpha, epsilon, delta float64) float64 {
	return min(math.Exp(epsilon)*alpha+delta, 1-math.Exp(-epsilon)*(1-delta-alpha), 1)
}

// Promise explains by an example what (ε, δ) means for a [Unit].
func Promise(unit string, epsilon, delta float64) string {
	if unit != "record" {
		when := ""
		if unit == "person-period" {
			when = " in one given period"
		}
		return fmt.Sprintf(
			"Suppose a test of all releases of an epoch decides whether records of one given person were counted%s, "+
				"and says yes in 5%% of cases although they were not. "+
				"If they were, the test detects it in at most %.3g%% of cases; guessing detects it in 5%%.", when,
			PercentFound(epsilon, delta))
	}
	return fmt.Sprintf(
		"Suppose a test of all releases of an epoch decides whether one given record was counted, and says yes in 5%% "+
			"of cases although it was not. "+
			"If it was, the test detects it in at most %.3g%% of cases; guessing detects it in 5%%.",
		PercentFound(epsilon, delta))
}

// PercentFound returns [Power] for alpha = 0.05, in percent, rounded up to three digits.
func PercentFound(epsilon, delta float64) float64 {
	if percent, err := roundUp(100*Power(0.05, epsilon, delta), 3); err == nil {
		return min(percent, 100)
	}
	return 100
}
