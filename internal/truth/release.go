package truth

import (
	"encoding/json"
	"math"

	"github.com/streamdp/streamdp/stream/core"
)

// Release holds the fields of a release that comparisons need. It is read from the release's JSON.
type Release struct {
	Step   uint64
	Values map[string]Value
	Warmup []struct{ Cap []*float64 }
	Bounds *struct {
		Centre, Scale []float64
		Clip          float64
	}
}

// Value is a value of a release, with the standard errors of its entries: one from the noise alone and, if the release
// has it, one that includes clipping.
type Value struct {
	Data Numbers
	SE   Numbers
	Wide Numbers `json:"se_with_clipping"`
}

// Numbers is a list of numbers, in either encoding (null is NaN), or a single number that stands for all entries.
type Numbers []float64

// UnmarshalJSON implements json.Unmarshaler.
func (x *Numbers) UnmarshalJSON(data []byte) (err error) {
	var one *float64
	var all []*float64
	switch {
	case json.Unmarshal(data, &one) == nil:
		all = []*float64{one}
	case json.Unmarshal(data, &all) == nil:
	default:
		*x, err = core.Numbers(data)
		return err
	}
	for _, v := range all {
		if v == nil {
			*x = append(*x, math.NaN())
		} else {
			*x = append(*x, *v)
		}
	}
	return nil
}

// At returns entry i, or NaN if there is no entry i.
func (x Numbers) At(i int) float64 {
	switch {
	case len(x) == 1:
		return x[0]
	case i < len(x):
		return x[i]
	}
	return math.NaN()
}
