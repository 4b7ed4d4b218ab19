package codec

import (
	"slices"
	"testing"
)

func TestEncoder(t *testing.T) {
	for _, x := range []struct {
		codec string
		names []string
		texts []string
		cells []string
		want  string
	}{
		{"json", []string{"a", "b.c", "x", "b.d"}, nil, []string{"1", "", "red", "+.5"},
			`{"a":1,"b":{"c":null,"d":0.5},"x":"red"}`},
		{"json", []string{"a[2].x", "a[0]", `a\[0\]`}, nil, []string{"1", "true", "2"},
			`{"a":[true,null,{"x":1}],"a[0]":2}`},
		{"json", []string{"[1]", "[0].y"}, nil, []string{"1", "2"}, `[{"y":2},1]`},
		{"json", []string{"zip", "n"}, []string{"zip"}, []string{"01067", "007"}, `{"zip":"01067","n":7}`},
		{"json", []string{"zip"}, []string{"zip"}, []string{""}, `{"zip":null}`},
		// paths that cannot be in one record
		{"json", []string{"a", "a.b", "a[0]", "a..b"}, nil, []string{"1", "2", "3", "4"},
			`{"a":1,"a.b":2,"a[0]":3,"a..b":4}`},
		{"json-array", []string{"a[0]", "zip"}, []string{"zip"}, []string{"1", "2"}, `[1,"2"]`},
		{"csv", []string{"a", "b"}, []string{"b"}, []string{"1,5", "2"}, `"1,5",2`},
	} {
		texts := map[string]bool{}
		for _, name := range x.texts {
			texts[name] = true
		}
		e := NewEncoder(x.codec, x.names, texts)
		for range 2 {
			if got := string(e.Encode(x.cells)); got != x.want {
				t.Errorf("%s %q: %s, want %s", x.codec, x.names, got, x.want)
			}
		}
	}
}

// TestEncoderInverse: a codec reads the numbers that the encoder wrote for it.
func TestEncoderInverse(t *testing.T) {
	for name, columns := range map[string][]string{
		"json": {"a", "b.c", "x[1]"}, "json-array": {"a", "b", "c"}, "csv": {"1", "2", "3"}, "float64": {"a", "b", "c"},
		"float32": {"a", "b", "c"},
	} {
		c, err := New(name, columns)
		if err != nil {
			t.Fatal(err)
		}
		row, want := make([]float64, 3), []float64{-0.5, 1024, 3}
		value := NewEncoder(name, columns, nil).Encode([]string{"-.5", "1.024e3", " 3"})
		if why := c.Decode(&Record{Value: value}, row); why != Decoded || !slices.Equal(row, want) {
			t.Errorf("%s: %q gives %v, %s; want %v", name, value, row, why, want)
		}
	}
}
