package audit_test

import (
	"fmt"
	"math"
	"sort"
	"strconv"
	"testing"

	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/stattest"
	"github.com/streamdp/streamdp/internal/testing/cases"
)

// TestTables computes the tables of docs/theory/audit.md: the numbers of draws, runs or rows with which an error of a
// given size is found with probability audit.Power.
func TestTables(t *testing.T) {
	t.Parallel()
	line := func(first string, cells []int) string {
		s := "| " + first + " |"
		for _, c := range cells {
			s += " " + thousands(c) + " |"
		}
		return s
	}
	// A1 finds the error f if f²χ² is below the α-quantile of χ².
	var draws []int
	for _, factor := range []float64{1.05, 1.1, 1.4, 2} {
		draws = append(draws, least(func(n int) bool {
			low, _ := stattest.ChiSquared(n, stattest.Alpha)
			_, high := stattest.ChiSquared(n, 1-audit.Power)
			return high/(factor*factor) <= low
		}))
	}
	cases.Table(t, "docs/theory/audit.md", "| noise too small by a factor |", []string{line("draws", draws)})
	// This is the table for A2.
	var table []string
	for _, mu := range []float64{0.5, 1, 2, 4, 8} {
		var runs []int
		for _, factor := range []float64{1.1, 1.4, 2} {
			runs = append(runs, least(func(m int) bool {
				root := mu * math.Sqrt(float64(m)/2)
				return stattest.NoncentralTail(2*m-2, factor*root,
					stattest.NoncentralT(2*m-2, root, stattest.Alpha)) >= audit.Power
			}))
		}
		table = append(table, line(fmt.Sprint(mu), runs))
	}
	cases.Table(t, "docs/theory/audit.md", "| claimed μ |", table)
	// This is the table for A3.
	table = nil
	for _, gamma := range []float64{20, 5, 4} {
		var rows []int
		for _, factor := range []float64{1.1, 1.4, 2} {
			rows = append(rows, least(func(n int) bool {
				return (1-1/gamma)/(1-factor/gamma) >= stattest.Ratio(n, stattest.Alpha)*stattest.Ratio(n,
					1-audit.Power)
			}))
		}
		table = append(table, line(fmt.Sprint(gamma), rows))
	}
	cases.Table(t, "docs/theory/audit.md", "| claimed γ |", table)
}

// least returns the smallest n ≥ 8 such that f returns true for n and all larger numbers.
func least(f func(n int) bool) int {
	top := 8
	for !f(top) {
		top *= 2
	}
	return max(8, top/2+sort.Search(top-top/2, func(i int) bool { return f(top/2 + i) }))
}

// thousands formats 17532 as 17 532.
func thousands(n int) string {
	s := strconv.Itoa(n)
	if len(s) < 5 {
		return s
	}
	return thousands(n/1000) + " " + s[len(s)-3:]
}
