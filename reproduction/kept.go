package main

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
)

// keptFiles holds the results of simulations that take minutes, or that need data sets which are not part of the
// project.
//
//go:embed kept/*.json
var keptFiles embed.FS

// simulation is a part of the page whose numbers are kept in a file.
type simulation struct {
	name    string
	measure func() (any, error)
}

// simulations lists all simulations. The flag -simulate NAME runs one and keeps its result.
var simulations = []simulation{
	{"refits", func() (any, error) { return simulateRefits(refitSets, refitBudgets) }},
	{"intercepts", simulateIntercepts},
	{"coverage", simulateCoverage},
	{"bounds", simulateBounds},
	{"fastmix", func() (any, error) { return simulateFast(fastRows, fastBudgets) }},
}

func simulationNames() string {
	var names []string
	for _, s := range simulations {
		names = append(names, s.name)
	}
	return strings.Join(names, " or ")
}

// simulate runs a simulation and writes its file.
func simulate(name, dir string) error {
	for _, s := range simulations {
		if s.name != name {
			continue
		}
		v, err := s.measure()
		if err != nil {
			return err
		}
		b, err := lines(v)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, name+".json"), b, 0o644)
	}
	return fmt.Errorf("there is no simulation %q", name)
}

// lines encodes a list, one element per line.
func lines(list any) ([]byte, error) {
	b, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	var elements []json.RawMessage
	if err := json.Unmarshal(b, &elements); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.WriteByte('[')
	for i, e := range elements {
		if i > 0 {
			out.WriteString(",\n")
		}
		out.Write(e)
	}
	out.WriteString("]\n")
	return out.Bytes(), nil
}

// kept returns the kept result of a simulation.
func kept[T any](name string) (v T, err error) {
	b, err := keptFiles.ReadFile("kept/" + name + ".json")
	if err == nil {
		err = json.Unmarshal(b, &v)
	}
	return v, err
}

// statistic is a mean over trials, with half the width of its 95 % interval.
type statistic struct {
	Mean float64 `json:"mean"`
	Half float64 `json:"half"`
	// Failed counts trials without a result.
	Failed int `json:"failed,omitempty"`
}

// sample collects numbers.
type sample struct {
	n, failed   int
	sum, square float64
}

func (s *sample) add(x float64) {
	s.n++
	s.sum += x
	s.square += x * x
}

func (s *sample) mean() float64 { return s.sum / float64(s.n) }

// error returns the standard error of the mean.
func (s *sample) error() float64 {
	n, mean := float64(s.n), s.mean()
	return math.Sqrt(max(0, s.square/n-mean*mean) / max(1, n-1))
}

// String returns the mean with its error, to the digit at which the error has two digits.
func (s *sample) String() string {
	places := max(2, 1-int(math.Floor(math.Log10(max(s.error(), 1e-9)))))
	return fmt.Sprintf("%.*f ± %.*f", places, s.mean(), places, s.error())
}

// statistic returns the mean and 1.96 standard errors, times scale, rounded to nine digits, which are enough for a
// file.
func (s *sample) statistic(scale float64) statistic {
	if s.n == 0 {
		return statistic{Failed: s.failed}
	}
	half := 1.96 * s.error()
	return statistic{Mean: digits(s.mean() * scale), Half: digits(half * scale), Failed: s.failed}
}

// digits rounds to nine digits.
func digits(x float64) float64 {
	if x == 0 || math.IsNaN(x) || math.IsInf(x, 0) {
		return 0
	}
	unit := math.Pow(10, 8-math.Floor(math.Log10(math.Abs(x))))
	return math.Round(x*unit) / unit
}
