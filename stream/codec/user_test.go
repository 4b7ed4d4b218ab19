package codec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/persons"
	"github.com/streamdp/streamdp/internal/testing/race"
)

var userKey = &[persons.KeyBytes]byte{1, 2, 3}

// tagsOf decodes records of a format, and returns their tags and whether they have rows.
func tagsOf(t testing.TB, f Format, workers int, records ...Record) ([]persons.Tag, []Reason) {
	t.Helper()
	d, err := NewDecoder(f, workers)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.TagUsers(userKey); err != nil {
		t.Fatal(err)
	}
	var b Batch
	b.Chunk = kafka.Chunk{Records: records, Bytes: workers * parallelBytes}
	d.Decode(&b)
	return b.Tags, b.Reasons
}

// TestUserKeys checks which values are user keys, in records with and without a row.
func TestUserKeys(t *testing.T) {
	t.Parallel()
	const none = ""
	jsonOf := func(user string) Format { return Format{Name: "json", Columns: []string{"x", "o.y"}, User: user} }
	csvOf := func(user string) Format { return Format{Name: "csv", Columns: []string{"2"}, User: user} }
	packedOf := Format{Name: "float64", Columns: []string{"x"}, User: "record-key"}
	for _, c := range []struct {
		f     Format
		value string
		user  string
		row   bool
	}{
		{jsonOf("field:u"), `{"x":1,"o":{"y":2},"u":"ann"}`, "ann", true},
		{jsonOf("field:u"), `{"u":"ann","x":1,"o":{"y":2}}`, "ann", true},
		{jsonOf("field:u"), `{"u":"\u0061\u006en","x":1,"o":{"y":2}}`, "ann", true},
		{jsonOf("field:u"), `{"u":"a\"\\\ud83d\ude00ü","x":1,"o":{"y":2}}`, "a\"\\😀ü", true},
		{jsonOf("field:u"), `{"\u0075":"ann","x":1,"o":{"y":2}}`, "ann", true},
		{jsonOf("field:u"), `{"u":17,"x":1,"o":{"y":2}}`, "17", true},
		{jsonOf("field:u"), `{"u":"17","x":1,"o":{"y":2}}`, "17", true},
		{jsonOf("field:u"), `{"u":-17,"x":1,"o":{"y":2}}`, "-17", true},
		{jsonOf("field:u"), `{"u":123456789012345678901234567890,"x":1,"o":{"y":2}}`,
			"123456789012345678901234567890", true},
		{jsonOf("field:u"), `{"u":0,"x":1,"o":{"y":2}}`, "0", true},
		{jsonOf("field:u"), `{"u": " Ann ","x":1,"o":{"y":2}}`, " Ann ", true},
		// No user.
		{jsonOf("field:u"), `{"u":-0,"x":1,"o":{"y":2}}`, none, true},
		{jsonOf("field:u"), `{"u":17.0,"x":1,"o":{"y":2}}`, none, true},
		{jsonOf("field:u"), `{"u":1e3,"x":1,"o":{"y":2}}`, none, true},
		{jsonOf("field:u"), `{"u":"","x":1,"o":{"y":2}}`, none, true},
		{jsonOf("field:u"), `{"u":null,"x":1,"o":{"y":2}}`, none, true},
		{jsonOf("field:u"), `{"u":true,"x":1,"o":{"y":2}}`, none, true},
		{jsonOf("field:u"), `{"u":["ann"],"x":1,"o":{"y":2}}`, none, true},
		{jsonOf("field:u"), `{"u":{"u":"ann"},"x":1,"o":{"y":2}}`, none, true},
		{jsonOf("field:u"), `{"x":1,"o":{"y":2,"u":"ann"}}`, none, true},
		{jsonOf("field:u"), `{"u":"ann","u":"ann","x":1,"o":{"y":2}}`, none, true},
		{jsonOf("field:u"), `{"u":"ann","u":3,"x":1,"o":{"y":2}}`, none, true},
		{jsonOf("field:u"), `{"u":"ann","\u0075":"bob","u":"ann","x":1,"o":{"y":2}}`, none, true},
		// These records have no row.
		{jsonOf("field:u"), `{"u":"ann"}`, "ann", false},
		{jsonOf("field:u"), `{"x":"one","u":"ann"}`, "ann", false},
		{jsonOf("field:u"), `{"x":1,"x":2,"u":"\u0061nn"}`, "ann", false},
		{jsonOf("field:u"), `{"x":1e999,"u":5}`, "5", false},
		{jsonOf("field:u"), `{"x":1,"u":"ann"`, none, false},
		{jsonOf("field:u"), `{"x":1,"u":"ann"} x`, none, false},
		{jsonOf("field:u"), `{"x":1,"u":"\ud83d"}`, none, false},
		{jsonOf("field:u"), `["ann"]`, none, false},
		{jsonOf("field:u"), ``, none, false},
		// The key is nested, next to columns or alone.
		{jsonOf("field:o.u"), `{"x":1,"o":{"y":2,"u":"ann"}}`, "ann", true},
		{jsonOf("field:o.u"), `{"x":1,"o":{"u":"ann"}}`, "ann", false},
		{jsonOf("field:o.u"), `{"x":1,"o":{"y":2,"u":"ann"},"o":{"y":2}}`, none, false},
		{jsonOf("field:o.u"), `{"x":1,"o":3}`, none, false},
		{jsonOf("field:who.is.id"), `{"x":1,"o":{"y":2},"who":{"is":{"id":9}}}`, "9", true},
		{jsonOf("field:who.is.id"), `{"x":1,"o":{"y":2},"who":{"is":{"id":9},"is":{"id":9}}}`, none, true},
		{jsonOf("field:who.is.id"), `{"x":1,"o":{"y":2},"who":{"is":{"id":9}},"who":1}`, none, true},
		{jsonOf("field:who.is.id"), `{"x":1,"o":{"y":2},"who":1,"who":{"is":{"id":9}}}`, none, true},
		{jsonOf("field:who.is.id"), `{"x":1,"o":{"y":2},"who":"is"}`, none, true},
		{jsonOf(`field:a\.b`), `{"x":1,"o":{"y":2},"a.b":"ann"}`, "ann", true},

		{csvOf("field:1"), "ann,1", "ann", true},
		{csvOf("field:3"), "x,1, ann \n", " ann ", true},
		{csvOf("field:3"), `x,1,"a ""b"",c"` + "\r\n", `a "b",c`, true},
		{csvOf("field:1"), ",1", none, true},
		{csvOf("field:1"), `"",1`, none, true},
		{csvOf("field:4"), "x,1,y", none, true},
		{csvOf("field:1"), "ann,x", "ann", false},
		{csvOf("field:1"), "ann", "ann", false},
		{csvOf("field:1"), "ann,1\nbob,2", none, false},
		{csvOf("field:1"), `ann,"1`, none, false},
		{csvOf("field:1"), `ann,x,a"`, none, false},

		{packedOf, "12345678", "the key", true},
		{packedOf, "1234567", "the key", false},
	} {
		rec := Record{Value: []byte(c.value), Key: []byte("the key")}
		tags, reasons := tagsOf(t, c.f, 1, rec)
		if want := persons.NewTagger(userKey).Tag([]byte(c.user)); tags[0] != want {
			t.Errorf("%s of %s: not the tag of %q", c.f.User, c.value, c.user)
		}
		if row := reasons[0] == Decoded; row != c.row {
			t.Errorf("%s of %s: %v", c.f.User, c.value, reasons[0])
		}
		// A record gives the same row with and without persons.
		plain := c.f
		plain.User = ""
		codec, err := plain.Codec()
		if err != nil {
			t.Fatal(err)
		}
		if r := codec.Decode(&rec, make([]float64, plain.Width())); r != reasons[0] {
			t.Errorf("%s of %s: %v with a user key, %v without", c.f.User, c.value, reasons[0], r)
		}
	}
}

// TestUserKeysElsewhere reads user keys from a record's key and from headers.
func TestUserKeysElsewhere(t *testing.T) {
	t.Parallel()
	value := []byte("12345678")
	f := Format{Name: "float64", Columns: []string{"x"}}
	tagger := persons.NewTagger(userKey)
	for _, c := range []struct {
		user string
		rec  Record
		want string
	}{
		{"record-key", Record{Key: []byte("ann"), Value: value}, "ann"},
		{"record-key", Record{Key: []byte("ann")}, "ann"},
		{"record-key", Record{Key: []byte{}, Value: value}, ""},
		{"record-key", Record{Value: value}, ""},
		{"header:u",
			Record{Value: value, Headers: []Header{{Key: "v", Value: []byte("bob")}, {Key: "u", Value: []byte("ann")}}},
			"ann"},
		{"header:u", Record{Headers: []Header{{Key: "u", Value: []byte("ann")}}}, "ann"},
		{"header:u",
			Record{Value: value, Headers: []Header{{Key: "u", Value: []byte("ann")}, {Key: "u", Value: []byte("ann")}}},
			""},
		{"header:u", Record{Value: value, Headers: []Header{{Key: "u"}, {Key: "u", Value: []byte("ann")}}}, ""},
		{"header:u", Record{Value: value, Headers: []Header{{Key: "U", Value: []byte("ann")}}}, ""},
		{"header:u", Record{Value: value, Headers: []Header{{Key: "u"}}}, ""},
		{"header:u", Record{Value: value, Key: []byte("ann")}, ""},
		{"record-key", Record{Key: []byte("ann"), TooLarge: true}, ""},
	} {
		f.User = c.user
		if tags, _ := tagsOf(t, f, 1, c.rec); tags[0] != tagger.Tag([]byte(c.want)) {
			t.Errorf("%s: not the tag of %q", c.user, c.want)
		}
	}
}

// TestHome uses the test vectors of Kafka's own test of murmur2 (UtilsTest), and checks which records have a tag in
// which partition.
func TestHome(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
		"a-little-bit-longer-string":                       -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, "abc": 479470107,
	} {
		if got := int32(murmur2([]byte(key))); got != want {
			t.Errorf("murmur2 of %s is %d, want %d", key, got, want)
		}
	}
	f := Format{Name: "float64", Columns: []string{"x"}, User: "record-key"}
	var records []Record
	for i := range 100 {
		records = append(records, Record{Key: fmt.Append(nil, "user", i), Value: []byte("12345678")})
	}
	records = append(records, Record{Value: []byte("12345678")}) // without a user key, in every partition
	there := make([]int, len(records))
	for partition := range 3 {
		d, err := NewDecoder(f, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.TagUsers(userKey); err != nil {
			t.Fatal(err)
		}
		d.OnlyAtHome(partition, 3)
		b := Batch{Chunk: kafka.Chunk{Records: records}}
		d.Decode(&b)
		for i, tag := range b.Tags {
			switch {
			case (tag == persons.Tag{}) != (i == 100):
				t.Errorf("record %d has the tag %x", i, tag)
			case tag != persons.Away():
				there[i]++
			}
		}
	}
	for i, n := range there[:100] {
		if n != 1 {
			t.Errorf("user %d is a person in %d partitions", i, n)
		}
	}
}

func TestUserFaults(t *testing.T) {
	t.Parallel()
	for _, f := range []Format{
		{Name: "json", Columns: []string{"a.b"}, User: "field:a"},
		{Name: "json", Columns: []string{"a.b"}, User: "field:a.b"},
		{Name: "json", Columns: []string{"a.b"}, User: "field:a.b.c"},
		{Name: "json", Columns: []string{"a"}, User: "field:b."},
		{Name: "csv", Columns: []string{"1"}, User: "field:1"},
		{Name: "csv", Columns: []string{"1"}, User: "field:02"},
		{Name: "csv", Columns: []string{"1"}, User: "field:name"},
		{Name: "float64", Columns: []string{"a"}, User: "field:u"},
		{Name: "json-array", Columns: []string{"a"}, User: "field:u"},
	} {
		if _, err := NewDecoder(f, 1); err == nil {
			t.Errorf("%+v has a decoder", f)
		}
	}
	for _, user := range []string{"", "key", "field:", "header:"} {
		d, err := NewDecoder(Format{Name: "json", Columns: []string{"a"}, User: user}, 1)
		if err == nil && d.TagUsers(userKey) == nil {
			t.Errorf("%q makes tags", user)
		}
	}
}

// TestUserWorkers: tags do not depend on how a batch is split, and without persons there are none.
func TestUserWorkers(t *testing.T) {
	t.Parallel()
	var records []Record
	for i := range 1000 {
		records = append(records, Record{Value: fmt.Appendf(nil, `{"x":%d,"u":"\u0061%d"}`, i, i%7)})
	}
	f := Format{Name: "json", Columns: []string{"x"}, User: "field:u"}
	one, _ := tagsOf(t, f, 1, records...)
	many, _ := tagsOf(t, f, 5, records...)
	tagger := persons.NewTagger(userKey)
	for i := range records {
		if want := tagger.Tag(fmt.Append(nil, "a", i%7)); one[i] != want || many[i] != want {
			t.Fatalf("record %d has another tag", i)
		}
	}
	d, err := NewDecoder(Format{Name: "json", Columns: []string{"x"}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	b := Batch{Chunk: kafka.Chunk{Records: records}, Tags: one}
	if d.Decode(&b); b.Tags != nil {
		t.Error("tags without persons")
	}
}

// referenceUser returns the user key of a document with encoding/json, "" for none. It is for documents with plain
// names and without half surrogate pairs in strings.
func referenceUser(doc []byte, path ...string) string {
	if !json.Valid(doc) {
		return ""
	}
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return ""
	}
	var found json.RawMessage
	n := 0
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return ""
		}
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return ""
		}
		if name == path[0] {
			found = v
			n++
		}
	}
	if n != 1 {
		return ""
	}
	if len(path) > 1 {
		return referenceUser(found, path[1:]...)
	}
	if found[0] == '"' {
		var s string
		if json.Unmarshal(found, &s) != nil {
			return ""
		}
		return s
	}
	if text := string(found); strings.Trim(text, "-0123456789") == "" && text != "-0" {
		return text
	}
	return ""
}

func FuzzJSONUser(f *testing.F) {
	for _, s := range []string{
		`{"x":1,"o":{"u":"ann","y":2}}`, `{"o":{"u":17}}`, `{"o":{"u":"\u0061"},"x":1}`, `{"o":{"u":1,"u":1}}`,
		`{"o":1,"o":{"u":-0}}`, `{"x":1,"o":{"u":1e3,"y":1}}`,
	} {
		f.Add([]byte(s))
	}
	tagger := persons.NewTagger(userKey)
	shared := Format{Name: "json", Columns: []string{"x", "o.y"}, User: "field:o.u"}
	apart := Format{Name: "json", Columns: []string{"x"}, User: "field:o.u"}
	f.Fuzz(func(t *testing.T, doc []byte) {
		first, _ := tagsOf(t, shared, 1, Record{Value: doc})
		second, _ := tagsOf(t, apart, 1, Record{Value: doc})
		if first[0] != second[0] {
			t.Fatalf("%q: the user depends on the columns", doc)
		}
		if first[0] == (persons.Tag{}) {
			return
		}
		if want := referenceUser(doc, "o", "u"); first[0] != tagger.Tag([]byte(want)) {
			t.Fatalf("%q: not the tag of %q", doc, want)
		}
	})
}

// TestUserAllocations: making tags allocates nothing once the buffers exist.
func TestUserAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	for _, c := range []struct {
		f   Format
		rec Record
	}{
		{Format{Name: "json", Columns: []string{"x"}, User: "field:u"},
			Record{Value: []byte(`{"x":1,"u":"\u0061nn"}`)}},
		{Format{Name: "json", Columns: []string{"x"}, User: "field:u"}, Record{Value: []byte(`{"u":"\u0061nn"}`)}},
		{Format{Name: "csv", Columns: []string{"1"}, User: "field:2"}, Record{Value: []byte(`1,"a""n"`)}},
		{Format{Name: "float64", Columns: []string{"x"}, User: "record-key"},
			Record{Value: []byte("12345678"), Key: []byte("ann")}},
	} {
		codec, err := c.f.Codec()
		if err != nil {
			t.Fatal(err)
		}
		u, err := newUser(c.f, userKey)
		if err != nil {
			t.Fatal(err)
		}
		dst := make([]float64, 1)
		if n := testing.AllocsPerRun(100, func() {
			u.tag(&c.rec, codec, codec.Decode(&c.rec, dst))
		}); n > 0 {
			t.Errorf("%s: %v allocations", c.f.User, n)
		}
	}
}

// BenchmarkUser reports the cost of a record with a user key as a multiple of the same record without, measured in
// turn.
func BenchmarkUser(b *testing.B) {
	r := rand.New(rand.NewPCG(20, 2))
	columns := make([]string, 16)
	for i := range columns {
		columns[i] = fmt.Sprint("c", i)
	}
	row := make([]float64, len(columns))
	var packedRecords, jsonRecords []Record
	for range benchRecords {
		for i := range row {
			row[i] = r.NormFloat64()
		}
		id := fmt.Appendf(nil, "%012x", r.Uint64()>>16)
		packedRecords = append(packedRecords, Record{Key: id, Value: []byte(packed(row))})
	}
	for _, v := range benchJSON(3) {
		jsonRecords = append(jsonRecords, Record{Value: v})
	}
	for _, c := range []struct {
		name    string
		f       Format
		records []Record
	}{
		{"packed-16", Format{Name: "float64", Columns: columns, User: "record-key"}, packedRecords},
		{"json", Format{Name: "json", Columns: benchColumns, User: "field:id"}, jsonRecords},
	} {
		b.Run(c.name, func(b *testing.B) { benchmarkUser(b, c.f, c.records) })
	}
}

func benchmarkUser(b *testing.B, f Format, records []Record) {
	with, err := f.Codec()
	if err != nil {
		b.Fatal(err)
	}
	u, err := newUser(f, userKey)
	if err != nil {
		b.Fatal(err)
	}
	without := mustCodec(b, f.Name, f.Columns)
	dst := make([]float64, len(f.Columns))
	var sum persons.Tag
	var plain, tagged time.Duration
	const turn = 256
	b.ReportAllocs()
	for i := 0; b.Loop(); i += turn {
		part := records[i%benchRecords:][:turn]
		// The first of the two reads the records into the caches, so each is first equally often.
		for first := range 2 {
			start := time.Now()
			if (i/turn+i/benchRecords+first)%2 == 0 {
				for j := range part {
					without.Decode(&part[j], dst)
				}
				plain += time.Since(start)
				continue
			}
			for j := range part {
				tag := u.tag(&part[j], with, with.Decode(&part[j], dst))
				sum[0] ^= tag[0]
			}
			tagged += time.Since(start)
		}
	}
	n := float64(b.N * turn)
	b.ReportMetric(float64(plain.Nanoseconds())/n, "plain-ns/record")
	b.ReportMetric(float64(tagged.Nanoseconds())/n, "ns/record")
	b.ReportMetric(float64(tagged)/float64(plain), "ratio")
	b.ReportMetric(0, "ns/op")
}
