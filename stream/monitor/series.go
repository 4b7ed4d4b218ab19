package monitor

import (
	"slices"
	"sync"
	"time"

	"github.com/streamdp/streamdp/stream/core"
)

// A task keeps its published values as lines, for the page: at most so many releases, and
// so many bytes of numbers. Of a release with more numbers than seriesNumbers the largest
// values are left out. So a task keeps at most 512 KiB, the words around it, and the bytes of
// its newest release. One of many tasks keeps less: see Kept of epoch.Process.
const (
	seriesReleases = 256
	seriesLeast    = 8
	SeriesBytes    = 1 << 19
	seriesNumbers  = SeriesBytes / 8 / seriesLeast
)

// Series are the published values of a task over time. They span everything that was
// published since they began: when there are too many releases, every other one is left
// out, and from then on so many less are kept, always with the newest. A release that is
// not kept is not decoded, but for the newest when somebody asks. It is safe for
// concurrent use.
type Series struct {
	mu          sync.Mutex
	Parse       func(value []byte) *core.Released // nil for what is no release
	points      []Point
	newest      *Point     // if it is not among points
	raw         []byte     // the newest, if nobody has decoded it yet
	stride      uint64     // one of so many is kept
	count       uint64     // releases so far
	epoch, step uint64     // of the newest
	Bytes       func() int // of numbers that may be kept; nil: SeriesBytes
}

// Point is a release of a series.
type Point struct {
	// N counts the releases of this process from 1 on. 0 is one that an earlier process
	// published.
	N uint64 `json:"n"`
	*core.Released
	// TooLarge names the values that are left out.
	TooLarge []string `json:"too_large,omitempty"`
}

// newPoint leaves out what is too large.
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

// Add adds the newest release. One that is there already is published again.
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

// decoded returns the newest release, nil if it is among points.
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

// thin leaves out every other release while there are too many.
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

// most is the largest number of releases that are kept.
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

// Recall adds, in front, what an earlier process published, in order.
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

// After returns what was published after release n of this process; 0: everything.
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

// RecallTime is how long a first request waits for the output. RecallRecords is how far
// back in it recall looks, and RecallBytes how much of it recall keeps.
const (
	RecallTime    = 5 * time.Second
	RecallRecords = 256
	RecallBytes   = 16 << 20
)
