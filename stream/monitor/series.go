package monitor

import (
	"slices"
	"sync"
	"time"

	"github.com/streamdp/streamdp/stream/core"
)

// For the charts of the status page, a task keeps its published values. These limits bound the number of releases and
// of bytes. If a release has more than seriesNumbers numbers, the values with most numbers are left out. So a task
// keeps at most 512 KiB of numbers, the text around them, and the bytes of its newest release. If there are many tasks,
// each keeps less: see Kept of epoch.Process.
const (
	seriesReleases = 256
	seriesLeast    = 8
	SeriesBytes    = 1 << 19
	seriesNumbers  = SeriesBytes / 8 / seriesLeast
)

// Series has the published values of a task over time. It always covers the whole time since the series began. When it
// has too many releases, it drops every other one, and from then on the stride between kept releases is doubled. The
// newest release is always kept. Other releases that are not kept are never decoded; the newest is decoded on request.
// A Series is safe for concurrent use.
type Series struct {
	mu          sync.Mutex
	Parse       func(value []byte) *core.Released // returns nil if value is not a release
	points      []Point
	newest      *Point     // the newest release, if it is not among points
	raw         []byte     // the newest release, if it is not decoded yet
	stride      uint64     // of `stride` consecutive releases, one is kept
	count       uint64     // number of releases so far
	epoch, step uint64     // of the newest release
	Bytes       func() int // returns the maximum number of bytes of kept numbers; nil: SeriesBytes
}

// Point is a release of a series.
type Point struct {
	// N is the number of the release, counted from 1 in this process. It is 0 for a release that an earlier process
	// published.
	N uint64 `json:"n"`
	*core.Released
	// TooLarge names the values that were left out because they have too many numbers.
	TooLarge []string `json:"too_large,omitempty"`
}

// newPoint returns a point without the values that are too large.
func newPoint(n uint64, r *core.Released) Point {
	p := Point{N: n, Released: r}
	for numbers(r) > seriesNumbers {
		i := 0
		for j := range r.Values {
			if len(r.Values[j].Data) > len(r.Values[i].Data) {
				i = j
			}
		}
		p.TooLarge = append(p.TooLarge, r.Values[i].Name)
		r.Values = slices.Delete(r.Values, i, i+1)
	}
	return p
}

// numbers counts the numbers of a release.
func numbers(r *core.Released) (n int) {
	for _, v := range r.Values {
		n += len(v.Data) + len(v.SE) + len(v.SEWithClipping) + len(v.Truth)
	}
	return n
}

// Add adds the newest release. A release that was already added is being published again, and is ignored.
func (s *Series) Add(epoch, step uint64, value []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch < s.epoch || epoch == s.epoch && step <= s.step {
		return
	}
	s.epoch, s.step = epoch, step
	s.count++
	s.stride = max(s.stride, 1)
	s.newest, s.raw = nil, value
	if s.count%s.stride == 0 {
		if p := s.decoded(); p != nil {
			s.points = append(s.points, *p)
			if s.thin(); len(s.points) > 0 && s.points[len(s.points)-1].N == p.N {
				s.newest = nil
			}
		}
	}
}

// decoded returns the newest release, or nil if it is among points.
func (s *Series) decoded() *Point {
	if s.raw != nil {
		if r := s.Parse(s.raw); r != nil {
			p := newPoint(s.count, r)
			s.newest = &p
		}
		s.raw = nil
	}
	return s.newest
}

// thin drops every other release, repeatedly, until there are not too many.
func (s *Series) thin() {
	for len(s.points) > s.most() {
		s.stride *= 2
		kept, earlier := s.points[:0], 0
		for _, p := range s.points {
			if p.N == 0 {
				earlier++
			}
			if p.N == 0 && earlier%2 == 0 || p.N > 0 && p.N%s.stride == 0 {
				kept = append(kept, p)
			}
		}
		clear(s.points[len(kept):])
		s.points = kept
	}
}

// most returns the largest number of releases to keep.
func (s *Series) most() int {
	largest := 1
	for _, p := range s.points {
		largest = max(largest, numbers(p.Released))
	}
	bytes := SeriesBytes
	if s.Bytes != nil {
		bytes = s.Bytes()
	}
	return min(max(bytes/8/largest, seriesLeast), seriesReleases)
}

// Recall adds, at the front, the releases that an earlier process published, in order.
func (s *Series) Recall(earlier []*core.Released) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stride = max(s.stride, 1)
	var all []Point
	for _, r := range earlier {
		first := s.decoded()
		if len(s.points) > 0 {
			first = &s.points[0]
		}
		if first == nil || r.Epoch < first.Epoch || r.Epoch == first.Epoch && r.Step < first.Step {
			all = append(all, newPoint(0, r))
		}
	}
	s.points = append(all, s.points...)
	s.thin()
}

// After returns the releases after release n of this process; with n = 0, all of them.
func (s *Series) After(n uint64) []Point {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []Point{}
	for _, p := range s.points {
		if n == 0 || p.N > n {
			all = append(all, p)
		}
	}
	if p := s.decoded(); p != nil && (n == 0 || p.N > n) {
		all = append(all, *p)
	}
	return all
}

// RecallTime is the time for which the first request waits until earlier releases are read from the output.
// RecallRecords is the number of records before the end of the output that are read, and RecallBytes the maximum number
// of their bytes that are kept.
const (
	RecallTime    = 5 * time.Second
	RecallRecords = 256
	RecallBytes   = 16 << 20
)
