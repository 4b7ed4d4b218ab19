package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestStreamOf: a stream is restored from its canonical text, for every mechanism.
func TestStreamOf(t *testing.T) {
	files, err := filepath.Glob("../examples/*.toml")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	texts := []string{orders, strings.Replace(orders, `"amount"`, `"$${x}$"`, 1),
		strings.Replace(orders, "step   = 100", "step = 100\nhorizon = 7\non_horizon = \"continue\"", 1)}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(data))
	}
	seen := map[string]bool{}
	for _, text := range texts {
		c, err := Parse("t", []byte(text))
		if err != nil {
			t.Error(err)
			continue
		}
		for _, s := range c.Streams {
			if s.Merge {
				s = s.Over([]int{0, 2})
			}
			canonical := s.Canonical(3)
			got, err := StreamOf(s.Name, canonical)
			if err != nil {
				t.Errorf("%s: %v\n%s", s.Name, err, canonical)
				continue
			}
			if string(got.Canonical(3)) != string(canonical) || (got.Centre == nil) != (s.Centre == nil) ||
				got.LastStep() != s.LastStep() || got.Params() != s.Params() {
				t.Errorf("%s: another stream", s.Name)
			}
			seen[s.Mechanism()] = true
			// A text that differs in any byte is not canonical, even if it means the same.
			if _, err := StreamOf(s.Name, append([]byte(" "), canonical...)); err == nil {
				t.Error("with a blank")
			}
		}
	}
	if len(seen) < 4 {
		t.Error("mechanisms:", seen)
	}
	for _, text := range []string{"", "null", "[]", "{}", `{"input":3}`} {
		if _, err := StreamOf("x", []byte(text)); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}
