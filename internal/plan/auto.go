package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/moments"
	"github.com/streamdp/streamdp/stream/core"
)

// explain says in sentences what "auto" chose for moments, and why. If "auto" chose a factorization that works for any
// number of steps, explain also says what setting tune would gain.
func (p *Plan) explain(s *config.Stream, uses moments.Plan) (why []string) {
	m := s.Moments
	if m.Method == "auto" {
		why = append(why, "method: "+whyMethod(m, uses))
	}
	if m.Factorization != "auto" {
		return why
	}
	named := m.Tune
	if named == 0 {
		named = m.Horizon
	}
	// matfact.Auto decides by the same conditions.
	reason := fmt.Sprintf("its error is least at %d steps, the value of horizon or tune", named)
	switch sums := m.Workload == "sum" || m.Workload == "mean"; {
	case !sums && uses.Factorization.Kind == "blt":
		reason = fmt.Sprintf("for workload %q its few buffers come close to the optimum at every step",
			m.Workload)
	case uses.Factorization.Kind == "identity":
		reason = "squares of noisy rows need noise that is independent from row to row"
	case named == 0:
		reason = "neither horizon nor tune is set, and it is good for any number of steps"
	}
	why = append(why, fmt.Sprintf("factorization: auto chose %s, because %s", uses.Factorization.Kind, reason))
	if uses.Factorization.Kind == "phased" && named == 0 {
		if gain := p.gainOfTune(s); gain != "" {
			why = append(why, gain)
		}
	}
	return why
}

// whyMethod says why "auto" chose the method that the plan uses.
func whyMethod(m *moments.Config, uses moments.Plan) string {
	c := uses.Choice
	if c == nil {
		reason := "its alternatives, pp_debiased and combined, square noisy rows, which needs another " +
			"factorization"
		switch {
		case m.Step > 1:
			reason = "its alternatives, pp_debiased and combined, square single rows, but a step of several " +
				"offsets has only the sum of its rows"
		case m.Second != nil:
			reason = "the second moment has its own workload or factorization"
		}
		return fmt.Sprintf("auto chose %s, because %s", uses.Method, reason)
	}
	which := fmt.Sprintf("in the release of step %d", c.Step)
	if c.Metric == "sum" {
		which = fmt.Sprintf("in all releases up to step %d together", c.Step)
	}
	var compared []string
	for _, a := range c.Alternatives {
		compared = append(compared, fmt.Sprintf("%s %.3g and %.3g", a.Method, a.First, a.Second))
	}
	return fmt.Sprintf(
		"auto chose %s, because %s its weighted sum of the squared errors of mean and second moment is least (%s)",
		uses.Method, which, strings.Join(compared, ", "))
}

// gainOfTune says how the noise changes if tune is set to the last of the plan's steps. It returns "" if such a stream
// cannot be built, or if the plan has only one step.
func (p *Plan) gainOfTune(s *config.Stream) string {
	last, first := slices.Max(p.Steps), slices.Min(p.Steps)
	c := *s.Moments
	c.Tune = last
	tuned, err := moments.New(c, s.Params())
	if err != nil || last == first {
		return ""
	}
	own, err := moments.New(*s.Moments, s.Params())
	if err != nil {
		return ""
	}
	change := func(t uint64) string {
		ratio := tuned.Expect(t).Mean / own.Expect(t).Mean
		if ratio < 1 {
			return fmt.Sprintf("%.0f %% less", 100*(1-ratio))
		}
		return fmt.Sprintf("%.0f %% more", 100*(ratio-1))
	}
	return fmt.Sprintf(
		"with tune = %d the noise would be %s at step %d, and %s at step %d: set tune to about the number of steps "+
			"that matter to you (more steps may follow)",
		last, change(last), last, change(first), first)
}

// InWords formats a JSON object, such as the description of a mechanism, for people: key and value, key and value.
// Numbers have six digits. It omits keys that a plan explains elsewhere in sentences, such as the possible length of a
// step by the clock.
func InWords(raw []byte) string {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return string(raw)
	}
	var all []string
	kind := "" // the mechanism's name, printed first
	for d.More() {
		var value json.RawMessage
		name, err := d.Token()
		if err == nil {
			err = d.Decode(&value)
		}
		if err != nil {
			return string(raw)
		}
		key := fmt.Sprint(name)
		switch {
		case key == "choice" || key == "warmup":
		case key == "clock" && len(all) > 0: // by the clock, the length before this key is an upper bound
			length, _, _ := strings.Cut(all[len(all)-1], " ")
			all[len(all)-1] = length + " " + core.Brief(short(value)) + " by the clock"
		case key == "name":
			kind = strings.Trim(string(value), `"`)
		case value[0] == '{':
			all = append(all, key+" ("+InWords(value)+")")
		default:
			all = append(all, key+" "+short(value))
		}
	}
	if kind != "" {
		all = slices.Insert(all, 0, kind)
	}
	return strings.Join(all, ", ")
}

// short formats a JSON value that is not an object: words without quotes, lists with blanks, and fractions with six
// digits.
func short(value json.RawMessage) string {
	if x, err := strconv.ParseFloat(string(value), 64); err == nil && x != math.Trunc(x) {
		return fmt.Sprintf("%.6g", x)
	}
	return strings.NewReplacer(`"`, "", ",", ", ").Replace(string(value))
}
