package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/monitor"
)

// Without Once, the synthetic stream changes over time. The means of the columns swing. There is one more column, y, a
// linear function of others whose coefficients jump. Two more streams estimate these coefficients: regression
// continuously, and refit once per window.
const (
	liveRate       = 1000                           // rows per second
	liveRows       = 600 * liveRate                 // ten minutes: the broker keeps all of them in memory
	liveSwing      = 90 * liveRate                  // rows in one period of the means
	livePartitions = 3                              // row n is in partition n mod 3
	liveDecay      = 0.9                            // decay per step of one second
	liveBoundaries = "demo.boundaries"              // name of the boundary topic
	liveEra        = 120 * liveRate                 // rows until the coefficients jump
	liveWindow     = 20 * liveRate / livePartitions // window of refit, in offsets of partition 0
	liveFeature    = 3                              // number of columns on which y depends
	liveTarget     = "y"                            // name of the column y
	liveCentre     = 2.0                            // centre of y; all centres and scales are public constants
	liveScale      = 3.0                            // scale of y
	liveNoise      = 1.0                            // standard deviation of y around its expectation
	liveHeight     = 0.2                            // amplitude of the swings
	liveLimit      = 4                              // limit_epsilon divided by epsilon; three streams read the topic
	liveClip       = 3.0                            // bound on the norm of scaled features, and on the scaled target
	liveRefit      = "refit"                        // name of the stream with the refit
	liveOnline     = "regression"                   // name of the stream with the online regression
)

// liveMean returns the mean of column j in row n, minus its centre.
func liveMean(n int64, j int) float64 {
	return liveHeight * math.Sin(2*math.Pi*float64(n)/liveSwing+float64(j))
}

// liveCoefficients returns the coefficients of y in row n: one for each feature, and the intercept.
func liveCoefficients(n int64) []float64 {
	if n/liveEra%2 == 0 {
		return []float64{1.5, -1, 0.5, 2}
	}
	return []float64{0.5, 1, 0.5, 2}
}

// liveExpectation returns y's expectation for the cells of row n, without noise. Features enter as differences from
// their centres.
func liveExpectation(n int64, features []float64) float64 {
	c := liveCoefficients(n)
	y := c[liveFeature]
	for j := range liveFeature {
		y += c[j] * (features[j] - float64(j+1))
	}
	return y
}

// liveStreams returns the tables of the two regressions.
func (d *demonstration) liveStreams(quote func(string) string) string {
	common := func(name string) string {
		return fmt.Sprintf(`[stream.%s]
input = { topic = "demo", codec = "json", columns = ["v1", "v2", "v3", %s] }
output = { topic = %s }
centre = [1.0, 2.0, 3.0, %g]
scale = [3.0, 3.0, 3.0, %g]
[stream.%[1]s.privacy]
epsilon = %[6]g
delta = %[7]g
adjacency = %[8]s
limit_epsilon = %[9]g
`, name, quote(liveTarget), quote(name+".dp"), liveCentre, liveScale, d.o.Epsilon, d.o.Delta, quote(d.o.Adjacency), liveLimit*d.o.Epsilon)
	}
	return common(liveOnline) +
		fmt.Sprintf("[stream.%s.sgd]\ntarget = %s\nclip_x = %g\n", liveOnline, quote(liveTarget), liveClip) +
		common(liveRefit) +
		fmt.Sprintf("[stream.%s.refit]\ntarget = %s\nclip_x = %g\nclip_y = %g\nwindow = %d\n", liveRefit,
			quote(liveTarget), liveClip, liveClip, liveWindow)
}

// truthOf returns a value of a release as it would be without noise. For moments it is computed from the rows,
// shortened to the clip norm. For regressions it is the coefficients from which y was made. It returns nil if the truth
// is unknown.
func (d *demonstration) truthOf(r *core.Released, value string) []float64 {
	if r.Stream == "demo" {
		d.mu.Lock()
		defer d.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		d.follow(ctx, r.Step)
		return d.truth.Value(r.Step, value)
	}
	// For regression the truth is the coefficients of the newest row, for refit their mean over the window.
	first, end := r.Offsets[1]-1, r.Offsets[1]
	if r.Stream == liveRefit {
		first = r.Offsets[0]
	}
	c := make([]float64, liveFeature+1)
	for n := first; n < end; n++ {
		for j, x := range liveCoefficients(n * livePartitions) { // n is an offset of partition 0, so this is its row
			c[j] += x / float64(end-first)
		}
	}
	// c is for differences from centres, in original units. In scaled units features are a third of that, and so is y.
	scaled := slices.Clone(c)
	scaled[liveFeature] = (c[liveFeature] - liveCentre) / liveScale
	original := slices.Clone(c)
	for j := range liveFeature {
		original[liveFeature] -= c[j] * float64(j+1)
	}
	switch value {
	case "theta_average":
		return scaled
	case "theta":
		if r.Stream == liveRefit {
			return scaled[:liveFeature]
		}
		return scaled
	case "theta_average_original":
		return original
	case "theta_original":
		return original[:liveFeature]
	case "intercept":
		return scaled[liveFeature:]
	case "intercept_original":
		return original[liveFeature:]
	}
	return nil
}

// openPage shows an address in the user's browser.
func openPage(url string) error {
	command := map[string][]string{"darwin": {"open"},
		"windows": {"rundll32", "url.dll,FileProtocolHandler"}}[runtime.GOOS]
	if command == nil {
		command = []string{"xdg-open"}
	}
	c := exec.Command(command[0], append(command[1:], url)...)
	if err := c.Start(); err != nil {
		return fmt.Errorf("--open: cannot start a browser; open %s yourself: %w", url, err)
	}
	go c.Wait()
	return nil
}

// live reports whether this demonstration runs three streams on data that change over time.
func (d *demonstration) live() bool { return !d.o.Once && d.o.File == nil }

// partitions returns the topic's number of partitions.
func (d *demonstration) partitions() int {
	if d.live() {
		return livePartitions
	}
	return 1
}

// status returns the status of the stream of moments.
func (d *demonstration) status(daemon *stream.Daemon) monitor.TaskStatus {
	all := daemon.Status()
	return all[slices.IndexFunc(all, func(s monitor.TaskStatus) bool { return s.Stream == "demo" })]
}

// steps parses the length of a step.
func (d *demonstration) steps() (err error) {
	length := d.o.Step
	if d.step, err = strconv.ParseUint(length, 10, 62); err == nil {
		if d.step == 0 {
			return exit.Usagef("--step: must be at least 1 (0)")
		}
		return nil
	}
	if _, err := time.ParseDuration(length); err != nil {
		return exit.Usagef("--step is %q, must be a number of offsets, or a period such as 1s", length)
	}
	if !d.live() {
		return exit.Usagef("--step is %s: a period needs the synthetic stream without --once", length)
	}
	d.step = 0
	return nil
}

// follow ends the truth's steps up to a step that has been released. Boundaries say where a step ended; without them it
// has a fixed number of offsets of each partition.
func (d *demonstration) follow(ctx context.Context, step uint64) {
	if d.truth == nil || !d.live() {
		return
	}
	for d.step > 0 && d.truth.Steps() < step {
		if !d.truth.Until(slices.Repeat([]int64{int64((d.truth.Steps() + 1) * d.step)}, livePartitions)) {
			return
		}
	}
	if d.step > 0 || d.truth.Steps() >= step || d.client == nil {
		return
	}
	// If reading fails, the truth is shown as unknown.
	_ = d.client.ReadBack(ctx, liveBoundaries, 0, d.read, func(rec *kafka.Record) error {
		var v struct {
			Step uint64
			Ends []int64
		}
		if err := json.Unmarshal(rec.Value, &v); err != nil || len(v.Ends) != livePartitions {
			return errors.New("no boundary")
		}
		if v.Step == d.truth.Steps()+1 && !d.truth.Until(v.Ends) { // the first boundary of each step counts
			return errors.New("the truth does not have these rows yet")
		}
		d.read = rec.Offset + 1
		return nil
	})
}

// described checks that every estimator of the configuration can be built.
func described(cfg *config.Config) error {
	for _, s := range cfg.Streams {
		if _, err := core.Describe(s, nil); err != nil {
			return exit.Usage{Err: err}
		}
	}
	return nil
}
