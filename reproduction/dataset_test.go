package main

import (
	"math"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/dataset"
)

// TestDataSet checks that each row of a set is either a training row or a test row of a split. With the curvature
// configured, the daemon must come near least squares, as the page says.
func TestDataSet(t *testing.T) {
	if dataset.Folder() == "" {
		t.Skip("needs data sets that are not part of the project: set STREAMDP_DATA")
	}
	t.Parallel()
	s, err := openSet("pol", 0)
	if err != nil {
		t.Fatal(err)
	}
	again, err := openSet("pol", 1)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(s.train) + len(s.test); n != len(again.train)+len(again.test) || len(s.test) < n/20 ||
		len(s.test) > n/5 {
		t.Errorf("splits have %d + %d and %d + %d rows", len(s.train), len(s.test), len(again.train), len(again.test))
	}
	theta, err := s.ols()
	if err != nil {
		t.Fatal(err)
	}
	// At the least-squares coefficients the gradient is 0.
	gradient := make([]float64, len(s.columns))
	for _, row := range s.train {
		z := s.scaled(row)
		e := row[len(row)-1] - theta[len(theta)-1]
		for j := range len(row) - 1 {
			e -= theta[j] * row[j]
		}
		z[len(z)-1] = 1
		for j := range z {
			gradient[j] += e * z[j] / s.scale[len(row)-1] / float64(len(s.train))
		}
	}
	for j, g := range gradient {
		if math.Abs(g) > 1e-8 {
			t.Errorf("coefficient %d: the gradient of least squares is %g", j, g)
		}
	}
	best := s.score(theta)
	last, err := s.passage(0, 1, "sgd]\nmethod = \"amb\"\namb.curvature = 3.2").run(s.train, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := s.score(original(last))
	t.Logf("R² is %.3f, of least squares %.3f", got, best)
	if !(best > 0.4 && got > best-0.03) {
		t.Errorf("R² is %g, of least squares %g", got, best)
	}
}
