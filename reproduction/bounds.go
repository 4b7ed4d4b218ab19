package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dataset"
	"github.com/streamdp/streamdp/moments"
	"github.com/streamdp/streamdp/stream/dryrun"
)

// boundsErrors holds the errors of moments for one set of rows in one order, by the method that found the bounds.
type boundsErrors struct {
	Set    string `json:"set"`
	Order  string `json:"order"` // "random" or "file"; "drawn" for a family
	Dim    int    `json:"d"`
	Warmup int    `json:"warmup"`
	Rows   int    `json:"n"` // number of rows after the warm-up
	Trials int    `json:"trials"`
	// Clip is the oracle's clip norm.
	Clip float64 `json:"clip"`
	// Mean and Covariance are root mean square errors over entries, as medians over trials, in units of the columns'
	// deviations. WorstMean and WorstCovariance are the errors of the worst automatic trial.
	Mean            map[string]float64 `json:"mean"`
	Covariance      map[string]float64 `json:"covariance"`
	WorstMean       float64            `json:"worst_mean"`
	WorstCovariance float64            `json:"worst_covariance"`
	// Noise and Wide are shares of the entries of automatic releases: those whose true value, before any clipping, is
	// within 1.96·se (Noise) or 1.96·se_with_clipping (Wide). The three numbers are for means, for covariances off the
	// diagonal, and for those on it.
	Noise [3]float64 `json:"noise"`
	Wide  [3]float64 `json:"wide"`
	// Frozen is the mean number of frozen columns. Verdicts counts trials.
	Frozen   float64        `json:"frozen"`
	Verdicts map[string]int `json:"verdicts"`
}

// boundsMethods lists the ways to find bounds, in the order of the page.
var boundsMethods = []struct{ key, title string }{
	{"auto", "automatic"}, {"wide 5", "5 times too wide"}, {"wide 100", "100 times too wide"},
	{"approx", "ApproxBounds-like"}, {"coinpress", "CoinPress"},
}

const (
	boundsStep    = 1000
	boundsEpsilon = 1.0
	boundsDelta   = 1e-6
	boundsRows    = 25_000 // rows of a family, and of a set with fewer rows
	boundsPrior   = 100    // half-width of the interval for CoinPress, in deviations
	boundsWide    = 4      // number of trials with constants that are too wide, whose errors scatter least
)

// boundsTrials returns the number of trials for d columns. With few columns, results scatter more, so there are more
// trials.
func boundsTrials(d int) int { return 16 * (1 + 3/d) }

// family draws rows.
type family struct {
	name string
	dim  int
	row  func(r *rand.Rand, x []float64, at float64) // at is the position in the stream, from 0 to 1
}

// eachColumn returns a family whose columns have the same distribution, but different scales (1, 2, …) and centres (−1,
// 2, −3, …).
func eachColumn(name string, d int, draw func(r *rand.Rand) float64) family {
	return family{name, d, func(r *rand.Rand, x []float64, _ float64) {
		for j := range x {
			unit := float64(j + 1)
			x[j] = unit * (draw(r) + math.Cos(math.Pi*unit))
		}
	}}
}

// student draws from Student's t.
func student(r *rand.Rand, degrees float64) float64 {
	// This is a Gamma variate by the method of Marsaglia and Tsang.
	a := degrees/2 - 1./3
	for {
		z := r.NormFloat64()
		v := math.Pow(1+z/math.Sqrt(9*a), 3)
		if v > 0 && math.Log(1-r.Float64()) < z*z/2+a-a*v+a*math.Log(v) {
			return r.NormFloat64() / math.Sqrt(a*v/(degrees/2))
		}
	}
}

// boundsFamilies lists the simulated rows.
var boundsFamilies = []family{
	eachColumn("Gaussian", 1, (*rand.Rand).NormFloat64),
	eachColumn("Gaussian", 10, (*rand.Rand).NormFloat64),
	eachColumn("Gaussian", 30, (*rand.Rand).NormFloat64),
	{"Gaussian, many places and sizes", 10, func(r *rand.Rand, x []float64, _ float64) {
		centre := []float64{0, 3, -1e6, 2.5e9, 1e-7, 40, -0.3, 7e4, 12, 1}
		scale := []float64{1, 1, 1e3, 4e3, 1e-9, 35, 0.01, 1e5, 2, 1e-3}
		for j := range x {
			x[j] = centre[j] + scale[j]*r.NormFloat64()
		}
	}},
	{"Gaussian, neighbours correlated by 0.9", 10, func(r *rand.Rand, x []float64, _ float64) {
		z := r.NormFloat64()
		for j := range x {
			x[j] = 5 + 2*z
			z = 0.9*z + math.Sqrt(1-0.81)*r.NormFloat64()
		}
	}},
	{"timestamps", 3, func(r *rand.Rand, x []float64, _ float64) {
		x[0], x[1], x[2] = 1.7e9+1000*r.NormFloat64(), 20_000+r.Float64()*30, 12+3*r.NormFloat64()
	}},
	eachColumn("uniform", 10, (*rand.Rand).Float64),
	eachColumn("Laplace", 10, func(r *rand.Rand) float64 { return r.ExpFloat64() - r.ExpFloat64() }),
	eachColumn("exponential", 10, (*rand.Rand).ExpFloat64),
	eachColumn("Poisson, mean 3", 10, func(r *rand.Rand) float64 {
		n := -1.0
		for t := 0.0; t < 3; t += r.ExpFloat64() {
			n++
		}
		return n
	}),
	eachColumn("lognormal, σ = 1", 10, func(r *rand.Rand) float64 { return math.Exp(r.NormFloat64()) }),
	eachColumn("Student, 5 degrees", 10, func(r *rand.Rand) float64 { return student(r, 5) }),
	eachColumn("Student, 3 degrees", 10, func(r *rand.Rand) float64 { return student(r, 3) }),
	eachColumn("Student, 2.5 degrees", 10, func(r *rand.Rand) float64 { return student(r, 2.5) }),
	eachColumn("two clusters", 10, func(r *rand.Rand) float64 {
		return math.Copysign(5, r.Float64()-0.7) + r.NormFloat64()
	}),
	{"nine Gaussian columns beside a lognormal one, σ = 2", 10, func(r *rand.Rand, x []float64, _ float64) {
		for j := range x {
			x[j] = r.NormFloat64()
		}
		x[9] = math.Exp(2 * x[9])
	}},
	{"0 or 1, ones in 50, 20 and 10 %", 9, ones(0.5, 0.2, 0.1)},
	{"0 or 1, ones in 5, 3 and 1 %", 9, ones(0.05, 0.03, 0.01)},
	{"one of ten classes, as 0 and 1", 10, func(r *rand.Rand, x []float64, _ float64) {
		clear(x)
		x[r.IntN(len(x))] = 1
	}},
	{"mostly 0, else exponential", 10, func(r *rand.Rand, x []float64, _ float64) {
		for j := range x {
			x[j] = 0
			if r.Float64() < 0.2 {
				x[j] = 100 * r.ExpFloat64()
			}
		}
	}},
	{"Gaussian, drifting by 4 deviations", 10, func(r *rand.Rand, x []float64, at float64) {
		for j := range x {
			x[j] = 4*at + r.NormFloat64()
		}
	}},
}

// ones returns a function that draws columns of 0 and 1. The probabilities of 1 are the given shares, which the columns
// use in turn.
func ones(shares ...float64) func(*rand.Rand, []float64, float64) {
	return func(r *rand.Rand, x []float64, _ float64) {
		for j := range x {
			x[j] = 0
			if r.Float64() < shares[j%len(shares)] {
				x[j] = 1
			}
		}
	}
}

// rows draws the rows of a trial.
func (f *family) rows(trial uint64) [][]float64 {
	source := rand.New(rand.NewPCG(trial, 23))
	rows := make([][]float64, boundsRows)
	for i := range rows {
		rows[i] = make([]float64, f.dim)
		f.row(source, rows[i], float64(i)/boundsRows)
	}
	return rows
}

// ordered returns the rows of a data set for a trial, in file order or in random order. If there are few rows, file
// order starts again from the first row, and random order draws with replacement.
func ordered(all [][]float64, order string, trial uint64) [][]float64 {
	source := rand.New(rand.NewPCG(trial, 29))
	rows := slices.Clone(all)
	few := len(all) < boundsRows/2
	switch {
	case order == "random" && few:
		rows = rows[:0]
		for range boundsRows {
			rows = append(rows, all[source.IntN(len(all))])
		}
	case order == "random":
		source.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
	case few:
		for i := range boundsRows - len(all) {
			rows = append(rows, all[i%len(all)])
		}
	}
	return rows
}

// simulateBounds compares the methods on all families and data sets.
func simulateBounds() (any, error) {
	if dataset.Folder() == "" {
		return nil, errors.New("STREAMDP_DATA is not set to a folder of data sets")
	}
	var all []*boundsErrors
	for _, f := range boundsFamilies {
		e, err := compareBounds(f.name, "drawn", boundsTrials(f.dim), f.rows)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		log.Print(f.name)
		all = append(all, e)
	}
	for _, set := range refitSets {
		for _, order := range []string{"random", "file"} {
			e, err := boundsOfSet(set.name, order)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", set.name, err)
			}
			log.Print(set.name, ", ", order)
			all = append(all, e)
		}
	}
	return all, nil
}

// boundsOfSet compares the methods on a data set.
func boundsOfSet(name, order string) (*boundsErrors, error) {
	all, err := wholeSet(name)
	if err != nil {
		return nil, err
	}
	return compareBounds(name, order, boundsTrials(len(all[0])),
		func(trial uint64) [][]float64 { return ordered(all, order, trial) })
}

// compareBounds runs all methods on the rows of the given number of trials, with keys that depend on the trial.
func compareBounds(name, order string, trials int, draw func(trial uint64) [][]float64) (*boundsErrors, error) {
	mu, err := dp.Mu(boundsEpsilon, boundsDelta)
	if err != nil {
		return nil, err
	}
	e := &boundsErrors{Set: name, Order: order, Trials: trials, Mean: map[string]float64{},
		Covariance: map[string]float64{}, Verdicts: map[string]int{}}
	var entries, covered, wide [3]float64
	means, covariances := map[string][]float64{}, map[string][]float64{}
	for trial := uint64(1); trial <= uint64(trials); trial++ {
		rows := draw(trial)
		d := len(rows[0])
		// The length of the warm-up is public. For all methods, the truth is computed from the rows after it.
		n, err := warmupLength(d)
		if err != nil {
			return nil, err
		}
		rest := rows[n:]
		rest = rest[:len(rest)/boundsStep*boundsStep]
		truth := momentsOf(rest)
		e.Dim, e.Warmup, e.Rows = d, n, len(rest)
		add := func(key string, c *constants, rows [][]float64) (*boundsRelease, error) {
			r, err := replayMoments(rows, len(rest)/boundsStep, c, trial)
			if err != nil || r == nil {
				return r, err
			}
			mean, covariance := truth.errors(r)
			means[key], covariances[key] = append(means[key], mean), append(covariances[key], covariance)
			return r, nil
		}
		r, err := add("auto", nil, rows)
		if err != nil {
			return nil, err
		}
		if r != nil {
			e.Verdicts[r.Bounds.Verdict]++
			e.Frozen += float64(len(r.Bounds.Frozen)) / float64(trials)
			truth.cover(r, &entries, &covered, &wide)
		} else {
			e.Verdicts["fail"]++
		}

		oracle := &constants{centre: truth.mean, scale: make([]float64, d)}
		for j := range d {
			oracle.scale[j] = orOne(truth.deviation[j])
		}
		if e.Clip == 0 {
			if e.Clip, err = bestClip(rest, oracle); err != nil {
				return nil, err
			}
			e.Clip = digits(e.Clip)
		}
		oracle.clip = e.Clip
		prior, where := make([]float64, d), make([]float64, d)
		source := rand.New(rand.NewPCG(trial, 31))
		for j := range d {
			prior[j] = boundsPrior * oracle.scale[j]
			where[j] = truth.mean[j] + prior[j]*(source.Float64()-0.5)
		}
		loose := func(factor float64) *constants {
			return &constants{oracle.centre, oracle.scale, factor * oracle.clip}
		}
		for key, c := range map[string]*constants{
			"oracle": oracle, "wide 5": loose(5), "wide 100": loose(100),
			"approx": approxBounds(rows[:n], mu, source), "coinpress": coinPress(rows[:n], where, prior, mu, source),
		} {
			if strings.HasPrefix(key, "wide") && trial > boundsWide {
				continue
			}
			if _, err := add(key, c, rest); err != nil {
				return nil, err
			}
		}
	}
	for key := range means {
		e.Mean[key], e.Covariance[key] = digits(median(means[key])), digits(median(covariances[key]))
	}
	if automatic := means["auto"]; len(automatic) > 0 {
		e.WorstMean, e.WorstCovariance = digits(slices.Max(automatic)), digits(slices.Max(covariances["auto"]))
	}
	for i, n := range entries {
		if n > 0 {
			e.Noise[i], e.Wide[i] = digits(covered[i]/n), digits(wide[i]/n)
		}
	}
	return e, nil
}

// rowMoments holds mean, deviation and covariance of unclipped rows.
type rowMoments struct {
	mean, deviation []float64
	covariance      []float64 // upper triangle
}

func momentsOf(rows [][]float64) *rowMoments {
	d, n := len(rows[0]), float64(len(rows))
	t := &rowMoments{mean: make([]float64, d), deviation: make([]float64, d), covariance: make([]float64, d*(d+1)/2)}
	for _, row := range rows {
		for j, v := range row {
			t.mean[j] += v / n
		}
	}
	z := make([]float64, d)
	for _, row := range rows {
		for j, v := range row {
			z[j] = v - t.mean[j]
		}
		k := 0
		for i, a := range z {
			for _, b := range z[i:] {
				t.covariance[k] += a * b / n
				k++
			}
		}
	}
	for j := range d {
		// A spread below the rounding of the mean counts as none.
		if v := math.Sqrt(variance(t.covariance, d, j)); v > 1e-12*math.Abs(t.mean[j]) {
			t.deviation[j] = v
		}
	}
	return t
}

// each calls f for every entry between columns that vary, with its number, its unit, and whether it is on the diagonal.
func (t *rowMoments) each(f func(n int, unit float64, diagonal bool)) {
	n := 0
	for i, a := range t.deviation {
		for j, b := range t.deviation[i:] {
			if a > 0 && b > 0 {
				f(n, a*b, j == 0)
			}
			n++
		}
	}
}

// errors returns the root mean square errors of a release over the columns that vary, in units of deviations.
func (t *rowMoments) errors(r *boundsRelease) (mean, covariance float64) {
	m, c := r.Values["mean_original"], r.Values["covariance_original"]
	columns, pairs := 0.0, 0.0
	for j, s := range t.deviation {
		if s > 0 {
			e := (m.Data[j] - t.mean[j]) / s
			mean += e * e
			columns++
		}
	}
	t.each(func(n int, unit float64, _ bool) {
		e := (c.Data[n] - t.covariance[n]) / unit
		covariance += e * e
		pairs++
	})
	return math.Sqrt(mean / columns), math.Sqrt(covariance / pairs)
}

// cover counts the entries that have an error bar, and those whose error bar covers the truth.
func (t *rowMoments) cover(r *boundsRelease, entries, covered, wide *[3]float64) {
	one := func(kind int, v *boundsValue, n int, truth float64) {
		if v.SE[n] == nil {
			return
		}
		entries[kind]++
		e := math.Abs(v.Data[n] - truth)
		if e <= 1.96**v.SE[n] {
			covered[kind]++
		}
		if e <= 1.96**v.Wide[n] {
			wide[kind]++
		}
	}
	m, c := r.Values["mean_original"], r.Values["covariance_original"]
	for j, s := range t.deviation {
		if s > 0 {
			one(0, &m, j, t.mean[j])
		}
	}
	t.each(func(n int, _ float64, diagonal bool) {
		kind := 1
		if diagonal {
			kind = 2
		}
		one(kind, &c, n, t.covariance[n])
	})
}

// bestClip returns the clip norm with the smallest mean squared error. The error has two parts: that of the noise,
// which is public, and that of clipping, which is computed from the rows.
func bestClip(rows [][]float64, c *constants) (float64, error) {
	d := len(c.centre)
	r, err := replayMoments(rows, len(rows)/boundsStep, &constants{c.centre, c.scale, 1}, 1)
	if err != nil {
		return 0, err
	}
	// unit1 is the noise of an entry of the mean for clip norm 1. The covariance also has noise of the mean, which is
	// small.
	unit1 := *r.Values["mean_original"].SE[0] / c.scale[0]
	var unit2 float64
	n := 0
	for i := range d {
		for j := i; j < d; j++ {
			x := *r.Values["covariance_original"].SE[n] / (c.scale[i] * c.scale[j])
			unit2 += x * x / float64(d*(d+1)/2)
			n++
		}
	}
	best, least := 0.0, math.Inf(1)
	z := make([][]float64, len(rows))
	for k, row := range rows {
		z[k] = make([]float64, d)
		for j, v := range row {
			z[k][j] = (v - c.centre[j]) / c.scale[j]
		}
	}
	flat := slices.Repeat([]float64{1}, d)
	none := covariance(z, flat, math.Inf(1))
	for k := -4; k <= 24; k++ {
		clip := math.Sqrt(float64(d)) * math.Pow(2, float64(k)/4)
		mean := make([]float64, d)
		for _, x := range z {
			short := min(1, clip/length(x))
			for j, v := range x {
				mean[j] += v * short / float64(len(z))
			}
		}
		var first, second float64
		for _, m := range mean {
			first += m * m / float64(d)
		}
		for i, v := range covariance(z, flat, clip) {
			second += (v - none[i]) * (v - none[i]) / float64(len(none))
		}
		if cost := first + unit1*unit1*clip*clip + second + unit2*math.Pow(clip, 4); cost < least {
			best, least = clip, cost
		}
	}
	return best, nil
}

// boundsRelease holds the fields of a release that the comparison needs.
type boundsRelease struct {
	Values map[string]boundsValue
	Bounds struct {
		Verdict string
		Frozen  []string
	}
}

type boundsValue struct {
	Data []float64
	SE   perEntry
	Wide perEntry `json:"se_with_clipping"`
}

// perEntry holds a number for each entry, or nil for an entry without a number. A list of one number stands for all
// entries.
type perEntry []*float64

func (x *perEntry) UnmarshalJSON(b []byte) error {
	var one *float64
	if json.Unmarshal(b, &one) == nil {
		*x = perEntry{one}
		return nil
	}
	return json.Unmarshal(b, (*[]*float64)(x))
}

// boundsStream returns the configuration of moments of d columns. If c is nil, the constants are found.
func boundsStream(d int, steps int, c *constants) (*config.Stream, error) {
	list := func(x []float64) string {
		words := make([]string, len(x))
		for i, v := range x {
			if words[i] = fmt.Sprintf("%g", v); !strings.ContainsAny(words[i], ".e") {
				words[i] += ".0"
			}
		}
		return "[" + strings.Join(words, ", ") + "]"
	}
	clip, scaling := "", ""
	if c != nil {
		clip, scaling = fmt.Sprintf("clip = %g\n", c.clip),
			fmt.Sprintf("centre = %s\nscale = %s\n", list(c.centre), list(c.scale))
	}
	columns := strings.ReplaceAll(fmt.Sprintf("%q", features(d)), `" "`, `", "`)
	cfg, err := config.Parse("reproduction", fmt.Appendf(nil, `[kafka]
brokers = ["none:1"]
[state]
dir = "none"
key_file = "none"
[stream.data]
input = { topic = "data", codec = "float64", columns = %s }
output.values = ["mean_original", "covariance_original"]
step = %d
%s[stream.data.privacy]
epsilon = %g
delta = %g
adjacency = "zero-out"
[stream.data.moments]
tune = %d
%s`, columns, boundsStep, scaling, boundsEpsilon, boundsDelta, steps, clip))
	if err != nil {
		return nil, err
	}
	return cfg.Streams[0], nil
}

// warmupLength returns the number of offsets of the warm-up for d columns, a multiple of the step.
func warmupLength(d int) (int, error) {
	s, err := boundsStream(d, boundsRows/boundsStep, nil)
	if err != nil {
		return 0, err
	}
	e, err := moments.New(*s.Moments, s.Params())
	if err != nil {
		return 0, err
	}
	return int(e.Plan().Warmup.Records), nil
}

// replayMoments runs the daemon's estimator over rows, with the given number of steps of moments. It returns the last
// release, or nil if a warm-up failed.
func replayMoments(rows [][]float64, steps int, c *constants, seed uint64) (*boundsRelease, error) {
	d := len(rows[0])
	s, err := boundsStream(d, steps, c)
	if err != nil {
		return nil, err
	}
	var last []byte
	replay, err := dryrun.NewReplay(nil, s, "reproduction", &seed, func(release []byte) error {
		last = release
		return nil
	})
	if err != nil {
		return nil, err
	}
	defer replay.Close()
	value := make([]byte, 0, 8*d)
	for _, row := range rows {
		value = value[:0]
		for _, v := range row {
			value = binary.LittleEndian.AppendUint64(value, math.Float64bits(v))
		}
		if err := replay.Add(value); errors.Is(err, dp.ErrExhausted) {
			break
		} else if err != nil {
			return nil, err
		}
	}
	if replay.Failed() {
		return nil, nil
	}
	r := new(boundsRelease)
	return r, json.Unmarshal(last, r)
}

// median returns the median of x.
func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}
