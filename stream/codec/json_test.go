package codec

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestJSONManyMembers decodes records with more columns than bits in a word, more members than are remembered, and
// names longer than a remembered separator.
func TestJSONManyMembers(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 16))
	var columns []string
	for i := range 300 {
		columns = append(columns,
			[]string{fmt.Sprintf("c%d", i), fmt.Sprintf("o%d.c%d", i%7, i),
				strings.Repeat("long", 40) + fmt.Sprint(i)}[i%3])
	}
	codec := mustCodec(t, "json", columns)
	document := func() (string, []string) {
		members, inside := []string{}, map[string][]string{}
		for i, c := range columns {
			path := strings.Split(c, ".")
			m := fmt.Sprintf("%q:%d", path[len(path)-1], i)
			if len(path) == 1 {
				members = append(members, m)
			} else {
				inside[path[0]] = append(inside[path[0]], m)
			}
		}
		for o, list := range inside {
			members = append(members, fmt.Sprintf("%q:{%s}", o, strings.Join(list, ", ")))
		}
		for i := range 500 {
			members = append(members, fmt.Sprintf(`"x%d":"c%d"`, i, i))
		}
		if r.IntN(2) == 0 {
			r.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		}
		return "{" + strings.Join(members, ",\n") + "}", members
	}
	for range 20 {
		doc, members := document()
		if !agree(t, "json", codec, columns, []byte(doc)) {
			t.Fatal("refused")
		}
		again := members[r.IntN(len(members))]
		twice := strings.TrimSuffix(doc, "}") + "," + again + "}"
		if agree(t, "json", codec, columns, []byte(twice)) != strings.HasPrefix(again, `"x`) {
			t.Fatalf("with %.200s twice", again)
		}
		agree(t, "json", codec, columns, []byte(strings.Replace(doc, `"c0"`, `"c0x"`, 1)))
	}
}

// Separators remembered from one record must not change the next.
func TestJSONMemory(t *testing.T) {
	columns := []string{"a", "b"}
	for _, docs := range [][]string{
		{`{"a":1,"b":2}`, `{"a":1,"b" :2}`, `{"a":1, "b":2}`, `{"a": 1,"b":  2}`, `{"a":1,"b":2}`},
		{`{"a":1,"b":2}`, `{"b":1,"a":2}`, `{"a":1,"a":2}`, `{"b":1,"b":2}`},
		{`{"a":1,"b":2}`, `{"a":1,"b":`, `{"a":1,"b"`, `{"a":1,`, `{"a":1`, `{"a":`, `{`},
		{`{"a": 1,"b":2}`, `{"a":1,"b":2}`, `{"a":` + "\v" + `1,"b":2}`},
		{`{"x":{"a":1},"a":2,"b":3}`, `{"x":{"a":1,"b":2},"a":2,"b":3}`, `{"x":[{"a":1}],"a":2,"b":3}`},
		{`{"a":1,"b":2}`, `{"\u0061":1,"b":2}`, `{"\u0061":3,"b":2}`, `{"\u0062":3,"b":2}`, `{"a":3,"b":2}`},
		{`{"a":1,"` + strings.Repeat("x", 60) + `":0,"b":2}`, `{"a":1,"` + strings.Repeat("x", 60) + `":0,"b":2}`,
			`{"a":1,"b":2}`},
	} {
		codec := mustCodec(t, "json", columns)
		for range 2 {
			for _, doc := range docs {
				agree(t, "json", codec, columns, []byte(doc))
			}
		}
	}
}
