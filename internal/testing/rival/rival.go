// Package rival lets a benchmark compare its subject with a named rival in the same run. Absolute times depend on the
// machine and its load; ratios are stable. For tests only.
package rival

import (
	"os"
	"slices"
	"testing"
	"time"
)

// Compare runs subject b.N times. After every millisecond or so of subject calls it runs rival equally often. It
// reports the subject's time per unit in ns, the rival's under the rival's name, and the median ratio over these pairs
// of runs. units is the number of units that one call of either function processes. The benchmark's own time and
// allocations cover the subject alone.
//
// If STREAMDP_SUBJECT_ONLY is set, it runs only the subject, b.N times, for tools that count instructions.
func Compare(b *testing.B, units int, subject func(), name string, rival func()) {
	b.Helper()
	CompareFresh(b, units, nil, subject, name, rival)
}

// CompareFresh does what Compare does for a subject that consumes its input. It calls fresh before every call of
// subject, and does not count the time of fresh.
func CompareFresh(b *testing.B, units int, fresh, subject func(), name string, rival func()) {
	b.Helper()
	run := func(n int) (used time.Duration) {
		if fresh == nil {
			start := time.Now()
			for range n {
				subject()
			}
			return time.Since(start)
		}
		for range n {
			b.StopTimer()
			fresh()
			b.StartTimer()
			start := time.Now()
			subject()
			used += time.Since(start)
		}
		return used
	}
	if os.Getenv("STREAMDP_SUBJECT_ONLY") != "" {
		run(b.N)
		return
	}
	b.ReportAllocs()
	run(1) // warms up, and finds the number of calls of a run
	rival()
	stretch := int(time.Millisecond/max(run(1), 1)) + 1

	var ours, theirs time.Duration
	var ratios []float64
	b.ResetTimer()
	for done := 0; done < b.N; {
		n := min(stretch, b.N-done)
		done += n
		us := run(n)
		b.StopTimer()
		start := time.Now()
		for range n {
			rival()
		}
		them := time.Since(start)
		ours, theirs = ours+us, theirs+them
		ratios = append(ratios, float64(us)/float64(max(them, 1)))
		b.StartTimer()
	}
	b.StopTimer()
	slices.Sort(ratios)
	per := float64(b.N) * float64(units)
	b.ReportMetric(float64(ours.Nanoseconds())/per, "ns/unit")
	b.ReportMetric(float64(theirs.Nanoseconds())/per, "ns/unit-"+name)
	b.ReportMetric(ratios[len(ratios)/2], "ratio")
}
