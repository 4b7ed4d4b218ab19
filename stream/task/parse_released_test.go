package task

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/stream/core"
)

// TestParseReleased: both encodings of a release give the same numbers, with NaN for an unknown error.
func TestParseReleased(t *testing.T) {
	t.Parallel()
	read := func(toml string) *core.Released {
		m := newMachine(t, toml, 1).all(mutateLog(1)[:700], 700)
		r, err := core.ParseReleased(m.releases[uint64(len(m.releases))].Value)
		fixtures.Must(t, err)
		return r
	}
	a := read(fixtures.MachineStream)
	b := read(
		fixtures.With(fixtures.MachineStream, `output = { topic = "out"`,
			`output = { topic = "out", encoding = "base64"`))
	if len(a.Values) == 0 || fmt.Sprintf("%+v", *a) != fmt.Sprintf("%+v", *b) {
		t.Errorf("%+v\n%+v", *a, *b)
	}
	r, err := core.ParseReleased(
		[]byte(
			`{"schema":"streamdp.release.v1","mechanism":{"name":"sgd","target":"y","level":0.9},"values":{"b":{"shape":[2],"data":[1,2],"se":[0.5,null]},"a":{"shape":[1],"data":[3],"se":0.25}}}`))
	fixtures.Must(t, err)
	if r.Target != "y" || r.Level != 0.9 || r.Mechanism != "sgd" || r.Values[0].Name != "b" ||
		!math.IsNaN(r.Values[0].SE[1]) || r.Values[1].SE[0] != 0.25 {
		t.Errorf("%+v", r)
	}
	if text, err := json.Marshal(r.Values[0].SE); err != nil || string(text) != "[0.5,null]" {
		t.Errorf("%s %v", text, err)
	}
	for _, bad := range []string{
		``, `{}`, `{"schema":"streamdp.release.v1"}`,
		`{"schema":"streamdp.release.v1","values":{"a":{"data":[1,2,3],"se":[1,2]}}}`,
		`{"schema":"streamdp.release.v1","values":[1]}`,
	} {
		if _, err := core.ParseReleased([]byte(bad)); err == nil {
			t.Errorf("%s parses as a release", bad)
		}
	}
}
