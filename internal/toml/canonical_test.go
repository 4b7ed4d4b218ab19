package toml

import (
	"reflect"
	"testing"
)

// TestLaterKeys: the canonical form omits a key that the first version did not have while it has its default.
func TestLaterKeys(t *testing.T) {
	type settings struct {
		First int       `toml:"first"`
		Later string    `toml:"later"`
		Zero  []float64 `toml:"zero"`
	}
	n := New([]Row{
		{Path: "first", Kind: Whole, Flags: Always, Def: "1"},
		{Path: "later", Kind: Text, Def: `"x"`},
		{Path: "zero", Kind: Numbers},
	})
	f := func(s settings, want string) {
		t.Helper()
		if got := string(JSON(n.Canonical(reflect.ValueOf(s)))); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	f(settings{First: 1, Later: "x"}, `{"first":1}`)
	f(settings{First: 1, Later: "y"}, `{"first":1,"later":"y"}`)
	f(settings{First: 1, Later: "x", Zero: []float64{0}}, `{"first":1,"zero":[0]}`)
}
