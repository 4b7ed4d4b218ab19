package codec

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// These are independent reference implementations of the codecs, slow and based on the standard library. Each returns
// the row, or nil for a record without one.

// referenceJSON is encoding/json with the additional rules stated at New.
func referenceJSON(doc []byte, columns []string) []float64 {
	if !json.Valid(doc) || !utf8.Valid(doc) || loneSurrogate(doc) {
		return nil
	}
	found := map[string]json.Token{}
	wanted := map[string]bool{} // columns and the objects and arrays on their paths
	var order []string
	for _, c := range columns {
		path := ""
		for _, name := range strings.Split(strings.NewReplacer(`\.`, "\x01", `\\`, "\x02").Replace(c), ".") {
			path += strconv.Quote(strings.NewReplacer("\x01", ".", "\x02", `\`).Replace(name))
			wanted[path] = true
		}
		order = append(order, path)
	}
	duplicate, deepest := false, 0
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	var walk func(path string, inside bool, depth int)
	walk = func(path string, inside bool, depth int) {
		token, _ := d.Token()
		if inside && wanted[path] {
			if _, ok := found[path]; ok {
				duplicate = true
			}
			found[path] = token
		}
		delim, ok := token.(json.Delim)
		if !ok {
			return
		}
		deepest = max(deepest, depth+1)
		for d.More() {
			if delim == '{' {
				name, _ := d.Token()
				walk(path+strconv.Quote(name.(string)), inside, depth+1)
			} else {
				walk("", false, depth+1)
			}
		}
		d.Token()
	}
	if bytes.TrimLeft(doc, " \t\r\n")[0] != '{' {
		return nil
	}
	walk("", true, 0)
	if duplicate || deepest > 128 {
		return nil
	}
	row := []float64{}
	for _, path := range order {
		n, ok := found[path].(json.Number)
		if !ok {
			return nil
		}
		x, err := n.Float64()
		if err != nil {
			return nil
		}
		row = append(row, x)
	}
	return row
}

// loneSurrogate reports whether a valid document has an escape with half of a surrogate pair. Backslashes occur only in
// strings.
func loneSurrogate(doc []byte) bool {
	s := strings.ReplaceAll(string(doc), `\\`, "")
	s = regexp.MustCompile(`(?i)\\ud[89ab]..\\ud[c-f]..`).ReplaceAllString(s, "")
	return regexp.MustCompile(`(?i)\\ud[89a-f]`).MatchString(s)
}

func referenceJSONArray(doc []byte, columns []string) []float64 {
	var list []*float64 // null is nil; encoding/json would leave a float64 unchanged
	if json.Unmarshal(doc, &list) != nil || len(list) != len(columns) {
		return nil
	}
	row := []float64{}
	for _, x := range list {
		if x == nil {
			return nil
		}
		row = append(row, *x)
	}
	return row
}

var (
	csvCellPattern   = regexp.MustCompile(`\A(?:"((?:[^"]|"")*)"|([^",\r\n]*))`)
	csvEndPattern    = regexp.MustCompile(`\A(\r?\n)?\z`)
	csvNumberPattern = regexp.MustCompile(`\A[ \t]*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[ \t]*\z`)
)

// referenceCells returns the cells of a line, without quotes.
func referenceCells(line []byte) (cells [][]byte, ok bool) {
	for {
		m := csvCellPattern.FindSubmatch(line)
		if m == nil {
			return nil, false
		}
		line = line[len(m[0]):]
		cells = append(cells, append(bytes.ReplaceAll(m[1], []byte(`""`), []byte(`"`)), m[2]...))
		if len(line) > 0 && line[0] == ',' {
			line = line[1:]
			continue
		}
		return cells, csvEndPattern.Match(line)
	}
}

func referenceCSV(line []byte, columns []string) []float64 {
	cells, ok := referenceCells(line)
	if !ok {
		return nil
	}
	row := []float64{}
	for _, c := range columns {
		p, _ := strconv.Atoi(c)
		if p > len(cells) {
			return nil
		}
		m := csvNumberPattern.FindSubmatch(cells[p-1])
		if m == nil {
			return nil
		}
		x, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			return nil
		}
		row = append(row, x)
	}
	return row
}

func referenceFloat64(b []byte, columns []string) []float64 {
	row := make([]float64, len(columns))
	if n, err := binary.Decode(b, binary.LittleEndian, row); err != nil || n != len(b) {
		return nil
	}
	return finite(row)
}

func referenceFloat32(b []byte, columns []string) []float64 {
	single := make([]float32, len(columns))
	if n, err := binary.Decode(b, binary.LittleEndian, single); err != nil || n != len(b) {
		return nil
	}
	row := make([]float64, len(columns))
	for i, x := range single {
		row[i] = float64(x)
	}
	return finite(row)
}

func finite(row []float64) []float64 {
	for _, x := range row {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return nil
		}
	}
	return row
}

var references = map[string]func([]byte, []string) []float64{
	"json": referenceJSON, "json-array": referenceJSONArray, "csv": referenceCSV,
	"float64": referenceFloat64, "float32": referenceFloat32,
}

// agree decodes with codec, which may have decoded other records before, and compares with the reference.
func agree(t *testing.T, name string, codec Codec, columns []string, value []byte) bool {
	t.Helper()
	dst := dirty(len(columns))
	r := codec.Decode(&Record{Value: value}, dst)
	checkRow(t, r, dst)
	want := references[name](value, columns)
	if (r == Decoded) != (want != nil) || want != nil && !sameRow(dst, want) {
		t.Fatalf("%s %q of %q: %v %v, want %v", name, columns, value, r, dst, want)
	}
	return r == Decoded
}

func TestCodecCasesAgainstReference(t *testing.T) {
	for _, c := range codecCases {
		columns := strings.Fields(c.columns)
		agree(t, c.codec, mustCodec(t, c.codec, columns), columns, []byte(c.value))
	}
}

// source makes random records, most of them nearly valid.
type source struct{ *rand.Rand }

func (s source) pick(of ...string) string { return of[s.IntN(len(of))] }

func (s source) number() string {
	switch s.IntN(12) {
	case 0:
		return s.pick("0", "-0", "1e5", "1E-5", "0.5e+3", "1e999", "-1e-999", "01", "1.", ".5", "+1", "-", "1e", "nan")
	case 1:
		return strconv.FormatFloat(math.Float64frombits(s.Uint64()&^(1<<62)), 'e', -1, 64)
	case 2:
		return fmt.Sprintf("%d.%d%d", s.Uint64(), s.Uint64(), s.Uint64())
	case 3:
		return strconv.Itoa(s.IntN(1000))
	}
	return strconv.FormatFloat(s.NormFloat64(), 'f', s.IntN(19)-1, 64)
}

func (s source) space() string {
	if s.IntN(6) > 0 {
		return ""
	}
	return s.pick(" ", "\n", "\t", "\r\n", "  ", "\v")
}

func (s source) string() string {
	if s.IntN(20) == 0 {
		return `"` +
			s.pick(`\"`, `\\`, `\/\b\f\n\r\t`, `\u00e9`, `\ud83d\ude00`, `\ud83d`, `\ude00\ud83d`, `\uD800x`, `\x`,
				`\u12`, "\n", "é", "😀", "\xff", "\xed\xa0\x80", "12345678", "1234567\\\"8") +
			s.pick("", "x", "abcdefgh") + `"`
	}
	return `"` + strings.Repeat(s.pick("x", "é", "long "), s.IntN(12)) + `"`
}

func (s source) name() string {
	if s.IntN(40) == 0 {
		return s.pick(`"\u0061"`, `"a\u002Eb"`, `"A"`, `"\\"`, `"a.b"`, `"\ufffd"`, `""`, s.string())
	}
	return s.pick(`"a"`, `"b"`, `"c"`, `"d"`, `"e"`, `"f"`, `"g"`, `"h"`)
}

func (s source) value(depth int) string {
	switch k := s.IntN(10); {
	case k == 0 && depth < 4:
		return s.object(depth + 1)
	case k == 1 && depth < 4:
		return s.array(depth + 1)
	case k == 2:
		return s.string()
	case k == 3:
		return s.pick("true", "false", "null", "nul", "True")
	}
	return s.number()
}

func (s source) array(depth int) string {
	var list []string
	for range s.IntN(4) {
		list = append(list, s.space()+s.value(depth)+s.space())
	}
	return "[" + strings.Join(list, ",") + "]"
}

func (s source) object(depth int) string {
	var list []string
	used := map[string]bool{}
	for range s.IntN(7) {
		name := s.name()
		if used[name] && s.IntN(20) > 0 {
			continue
		}
		used[name] = true
		list = append(list, s.space()+name+s.space()+":"+s.space()+s.value(depth)+s.space())
	}
	return "{" + strings.Join(list, ",") + "}"
}

// record returns a JSON object. Compared with object, it uses the columns' names more often, and at the places where
// columns expect them.
func (s source) record(columns []string) string {
	var list []string
	for _, c := range columns {
		member := s.number()
		names := strings.Split(c, ".")
		for i := range names {
			member = `"` + names[len(names)-1-i] + `":` + s.space() + member
			if i < len(names)-1 {
				if s.IntN(2) == 0 {
					member += `,"x":` + s.value(2)
				}
				member = "{" + member + "}"
			}
		}
		list = append(list, member)
	}
	for range s.IntN(3) {
		list = append(list, s.name()+":"+s.value(1))
	}
	if s.IntN(3) == 0 {
		s.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	}
	return "{" + strings.Join(list, ",") + "}"
}

func (s source) mutate(b []byte) []byte {
	for range s.IntN(3) {
		if len(b) == 0 {
			break
		}
		i := s.IntN(len(b))
		switch s.IntN(4) {
		case 0:
			b = append(b[:i:i], b[i+1:]...)
		case 1:
			b[i] = "\"\\{}[],:0e-. \n\xff\x00"[s.IntN(16)]
		case 2:
			j := s.IntN(len(b))
			b = append(b[:i:i], append([]byte(string(b[min(i, j):j])), b[i:]...)...)
		case 3:
			b[i] ^= 1 << s.IntN(8)
		}
	}
	return b
}

func TestCodecsAgainstReference(t *testing.T) {
	n := 120_000
	if os.Getenv("STREAMDP_SLOW") != "" {
		n = 350_000
	}
	if testing.Short() {
		n = 20_000
	}
	s := source{rand.New(rand.NewPCG(7, 8))}
	for _, c := range []struct {
		name    string
		columns []string
		record  func(columns []string) string
	}{
		{"json", []string{"a", "b"}, s.record},
		{"json", []string{"c.d.g", "f", "e.b"}, s.record},
		{"json", []string{"a.b", "a.c"}, func([]string) string {
			inner := `"b":` + s.number() + s.pick(`,"c":`, `,"c":`, `,"c" : `, `,"C":`) + s.number()
			return `{"x":` + s.value(2) + `,"a":{` + inner + s.pick("", `,"d":"}"`, `},"a":{`) + `}` +
				s.pick("", `,"b":7`) + `}`
		}},
		{"json", []string{"a"}, func([]string) string { return s.space() + s.object(0) + s.space() }},
		{"json", []string{`a\.b`, `\\`}, func([]string) string {
			return `{` + s.pick(`"a.b"`, `"a\u002Eb"`, `"a":{"b"`) + `:1,"\\":` + s.number() + `}` + s.pick("", "", "}")
		}},
		{"json-array", []string{"a", "b"}, func([]string) string {
			return s.pick("", " ") + "[" + s.space() + s.number() + s.space() + "," + s.space() + s.value(3) +
				s.space() + s.pick("", "", "", ",1") + "]"
		}},
		{"csv", []string{"1", "3"}, func([]string) string {
			var cells []string
			for range 2 + s.IntN(4) {
				cell := s.pick("", "", " ", "\t") + s.number() + s.pick("", "", " ")
				cells = append(cells,
					s.pick(cell, cell, cell, cell, cell, cell, cell, `"`+cell+`"`, "", "x", `"a,b"`, `"a""`,
						"\"\r\n\"", `""""`))
			}
			return strings.Join(cells, ",") + s.pick("", "\n", "\r\n", "\r", "\n\n")
		}},
	} {
		codec, decoded := mustCodec(t, c.name, c.columns), 0
		for i := range n / 7 {
			value := []byte(c.record(c.columns))
			if i%3 == 0 {
				value = s.mutate(value)
			}
			if agree(t, c.name, codec, c.columns, value) {
				decoded++
			}
		}
		// If all records were refused, the test would test nothing.
		if decoded < n/7/20 || decoded > n/7*19/20 {
			t.Errorf("%s %q: %d of %d records decoded", c.name, c.columns, decoded, n/7)
		}
	}
}

// The fuzz targets decode another record before the one that is compared, so that what a codec remembers is part of the
// input.

func fuzz(f *testing.F, names string, sets ...[]string) {
	for _, c := range codecCases {
		if strings.Contains(" "+names+" ", " "+c.codec+" ") && len(c.value) < 200 {
			for set, columns := range sets {
				if len(columns) == len(strings.Fields(c.columns)) {
					f.Add(uint(set), []byte(c.value), []byte(c.value))
				}
			}
		}
	}
	f.Fuzz(func(t *testing.T, set uint, before, value []byte) {
		columns := sets[set%uint(len(sets))]
		for name := range strings.FieldsSeq(names) {
			codec := mustCodec(t, name, columns)
			agree(t, name, codec, columns, before)
			agree(t, name, codec, columns, value)
		}
	})
}

func FuzzJSON(f *testing.F) {
	fuzz(f, "json", []string{"a"}, []string{"a", "b"}, []string{"a.b"}, []string{"a.b", "a.c", "d"}, []string{"a.b.c"},
		[]string{`a\.b`, "a.b"}, []string{`a\\b`}, []string{"grün"}, []string{"😀"}, []string{"\ufffd"})
}

func FuzzJSONArray(f *testing.F) {
	fuzz(f, "json-array", []string{"a"}, []string{"a", "b"}, []string{"a", "b", "c"})
}

func FuzzCSV(f *testing.F) {
	fuzz(f, "csv", []string{"1"}, []string{"2"}, []string{"1", "2"}, []string{"3", "1"},
		[]string{"1", "2", "3", "4", "5"})
}

func FuzzPacked(f *testing.F) {
	fuzz(f, "float64 float32", []string{"a"}, []string{"a", "b"}, []string{"a", "b", "c", "d"})
}
