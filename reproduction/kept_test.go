package main

import (
	"fmt"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/dataset"
)

// near compares numbers that a file holds with nine digits. Last bits are not compared, because they differ on a
// processor that fuses products in a plan.
func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-4*math.Abs(want) {
		t.Errorf("%s is %g, the kept one is %g: make simulations", what, got, want)
	}
}

// TestKeptRefits fits some sets again, with the same keys, and compares with the kept numbers. All sets would take
// minutes.
func TestKeptRefits(t *testing.T) {
	if dataset.Folder() == "" {
		t.Skip("needs data sets that are no part of the project: set STREAMDP_DATA")
	}
	t.Parallel()
	all, err := kept[[]refitErrors]("refits")
	if err != nil || len(all) != len(refitSets) {
		t.Fatalf("%d sets are kept, of %d: %v", len(all), len(refitSets), err)
	}
	for i, set := range refitSets {
		if all[i].Set != set.name {
			t.Fatalf("set %d is %s, want %s", i, all[i].Set, set.name)
		}
		if set.name != "servo" && (os.Getenv("STREAMDP_SLOW") == "" || all[i].Rows > 2000) {
			continue
		}
		e, err := set.simulate(refitBudgets)
		if err != nil {
			t.Fatal(err)
		}
		near(t, set.name+": OLS", e.OLS, all[i].OLS)
		near(t, set.name+": zero", e.Zero, all[i].Zero)
		for _, s := range refitSolvers {
			if s.only != "" && s.only != set.name {
				continue
			}
			for k, epsilon := range refitBudgets {
				at := fmt.Sprintf("%s, %s at %g", set.name, s.key, epsilon)
				near(t, at, e.Tight[s.key][k].Mean, all[i].Tight[s.key][k].Mean)
				near(t, at+", loose", e.Loose[s.key][k].Mean, all[i].Loose[s.key][k].Mean)
			}
		}
	}
}

// TestKeptIntercepts fits some sets with an intercept again, and compares with the kept numbers.
func TestKeptIntercepts(t *testing.T) {
	if dataset.Folder() == "" {
		t.Skip("needs data sets that are no part of the project: set STREAMDP_DATA")
	}
	t.Parallel()
	all, err := kept[[]interceptLosses]("intercepts")
	if err != nil || len(all) != len(refitSets)-1 {
		t.Fatalf("%d sets are kept, of %d: %v", len(all), len(refitSets)-1, err)
	}
	for _, kept := range all {
		if kept.Set != "servo" && (os.Getenv("STREAMDP_SLOW") == "" || kept.Rows > 2000) {
			continue
		}
		again, err := simulateIntercept(refitSet{name: kept.Set})
		if err != nil {
			t.Fatal(err)
		}
		for _, solver := range interceptSolvers {
			for i, at := range interceptSettings {
				for k, epsilon := range refitBudgets {
					near(t, fmt.Sprintf("%s, %s at %g, %+v", kept.Set, solver, epsilon, at),
						again.Losses[solver][i][k].Mean, kept.Losses[solver][i][k].Mean)
				}
			}
		}
	}
}

// TestRefitRun runs the daemon: one stream refits windows of a data set while another computes moments of the same
// topic. The two streams together must cost less than the sum of their costs, and the refits must come near least
// squares.
func TestRefitRun(t *testing.T) {
	if dataset.Folder() == "" {
		t.Skip("needs data sets that are no part of the project: set STREAMDP_DATA")
	}
	t.Parallel()
	set, err := openSet("elevators", 0)
	if err != nil {
		t.Fatal(err)
	}
	for solver, least := range map[string]float64{"newton": 0.6, "ihm": 0.3} {
		r, err := set.refits(solver, 1)
		if err != nil {
			t.Fatal(err)
		}
		for k, r2 := range r.r2 {
			if !(r2 > least && r2 < 0.81) {
				t.Errorf("%s: R² of window %d is %g", solver, k, r2)
			}
		}
		if by := r.both.By; !(r.both.Epsilon < by[0].Epsilon+by[1].Epsilon) || by[0].Epsilon != 1 ||
			by[1].Epsilon != 1 {
			t.Errorf("%s: together %g, by themselves %+v", solver, r.both.Epsilon, by)
		}
		if (r.reserved != nil) != (solver == "ihm") {
			t.Errorf("%s: %v is set aside", solver, r.reserved)
		}
	}
}

// TestKeptCoverage simulates a set again, or with STREAMDP_SLOW=1 all small sets. The counts must be equal to the kept
// ones.
func TestKeptCoverage(t *testing.T) {
	if dataset.Folder() == "" {
		t.Skip("needs data sets that are no part of the project: set STREAMDP_DATA")
	}
	t.Parallel()
	all, err := kept[[]coverages]("coverage")
	if err != nil || len(all) != len(refitSets)+1 {
		t.Fatalf("%d sets are kept, of %d: %v", len(all), len(refitSets)+1, err)
	}
	for _, kept := range all {
		if kept.Set != "servo" && (os.Getenv("STREAMDP_SLOW") == "" || kept.Rows > 2000) {
			continue
		}
		again, err := (&refitSet{name: kept.Set}).coverages()
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(*again, kept) {
			t.Errorf("%+v, kept %+v", *again, kept)
		}
	}
}

// TestKeptFast solves one synthetic window again; all of them would take minutes.
func TestKeptFast(t *testing.T) {
	if os.Getenv("STREAMDP_SLOW") == "" {
		t.Skip("takes long: runs with STREAMDP_SLOW=1, which make nightly-reproduction sets")
	}
	all, err := kept[[]fastFamily]("fastmix")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		w := synthetic(f.Name, f.Rows, f.Dim)
		near(t, f.Name+": zero", digits(w.error(make([]float64, f.Dim))), f.Zero)
		again, err := w.compareFast(f.Name, []float64{1}, "ihm", "fast-ihm 4", "newton")
		if err != nil {
			t.Fatal(err)
		}
		for key, cell := range again.Cells {
			near(t, f.Name+", "+key, cell.Risk.Mean, f.Cells[key].Risk.Mean)
		}
	}
}

// TestFast simulates the synthetic families at a small size. Pooled debiased sketches must be better than others if
// rows vary in every direction.
func TestFast(t *testing.T) {
	t.Parallel()
	w := synthetic("sphere", 1<<13, 4)
	f, err := w.compareFast("sphere", []float64{10}, "ihm", "ihm, pooled", "paper ihm", "fast-ihm 4")
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Cells) != 4 || !(f.OLS < f.Zero) {
		t.Errorf("%+v", f)
	}
	for key, cell := range f.Cells {
		if !(cell.Risk.Mean > 0 && cell.Risk.Mean < f.Zero) || cell.Risk.Failed > 0 {
			t.Errorf("%s: %+v, zero %g", key, cell, f.Zero)
		}
	}
}

// TestSimulations checks that every simulation has its file, with one element per line. An unknown simulation is an
// error.
func TestSimulations(t *testing.T) {
	t.Parallel()
	for _, s := range simulations {
		b, err := keptFiles.ReadFile("kept/" + s.name + ".json")
		if err != nil || !strings.HasPrefix(string(b), "[{") {
			t.Errorf("%s: %.20q, %v", s.name, b, err)
		}
	}
	b, err := lines([]int{1, 2, 3})
	if err != nil || string(b) != "[1,\n2,\n3]\n" {
		t.Errorf("lines %q, %v", b, err)
	}
	if err := simulate("none", t.TempDir()); err == nil {
		t.Error("an unknown simulation runs")
	}
	if got, want := digits(123456789123), 123456789000.0; got != want {
		t.Errorf("nine digits of 123456789123 are %g", got)
	}
	var s sample
	for _, x := range []float64{1, 2, 3} {
		s.add(x)
	}
	if got, want := s.statistic(2), (statistic{Mean: 4, Half: 2.26321306}); !reflect.DeepEqual(got, want) {
		t.Errorf("statistic %+v, want %+v", got, want)
	}
}
