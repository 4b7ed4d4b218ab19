package audit

import (
	"errors"
	"fmt"
	"math"

	"github.com/streamdp/streamdp/internal/stattest"
)

// ShiftReport is the result of an audit of releases under fresh keys.
type ShiftReport struct {
	// Runs is the number of runs of each of the two streams.
	Runs int
	// T is the distance between the two means of the best linear statistic, in standard errors. It must be in [Low,
	// High]; for a sound mechanism it is outside with probability at most alpha.
	T, Low, High float64
	// Finds is a multiple of the pair's distance: if the true distance is that large, the audit alarms with probability
	// Power.
	Finds float64
}

// Power is the probability with which an audit finds the fault that it claims to find.
const Power = 0.999

// Err returns an error if T is outside its interval.
func (r *ShiftReport) Err() error {
	if r.T >= r.Low && r.T <= r.High {
		return nil
	}
	return fmt.Errorf("the neighbours' means are %.6g standard errors apart, must be %.6g to %.6g", r.T, r.Low, r.High)
}

// Shift runs two neighbouring streams repeatedly under fresh keys, and uses the linear statistic that tells them apart
// best: T = ⟨v, x̃⟩ with v = CᵀC(y−x)/σ². If the claim is true, T has variance |C(y−x)/σ|² in either stream, and the
// distance of its means equals that variance. The two samples are compared by their own standard deviations:
//
//	t = (T̄_y − T̄_x)/(s·√(2/runs))
//
// has a noncentral Student distribution with 2·runs − 2 degrees of freedom and shift D√(runs/2). D, the distance of the
// streams within the run, is at most μ reduced by the share of later steps. A t above its upper quantile refutes the
// privacy claim; a t below its lower quantile refutes the accuracy claim. Shift needs Recover. It uses C and σ only for
// v.
//
// Cost: two runs without noise, and 2·runs runs with noise.
func (s *Subject) Shift(x, y Stream, keys *Keys, runs int, alpha float64) (*ShiftReport, error) {
	v, distance, later, err := s.direction(x, y)
	if err != nil {
		return nil, err
	}
	left := s.Mu*s.Mu - later*later
	if !(distance > 0 && left > 0) {
		return nil, fmt.Errorf("the distance of the streams is %g, and %g in later steps, but the claim is "+
			"%g", distance, later, s.Mu)
	}
	samples := [2][]float64{}
	for range runs {
		for side, stream := range []Stream{x, y} {
			rows, err := s.rows(stream, keys.next())
			if err != nil {
				return nil, err
			}
			var sum float64
			for name, w := range v {
				for t, row := range w {
					for j, weight := range row {
						sum += weight * rows[name][t][j]
					}
				}
			}
			samples[side] = append(samples[side], sum)
		}
	}
	n := float64(runs)
	var means [2]float64
	var squares float64
	for side, sample := range samples {
		for _, z := range sample {
			means[side] += z / n
		}
		for _, z := range sample {
			squares += (z - means[side]) * (z - means[side])
		}
	}
	freedom := 2*runs - 2
	root := math.Sqrt(n / 2)
	r := &ShiftReport{
		Runs: runs,
		T:    (means[1] - means[0]) / math.Sqrt(squares/float64(freedom)) * root,
		Low:  -stattest.NoncentralT(freedom, -min(distance, math.Sqrt(left))*root, alpha/2),
		High: stattest.NoncentralT(freedom, math.Sqrt(left)*root, alpha/2),
	}
	r.Finds = 1
	for stattest.NoncentralTail(freedom, r.Finds*distance*root, r.High) < Power {
		r.Finds += 1e-3
	}
	return r, nil
}

// direction runs both streams without noise. It returns v = CᵀC(y−x)/σ², the distance of the streams within their
// steps, and their distance in later steps.
func (s *Subject) direction(x, y Stream) (v map[string][][]float64, distance, later float64, err error) {
	var asked error
	first, err := s.rows(x, silence(&asked))
	if err != nil {
		return nil, 0, 0, err
	}
	second, err := s.rows(y, silence(&asked))
	if err = errors.Join(err, asked); err != nil {
		return nil, 0, 0, err
	}
	v = map[string][][]float64{}
	for name, rows := range first {
		sequences, err := s.sequences(name, rows)
		if err != nil {
			return nil, 0, 0, err
		}
		v[name] = make([][]float64, len(rows))
		var columns [][]float64 // columns of C
		for j, q := range sequences {
			for i, t := range q.steps {
				q.x[i] = (second[name][t][j] - q.x[i]) / q.sd[i]
			}
			if j == 0 {
				a, _ := s.Array(name, uint64(q.steps[0])+1)
				for i := range q.steps {
					unit := make([]float64, len(q.steps))
					unit[i] = 1
					white, _ := Whiten(a.whitener(), unit)
					columns = append(columns, white)
				}
			}
			white, _ := Whiten(q.whitener, q.x)
			later += q.whitener.Later()
			for i, t := range q.steps {
				distance += white[i] * white[i]
				var sum float64
				for k, c := range columns[i] {
					sum += c * white[k]
				}
				v[name][t] = append(v[name][t], sum/q.sd[i])
			}
		}
	}
	return v, math.Sqrt(distance), math.Sqrt(later), nil
}
