// Package words formats numbers for people.
package words

import (
	"fmt"
	"strings"
)

// Plural formats a number of things. The plural of their name must take an s.
func Plural[N int | int64 | uint64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Size formats a number of bytes: from 10 000 on in kB, from 10 000 000 on in MB.
func Size(n int64) string {
	switch {
	case n < 10_000:
		return fmt.Sprintf("%d B", n)
	case n < 10_000_000:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%.1f MB", float64(n)/1e6)
}

// Ranges formats ascending numbers as 0-3,5; "–" for none.
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

// Offset formats the end of a range of offsets. It is negative while the range has no end.
func Offset(end int64) string {
	if end < 0 {
		return "…"
	}
	return fmt.Sprint(end)
}
