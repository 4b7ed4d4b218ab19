package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/streamdp/streamdp/internal/table"
)

// behindLength appends a length and a value; nil is a tombstone.
func behindLength(b, value []byte) []byte {
	if value == nil {
		return append(b, 0xff, 0xff, 0xff, 0xff)
	}
	return append(binary.BigEndian.AppendUint32(b, uint32(len(value))), value...)
}

// TestSized: values are read as they were written, and a file that ends inside a value is a fault.
func TestSized(t *testing.T) {
	values := [][]byte{[]byte("one\ntwo"), {}, nil, []byte("three")}
	var file []byte
	for _, v := range values {
		file = behindLength(file, v)
	}
	next := sized(strings.NewReader(string(file)), "f")
	for i, want := range values {
		got, err := next()
		if err != nil || string(got) != string(want) || (got == nil) != (want == nil) {
			t.Errorf("value %d is %q, %v", i, got, err)
		}
	}
	if _, err := next(); err != io.EOF {
		t.Errorf("after the last value: %v", err)
	}
	for _, cut := range []int{len(file) - 1, len(file) - 6, len(file) - 8} {
		next := sized(strings.NewReader(string(file[:cut])), "f")
		var err error
		for err == nil {
			_, err = next()
		}
		if err == io.EOF || !strings.Contains(err.Error(), "f ends in the middle") {
			t.Errorf("a file of %d of %d bytes: %v", cut, len(file), err)
		}
	}
	if _, err := sized(strings.NewReader("\x80\x00\x00\x00"), "f")(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("an invalid length: %v", err)
	}
	long := sized(
		io.MultiReader(strings.NewReader("\x01\x00\x00\x01"), io.LimitReader(zeros{}, table.MaxLine+1),
			strings.NewReader("\x00\x00\x00\x01x")), "f")
	if got, err := long(); err != nil || got == nil || len(got) != 0 {
		t.Errorf("a value that is too long is %d bytes, %v", len(got), err)
	}
	if got, err := long(); err != nil || string(got) != "x" {
		t.Errorf("after it: %q, %v", got, err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestSchemaCommands: check compares the columns with the schemas before any budget is spent. check --sample and replay
// read a file of records in kcat's form, with schemas from the registry.
func TestSchemaCommands(t *testing.T) {
	reg := srfake.New()
	defer reg.Close()
	const avsc = `{"type":"record","name":"order","fields":[{"name":"amount","type":"double"},{"name":"items","type":["null","double"]}]}`
	reg.SeedSchema("orders-value", 1, 7, sr.Schema{Schema: avsc})
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	want(t, exitDone, "", "keygen", filepath.Join(dir, "key"))
	config := func(name, input string) string {
		return write(name,
			fmt.Sprintf(
				"[kafka]\nbrokers = [\"127.0.0.1:1\"]\n[state]\ndir = %q\nkey_file = %q\n[registry]\nurls = [%q]\n"+
					"[stream.orders]\ninput = { topic = \"orders\", %s }\nstep = 10\n[stream.orders.privacy]\n"+
					"epsilon = 1.0\ndelta = 1e-8\nadjacency = \"zero-out\"\n[stream.orders.moments]\nclip = 1.0\n",
				filepath.Join(dir, "state"), filepath.Join(dir, "key"), reg.URL(), input))
	}
	framed := config("framed.toml", `codec = "avro", columns = ["amount", "items"]`)
	plain := config("plain.toml",
		fmt.Sprintf(`codec = "avro", framing = "plain", schema_file = %q, columns = ["amount", "items"]`,
			write("order.avsc", avsc)))
	wrong := config("wrong.toml",
		fmt.Sprintf(`codec = "avro", framing = "plain", schema_file = %q, columns = ["amount", "weight"]`,
			filepath.Join(dir, "order.avsc")))

	record := func(amount, items float64) []byte {
		b := binary.LittleEndian.AppendUint64(nil, math.Float64bits(amount))
		if items < 0 {
			return append(b, 0) // null
		}
		return binary.LittleEndian.AppendUint64(append(b, 2), math.Float64bits(items))
	}
	var withFrame, without []byte
	for i := range 20 {
		r := record(float64(i), float64(i%3)-1)
		without = behindLength(without, r)
		withFrame = behindLength(withFrame, append([]byte{0, 0, 0, 0, 7}, r...))
	}
	withFrame = behindLength(behindLength(withFrame, nil), []byte{0, 0, 0, 0, 9, 1})
	sample := want(t, exitDone, "not private", "check", "-c", framed, "--sample",
		write("framed.bin", string(withFrame)))
	for _, text := range []string{"22 records, 13 rows, 9 null (missing 7, no-schema 1, null 1)", "column items is a " +
		"number in 13 records", "column amount is a number in 20 records"} {
		if !strings.Contains(sample, text) {
			t.Errorf("sample does not say %q:\n%s", text, sample)
		}
	}
	want(t, exitDone, "", "check", "-c", plain)
	want(t, exitConfig, "order.avsc: weight: the schema has no such path", "check", "-c", wrong)
	one := want(t, exitDone, "INSECURE", "replay", "-c", plain, "--insecure-seed", "1", "--insecure-diagnostics",
		write("plain.bin", string(without)))
	if strings.Count(one, "\n") != 2 {
		t.Errorf("the replay has %d releases", strings.Count(one, "\n"))
	}
	want(t, exitDone, "9 records gave no row (missing 7, no-schema 1, null 1)", "replay", "-c", framed,
		"--insecure-seed", "1", "--insecure-diagnostics", filepath.Join(dir, "framed.bin"))
	reg.Close()
	want(t, exitFailure, "registry "+reg.URL(), "check", "-c", framed, "--sample", filepath.Join(dir, "framed.bin"))
}
