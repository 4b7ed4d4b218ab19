package core

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/streamdp/streamdp/dp"
)

// Person is the guarantee for a person who has Records records. Epsilon is the ε at the δ of the guarantee that
// contains the Person. It is rounded up to four digits, and nil if no finite ε holds.
type Person struct {
	Records int      `json:"records"`
	Epsilon *float64 `json:"epsilon"`
}

// Persons returns the guarantee that a cost gives to persons with the given numbers of records.
func Persons(c dp.Cost, delta float64, records ...int) (all []Person) {
	for _, k := range records {
		p := Person{Records: k}
		if eps, err := c.GroupEpsilon(k, delta); err == nil {
			if up, err := roundUp(eps, 4); err == nil {
				p.Epsilon = &up
			}
		}
		all = append(all, p)
	}
	return all
}

// roundUp rounds a positive number up to the given number of significant decimal digits.
func roundUp(x float64, digits int) (float64, error) {
	text := strconv.FormatFloat(x, 'e', digits-1, 64)
	y, err := strconv.ParseFloat(text, 64)
	if err != nil || y >= x {
		return y, err
	}
	// Formatting has rounded down, so add one to the last digit.
	mantissa, exponent, _ := strings.Cut(text, "e")
	m, err := strconv.Atoi(strings.Replace(mantissa, ".", "", 1))
	if err != nil {
		return 0, err
	}
	e, err := strconv.Atoi(exponent)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(fmt.Sprintf("%de%d", m+1, e-digits+1), 64)
}

// AtMost writes an ε with six digits, rounded up, as a sentence that says "at most" needs it.
func AtMost(epsilon float64) string {
	return strconv.FormatFloat(ToShow(epsilon), 'g', -1, 64)
}

// ToShow rounds an ε up to six digits. For example, if the configured ε is 1, the ε computed from the noise is shown as
// 1.
func ToShow(epsilon float64) float64 {
	if up, err := roundUp(epsilon, 6); err == nil {
		return up
	}
	return epsilon
}
