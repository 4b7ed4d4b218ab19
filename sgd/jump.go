package sgd

import (
	"slices"

	"github.com/streamdp/streamdp/internal/bin"
)

// jump notices that the gradients have suddenly become larger: the clip norm is above factor
// times the median of the last ones. It uses released numbers only.
type jump struct {
	factor float64
	recent []float64 // ring, most recent last
}

// The number of clip norms that a new one is compared with: at most recentMost, and no
// comparison below recentLeast.
const (
	recentMost  = 50
	recentLeast = 20
)

// sees reports whether zeta is a jump, and adds it to the history.
func (j *jump) sees(zeta float64) bool {
	jumped := len(j.recent) >= recentLeast && zeta > float64(j.factor*median(j.recent))
	if len(j.recent) == recentMost {
		copy(j.recent, j.recent[1:])
		j.recent = j.recent[:recentMost-1]
	}
	j.recent = append(j.recent, zeta)
	return jumped
}

func median(x []float64) float64 {
	s := slices.Sorted(slices.Values(x))
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}

func (j *jump) appendTo(w *bin.Writer) {
	w.Uint(uint64(len(j.recent)))
	for _, z := range j.recent {
		w.Float(z)
	}
}

func (j *jump) restore(r *bin.Reader) {
	j.recent = append(j.recent[:0], floats(r, r.Index(recentMost+1))...)
}
