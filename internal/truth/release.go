package truth

import (
	"encoding/json"
	"math"

	"github.com/streamdp/streamdp/stream/core"
)

// Release has the fields of a release that comparisons use. It is read from the release's JSON.
type Release struct {
	Step   uint64
	Values map[string]Value
	Warmup []struct{ Cap []*float64 }
	Bounds *struct {
		Centre, Scale []float64
		Clip          float64
	}
}

// Value is a value of a release, with the standard errors of its entries: of the noise, and with
// that of clipping where the release says it.
type Value struct {
	Data Numbers
	SE   Numbers
	Wide Numbers `json:"se_with_clipping"`
}

// Numbers are a list, in either encoding and with NaN for null, or one number for
// all entries of another.
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

// At returns entry i, NaN where there is none.
func (x Numbers) At(i int) float64 {
	switch {
	case len(x) == 1:
		return x[0]
	case i < len(x):
		return x[i]
	}
	return math.NaN()
}
