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

// explain says in sentences what "auto" took for moments, and why. Where it took the
// factorization that serves any number of steps, explain also says what it would gain to name
// a number in tune.
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
	// What Auto of package matfact decides by.
	reason := fmt.Sprintf("horizon or tune names %d steps, for which its error is the least", named)
	switch sums := m.Workload == "sum" || m.Workload == "mean"; {
	case !sums && uses.Factorization.Kind == "blt":
		reason = fmt.Sprintf("for workload %q so few buffers come close to the best there is, at every step",
			m.Workload)
	case uses.Factorization.Kind == "identity":
		reason = "squares of noisy rows need noise that is independent from row to row"
	case named == 0:
		reason = "neither horizon nor tune is named, and it serves any number of steps"
	}
	why = append(why, fmt.Sprintf("factorization: auto took %s, because %s", uses.Factorization.Kind, reason))
	if uses.Factorization.Kind == "phased" && named == 0 {
		if gain := p.gainOfTune(s); gain != "" {
			why = append(why, gain)
		}
	}
	return why
}

// whyMethod says why auto took the method that the plan uses.
func whyMethod(m *moments.Config, uses moments.Plan) string {
	c := uses.Choice
	if c == nil {
		reason := "pp_debiased and combined, its other choices, square noisy rows, which goes with other " +
			"factorizations only"
		switch {
		case m.Step > 1:
			reason = "pp_debiased and combined, its other choices, square rows one by one, and a step of several " +
				"offsets has their sum"
		case m.Second != nil:
			reason = "the second moment has a workload or factorization of its own"
		}
		return fmt.Sprintf("auto took %s, because %s", uses.Method, reason)
	}
	which := fmt.Sprintf("of the release of step %d", c.Step)
	if c.Metric == "sum" {
		which = fmt.Sprintf("of all releases up to step %d together", c.Step)
	}
	var compared []string
	for _, a := range c.Alternatives {
		compared = append(compared, fmt.Sprintf("%s %.3g and %.3g", a.Method, a.First, a.Second))
	}
	return fmt.Sprintf(
		"auto took %s, because it has the least weighted sum of the squared errors of mean and second moment (%s), %s",
		uses.Method, strings.Join(compared, ", "), which)
}

// gainOfTune compares the stream with itself if tune named the last of the plan's steps. It is
// empty if such a stream can't be built, or the plan has one step only.
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
		"with tune = %d noise would be %s at step %d, and %s at step %d: name it if about so many steps are what "+
			"counts (it is no end: more may follow)",
		last, change(last), last, change(first), first)
}

// InWords writes a JSON object, such as the description of a mechanism, for people: key and value,
// key and value. Numbers have six digits. What a plan says elsewhere in sentences is left out, as
// how long a step by the clock can be.
func InWords(raw []byte) string {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return string(raw)
	}
	var all []string
	kind := "" // the mechanism's name, which comes first
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
		case key == "clock" && len(all) > 0: // then the length before it is a bound
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

// short writes a JSON value that is no object: words without quotes, lists with blanks, and of
// a number that is no integer six digits.
func short(value json.RawMessage) string {
	if x, err := strconv.ParseFloat(string(value), 64); err == nil && x != math.Trunc(x) {
		return fmt.Sprintf("%.6g", x)
	}
	return strings.NewReplacer(`"`, "", ",", ", ").Replace(string(value))
}
