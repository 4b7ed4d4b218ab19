// Package words formats numbers for people.
package words

import (
	"fmt"
	"strings"
)

// Plural formats a number of things, such as "3 records". The parameter `what` is the thing's name in the singular; its
// plural must end in s.
func Plural[N int | int64 | uint64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Size formats a number of bytes: in kB from 10 000 bytes on, in MB from 10 000 000 bytes on.
func Size(n int64) string {
	switch {
	case n < 10_000:
		return fmt.Sprintf("%d B", n)
	case n < 10_000_000:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%.1f MB", float64(n)/1e6)
}

// Ranges formats ascending numbers in the form 0-3,5. It returns "–" for an empty list.
func Ranges(numbers []int) string {
	var parts []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		part := fmt.Sprint(numbers[i])
		if j > i {
			part += fmt.Sprintf("-%d", numbers[j])
		}
		parts = append(parts, part)
		i = j + 1
	}
	if parts == nil {
		return "–"
	}
	return strings.Join(parts, ",")
}

// Offset formats the end of a range of offsets. end is negative if the range has no end yet.
func Offset(end int64) string {
	if end < 0 {
		return "…"
	}
	return fmt.Sprint(end)
}
