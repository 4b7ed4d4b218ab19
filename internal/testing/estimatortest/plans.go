package estimatortest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"testing"
)

// Plans gives adopt the unchanged plan, which adopt must accept, and then copies with one number, word or list changed,
// which adopt must refuse. Integers are changed by 1, other numbers by the fraction `part` of their value. Values at
// the paths in `free`, such as ".start", are not changed, because only the plan decides them.
func Plans[P, E any](t testing.TB, plan P, part float64, adopt func(P) (E, error), free ...string) {
	t.Helper()
	b, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err := json.Unmarshal(b, &tree); err != nil {
		t.Fatal(err)
	}
	if _, err := adopt(plan); err != nil {
		t.Fatalf("the unchanged plan is refused: %v", err)
	}
	refuse := func(path string) {
		t.Helper()
		b, err := json.Marshal(tree)
		if err != nil {
			t.Fatal(err)
		}
		var other P
		if json.Unmarshal(b, &other) != nil {
			return // not a plan at all
		}
		if _, err := adopt(other); err == nil {
			t.Errorf("adopt accepted a plan with a changed %s", path)
		}
	}
	var walk func(path string, x any, set func(any))
	walk = func(path string, x any, set func(any)) {
		if slices.Contains(free, path) {
			return
		}
		try := func(y any) {
			set(y)
			refuse(path)
			set(x)
		}
		switch x := x.(type) {
		case map[string]any:
			for key, v := range x {
				walk(path+"."+key, v, func(y any) { x[key] = y })
			}
		case []any:
			for i, v := range x {
				walk(fmt.Sprintf("%s[%d]", path, i), v, func(y any) { x[i] = y })
			}
			if len(x) > 0 {
				try(x[:len(x)-1])
			}
		case float64:
			if x == float64(int64(x)) {
				try(x + 1)
				try(x - 1)
			} else {
				try(x * (1 + part))
				try(x * (1 - part))
			}
		case bool:
			try(!x)
		case string:
			if v, err := strconv.ParseUint(x, 10, 64); err == nil {
				// Change a fixed-point number slightly: another optimiser would find other last bits.
				try(strconv.FormatUint(v-v>>20, 10))
			} else {
				try(x + "x")
			}
		}
	}
	walk("", tree, func(any) {})
}
