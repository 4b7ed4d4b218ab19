package main

import (
	"encoding/json"
	"math"

	"github.com/streamdp/streamdp/stream/core"
)

// published has the fields of a release that comparisons use.
type published struct {
	Step   uint64
	Values map[string]publishedValue
	Warmup []struct{ Cap []*float64 }
	Bounds *struct {
		Centre, Scale []float64
		Clip          float64
	}
}

type publishedValue struct {
	Data publishedNumbers
	SE   publishedNumbers
	Wide publishedNumbers `json:"se_with_clipping"`
}

// publishedNumbers are a list, in either encoding and with NaN for null, or one number for
// all entries of another.
type publishedNumbers []float64

// UnmarshalJSON implements json.Unmarshaler.
func (x *publishedNumbers) UnmarshalJSON(data []byte) (err error) {
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

// at returns entry i, NaN where there is none.
func (x publishedNumbers) at(i int) float64 {
	switch {
	case len(x) == 1:
		return x[0]
	case i < len(x):
		return x[i]
	}
	return math.NaN()
}
