package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/toml"
)

// render writes a configuration with every key spelled out.
func render(c *Config) []byte {
	var b bytes.Buffer
	var section func(name string, n *toml.Node, v reflect.Value)
	section = func(name string, n *toml.Node, v reflect.Value) {
		if name != "" {
			fmt.Fprintf(&b, "[%s]\n", name)
		}
		for _, c := range n.Children {
			f := toml.Field(v, c.Name)
			if c.Kind == toml.Table || !f.IsValid() || n.Name == "COLUMN" && f.IsZero() {
				continue
			}
			if s, ok := v.Interface().(Stream); ok && c.Name == "on_horizon" && s.Horizon == 0 {
				continue // writing it would be a fault
			}
			if c.Kind == toml.Boolean && f.Kind() == reflect.Pointer && f.IsNil() {
				continue // the value follows from other keys
			}
			fmt.Fprintf(&b, "%s = %s\n", c.Name, renderValue(c.Plain(f)))
		}
		for _, c := range n.Children {
			f := toml.Field(v, c.Name)
			if c.Kind != toml.Table || !f.IsValid() {
				continue
			}
			if f.Kind() == reflect.Pointer {
				if f.IsNil() {
					continue
				}
				f = f.Elem()
			}
			sub := c.Name
			if name != "" {
				sub = name + "." + sub
			}
			if columns, ok := f.Interface().(map[string]*Column); ok {
				for _, name := range slices.Sorted(maps.Keys(columns)) {
					section(sub+"."+toml.Key{name}.String(), c.Child("COLUMN"), reflect.ValueOf(*columns[name]))
				}
				continue
			}
			section(sub, c, f)
		}
	}
	section("", root(), reflect.ValueOf(*c))
	for _, s := range c.Streams {
		section("stream."+s.Name, root().At("stream", "NAME"), reflect.ValueOf(*s))
	}
	return b.Bytes()
}

func renderValue(v any) string {
	switch v := v.(type) {
	case string:
		return strconv.Quote(strings.ReplaceAll(v, "${", "$${"))
	case time.Duration:
		return strconv.Quote(v.String())
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	if p, ok := v.([]int); ok && slices.Equal(p, []int{AllPartitions}) {
		return `"all"`
	}
	if list := reflect.ValueOf(v); list.Kind() == reflect.Slice {
		var parts []string
		for i := range list.Len() {
			parts = append(parts, renderValue(list.Index(i).Interface()))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	return fmt.Sprint(v)
}

// FuzzParse checks that Parse returns, for any file, either faults with lines or a configuration. Written out and read
// again, the configuration must be the same.
func FuzzParse(f *testing.F) {
	f.Add(orders)
	f.Add(orders + other)
	f.Add(strings.ReplaceAll(orders, "\n", "\r\n"))
	for _, path := range []string{"../examples/orders.toml", "testdata/faults.toml"} {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data))
	}
	f.Add("\xef\xbb\xbfstream.a = { privacy.epsilon = 1 } # x\n'stream' = 2")
	f.Add("x = \"\"\"\\\r\"\"\"\ny = '''\n'''\n[[z]]\n\"a.b\".c = [{d = 1}, [\n]]")
	f.Add(strings.Replace(orders, `"amount"`, `"$${x}$", "${HOME}", "\u00e9\U0001F600"`, 1))
	f.Add(strings.Replace(orders, "step   = 100", "step = 100\nhorizon = 10\non_horizon = \"rollover\"", 1))
	f.Add(strings.Replace(orders, "partition = 0", `partition = "all"`, 1) + "[x]")
	f.Add(
		strings.Replace(strings.Replace(orders, "partition = 0", `partition = "all"`, 1), "step   = 100",
			"step = 100\nmerge = true\nmerge_ahead = 9", 1))
	f.Add(withTables(columnTables))
	f.Fuzz(func(t *testing.T, src string) {
		lines := 1 + strings.Count(src, "\n")
		c, err := Parse("f", []byte(src))
		faults, isFaults := err.(Faults)
		if (err == nil) != (c != nil) || err != nil && (!isFaults || len(faults) == 0) {
			t.Fatalf("%v, %v", c, err)
		}
		last := 1
		for _, f := range faults {
			if f.Line < last || f.Line > lines || f.Rule == "" {
				t.Errorf("line %d after %d of %d: %v", f.Line, last, lines, f)
			}
			last = f.Line
		}
		if err != nil {
			return
		}
		again, err := Parse("again", render(c))
		if err != nil {
			t.Fatalf("%v\nin\n%s", err, render(c))
		}
		if len(again.Streams) != len(c.Streams) {
			t.Fatal("streams are lost")
		}
		for i, s := range c.Streams {
			for _, p := range s.Input.Partitions {
				one, two := s.Canonical(p), again.Streams[i].Canonical(p)
				if !bytes.Equal(one, two) {
					t.Errorf("%v", Diff(one, two))
				}
				if !json.Valid(one) || s.Digest(p, nil) != again.Streams[i].Digest(p, nil) || len(Diff(one, one)) > 0 {
					t.Errorf("%s", one)
				}
			}
		}
		if one, two := render(c), render(again); !bytes.Equal(one, two) {
			t.Errorf("\n%s\n%s", one, two)
		}
	})
}
