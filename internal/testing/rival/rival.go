// Package rival lets a benchmark pair its subject with a named rival in the
// same run: absolute times move with the machine and its neighbours, ratios
// hold. Imported by tests only.
package rival

import (
	"os"
	"slices"
	"testing"
	"time"
)

// Compare runs subject b.N times and, between stretches of about a
// millisecond, the rival for as many calls. It reports ns per unit of the
// subject, the rival's under its name, and the median ratio of the stretches.
// units is how many things one call of either handles. The benchmark's own
// time and allocations are the subject's alone.
//
// With STREAMDP_SUBJECT_ONLY set it runs nothing but the subject, b.N times, for tools that
// count instructions.
func Compare(b *testing.B, units int, subject func(), name string, rival func()) {
	b.Helper()
	CompareFresh(b, units, nil, subject, name, rival)
}

// CompareFresh is Compare for a subject that uses something up: before every call of it, it
// calls fresh, whose time is nobody's.
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
	run(1) // warm up, and size a stretch
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
