package sgd

import (
	"slices"

	"github.com/streamdp/streamdp/internal/bin"
)

// jump detects that the gradients have suddenly become larger: the clip norm exceeds factor times the median of the
// recent clip norms. It uses released numbers only.
type jump struct {
	factor float64
	recent []float64 // recent clip norms, the most recent last
}

// A new clip norm is compared with at most recentMost earlier ones, and with none if there are fewer than recentLeast.
const (
	recentMost  = 50
	recentLeast = 20
)

// observe adds zeta to the history, and reports whether it is a jump.
func (j *jump) observe(zeta float64) bool {
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
