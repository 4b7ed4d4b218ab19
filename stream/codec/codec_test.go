package codec

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/internal/kafka"
)

func row(x ...float64) []float64 { return x }

// packed returns the bytes of float64s or float32s.
func packed(x any) string {
	b, err := binary.Append(nil, binary.LittleEndian, x)
	if err != nil {
		panic(err)
	}
	return string(b)
}

var (
	negativeZero = math.Copysign(0, -1)
	nested       = func(open, closing string, n int) string {
		return strings.Repeat(open, n) + "1" + strings.Repeat(closing, n)
	}
	ab = "a b" // columns, separated by spaces
)

// codecCases are requirements for every codec. A line with want nil is refused.
var codecCases = []struct {
	codec, columns, value string
	want                  []float64
	reason                Reason
	defect                string // the defect of a codec that fails this line
}{
	// JSON objects: reading.
	{"json", ab, `{"a":1,"b":2}`, row(1, 2), 0, "nothing works"},
	{"json", ab, `{"b":2,"a":1}`, row(1, 2), 0, "order of the document, not of the columns"},
	{"json", ab, " \t\r\n{ \"a\" : 1 ,\n\t\"b\"\r: 2 } \n", row(1, 2), 0, "white space"},
	{"json", ab, `{"x":{"a":9,"y":[1,{"b":3},"}",null]},"a":-1.5e3,"z":"\"a\":7","b":2E-1,"t":true,"f":false,"n":null}`,
		row(-1500, 0.2), 0, "names inside skipped values"},
	{"json", "a", `{"a":-0}`, row(negativeZero), 0, "the sign of zero"},
	{"json", "a", `{"a":1e-400}`, row(0), 0, "underflow is no fault"},
	{"json", "a", `{"a":0.1000000000000000055511151231257827021181583404541015625}`, row(0.1), 0, "long numbers"},
	{"json", "a", `{"x":1e999,"y":123456789012345678901234567890,"a":1}`, row(1), 0, "a skipped number need not fit"},
	{"json", "a", `{"\u0061":1}`, row(1), 0, "escaped names compared as they stand"},
	{"json", "grün", `{"gr\u00fcn":1}`, row(1), 0, "escapes beyond ASCII"},
	{"json", "😀", `{"\ud83d\ude00":1}`, row(1), 0, "surrogate pairs"},
	{"json", "😀", `{"\uD83D\uDE00":1}`, row(1), 0, "capitals in escapes"},
	{"json", `"\\/`, `{"\"\\\/":1}`, row(1), 0, "a quote in a name"},
	{"json", "a", `{"x":1,"x":2,"a":3,"x":{}}`, row(3), 0, "duplicates of what nobody reads"},
	{"json", "a.b a.c d", `{"a":{"x":0,"b":1,"c":2},"d":3}`, row(1, 2, 3), 0, "paths"},
	{"json", "a.b.c", `{"a":{"b":{"c":1},"c":2},"b":{"c":3},"c":4}`, row(1), 0, "the same name at another level"},
	{"json", `a\.b a.b`, `{"a.b":1,"a":{"b":2}}`, row(1, 2), 0, "a dot in a name"},
	{"json", `a\\b`, `{"a\\b":1}`, row(1), 0, "a backslash in a name"},
	{"json", "\ufffd", "{\"\ufffd\":1}", row(1), 0, "U+FFFD taken for a fault"},
	{"json", "\ufffd", `{"\ufffd":1}`, row(1), 0, "the same in an escape"},
	{"json", "a", `{"\u0061aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n":9,"a":1}`, row(1), 0,
		"long names with escapes"},
	{"json", "a", `{"A":9,"a ":9," a":9,"aa":9,"":9,"a":1}`, row(1), 0, "nearly the same names"},
	{"json", "a", `{"s":"12345678\\","t":"1234567\"","u":"é12345é78","v":"","a":1}`, row(1), 0,
		"strings read eight bytes at a time"},
	{"json", "a", "{\"s\":\"\x7f\u2028\",\"a\":1}", row(1), 0, "odd characters that are allowed"},
	{"json", "a", `{"x":` + nested("[", "]", 127) + `,"a":1}`, row(1), 0, "the deepest document"},

	{"json", "a.b", `{"a":{"x":` + nested("[", "]", 126) + `,"b":1}}`, row(1), 0,
		"the same inside an object that is read"},

	// JSON objects: members.
	{"json", ab, `{"a":1}`, nil, Missing, "an absent column is zero, or the last record's"},
	{"json", "a", `{}`, nil, Missing, "the same of an empty object"},
	{"json", "a", `{"A":1}`, nil, Missing, "names compared without case"},
	{"json", "a", `{"a":null}`, nil, Missing, "null leaves the last record's value"},
	{"json", "a", `{"a":1,"a":1}`, nil, Duplicate, "the last, or the first, of two wins"},
	{"json", "a", `{"a":1,"\u0061":2}`, nil, Duplicate, "the same behind an escape"},
	{"json", "a.b", `{"a":{"b":1},"a":{}}`, nil, Duplicate, "an object on the way twice"},
	{"json", "a.b a.c", `{"a":{"b":1},"a":{"c":1}}`, nil, Duplicate, "two objects merged"},
	{"json", "a.b", `{"a":{"b":1,"b":2}}`, nil, Duplicate, "duplicates inside"},
	{"json", "a.b", `{"a":{"c":1}}`, nil, Missing, "absent inside"},
	{"json", "a.b", `{"a":1}`, nil, Missing, "a number on the way"},
	{"json", "a.b", `{"a":null}`, nil, Missing, "null on the way"},
	{"json", "a.b", `{"a":[{"b":1}]}`, nil, Missing, "arrays looked into"},
	{"json", "a.b", `{"a.b":1}`, nil, Missing, "a path compared as a name"},
	{"json", "a", `{"a":"1"}`, nil, NotNumber, "strings read as numbers"},
	{"json", "a", `{"a":true}`, nil, NotNumber, "booleans read as numbers"},
	{"json", "a", `{"a":{"a":1}}`, nil, NotNumber, "an object at a column"},
	{"json", "a", `{"a":[1]}`, nil, NotNumber, "an array at a column"},
	{"json", "a", `{"a":1e999}`, nil, NotFinite, "overflow to infinity"},
	{"json", "a", `{"a":-1e309}`, nil, NotFinite, "the same below"},
	{"json", "a", `{"a":` + strings.Repeat("9", 400) + `}`, nil, NotFinite, "the same without an exponent"},

	// JSON objects: grammar.
	{"json", "a", ``, nil, Malformed, "an empty value taken for a tombstone"},
	{"json", "a", ` `, nil, Malformed, "white space only"},
	{"json", "a", `null`, nil, Malformed, "a document that is no object"},
	{"json", "a", `1`, nil, Malformed, "the same"},
	{"json", "a", `[{"a":1}]`, nil, Malformed, "the same"},
	{"json", "a", `"a"`, nil, Malformed, "the same"},
	{"json", "a", "\ufeff" + `{"a":1}`, nil, Malformed, "a byte order mark"},
	{"json", "a", `{"a":1}{`, nil, Malformed, "something behind the document"},
	{"json", "a", `{"a":1}{"a":1}`, nil, Malformed, "two documents"},
	{"json", "a", `{"a":1},`, nil, Malformed, "a comma behind"},
	{"json", "a", "{\"a\":1}\x00", nil, Malformed, "a zero byte behind"},
	{"json", "a", `{"a":1`, nil, Malformed, "cut off"},
	{"json", "a", `{"a":`, nil, Malformed, "cut off"},
	{"json", "a", `{"a"`, nil, Malformed, "cut off"},
	{"json", "a", `{"a`, nil, Malformed, "cut off"},
	{"json", "a", `{"a":1,`, nil, Malformed, "cut off"},
	{"json", "a", `{`, nil, Malformed, "cut off"},
	{"json", "a", `{"a":1,"x":"\`, nil, Malformed, "cut off in an escape"},
	{"json", "a", `{"a":1,"x":"\ud83d`, nil, Malformed, "cut off in a surrogate pair"},
	{"json", "a", `{"a":1,"x":"\ud83d\u`, nil, Malformed, "cut off in a surrogate pair"},
	{"json", "a", `{"a":1,"x":tru`, nil, Malformed, "cut off in a literal"},
	{"json", "a", `{"a":1,"x":"12345678`, nil, Malformed, "cut off at eight bytes"},
	{"json", "a.b", `{"a":`, nil, Malformed, "cut off before an object"},
	{"json", "a.b", `{"a":{"b":1}`, nil, Malformed, "cut off behind an object"},
	{"json", "a", `{"a":1,}`, nil, Malformed, "a comma too many"},
	{"json", "a", `{,"a":1}`, nil, Malformed, "a comma too many"},
	{"json", "a", `{"a":1,,"b":2}`, nil, Malformed, "a comma too many"},
	{"json", "a", `{"a":1 "b":2}`, nil, Malformed, "a comma too few"},
	{"json", "a", `{"a" 1}`, nil, Malformed, "no colon"},
	{"json", "a", `{"a"=1}`, nil, Malformed, "no colon"},
	{"json", "a", `{"a"::1}`, nil, Malformed, "two colons"},
	{"json", "a", `{a:1}`, nil, Malformed, "a name without quotes"},
	{"json", "a", `{'a':1}`, nil, Malformed, "single quotes"},
	{"json", "a", `{"a":1]`, nil, Malformed, "the wrong bracket"},
	{"json", "a", `{"a":1,"x":[1}}`, nil, Malformed, "the wrong bracket"},
	{"json", "a", `{"a":1,"x":[}}`, nil, Malformed, "the same of an empty array"},
	{"json", "a", `{"a":1,"x":{]}`, nil, Malformed, "the same of an empty object"},
	{"json", "a", `{"a":1,"x":[1,]}`, nil, Malformed, "a comma too many in a skipped array"},
	{"json", "a", `{"a":1,"x":[,1]}`, nil, Malformed, "the same in front"},
	{"json", "a", `{"a":1,"x":[1 2]}`, nil, Malformed, "a comma too few"},
	{"json", "a", `{"a":1,"x":{"y":1,}}`, nil, Malformed, "a comma too many in a skipped object"},
	{"json", "a", `{"a":1,"x":{"y"}}`, nil, Malformed, "a name without value"},
	{"json", "a", `{"a":1,"x":{1:2}}`, nil, Malformed, "a number as a name"},
	{"json", "a", `{"a":1,"x":}`, nil, Malformed, "a name without value"},
	{"json", "a", `{"a":1 /**/}`, nil, Malformed, "a comment"},
	{"json", "a", `{"a":01}`, nil, Malformed, "a leading zero"},
	{"json", "a", `{"a":+1}`, nil, Malformed, "a plus"},
	{"json", "a", `{"a":.5}`, nil, Malformed, "a point without digits before"},
	{"json", "a", `{"a":5.}`, nil, Malformed, "a point without digits behind"},
	{"json", "a", `{"a":1e}`, nil, Malformed, "an empty exponent"},
	{"json", "a", `{"a":-}`, nil, Malformed, "a lonely sign"},
	{"json", "a", `{"a":0x10}`, nil, Malformed, "hexadecimal"},
	{"json", "a", `{"a":1_000}`, nil, Malformed, "underscores"},
	{"json", "a", `{"a":NaN}`, nil, Malformed, "NaN"},
	{"json", "a", `{"a":Infinity}`, nil, Malformed, "infinity"},
	{"json", "a", `{"a":-Infinity}`, nil, Malformed, "infinity"},
	{"json", "a", `{"x":01,"a":1}`, nil, Malformed, "a bad number nobody reads"},
	{"json", "a", `{"x":-,"a":1}`, nil, Malformed, "the same"},
	{"json", "a", `{"x":True,"a":1}`, nil, Malformed, "a bad literal"},
	{"json", "a", `{"x":nul,"a":1}`, nil, Malformed, "the same"},
	{"json", "a", `{"x":truefalse,"a":1}`, nil, Malformed, "the same"},
	{"json", "a", "{\"x\":\"\n\",\"a\":1}", nil, Malformed, "a control character in a string"},
	{"json", "a", "{\"x\":\"12345678\x1f\",\"a\":1}", nil, Malformed, "the same behind eight bytes"},
	{"json", "a", "{\"x\x00\":1,\"a\":1}", nil, Malformed, "the same in a name"},
	{"json", "a", `{"x":"\x","a":1}`, nil, Malformed, "an unknown escape"},
	{"json", "a", `{"x":"\'","a":1}`, nil, Malformed, "the same"},
	{"json", "a", `{"x":"\u12g4","a":1}`, nil, Malformed, "a digit that is none"},
	{"json", "a", `{"x":"\u123","a":1}`, nil, Malformed, "too few digits"},
	{"json", "a", `{"x":"\U00000041","a":1}`, nil, Malformed, "a capital U"},
	{"json", "a", `{"x":"\ud83d","a":1}`, nil, Malformed, "half a surrogate pair"},
	{"json", "a", `{"x":"\ud83dx\ude00","a":1}`, nil, Malformed, "a pair that is apart"},
	{"json", "a", `{"x":"\ude00\ud83d","a":1}`, nil, Malformed, "a pair the wrong way round"},
	{"json", "a", `{"x":"\ud83d\ud83d","a":1}`, nil, Malformed, "two first halves"},
	{"json", "\ufffd", `{"\ud83d":1}`, nil, Malformed, "half a pair read as U+FFFD"},
	{"json", "\ufffd", "{\"\xff\":1}", nil, Malformed, "invalid UTF-8 read as U+FFFD"},
	{"json", "a", "{\"x\":\"\xff\",\"a\":1}", nil, Malformed, "invalid UTF-8"},
	{"json", "a", "{\"x\":\"\xc0\xaf\",\"a\":1}", nil, Malformed, "overlong UTF-8"},
	{"json", "a", "{\"x\":\"\xed\xa0\x80\",\"a\":1}", nil, Malformed, "a surrogate in UTF-8"},
	{"json", "a", "{\"x\":\"\xe2\x82\",\"a\":1}", nil, Malformed, "cut off UTF-8"},
	{"json", "a", "{\"a\":1\u00a0}", nil, Malformed, "white space that JSON does not have"},
	{"json", "a", "{\"a\":1\v}", nil, Malformed, "the same"},
	{"json", "a", `{"x":` + nested("[", "]", 128) + `,"a":1}`, nil, TooDeep, "no limit of depth"},
	{"json", "a.b", `{"a":{"x":` + nested("[", "]", 127) + `,"b":1}}`, nil, TooDeep,
		"depth counted from where columns are"},
	{"json", "a", `{"x":` + strings.Repeat(`{"x":[`, 5000) + `,"a":1}`, nil, TooDeep,
		"a stack that grows with the input"},

	// JSON arrays.
	{"json-array", ab, `[1,2]`, row(1, 2), 0, "nothing works"},
	{"json-array", ab, " [ -1.5e1 ,\t2\n] \r\n", row(-15, 2), 0, "white space"},
	{"json-array", "a", `[0]`, row(0), 0, "a row of zeros taken for none"},
	{"json-array", ab, `[]`, nil, Arity, "an empty array"},
	{"json-array", ab, `[1]`, nil, Arity, "too short"},
	{"json-array", ab, `[1,2,3]`, nil, Arity, "too long"},
	{"json-array", ab, `[1,null]`, nil, Missing, "null leaves the last record's value"},
	{"json-array", ab, `[1,"2"]`, nil, NotNumber, "strings read as numbers"},
	{"json-array", ab, `[[1,2]]`, nil, NotNumber, "nested arrays"},
	{"json-array", ab, `[1,{}]`, nil, NotNumber, "an object"},
	{"json-array", ab, `[1,true]`, nil, NotNumber, "a boolean"},
	{"json-array", ab, `[1,1e999]`, nil, NotFinite, "overflow"},
	{"json-array", ab, ``, nil, Malformed, "an empty value"},
	{"json-array", ab, `{"a":1,"b":2}`, nil, Malformed, "an object"},
	{"json-array", ab, `1,2`, nil, Malformed, "no brackets"},
	{"json-array", ab, `[1,2`, nil, Malformed, "cut off"},
	{"json-array", ab, `[1,`, nil, Malformed, "cut off"},
	{"json-array", ab, `[`, nil, Malformed, "cut off"},
	{"json-array", ab, `[1,2,]`, nil, Malformed, "a comma too many"},
	{"json-array", ab, `[,1,2]`, nil, Malformed, "a comma too many"},
	{"json-array", ab, `[1 2]`, nil, Malformed, "a comma too few"},
	{"json-array", ab, `[1,2}`, nil, Malformed, "the wrong bracket"},
	{"json-array", ab, `[1,2] [3,4]`, nil, Malformed, "two documents"},
	{"json-array", ab, `[01,2]`, nil, Malformed, "a leading zero"},
	{"json-array", ab, `[NaN,2]`, nil, Malformed, "NaN"},

	// CSV.
	{"csv", "1 3", `1,x,3`, row(1, 3), 0, "nothing works"},
	{"csv", "3 1", `1,x,3`, row(3, 1), 0, "order of the line, not of the columns"},
	{"csv", "1 2", "1,2\n", row(1, 2), 0, "a line end"},
	{"csv", "1 2", "1,2\r\n", row(1, 2), 0, "a line end of two bytes"},
	{"csv", "2", `a,2,,"",b`, row(2), 0, "further cells"},
	{"csv", "2", `"a,b",2`, row(2), 0, "a comma in quotes"},
	{"csv", "2", `"a ""b"", c",2`, row(2), 0, "a quote in quotes"},
	{"csv", "2", "\"a\r\nb\rc\n\",2\r\n", row(2), 0, "line ends in quotes"},
	{"csv", "2", "\xff\x00,2", row(2), 0, "bytes of any encoding"},
	{"csv", "2", ",2,", row(2), 0, "empty cells nobody reads"},
	{"csv", "1 2", `"1","-2.5"`, row(1, -2.5), 0, "quoted numbers"},
	{"csv", "1 2 3", " 1 ,\t2\t,\" 3 \"", row(1, 2, 3), 0, "spaces around numbers"},
	{"csv", "1 2 3 4 5", `+1,007,.5,5.,1E+3`, row(1, 7, 0.5, 5, 1000), 0, "numbers as programs print them"},
	{"csv", "1", `-0`, row(negativeZero), 0, "the sign of zero"},
	{"csv", "1", `1e-999`, row(0), 0, "underflow"},
	{"csv", "1", "", nil, Missing, "an empty value: one empty cell"},
	{"csv", "1", "\n", nil, Missing, "an empty line"},
	{"csv", "1 2", `1`, nil, Missing, "a short line"},
	{"csv", "1 2", "1\n", nil, Missing, "the same with its end"},
	{"csv", "1 2", `1,`, nil, Missing, "an empty cell"},
	{"csv", "1 2", `,1`, nil, Missing, "the same in front"},
	{"csv", "1 2", `1,""`, nil, Missing, "an empty cell in quotes"},
	{"csv", "1 2", "1, \t", nil, Missing, "a blank cell"},
	{"csv", "1", `nan`, nil, NotNumber, "nan"},
	{"csv", "1", `Inf`, nil, NotNumber, "inf"},
	{"csv", "1", `-infinity`, nil, NotNumber, "infinity"},
	{"csv", "1", `0x1p-2`, nil, NotNumber, "hexadecimal"},
	{"csv", "1", `1_000`, nil, NotNumber, "underscores"},
	{"csv", "1", `"1,5"`, nil, NotNumber, "a decimal comma"},
	{"csv", "1", `1 000`, nil, NotNumber, "two numbers in one cell"},
	{"csv", "1", `1;2`, nil, NotNumber, "another separator"},
	{"csv", "1", `--1`, nil, NotNumber, "two signs"},
	{"csv", "1", `.`, nil, NotNumber, "a lonely point"},
	{"csv", "1", `1e`, nil, NotNumber, "an empty exponent"},
	{"csv", "1", `$5`, nil, NotNumber, "money"},
	{"csv", "1", `"1"""`, nil, NotNumber, "a quote behind a number"},
	{"csv", "1", "\"1\n\"", nil, NotNumber, "a line end behind a number"},
	{"csv", "1", `true`, nil, NotNumber, "a boolean"},
	{"csv", "1", `1e999`, nil, NotFinite, "overflow"},
	{"csv", "1", `"-1e999"`, nil, NotFinite, "overflow below"},
	{"csv", "1", "1\n2", nil, Malformed, "two lines"},
	{"csv", "1", "1\n\n", nil, Malformed, "an empty second line"},
	{"csv", "1", "1\r", nil, Malformed, "half a line end"},
	{"csv", "1", "1\r2", nil, Malformed, "the same inside"},
	{"csv", "1", "1,a\rb", nil, Malformed, "the same in a cell nobody reads"},
	{"csv", "1", `"1`, nil, Malformed, "an open quote"},
	{"csv", "1", `1,"a`, nil, Malformed, "an open quote nobody reads"},
	{"csv", "1", `1,"a""`, nil, Malformed, "an open quote behind a quote"},
	{"csv", "1", `1,a"b`, nil, Malformed, "a quote inside a cell"},
	{"csv", "1", `1,"a"b`, nil, Malformed, "something behind a closing quote"},
	{"csv", "1", `"1"2`, nil, Malformed, "the same in a number"},
	{"csv", "1", `"1" `, nil, Malformed, "a space behind a closing quote"},

	// Packed numbers.
	{"float64", ab, packed([]float64{1.5, -2}), row(1.5, -2), 0, "nothing works"},
	{"float64", ab, packed([]float64{negativeZero, math.SmallestNonzeroFloat64}),
		row(negativeZero, math.SmallestNonzeroFloat64), 0, "zeros and subnormals"},
	{"float64", "a", packed([]float64{-math.MaxFloat64}), row(-math.MaxFloat64), 0, "the largest number"},
	{"float64", ab, packed([]float64{1, math.NaN()}), nil, NotFinite, "NaN"},
	{"float64", "a", packed([]uint64{0xFFF0000000000001}), nil, NotFinite, "a signalling NaN"},
	{"float64", ab, packed([]float64{math.Inf(1), 1}), nil, NotFinite, "infinity"},
	{"float64", ab, packed([]float64{1, math.Inf(-1)}), nil, NotFinite, "infinity below"},
	{"float64", ab, "", nil, Arity, "an empty value"},
	{"float64", ab, packed([]float64{1}), nil, Arity, "too short"},
	{"float64", ab, packed([]float64{1, 2, 3}), nil, Arity, "too long"},
	{"float64", ab, packed([]float64{1, 2}) + "\x00", nil, Arity, "a byte too many"},
	{"float64", ab, packed([]float64{1, 2})[:15], nil, Arity, "a byte too few"},
	{"float64", ab, packed([]float32{1, 2}), nil, Arity, "the other size"},
	{"float32", ab, packed([]float32{1.5, -2}), row(1.5, -2), 0, "nothing works"},
	{"float32", "a", packed([]float32{0.1}), row(float64(float32(0.1))), 0, "decimal digits invented"},
	{"float32", ab, packed([]float32{math.SmallestNonzeroFloat32, -math.MaxFloat32}),
		row(math.SmallestNonzeroFloat32, -math.MaxFloat32), 0, "the ends of the range"},
	{"float32", ab, packed([]float32{1, float32(math.NaN())}), nil, NotFinite, "NaN"},
	{"float32", "a", packed([]uint32{0x7F800001}), nil, NotFinite, "a signalling NaN"},
	{"float32", ab, packed([]float32{float32(math.Inf(-1)), 1}), nil, NotFinite, "infinity"},
	{"float32", ab, "", nil, Arity, "an empty value"},
	{"float32", ab, packed([]float64{1, 2}), nil, Arity, "the other size"},
	{"float32", ab, packed([]float32{1, 2})[:7], nil, Arity, "a byte too few"},
}

func mustCodec(t testing.TB, name string, columns []string) Codec {
	t.Helper()
	c, err := New(name, columns)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// dirty returns a row with values left from another record.
func dirty(n int) []float64 {
	dst := make([]float64, n)
	for i := range dst {
		dst[i] = 1e6 + float64(i)
	}
	return dst
}

func sameRow(a, b []float64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if math.Float64bits(a[i]) != math.Float64bits(b[i]) {
			return false
		}
	}
	return true
}

func TestCodecs(t *testing.T) {
	for _, c := range codecCases {
		columns := strings.Fields(c.columns)
		want := c.want
		if want == nil {
			want = make([]float64, len(columns))
		}
		codec := mustCodec(t, c.codec, columns)
		// In the second pass, the codec has remembered separators from the first.
		for pass := range 2 {
			value := []byte(c.value)
			dst := dirty(len(columns))
			r := codec.Decode(&Record{Value: value}, dst)
			if r != c.reason || !sameRow(dst, want) {
				t.Errorf("%s %q of %.60q, pass %d: %v %v, want %v %v (%s)", c.codec, c.columns, c.value, pass, r, dst,
					c.reason, want, c.defect)
			}
			if string(value) != c.value {
				t.Errorf("%s of %.60q changed its input", c.codec, c.value)
			}
		}
	}
}

// A tombstone has no value, which differs from an empty value.
func TestTombstone(t *testing.T) {
	for _, name := range []string{"json", "json-array", "csv", "float64", "float32"} {
		codec := mustCodec(t, name, []string{"1", "2"})
		dst := dirty(2)
		if r := codec.Decode(&Record{Key: []byte("1,2"), Headers: []kafka.Header{{Key: "1", Value: []byte("2")}}},
			dst); r != Null || !sameRow(dst, row(0, 0)) {
			t.Errorf("%s: %v %v", name, r, dst)
		}
		dst = dirty(2)
		if r := codec.Decode(&Record{Value: []byte{}}, dst); r == Null || r == Decoded || !sameRow(dst, row(0, 0)) {
			t.Errorf("%s, empty: %v %v", name, r, dst)
		}
	}
}

// No truncation, changed byte or earlier record makes a codec panic, leave something in the row, or decode a record
// differently from a new codec.
func TestCodecsAnyInput(t *testing.T) {
	used := map[string]Codec{}
	try := func(name, columns string, value []byte) {
		fields := strings.Fields(columns)
		key := name + " " + columns
		if used[key] == nil {
			used[key] = mustCodec(t, name, fields)
		}
		dst, fresh := dirty(len(fields)), dirty(len(fields))
		r := used[key].Decode(&Record{Value: value}, dst)
		q := mustCodec(t, name, fields).Decode(&Record{Value: value}, fresh)
		if r != q || !sameRow(dst, fresh) {
			t.Fatalf("%s %q of %q depends on earlier records: %v %v, new %v %v", name, columns, value, r, dst, q, fresh)
		}
		checkRow(t, r, dst)
	}
	for _, c := range codecCases {
		if len(c.value) > 200 {
			continue
		}
		value := []byte(c.value)
		for i := range value {
			try(c.codec, c.columns, value[:i])
			for _, b := range []byte("\"\\{}[],:0 \n\xff") {
				changed := bytes.Clone(value)
				changed[i] = b
				try(c.codec, c.columns, changed)
			}
		}
		for _, d := range codecCases {
			if d.codec != c.codec && len(d.value) < 100 {
				try(c.codec, c.columns, []byte(d.value))
			}
		}
	}
}

// checkRow checks the properties of every outcome.
func checkRow(t *testing.T, r Reason, dst []float64) {
	t.Helper()
	if r >= Reasons {
		t.Fatalf("reason %d does not exist", r)
	}
	for _, x := range dst {
		if r != Decoded && math.Float64bits(x) != 0 || x-x != 0 {
			t.Fatalf("%v leaves %v in the row", r, dst)
		}
	}
}

func TestCodecsDoNotAllocate(t *testing.T) {
	for _, c := range codecCases {
		columns := strings.Fields(c.columns)
		codec, dst := mustCodec(t, c.codec, columns), make([]float64, len(columns))
		rec := &Record{Value: []byte(c.value)}
		other := &Record{Value: []byte(strings.ReplaceAll(c.value, "a", "A"))}
		if n := testing.AllocsPerRun(10, func() {
			codec.Decode(rec, dst)
			codec.Decode(other, dst)
		}); n != 0 {
			t.Errorf("%s of %.60q: %v allocations", c.codec, c.value, n)
		}
	}
}

func TestNewFaults(t *testing.T) {
	deep := strings.TrimSuffix(strings.Repeat("a.", 129), ".")
	for _, c := range []struct {
		codec   string
		columns []string
		keys    string // keys of the faults, in order
		defect  string
	}{
		{"json", nil, "columns", "no columns"},
		{"protobuf", []string{"a"}, "codec", "an unknown codec"},
		{"JSON", []string{"a"}, "codec", "names compared without case"},
		{"", nil, "columns codec", "only one fault at once"},
		{"float64", []string{"a", "b", "a"}, "columns", "a label twice"},
		{"float64", []string{"a", ""}, "columns", "an empty label"},
		{"json", []string{"\xff"}, "columns", "a name no document can have"},
		{"json", []string{"a", "a"}, "columns", "a column twice"},
		{"json", []string{"a.b", "a"}, "columns", "a column that is an object too"},
		{"json", []string{"a", "a.b"}, "columns", "the same the other way round"},
		{"json", []string{`a.b.c`, `a.b`}, "columns", "the same deeper"},
		{"json", []string{`.a`}, "columns", "an empty name in front"},
		{"json", []string{`a.`}, "columns", "an empty name behind"},
		{"json", []string{`a..b`}, "columns", "an empty name inside"},
		{"json", []string{`a\`}, "columns", "an escape of nothing"},
		{"json", []string{`\u0061`}, "columns", "JSON's escapes in a column"},
		{"json", []string{deep}, "columns", "deeper than any document"},
		{"csv", []string{"a"}, "columns", "a name"},
		{"csv", []string{"0"}, "columns", "positions from 0"},
		{"csv", []string{"-1"}, "columns", "a negative position"},
		{"csv", []string{"1", "01", "+1", "1 "}, "columns columns columns", "a position twice in another spelling"},
		{"csv", []string{"99999999999999999999"}, "columns", "a position too large"},
	} {
		codec, err := New(c.codec, c.columns)
		var keys []string
		for _, e := range fault.All(err) {
			keys = append(keys, e.(*fault.Fault).Key)
		}
		if codec != nil || strings.Join(keys, " ") != c.keys {
			t.Errorf("%s %q: faults %q, want %q (%s)", c.codec, c.columns, err, c.keys, c.defect)
		}
	}
	mustCodec(t, "json", []string{deep[2:]})
}

func TestReasonNames(t *testing.T) {
	seen := map[string]bool{}
	for r := range Reasons {
		s := r.String()
		if s == "" || s == "unknown" || seen[s] || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz-") != "" {
			t.Errorf("reason %d is called %q", r, s)
		}
		seen[s] = true
	}
	if s := fmt.Sprint(Reason(200)); s != "unknown" {
		t.Error(s)
	}
}

func TestDecodeWrongRow(t *testing.T) {
	for _, name := range []string{"json", "json-array", "csv", "float64", "float32"} {
		codec := mustCodec(t, name, []string{"1", "2"})
		for _, n := range []int{0, 1, 3} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s decodes two columns into %d numbers", name, n)
					}
				}()
				codec.Decode(&Record{}, make([]float64, n))
			}()
		}
	}
}
