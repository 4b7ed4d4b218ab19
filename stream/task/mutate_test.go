package task

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/stream/codec"
)

// The daemon halts if the log has changed (faults_log_test.go). The tests in this file leave out that check to inspect
// the noise: different integers must get different noise.

// additive is a stream whose noise can be computed from its releases: it publishes sums with independent noise, and a
// step has one record.
var additive = fixtures.With(fixtures.MachineStream, "step   = 7", "step = 1") +
	"workload = \"sum\"\nfactorization = \"identity\"\n"

const mutateSteps = 3000

func mutateRecord(rng *rand.Rand) []byte {
	f := func() float64 { return math.Round(rng.NormFloat64()*1e4) / 1e5 }
	return fmt.Appendf(nil, `{"a":%.5f,"b":%.5f,"c":%.5f,"note":"n"}`, 1+f()/2, f(), f()-2)
}

func mutateLog(seed uint64) []kafka.Record {
	rng := rand.New(rand.NewPCG(seed, 1))
	log := make([]kafka.Record, mutateSteps)
	for i := range log {
		log[i] = kafka.Record{Offset: int64(i), Value: mutateRecord(rng)}
	}
	return log
}

// noiseOf returns the noise of every step and coordinate, in units of the array's standard deviation. The noise is the
// difference of two successive released sums, minus the record. All rows are inside the clip bound.
func noiseOf(t *testing.T, m *machine, log []kafka.Record, shift func(offset int64, row []float64)) [][]float64 {
	t.Helper()
	decode, err := codec.New("json", []string{"a", "b", "c"})
	if err != nil {
		t.Fatal(err)
	}
	plan := m.r.D.Cfg.Streams[0]
	row, scaled := make([]float64, 3), make([]float64, 3)
	var before fixtures.Release
	noise := make([][]float64, len(log))
	for i := range log {
		clear(scaled)
		norm := 0.0
		if decode.Decode(&log[i], row) == codec.Decoded {
			if shift != nil {
				shift(int64(i), row)
			}
			for j := range row {
				scaled[j] = (row[j] - plan.Centre[j]) / plan.Scale[j]
				norm += scaled[j] * scaled[j]
			}
		}
		if norm >= 1 {
			t.Fatalf("record %d would be clipped", i)
		}
		p := fixtures.Published{Key: fmt.Sprint(i + 1), Value: string(m.releases[uint64(i+1)].Value)}
		rel := p.Parse(t)
		for k, x := range rel.Values["sum"].Data {
			was := 0.0
			if i > 0 {
				was = before.Values["sum"].Data[k]
			}
			noise[i] = append(noise[i], (x-was-scaled[k])/m.p.applier.core.Mechanism().Noise["first"])
		}
		k := 0
		for a := range 3 {
			for b := a; b < 3; b++ {
				was := 0.0
				if i > 0 {
					was = before.Values["second_moment"].Data[k]
				}
				sd := m.p.applier.core.Mechanism().Noise["second_off_diagonal"]
				if a == b {
					sd = m.p.applier.core.Mechanism().Noise["second_diagonal"]
				}
				noise[i] = append(noise[i], (rel.Values["second_moment"].Data[k]-was-scaled[a]*scaled[b])/sd)
				k++
			}
		}
		before = rel
	}
	return noise
}

// correlation returns the correlation of the noises a and b from a step on, and the number of values compared.
func correlation(a, b [][]float64, from int) (r float64, n int) {
	var ab, aa, bb float64
	for i := from; i < min(len(a), len(b)); i++ {
		for j := range a[i] {
			ab += a[i][j] * b[i][j]
			aa += a[i][j] * a[i][j]
			bb += b[i][j] * b[i][j]
			n++
		}
	}
	return ab / math.Sqrt(aa*bb), n
}

// TestMutatedLog: the same integers get the same noise. If one integer differs, now or earlier, the noise is
// independent from there on.
//
// |r| < 5/√N fails for independent noise with probability 6·10⁻⁷.
func TestMutatedLog(t *testing.T) {
	t.Parallel()
	log := mutateLog(1)
	original := newMachine(t, additive, 1).all(log, mutateSteps)
	want := noiseOf(t, original, log, nil)

	check := func(name string, toml string, key byte, other []kafka.Record, tweak func(int64, []float64), from int) {
		t.Helper()
		m := newMachine(t, toml, key)
		m.tweak = tweak
		m.all(other, int64(len(other)))
		for step := 1; step <= from; step++ {
			if !bytes.Equal(m.releases[uint64(step)].Value, original.releases[uint64(step)].Value) {
				t.Errorf("%s: step %d differs, but the first changed record is %d", name, step, from)
				return
			}
		}
		if from == mutateSteps {
			return // nothing differs
		}
		if bytes.Equal(m.releases[uint64(from+1)].Value, original.releases[uint64(from+1)].Value) {
			t.Errorf("%s: step %d does not differ", name, from+1)
		}
		r, n := correlation(want, noiseOf(t, m, other, tweak), from)
		bound := 5 / math.Sqrt(float64(n))
		t.Logf("%s: r = %+.4f over %d values, bound %.4f", name, r, n, bound)
		if !(math.Abs(r) < bound) || n < 5000 {
			t.Errorf(
				"%s: noise of steps from %d on has correlation %.4f with that on other data (%d values, bound %.4f)",
				name, from+1, r, n, bound)
		}
	}
	changed := func(at int, f func([]byte) []byte) []kafka.Record {
		other := append([]kafka.Record(nil), log...)
		other[at].Value = f(bytes.Clone(other[at].Value))
		return other
	}
	flip := func(value []byte) []byte { // changes the last digit of the last number
		i := bytes.LastIndexByte(value, ',') - 1
		value[i] = '0' + (value[i]-'0'+1)%10
		return value
	}
	const at = 1000

	// Check the measure itself: reused noise has correlation 1.
	if r, n := correlation(want, noiseOf(t, newMachine(t, additive, 1).all(log, mutateSteps), log, nil), 0); r < 0.999 {
		t.Fatalf("equal noise has correlation %g over %d values", r, n)
	}
	var sum, square float64
	for _, row := range want {
		for _, z := range row {
			sum += z
			square += z * z
		}
	}
	if n := float64(9 * mutateSteps); math.Abs(sum)/n > 5/math.Sqrt(n) || math.Abs(square/n-1) > 5*math.Sqrt(2/n) {
		t.Fatalf("noise read off has mean %g and variance %g", sum/n, square/n)
	}

	check("one digit", additive, 1, changed(at, flip), nil, at)
	check("a record made invalid", additive, 1, changed(at, func([]byte) []byte { return []byte("x") }), nil, at)
	check("first record", additive, 1, changed(0, flip), nil, 0)
	check("a byte that no integer depends on", additive, 1, changed(at, func(v []byte) []byte {
		return bytes.Replace(v, []byte(`"n"}`), []byte(`"m"}`), 1)
	}), nil, mutateSteps)
	check("another log", additive, 1, mutateLog(2), nil, 0)
	check("truncated and refilled", additive, 1,
		append(append([]kafka.Record(nil), log[:at]...), mutateLog(2)[at:]...), nil, at)
	check("another key", additive, 2, log, nil, 0)
	check("clip", fixtures.With(additive, "clip = 1.0", "clip = 1.000001"), 1, log, nil, 0)
	check("a decoder one lattice step off", additive, 1, log, func(offset int64, row []float64) {
		if offset == at {
			row[1] += original.p.applier.core.Mechanism().Lattice[0] * original.r.S.Scale[1]
		}
	}, at)
}

// TestMutatedCount: one more or fewer record in a step changes the noise, even if all records are zero and every sum is
// the same.
func TestMutatedCount(t *testing.T) {
	t.Parallel()
	toml := fixtures.With(fixtures.MachineStream, "step   = 7", "step = 5")
	log := []kafka.Record{{Offset: 0, Value: []byte(`{"a":1,"b":0,"c":-2}`)},
		{Offset: 1, Value: []byte(`{"a":1.1,"b":0,"c":-2}`)}}
	a := newMachine(t, toml, 1).all(log, 5)
	b := newMachine(t, toml, 1).all(log[1:], 5) // the record at 0 is the zero row
	mean := func(m *machine) float64 {
		p := fixtures.Published{Value: string(m.releases[1].Value)}
		rel := p.Parse(t)
		return rel.Values["mean"].Data[0] * float64(rel.Rows)
	}
	if d := math.Abs(mean(a) - mean(b)); d < 1e-6 {
		t.Errorf("sums with one record and with two differ by %g: the noise is the same", d)
	}
}
