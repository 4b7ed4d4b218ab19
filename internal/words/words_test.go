package words

import "testing"

func TestWords(t *testing.T) {
	for got, want := range map[string]string{
		Plural(1, "record"): "1 record", Plural(int64(0), "record"): "0 records", Plural(uint64(2), "step"): "2 steps",
		Size(9_999): "9999 B", Size(10_000): "10.0 kB", Size(9_999_999): "10000.0 kB", Size(12_345_678): "12.3 MB",
		Offset(-1): "…", Offset(0): "0",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestRanges(t *testing.T) {
	for _, x := range []struct {
		numbers []int
		want    string
	}{{nil, "–"}, {[]int{7}, "7"}, {[]int{0, 1, 2, 3, 5}, "0-3,5"}, {[]int{1, 3, 4}, "1,3-4"}} {
		if got := Ranges(x.numbers); got != x.want {
			t.Errorf("%v: %s, want %s", x.numbers, got, x.want)
		}
	}
}
