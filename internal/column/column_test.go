package column

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/fault"
)

func text(s string) Value { return Value{Kind: Text, Text: []byte(s)} }

func num(x float64) Value { return Value{Kind: Number, Num: x} }

func truth(b bool) Value {
	if b {
		return Value{Kind: Truth, Num: 1}
	}
	return Value{Kind: Truth}
}

var countries = Spec{Name: "country", Type: "category", Categories: []string{"DE", "FR", ""}}

func with(s Spec, change func(*Spec)) Spec {
	change(&s)
	return s
}

func TestPut(t *testing.T) {
	inf := math.Inf(1)
	open := with(countries, func(s *Spec) { s.Other = true })
	numbers := Spec{Type: "category", Categories: []string{"200", "404", "-1", "0", "true", "9007199254740992", "1e3"}}
	for _, x := range []struct {
		name string
		spec Spec
		in   Value
		want []float64 // nil: a fault is expected
		f    Fault
	}{
		{"number", Spec{}, num(1.5), []float64{1.5}, OK},
		{"string for a number", Spec{}, text("1.5"), nil, NotNumber},
		{"boolean for a number", Spec{}, truth(true), nil, NotNumber},
		{"enumeration for a number", Spec{}, Value{Kind: Enum, Num: 3}, nil, NotNumber},
		{"object for a number", Spec{}, Value{Kind: Other}, nil, NotNumber},
		{"infinite", Spec{}, num(inf), nil, NotFinite},
		{"NaN", Spec{}, num(math.NaN()), nil, NotFinite},
		{"absent", Spec{}, Value{}, nil, Missing},
		{"default", Spec{Default: -2.5}, Value{}, []float64{-2.5}, OK},
		{"default of another type", Spec{Default: -2.5}, text(""), nil, NotNumber},
		{"default before the transform", Spec{Default: 3.0, Transform: "sqrt", Offset: 1}, Value{}, []float64{2}, OK},

		{"decimal", Spec{Type: "decimal"}, text("-12.50"), []float64{-12.5}, OK},
		{"decimal as a number", Spec{Type: "decimal"}, num(3), []float64{3}, OK},
		{"decimal with more", Spec{Type: "decimal"}, text("12 "), nil, NotNumber},
		{"decimal, empty", Spec{Type: "decimal"}, text(""), nil, NotNumber},
		{"decimal, NaN", Spec{Type: "decimal"}, text("NaN"), nil, NotNumber},
		{"decimal, huge", Spec{Type: "decimal"}, text("1e999"), nil, NotFinite},
		{"decimal, long", Spec{Type: "decimal"}, text(strings.Repeat("1", maxDecimal+1)), nil, NotNumber},
		{"decimal, almost too long", Spec{Type: "decimal"}, text("0." + strings.Repeat("0", maxDecimal-3) + "1"),
			[]float64{0}, OK},

		{"bool", Spec{Type: "bool"}, truth(true), []float64{1}, OK},
		{"bool, false", Spec{Type: "bool"}, truth(false), []float64{0}, OK},
		{"number for a bool", Spec{Type: "bool"}, num(1), nil, NotBoolean},
		{"string for a bool", Spec{Type: "bool"}, text("true"), nil, NotBoolean},
		{"default of a bool", Spec{Type: "bool", Default: true}, Value{}, []float64{1}, OK},
		{"default of a bool, a number", Spec{Type: "bool", Default: 0.25}, Value{}, []float64{0.25}, OK},

		{"enum", Spec{Type: "enum"}, Value{Kind: Enum, Num: -7}, []float64{-7}, OK},
		{"string for an enum", Spec{Type: "enum"}, text("A"), nil, NotNumber},

		{"category", countries, text("FR"), []float64{0, 1, 0}, OK},
		{"category, empty", countries, text(""), []float64{0, 0, 1}, OK},
		{"category, absent", countries, Value{}, nil, Missing},
		{"category, unknown", countries, text("fr"), nil, NotCategory},
		{"category, enumeration", countries, Value{Kind: Enum, Text: []byte("DE"), Num: 9}, []float64{1, 0, 0}, OK},
		{"category, other", open, text("other"), []float64{0, 0, 0, 1}, OK},
		{"category, unknown with other", open, text("XX"), []float64{0, 0, 0, 1}, OK},
		{"category, absent with other", open, Value{}, nil, Missing},
		{"category, object with other", open, Value{Kind: Other}, nil, NotCategory},
		{"category, time with other", open, Value{Kind: Instant}, nil, NotCategory},
		{"category, default", with(countries, func(s *Spec) { s.Default = "FR" }), Value{}, []float64{0, 1, 0}, OK},
		{"category, default of other", with(open, func(s *Spec) { s.Default = "other" }), Value{},
			[]float64{0, 0, 0, 1}, OK},
		{"category, baseline", with(open, func(s *Spec) { s.Baseline = "DE" }), text("DE"), []float64{0, 0, 0}, OK},
		{"category, beside a baseline", with(open, func(s *Spec) { s.Baseline = "DE" }), text("FR"),
			[]float64{1, 0, 0}, OK},
		{"category, no category for a baseline", with(open, func(s *Spec) { s.Baseline = "DE" }), text("GR"),
			[]float64{0, 0, 1}, OK},
		{"category, other is the baseline", with(open, func(s *Spec) { s.Baseline = "other" }), text("GR"),
			[]float64{0, 0, 0}, OK},
		{"category, the empty one is no baseline", with(countries, func(s *Spec) { s.Baseline = "" }), text(""),
			[]float64{0, 0, 1}, OK},
		{"category, number", numbers, num(404), []float64{0, 1, 0, 0, 0, 0, 0}, OK},
		{"category, negative", numbers, num(-1), []float64{0, 0, 1, 0, 0, 0, 0}, OK},
		{"category, −0", numbers, num(math.Copysign(0, -1)), []float64{0, 0, 0, 1, 0, 0, 0}, OK},
		{"category, true", numbers, truth(true), []float64{0, 0, 0, 0, 1, 0, 0}, OK},
		{"category, false", numbers, truth(false), nil, NotCategory},
		{"category, beyond exact numbers", numbers, num(0x1p53), nil, NotCategory},
		{"category, number with a fraction", numbers, num(200.5), nil, NotCategory},
		{"category, number by its text only", numbers, num(1000), nil, NotCategory},
		{"category, infinite", numbers, num(inf), nil, NotCategory},
		{"category, text of a number", numbers, text("1e3"), []float64{0, 0, 0, 0, 0, 0, 1}, OK},

		{"log", Spec{Transform: "log"}, num(1), []float64{0}, OK},
		{"log of 0", Spec{Transform: "log"}, num(0), nil, NotFinite},
		{"log of a negative number", Spec{Transform: "log"}, num(-1), nil, NotFinite},
		{"log with an offset", Spec{Transform: "log", Offset: 2}, num(-1), []float64{0}, OK},
		{"log1p", Spec{Transform: "log1p"}, num(0), []float64{0}, OK},
		{"log1p of −1", Spec{Transform: "log1p"}, num(-1), nil, NotFinite},
		{"sqrt", Spec{Transform: "sqrt"}, num(9), []float64{3}, OK},
		{"sqrt of a negative number", Spec{Transform: "sqrt"}, num(-9), nil, NotFinite},
		{"power", Spec{Transform: "power", Exponent: 2}, num(-3), []float64{9}, OK},
		{"power that is too large", Spec{Transform: "power", Exponent: 2}, num(1e200), nil, NotFinite},
		{"power of 0", Spec{Transform: "power", Exponent: -1}, num(0), nil, NotFinite},
		{"transform of a bool", Spec{Type: "bool", Transform: "log1p"}, truth(false), []float64{0}, OK},
		{"transform of a time", Spec{Type: "timestamp", Take: "hour", Transform: "sqrt"}, text("2026-11-23T16:59"),
			[]float64{4}, OK},
		{"infinite before a transform", Spec{Transform: "power", Exponent: -1}, num(inf), nil, NotFinite},
		{"sum that overflows", Spec{Transform: "sqrt", Offset: math.MaxFloat64}, num(math.MaxFloat64), nil, NotFinite},
		{"default of a time", Spec{Type: "timestamp", Take: "hour", Default: 12.0}, Value{}, []float64{12}, OK},
		{"a nanosecond that is none", Spec{Type: "timestamp"}, Value{Kind: Instant, Nsec: -1}, nil, NotTime},
		{"boolean for a time", Spec{Type: "timestamp", Unit: "s"}, truth(true), nil, NotTime},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := column(t, x.spec)
			dst := slices.Repeat([]float64{7}, c.Width())
			var f Fault
			if n := testing.AllocsPerRun(1, func() { f = c.Put(dst, &x.in) }); n != 0 {
				t.Errorf("%v allocations", n)
			}
			if f != x.f || f == OK && !slices.Equal(dst, x.want) {
				t.Errorf("%v, fault %d, want %v, fault %d", dst, f, x.want, x.f)
			}
			if f == OK && x.in.Kind != Absent && !c.Takes(x.in.Kind) {
				t.Error("Put accepts a kind that Takes refuses")
			}
			if x.in.Kind == Text && len(x.in.Text) > c.MaxText() {
				cut := Value{Kind: Text, Text: x.in.Text[:c.MaxText()+1]}
				if g := c.Put(dst, &cut); g != f {
					t.Errorf("cut: fault %d, want %d", g, f)
				}
			}
		})
	}
}

func TestPutCell(t *testing.T) {
	open := with(countries, func(s *Spec) { s.Categories, s.Other = s.Categories[:2], true })
	for _, x := range []struct {
		spec Spec
		in   string
		want []float64 // nil: a fault is expected
		f    Fault
	}{
		{Spec{}, " +1.5\t", []float64{1.5}, OK}, {Spec{}, "", nil, Missing}, {Spec{}, "  ", nil, Missing},
		{Spec{}, "1,5", nil, NotNumber}, {Spec{}, "1e999", nil, NotFinite}, {Spec{}, "x", nil, NotNumber},
		{Spec{Default: 4.0}, " ", []float64{4}, OK}, {Spec{Type: "decimal"}, "2", []float64{2}, OK},
		{Spec{Type: "decimal"}, "two", nil, NotNumber},
		{Spec{Type: "bool"}, "TRUE", []float64{1}, OK}, {Spec{Type: "bool"}, " false", []float64{0}, OK},
		{Spec{Type: "bool"}, "1", []float64{1}, OK}, {Spec{Type: "bool"}, "0", []float64{0}, OK},
		{Spec{Type: "bool"}, "2", nil, NotBoolean}, {Spec{Type: "bool"}, "yes", nil, NotBoolean},
		{Spec{Type: "bool"}, "\x14rue", nil, NotBoolean}, {Spec{Type: "bool"}, "tru", nil, NotBoolean},
		{open, "DE", []float64{1, 0, 0}, OK}, {open, " DE", []float64{0, 0, 1}, OK}, {open, "", nil, Missing},
		{Spec{Type: "category", Categories: []string{"1"}}, "1.0", nil, NotCategory},
		{Spec{Type: "timestamp", Take: "hour"}, " 2026-11-23 20:04 ", []float64{20}, OK},
		{Spec{Type: "timestamp", Take: "hour"}, "3600", nil, NotTime},
		{Spec{Type: "timestamp", Take: "hour", Unit: "s"}, "3600", []float64{1}, OK},
		{Spec{Type: "timestamp", Take: "hour", Unit: "s"}, "2026-11-23 20:04", []float64{20}, OK},
	} {
		c := column(t, x.spec)
		dst := slices.Repeat([]float64{7}, c.Width())
		if f := c.PutCell(dst, []byte(x.in)); f != x.f || f == OK && !slices.Equal(dst, x.want) {
			t.Errorf("%v %q: %v, fault %d, want %v, fault %d", x.spec, x.in, dst, f, x.want, x.f)
		}
	}
}

func TestNames(t *testing.T) {
	s := with(countries, func(s *Spec) { s.Other, s.Baseline = true, "FR" })
	if got, want := column(t, s).Names(),
		[]string{"country=DE", "country=", "country=other"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	c := column(t, Spec{Name: `a\.b[2]`})
	if got, want := c.Names(), []string{`a\.b[2]`}; !slices.Equal(got, want) ||
		!slices.Equal(c.Path(), []Element{name("a.b"), index(2)}) || !c.Plain() || c.Type() != "number" ||
		c.Name() != want[0] {
		t.Errorf("%q, %v", got, c.Path())
	}
	for _, s := range []Spec{{Default: 0.0}, {Transform: "log"}, {Type: "bool"}, countries} {
		if column(t, s).Plain() {
			t.Errorf("%v is plain", s)
		}
	}
}

func TestFaults(t *testing.T) {
	stamp := Spec{Type: "timestamp"}
	for _, x := range []struct {
		key  string
		spec Spec
	}{
		{"type", Spec{Type: "text"}}, {"path", Spec{Path: "a..b"}},
		{"take", Spec{Take: "hour"}}, {"unit", Spec{Unit: "s"}},
		{"utc_offset", Spec{Type: "category", Categories: []string{"a"}, UTCOffset: "+01:00"}},
		{"take", with(stamp, func(s *Spec) { s.Take = "second" })},
		{"unit", with(stamp, func(s *Spec) { s.Unit = "m" })},
		{"utc_offset", with(stamp, func(s *Spec) { s.UTCOffset = "1" })},
		{"utc_offset", with(stamp, func(s *Spec) { s.UTCOffset = "+18:01" })},
		{"transform", Spec{Transform: "exp"}}, {"exponent", Spec{Transform: "power"}},
		{"exponent", Spec{Transform: "power", Exponent: 17}},
		{"exponent", Spec{Transform: "power", Exponent: math.NaN()}},
		{"exponent", Spec{Transform: "log", Exponent: 2}}, {"offset", Spec{Offset: 1}},
		{"offset", Spec{Transform: "log", Offset: math.Inf(1)}},
		{"transform", with(countries, func(s *Spec) { s.Transform = "log" })},
		{"categories", Spec{Type: "category"}}, {"categories", Spec{Categories: []string{"a"}}},
		{"other", Spec{Other: true}}, {"baseline", Spec{Baseline: "a"}},
		{"categories", with(stamp, func(s *Spec) { s.Categories = []string{"1"} })},
		{"categories", with(stamp, func(s *Spec) { s.Take, s.Categories = "hour-sin", []string{"1"} })},
		{"categories", Spec{Type: "category", Categories: []string{"a", "a"}}},
		{"categories", Spec{Type: "category", Categories: []string{"\xff"}}},
		{"categories", Spec{Type: "category", Categories: []string{"a", "other"}, Other: true}},
		{"categories", Spec{Type: "category", Categories: []string{"a"}, Baseline: "a"}},
		{"baseline", Spec{Type: "category", Categories: []string{"a", "b"}, Baseline: "other"}},
		{"default", Spec{Default: "a"}}, {"default", Spec{Default: true}}, {"default", Spec{Default: int64(1)}},
		{"default", Spec{Default: math.Inf(1)}}, {"default", Spec{Default: 0.0, Transform: "log"}},
		{"default", Spec{Type: "bool", Default: "true"}},
		{"default", Spec{Type: "bool", Default: false, Transform: "log"}},
		{"default", with(countries, func(s *Spec) { s.Default = "GR" })},
		{"default", with(countries, func(s *Spec) { s.Default = "other" })},
		{"default", with(countries, func(s *Spec) { s.Default = 1.0 })},
		{"default", with(countries, func(s *Spec) { s.Default, s.Other = "GR", true })},
	} {
		x.spec.Name = "c"
		c, err := New(x.spec, Paths)
		all := fault.All(err)
		if c != nil || len(all) != 1 || all[0].(*fault.Fault).Key != x.key {
			t.Errorf("%+v: %v, want a fault of %s", x.spec, err, x.key)
		}
	}
	if _, err := New(Spec{Name: "a..b"}, nil); err != nil {
		t.Error(err)
	}
	if _, err := New(Spec{Name: "a", Path: "b"}, nil); err == nil {
		t.Error("a path is accepted for a codec without paths")
	}
}

func FuzzPut(f *testing.F) {
	specs := []Spec{
		{}, {Default: 1.0}, {Type: "decimal", Transform: "log1p", Offset: 3}, {Type: "bool"}, {Type: "enum"},
		with(countries, func(s *Spec) { s.Other = true }), countries,
		{Type: "timestamp", Take: "hour-sin", Unit: "ms"},
		{Type: "timestamp", Take: "weekday", Categories: []string{"1"}}, {Transform: "power", Exponent: -1.7},
		{Transform: "log"},
	}
	columns := make([]*Column, len(specs))
	for i, s := range specs {
		columns[i] = column(f, s)
	}
	f.Add(uint8(0), uint8(1), 1.5, int64(0), int32(0), []byte("DE"))
	f.Add(uint8(7), uint8(5), 0.0, int64(-1), int32(999999999), []byte("2026-11-23"))
	f.Fuzz(func(t *testing.T, which, kind uint8, x float64, sec int64, nsec int32, b []byte) {
		c := columns[int(which)%len(columns)]
		v := Value{Kind: Kind(kind), Num: x, Sec: sec, Nsec: nsec, Text: b}
		dst := make([]float64, c.Width()+1)
		dst[c.Width()] = 42
		f := c.Put(dst, &v)
		if f >= Faults || dst[c.Width()] != 42 {
			t.Fatalf("fault %d, row %v", f, dst)
		}
		if f == OK {
			for _, x := range dst {
				if x-x != 0 {
					t.Fatalf("row %v", dst)
				}
			}
		}
		c.PutCell(dst, b)
	})
}

func BenchmarkPut(b *testing.B) {
	for _, x := range []struct {
		name string
		spec Spec
		in   Value
	}{
		{"number", Spec{}, num(1.5)}, {"log1p", Spec{Transform: "log1p"}, num(12.5)},
		{"power", Spec{Transform: "power", Exponent: 0.3}, num(12.5)}, {"category", countries, text("FR")},
		{"hour", Spec{Type: "timestamp", Take: "hour"}, text("2026-11-23T20:04:05.123Z")},
		{"hour-sin", Spec{Type: "timestamp", Take: "hour-sin"}, Value{Kind: Instant, Sec: 1795463631}},
	} {
		b.Run(x.name, func(b *testing.B) {
			c := column(b, x.spec)
			dst := make([]float64, c.Width())
			b.ReportAllocs()
			for b.Loop() {
				c.Put(dst, &x.in)
			}
		})
	}
}
