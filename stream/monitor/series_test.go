package monitor_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/monitor"
)

// seriesOf returns a series of releases with this many numbers.
func seriesOf(numbers int) (s *monitor.Series, add func(epoch, step uint64)) {
	s = &monitor.Series{Parse: func(value []byte) *core.Released {
		r := new(core.Released)
		if json.Unmarshal(value, r) != nil {
			return nil
		}
		r.Values = []core.ReleasedValue{{Name: "mean", Data: make([]float64, numbers)}}
		return r
	}}
	return s, func(epoch, step uint64) {
		s.Add(epoch, step, fmt.Appendf(nil, `{"epoch": %d, "step": %d}`, epoch, step))
	}
}

func pointSteps(points []monitor.Point) (steps []uint64) {
	for _, p := range points {
		steps = append(steps, p.Step)
	}
	return steps
}

// TestSeriesSpansEverything: with any number of releases, the series begins near the first one, ends with the newest,
// and is evenly spaced.
func TestSeriesSpansEverything(t *testing.T) {
	s, add := seriesOf(10)
	for n := uint64(1); n <= 5000; n++ {
		add(1, n)
		if n%7 == 0 {
			add(1, n) // published again
		}
		got := pointSteps(s.After(0))
		if len(got) > monitor.SeriesReleases+1 || got[len(got)-1] != n ||
			n <= monitor.SeriesReleases && uint64(len(got)) != n {
			t.Fatalf("after %d: %d releases, the last is %d", n, len(got), got[len(got)-1])
		}
		if n > monitor.SeriesReleases && len(got) < monitor.SeriesReleases/2 {
			t.Fatalf("after %d only %d releases", n, len(got))
		}
		gap := got[0]
		for i := 1; i < len(got)-1; i++ {
			if got[i]-got[i-1] != gap {
				t.Fatalf("after %d: steps %v", n, got)
			}
		}
	}
	if got := pointSteps(s.After(4999)); !slices.Equal(got, []uint64{5000}) {
		t.Errorf("after 4999: %v", got)
	}
}

// TestSeriesMemory: the stored numbers stay within their bound, for any size of releases.
func TestSeriesMemory(t *testing.T) {
	for _, n := range []int{1, 100, 5000, monitor.SeriesNumbers, monitor.SeriesNumbers + 1, 300_000} {
		s, add := seriesOf(n)
		for step := range uint64(600) {
			add(1, step+1)
		}
		total := 0
		for _, p := range *s.Points() {
			total += monitor.Numbers(p.Released)
		}
		if 8*total > monitor.SeriesBytes {
			t.Errorf("%d numbers a release: %d bytes are kept", n, 8*total)
		}
		newest := s.After(0)[len(s.After(0))-1]
		if left := slices.Equal(newest.TooLarge, []string{"mean"}); left != (n > monitor.SeriesNumbers) {
			t.Errorf("%d numbers a release: left out %v", n, newest.TooLarge)
		}
	}
}

// TestSeriesRecall: releases of an earlier process come first, once.
func TestSeriesRecall(t *testing.T) {
	s, add := seriesOf(1)
	add(2, 3)
	add(2, 4)
	var earlier []*core.Released
	for _, at := range [][2]uint64{{1, 1}, {1, 9}, {2, 1}, {2, 2}, {2, 3}, {2, 4}} {
		earlier = append(earlier, &core.Released{Epoch: at[0], Step: at[1]})
	}
	s.Recall(earlier)
	if got := pointSteps(s.After(0)); !slices.Equal(got, []uint64{1, 9, 1, 2, 3, 4}) {
		t.Errorf("steps %v", got)
	}
	if got := pointSteps(s.After(1)); !slices.Equal(got, []uint64{4}) {
		t.Errorf("after the first of this process: %v", got)
	}
	earlier = nil
	for n := range uint64(1000) {
		earlier = append(earlier, &core.Released{Epoch: 1, Step: n + 1})
	}
	empty, add := seriesOf(1)
	empty.Recall(earlier)
	add(2, 1)
	if got := pointSteps(empty.After(0)); len(got) > monitor.SeriesReleases+1 || len(got) < monitor.SeriesReleases/2 ||
		got[len(got)-1] != 1 {
		t.Errorf("%d releases, the last is step %d", len(got), got[len(got)-1])
	}
}
