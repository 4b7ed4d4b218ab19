package words

import "testing"

func TestWords(t *testing.T) {
	for got, want := range map[string]string{
		Plural(1, "record"): "1 record", Plural(int64(0), "record"): "0 records", Plural(uint64(2), "step"): "2 steps",
		Size(9_999): "9999 B", Size(10_000): "10.0 kB", Size(9_999_999): "10000.0 kB", Size(12_345_678): "12.3 MB",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
