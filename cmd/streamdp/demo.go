package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"streamdp/config"
	"streamdp/dp"
	"streamdp/internal/fault"
	"streamdp/internal/kafka"
	"streamdp/internal/kafka/embedded"
	"streamdp/stream"
)

// demoFlags are the flags of demo.
type demoFlags struct {
	once                  bool
	csv, header, workload string
	columns               []string
	centre, scale         string
	clip, epsilon, delta  float64
	step                  uint64
	adjacency, listen     string
	seed                  uint64
	seeded                bool
}

// demoRecords is the length of the built-in stream. Without --once it is longer
// and comes at a rate: five minutes, because the broker keeps all of it in memory.
const (
	demoRecords = 40_000
	demoRate    = 2000
	demoLong    = 300 * demoRate
)

func demoCommand(g *globals) *cobra.Command {
	var f demoFlags
	c := &cobra.Command{
		Use:   "demo",
		Short: "Show the daemon at work on a stream whose truth is known",
		Long: "Start a broker in this process, feed it a stream, run the daemon against it\n" +
			"over TCP, and compare every release with the truth.\n\n" +
			"Without --csv the stream is synthetic: nine correlated columns, the last one\n" +
			"heavy-tailed, so that rows are clipped. With --csv it is your file; centre,\n" +
			"scale and clip are then public constants that you give, never derived from\n" +
			"the rows.\n\n" +
			"Without --once the synthetic stream lasts five minutes, and broker and daemon\n" +
			"run on until they are interrupted. Their addresses are printed: streamdp status\n" +
			"takes the one, and a configuration of your own may read topic demo (JSON,\n" +
			"columns v1, v2 and so on) of the other.",
		RunE: func(c *cobra.Command, _ []string) error {
			f.seeded = c.Flags().Changed("insecure-seed")
			for _, name := range []string{"header", "columns", "centre", "scale"} {
				if f.csv == "" && c.Flags().Changed(name) {
					return usagef("--%s goes with --csv", name)
				}
			}
			return g.demo(c.Context(), &f)
		},
	}
	fl := c.Flags()
	fl.BoolVar(&f.once, "once", false, "end when the stream is consumed; without it, run until interrupted")
	fl.StringVar(&f.csv, "csv", "", "CSV file to stream, also .gz")
	fl.StringVar(&f.header, "header", "auto", "whether the CSV file has a header: auto, yes or no")
	fl.StringSliceVar(&f.columns, "columns", nil, "columns of the CSV file, names or 1-based numbers (default: all)")
	fl.StringVar(&f.centre, "centre", "0", "constant to subtract, one number or one a column")
	fl.StringVar(&f.scale, "scale", "1", "constant to divide by, one number or one a column")
	fl.Float64Var(&f.clip, "clip", 0, "bound on a row's norm after scaling (required with --csv)")
	fl.Uint64Var(&f.step, "step", 100, "offsets per release")
	fl.StringVar(&f.workload, "workload", "mean", "what a release sums up: mean, sum, exponential (decay 0.99) or window (20 steps)")
	fl.Float64Var(&f.epsilon, "epsilon", 1, "epsilon of the guarantee")
	fl.Float64Var(&f.delta, "delta", 1e-8, "delta of the guarantee")
	fl.StringVar(&f.adjacency, "adjacency", "zero-out", "what neighbouring streams differ in: zero-out or replace")
	fl.StringVar(&f.listen, "listen", "127.0.0.1:0", "address of metrics and status")
	fl.Uint64Var(&f.seed, "insecure-seed", 0, "derive keys and data from a number: reproducible, and protecting nothing")
	return c
}

// demo is a running demonstration.
type demo struct {
	f       *demoFlags
	names   []string
	centre  []float64
	scale   []float64
	rows    func() ([]string, error) // cells of the next row
	total   int64                    // rows, 0 if unknown
	truth   *truth
	records int64
}

// demoResult is what --json prints.
type demoResult struct {
	Records   int64        `json:"records"`
	Steps     uint64       `json:"steps"`
	Releases  int          `json:"releases"`
	Epsilon   float64      `json:"epsilon"`
	Delta     float64      `json:"delta"`
	Adjacency dp.Adjacency `json:"adjacency"`
	// MaxAbsZ is the largest |release − truth| / standard error over all
	// entries of means and second moments of all steps; Bound is what it
	// exceeds once in a million runs; Coverage the share below 1.96.
	MaxAbsZ  float64 `json:"max_abs_z"`
	Bound    float64 `json:"max_abs_z_bound"`
	Coverage float64 `json:"coverage"`
	Values   int     `json:"values"`
	Seconds  float64 `json:"seconds"`
}

func (g *globals) demo(ctx context.Context, f *demoFlags) (err error) {
	begun := time.Now()
	d := &demo{f: f}
	closeInput, err := d.open()
	if err != nil {
		return err
	}
	defer closeInput()
	dir, err := os.MkdirTemp("", "streamdp-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	broker, err := embedded.Start(embedded.Options{Topics: []string{"demo"}})
	if err != nil {
		return err
	}
	defer broker.Close()
	cfg, err := config.Parse("demo configuration", d.configuration(broker.Addr(), dir))
	if err != nil {
		return flagFaults(err)
	}
	if _, err := stream.Describe(cfg.Streams[0]); err != nil {
		return usageError{err}
	}
	d.truth = newTruth(cfg.Streams[0])

	log, err := g.logger("warn", "text")
	if err != nil {
		return err
	}
	secret := dp.NewSecret()
	o := stream.Options{Config: cfg, Key: &secret, Log: log, Version: version()}
	if f.seeded {
		o.Key, o.InsecureSeed = stream.InsecureKey(f.seed), &f.seed
	}
	daemon, err := stream.New(o)
	if err != nil {
		return err
	}
	defer daemon.Close()
	running, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- daemon.Run(running) }()
	client, err := kafka.NewClient(kafka.Options{Brokers: []string{broker.Addr()}})
	if err != nil {
		return err
	}
	defer client.Close()

	if !f.once {
		if err := serving(ctx, daemon, done); err != nil {
			return err
		}
		fmt.Fprintf(g.stderr, "broker at %s, topics demo and demo.dp; status at http://%s/api/v1/status, metrics at /metrics; interrupt to end\n",
			broker.Addr(), daemon.Addr())
	}
	bar := progress(g.stderr, d.total, "demo")
	if err := d.feed(running, client, bar); err != nil && ctx.Err() == nil {
		return err
	}
	if err := d.consumed(ctx, daemon, done, bar, g.stderr); err != nil {
		return err
	}
	bar.Finish()
	stop()
	if err := <-done; err != nil {
		return err
	}
	result, last, err := d.judge(client)
	if err != nil {
		return err
	}
	result.Seconds = time.Since(begun).Seconds()
	if g.json {
		return json.NewEncoder(g.stdout).Encode(result)
	}
	return d.print(g.stdout, result, last)
}

// open readies the rows: those of the file, or the synthetic ones.
func (d *demo) open() (done func() error, err error) {
	f := d.f
	if !slices.Contains([]string{"auto", "yes", "no"}, f.header) {
		return nil, usagef("--header is %q, must be auto, yes or no", f.header)
	}
	if f.csv == "" {
		if f.clip == 0 {
			f.clip = 1.5
		}
		d.synthetic()
		return func() error { return nil }, nil
	}
	if !(f.clip > 0) {
		return nil, usagef("--clip is needed: a public bound on a row's norm after scaling")
	}
	t, err := openTable(f.csv, f.header, f.columns)
	if err != nil {
		return nil, err
	}
	d.names = make([]string, len(t.names))
	for i := range t.names {
		d.names[i] = fmt.Sprintf("v%d", i+1) // names of a file may hold dots
	}
	if d.centre, err = numbers("--centre", f.centre, len(d.names)); err == nil {
		d.scale, err = numbers("--scale", f.scale, len(d.names))
	}
	if err != nil {
		t.close()
		return nil, err
	}
	d.names = t.names
	d.rows = func() ([]string, error) {
		line, err := t.next()
		if err != nil {
			return nil, err
		}
		return t.picked(line), nil
	}
	return t.close, nil
}

// numbers parses a list of one number, or of one a column.
func numbers(flag, list string, columns int) ([]float64, error) {
	words := strings.Split(list, ",")
	if len(words) != 1 && len(words) != columns {
		return nil, usagef("%s has %d numbers, must have 1 or one for each of the %d columns", flag, len(words), columns)
	}
	x := make([]float64, columns)
	for i := range x {
		word := strings.TrimSpace(words[min(i, len(words)-1)])
		v, err := strconv.ParseFloat(word, 64)
		if err != nil || math.IsInf(v, 0) || math.IsNaN(v) {
			return nil, usagef("%s: %q is not a number", flag, word)
		}
		x[i] = v
	}
	return x, nil
}

// synthetic makes rows with mean j in column j and correlation 0.6^|i−j|; the
// last column has a tail of two moments (Student's t with 2.5 degrees).
func (d *demo) synthetic() {
	const columns, rho = 9, 0.6
	seed := d.f.seed
	if !d.f.seeded {
		seed = rand.Uint64()
	}
	source := rand.New(rand.NewPCG(seed, 1))
	for j := range columns {
		d.names = append(d.names, fmt.Sprintf("v%d", j+1))
		d.centre = append(d.centre, float64(j+1))
		d.scale = append(d.scale, 3)
	}
	d.total = demoRecords
	if !d.f.once {
		d.total = demoLong
	}
	n := int64(0)
	d.rows = func() ([]string, error) {
		if n++; n > d.total {
			return nil, io.EOF
		}
		cells := make([]string, columns)
		var z float64
		for j := range columns {
			e := source.NormFloat64()
			if j > 0 {
				e = rho*z + math.Sqrt(1-rho*rho)*e
			}
			z = e
			if j == columns-1 {
				z /= math.Sqrt(chiSquared(source, 5) / 5) // heavy tail
			}
			cells[j] = strconv.FormatFloat(float64(j+1)+z, 'f', 6, 64)
		}
		return cells, nil
	}
}

func chiSquared(source *rand.Rand, degrees int) (sum float64) {
	for range degrees {
		z := source.NormFloat64()
		sum += z * z
	}
	return sum
}

func (d *demo) configuration(broker, dir string) []byte {
	list := func(x []float64) string {
		words := make([]string, len(x))
		for i, v := range x {
			words[i] = strconv.FormatFloat(v, 'g', -1, 64)
			if !strings.ContainsAny(words[i], ".e") {
				words[i] += ".0"
			}
		}
		return "[" + strings.Join(words, ", ") + "]"
	}
	quote := func(s string) string { b, _ := json.Marshal(s); return string(b) }
	columns := make([]string, len(d.names))
	for i := range d.names {
		columns[i] = quote(fmt.Sprintf("v%d", i+1))
	}
	extra := ""
	switch d.f.workload {
	case "exponential":
		extra = "decay = 0.99\n"
	case "window":
		extra = "window = 20\n"
	}
	return fmt.Appendf(nil, `[kafka]
brokers = [%s]
[state]
dir = %s
key_file = "unused"
commit_interval = "50ms"
[http]
listen = %s
[stream.demo]
input = { topic = "demo", codec = "json", columns = [%s] }
output = { topic = "demo.dp" }
centre = %s
scale = %s
step = %d
[stream.demo.privacy]
epsilon = %g
delta = %g
adjacency = %s
limit_epsilon = %g
[stream.demo.moments]
clip = %g
workload = %s
%s`, quote(broker), quote(filepath.Join(dir, "state")), quote(d.f.listen), strings.Join(columns, ", "), list(d.centre), list(d.scale), d.f.step,
		d.f.epsilon, d.f.delta, quote(d.f.adjacency), d.f.epsilon, d.f.clip, quote(d.f.workload), extra)
}

// demoKeys are the keys of the configuration that a flag of demo sets.
var demoKeys = map[string]string{
	"http.listen":                   "--listen",
	"stream.demo.centre":            "--centre",
	"stream.demo.scale":             "--scale",
	"stream.demo.step":              "--step",
	"stream.demo.privacy.epsilon":   "--epsilon",
	"stream.demo.privacy.delta":     "--delta",
	"stream.demo.privacy.adjacency": "--adjacency",
	"stream.demo.moments.clip":      "--clip",
	"stream.demo.moments.workload":  "--workload",
}

// flagFaults says what is wrong with the flags that a faulty configuration was
// made from.
func flagFaults(err error) error {
	var faults config.Faults
	errors.As(err, &faults)
	var lines []string
	for _, f := range faults {
		// Keys without a flag follow from one that has a fault.
		if flag := demoKeys[f.Key]; flag != "" {
			lines = append(lines, (&fault.Fault{Key: flag, Rule: f.Rule, Value: f.Value}).Error())
		}
	}
	if lines = slices.Compact(lines); len(lines) == 0 {
		return usageError{err}
	}
	return usagef("%s", strings.Join(lines, "\n"))
}

// feed sends all rows and adds them to the truth.
func (d *demo) feed(ctx context.Context, client *kafka.Client, bar *progressbar.ProgressBar) error {
	s := &sender{client: client, topic: "demo", started: time.Now()}
	if !d.f.once && d.f.csv == "" {
		s.rate = demoRate
	}
	defer func() { d.records = int64(s.count - len(s.batch)) }() // an interrupt may leave some unsent
	names := make([]string, len(d.names))
	for i := range names {
		names[i] = fmt.Sprintf("v%d", i+1)
	}
	for {
		cells, err := d.rows()
		if err == io.EOF {
			return s.flush(ctx)
		}
		if err != nil {
			return err
		}
		// Before it is sent: an interrupt may come when the daemon has it already.
		d.truth.add(cells)
		if err := s.send(ctx, encodeRow("json", names, cells)); err != nil {
			return err
		}
		if s.count%1000 == 0 {
			bar.Set64(int64(s.count))
		}
	}
}

// serving waits until the daemon's HTTP server listens, or the user interrupts.
func serving(ctx context.Context, daemon *stream.Daemon, done chan error) error {
	for daemon.Addr() == "" && ctx.Err() == nil {
		select {
		case err := <-done:
			return ended(err)
		case <-ctx.Done():
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// ended is the error of a daemon that ended by itself.
func ended(err error) error {
	if err == nil {
		err = errors.New("the daemon ended before the stream was consumed")
	}
	return err
}

// consumed waits until every step is published or, without --once, until the
// user interrupts.
func (d *demo) consumed(ctx context.Context, daemon *stream.Daemon, done chan error, bar *progressbar.ProgressBar, stderr io.Writer) error {
	steps := uint64(d.records) / d.f.step
	said := false
	for {
		s := daemon.Status()[0]
		if s.Step >= steps && s.Outbox == 0 || ctx.Err() != nil {
			if d.f.once || ctx.Err() != nil {
				return nil
			}
			if !said {
				bar.Finish()
				fmt.Fprintln(stderr, "stream consumed")
				said = true
			}
		}
		select {
		case err := <-done:
			return ended(err)
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// judge reads all releases and compares them with the truth.
func (d *demo) judge(client *kafka.Client) (*demoResult, *published, error) {
	adjacency := dp.ZeroOut
	if err := adjacency.UnmarshalText([]byte(d.f.adjacency)); err != nil {
		return nil, nil, err
	}
	r := &demoResult{Records: d.records, Epsilon: d.f.epsilon, Delta: d.f.delta, Adjacency: adjacency}
	seen := map[uint64]bool{}
	var last *published
	below := 0
	err := client.ReadBack(context.Background(), "demo.dp", 0, 0, func(rec *kafka.Record) error {
		p := new(published)
		if err := json.Unmarshal(rec.Value, p); err != nil {
			return err
		}
		if seen[p.Step] {
			return nil // published again, the same bytes
		}
		seen[p.Step] = true
		r.Releases++
		r.Steps = max(r.Steps, p.Step)
		want, ok := d.truth.at(p.Step)
		if !ok {
			return fmt.Errorf("release of step %d, which is not complete", p.Step)
		}
		last = p
		for name, truth := range map[string][]float64{d.truth.first: want.mean, "second_moment": want.second} {
			v := p.Values[name]
			for i, t := range truth {
				z := math.Abs(v.Data[i]-t) / v.se(i)
				r.MaxAbsZ = max(r.MaxAbsZ, z)
				if z < 1.96 {
					below++
				}
				r.Values++
			}
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	if r.Values == 0 {
		return nil, nil, fmt.Errorf("the stream's %d rows do not fill a step of %d", d.records, d.f.step)
	}
	r.Coverage = float64(below) / float64(r.Values)
	r.Bound = math.Sqrt2 * math.Erfcinv(1e-6/float64(r.Values))
	return r, last, nil
}

// published is what the comparison reads of a release.
type published struct {
	Step   uint64
	Values map[string]publishedValue
}

type publishedValue struct {
	Data []float64
	SE   json.RawMessage
}

func (v publishedValue) se(i int) float64 {
	var one float64
	if json.Unmarshal(v.SE, &one) == nil {
		return one
	}
	var each []float64
	if json.Unmarshal(v.SE, &each) != nil || i >= len(each) {
		return math.NaN()
	}
	return each[i]
}

func (d *demo) print(w io.Writer, r *demoResult, last *published) error {
	fmt.Fprintf(w, "%d records in %d steps of %d, %d releases, (%g, %g)-private, %s, in %.1f s\n\n",
		r.Records, r.Steps, d.f.step, r.Releases, r.Epsilon, r.Delta, r.Adjacency, r.Seconds)
	want, _ := d.truth.at(last.Step)
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "  step %d, scaled\ttruth\trelease\tstandard error\tz\t\n", last.Step)
	row := func(label string, truth float64, v publishedValue, i int) {
		fmt.Fprintf(t, "  %s\t%.6f\t%.6f\t%.6f\t%+.2f\t\n", label, truth, v.Data[i], v.se(i), (v.Data[i]-truth)/v.se(i))
	}
	for i := range d.names {
		row(d.truth.first+" "+d.names[i], want.mean[i], last.Values[d.truth.first], i)
	}
	n := 0
	for i := range d.names {
		for j := i; j < len(d.names); j++ {
			if j == i || j == i+1 && i < 3 {
				row(fmt.Sprintf("second moment %s·%s", d.names[i], d.names[j]), want.second[n], last.Values["second_moment"], n)
			}
			n++
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nover all %d values of all steps: largest |z| %.2f (above %.2f once in a million runs), %.1f %% below 1.96 (expected 95 %%)\n",
		r.Values, r.MaxAbsZ, r.Bound, 100*r.Coverage)
	if d.f.seeded {
		fmt.Fprintln(w, "INSECURE: keys follow from --insecure-seed; nothing was protected")
	}
	return nil
}
