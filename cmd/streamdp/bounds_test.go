package main

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/dataset"
	"github.com/streamdp/streamdp/internal/truth"
)

// TestBoundsOfRealData uses two data sets with their original columns, from 10⁻⁸ to 10³ in size, and rows in random
// order. Replay reads each set once with ε = 1, and knows only topic, columns, ε, δ and adjacency. The errors of the
// means in the last release, compared with all rows of the set and divided by each column's deviation, must have a root
// mean square of at most 0.03 over the columns that are not frozen. An expert who looked at the rows reaches 0.011 to
// 0.021. Orders and keys are fixed, so the test always has the same result.
func TestBoundsOfRealData(t *testing.T) {
	t.Parallel()
	if dataset.Folder() == "" {
		t.Skip("STREAMDP_DATA names no folder of data sets")
	}
	for _, set := range []string{"bike", "elevators"} {
		x, y, err := dataset.Read(dataset.Folder(), set, 0)
		if err != nil {
			t.Fatal(err)
		}
		held, targets, err := dataset.Test(dataset.Folder(), set, 0)
		if err != nil {
			t.Fatal(err)
		}
		y = append(y, targets...)
		rows := append(x, held...)
		for i := range rows {
			rows[i] = append(slices.Clip(rows[i]), y[i])
		}
		d, n := len(rows[0]), float64(len(rows))
		mean, deviation, names := make([]float64, d), make([]float64, d), make([]string, d)
		for j := range d {
			names[j] = fmt.Sprintf("c%d", j+1)
			for _, row := range rows {
				mean[j] += row[j] / n
			}
			for _, row := range rows {
				deviation[j] += (row[j] - mean[j]) * (row[j] - mean[j]) / n
			}
			deviation[j] = math.Sqrt(deviation[j])
		}
		columns, err := json.Marshal(names)
		if err != nil {
			t.Fatal(err)
		}
		config := write(t, "c.toml", fmt.Sprintf(`[kafka]
brokers = ["a:1"]
[state]
dir = "/s"
key_file = "/k"
[stream.x]
input  = { topic = "a", columns = %s }
output = { topic = "b" }
centre = "auto"
scale  = "auto"
step   = 100
[stream.x.privacy]
epsilon = 1.0
delta = 1e-6
adjacency = "zero-out"
limit_epsilon = 1.0
[stream.x.moments]
clip = "auto"
`, columns))
		for seed := uint64(1); seed <= 2; seed++ {
			rand.New(rand.NewPCG(seed, 16)).Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
			var file strings.Builder
			for _, row := range rows {
				values := make(map[string]float64, d)
				for j, v := range row {
					values[names[j]] = v
				}
				line, err := json.Marshal(values)
				if err != nil {
					t.Fatal(err)
				}
				file.Write(append(line, '\n'))
			}
			out := strings.TrimSpace(
				want(t, exitDone, "", "replay", "-c", config, "--insecure-seed", fmt.Sprint(seed),
					write(t, "rows.ndjson", file.String())))
			var last struct {
				truth.Release
				Bounds struct {
					Frozen  []string
					Verdict string
				}
			}
			if err := json.Unmarshal([]byte(out[strings.LastIndexByte(out, '\n')+1:]), &last); err != nil {
				t.Fatal(err)
			}
			var sum, columns float64
			for j, v := range last.Values["mean_original"].Data {
				if !slices.Contains(last.Bounds.Frozen, names[j]) {
					e := (v - mean[j]) / deviation[j]
					sum += e * e
					columns++
				}
			}
			rms := math.Sqrt(sum / columns)
			t.Logf("%s, order %d: error %.4f over %g of %d columns, verdict %s, frozen %v", set, seed, rms, columns, d,
				last.Bounds.Verdict, last.Bounds.Frozen)
			if !(rms <= 0.03) || columns < float64(d)*2/3 {
				t.Errorf("%s, order %d: error %.4f over %g of %d columns", set, seed, rms, columns, d)
			}
		}
	}
}
