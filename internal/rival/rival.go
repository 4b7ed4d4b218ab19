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
	if os.Getenv("STREAMDP_SUBJECT_ONLY") != "" {
		for range b.N {
			subject()
		}
		return
	}
	b.ReportAllocs()
	subject() // warm up, and size a stretch
	rival()
	start := time.Now()
	subject()
	stretch := int(time.Millisecond/max(time.Since(start), 1)) + 1

	var ours, theirs time.Duration
	var ratios []float64
	b.ResetTimer()
	for done := 0; done < b.N; {
		n := min(stretch, b.N-done)
		done += n
		start := time.Now()
		for range n {
			subject()
		}
		us := time.Since(start)
		b.StopTimer()
		start = time.Now()
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
