package matfact

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
)

// TestPersonsTable compares the table in docs/howto/persons.md with the noise of the factorizations for persons. This
// command writes the table: go test ./matfact -run PersonsTable -update.
func TestPersonsTable(t *testing.T) {
	t.Parallel()
	const (
		path   = "../docs/howto/persons.md"
		n      = 8760
		begins = "<!-- table -->\n"
		ends   = "<!-- end of the table -->\n"
	)
	w := Workload{Kind: "sum"}
	// noise returns the standard deviation of the sum after n steps, at noise multiplier 1 and clip
	// norm 1.
	noise := func(p Participation) float64 {
		f, err := New(AutoPersons(w, n, p), w)
		if err != nil {
			t.Fatal(err)
		}
		norm, err := Sensitivity(f, p, n)
		if err != nil {
			t.Fatal(err)
		}
		return norm * math.Sqrt(f.RowVar(w, n))
	}
	var b strings.Builder
	b.WriteString(
		"| a person counts | cap, separation | times the noise of records | without the separation | as a group of " +
			"records | over the least that is possible |\n| --- | --- | --- | --- | --- | --- |\n")
	one := noise(Participation{Count: 1, Separation: 1})
	for _, x := range []struct {
		name  string
		k, sp uint64
	}{{"once", 1, 1}, {"monthly", 12, 720}, {"weekly", 52, 168}, {"daily", 365, 24}, {"every hour", 8760, 1}} {
		v, loose := noise(Participation{Count: x.k, Separation: x.sp}), noise(Participation{Count: x.k, Separation: 1})
		fmt.Fprintf(&b, "| %s | %d, %d | %s | %s | %d | %s |\n", x.name, x.k, x.sp, threeDigits(v/one),
			threeDigits(loose/one), x.k, threeDigits(v/float64(x.k)))
	}
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := bytes.Cut(doc, []byte(begins))
	old, tail, also := bytes.Cut(rest, []byte(ends))
	if !ok || !also {
		t.Fatal("the marks of the table are missing")
	}
	if *update {
		if err := os.WriteFile(path,
			bytes.Join([][]byte{head, []byte(begins), []byte(b.String()), []byte(ends), tail}, nil),
			0o644); err != nil {
			t.Fatal(err)
		}
	} else if string(old) != b.String() {
		t.Errorf("%s is out of date: go test ./matfact -run PersonsTable -update\n%s", path, b.String())
	}
}

// threeDigits formats a number below 10 000 with three significant digits.
func threeDigits(x float64) string {
	if x >= 1000 {
		return fmt.Sprintf("%.0f", 10*math.Round(x/10))
	}
	return fmt.Sprintf("%.3g", x)
}
