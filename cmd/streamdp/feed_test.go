package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/kafka"
)

func TestFeed(t *testing.T) {
	s := newSite(t)
	values := func() []string {
		t.Helper()
		c, err := kafka.NewClient(kafka.Options{Brokers: []string{s.broker.Addr()}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var found []string
		if err := c.ReadBack(context.Background(), "orders", 0, 0, func(r *kafka.Record) error {
			found = append(found, string(r.Value))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return found
	}
	file := func(name, text string) string {
		path := filepath.Join(s.dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	to := []string{"feed", "--brokers", s.broker.Addr(), "--topic", "orders"}
	feed := func(args ...string) {
		t.Helper()
		want(t, exitDone, " sent to orders/0", append(slices.Clone(to), args...)...)
	}
	feed("--csv", file("a.csv", "x,y,b.c\n1,2.5,3\nword,,4\n"))
	feed("--csv", file("b.csv", "1,+2\n.5,3\n"), "--columns", "2,1")
	feed("--ndjson", file("c.ndjson", "{\"x\":1}\n\n[2]\n"))
	feed("--csv", file("d.csv", "7,8\n"), "--codec", "json-array")
	feed("--csv", file("d2.csv", "7,8\n"), "--header", "x,b.c")
	feed("--csv", file("d3.csv", "7\n"), "--header", "x,")
	feed("--csv", file("d4.csv", "7,8,9\n"), "--header", "x,y,z", "--columns", "z,x")
	feed("--csv", file("e.csv", "7,\"8,9\"\n"), "--codec", "csv", "--header", "no")
	got := values()
	expected := []string{
		`{"x":1,"y":2.5,"b":{"c":3}}`, `{"x":"word","y":null,"b":{"c":4}}`,
		`{"c2":2,"c1":1}`, `{"c2":3,"c1":0.5}`,
		`{"x":1}`, ``, `[2]`, `[7,8]`, `{"x":7,"b":{"c":8}}`, `{"x":7}`, `{"z":9,"x":7}`, `7,"8,9"`,
	}
	if !slices.Equal(got, expected) {
		t.Errorf("fed\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(expected, "\n"))
	}
	want(t, exitFailure, "no partition",
		append(slices.Clone(to), "--partition", "7", "--csv", file("f.csv", "1,2\n"))...)
	want(t, exitUsage, "no column",
		append(slices.Clone(to), "--columns", "zzz", "--csv", file("g.csv", "x,y\n1,2\n"))...)
	// A line of numbers is not a header, and no error shows it.
	want(t, exitUsage, "no column \"zzz\" among c1, c2\n",
		append(slices.Clone(to), "--columns", "zzz", "--csv", file("h.csv", "1.5,2\n"))...)
	want(t, exitUsage, "no column \"zzz\" among c1, c2\n",
		append(slices.Clone(to), "--columns", "zzz", "--csv", file("h2.csv", "1.5,word\n"))...)
	want(t, exitUsage, "the first line has 2 columns, but --header names 3",
		append(slices.Clone(to), "--header", "x,y,z", "--csv", file("h3.csv", "1,2\n"))...)
	for _, wrong := range []string{"maybe", "x,x", "x,,y", ","} {
		want(t, exitUsage, "--header is \""+wrong+"\", must be auto, yes, no, or distinct names",
			append(slices.Clone(to), "--header", wrong, "--csv", file("h4.csv", "1,2\n"))...)
	}
	want(t, exitUsage, "--rate is -1", append(slices.Clone(to), "--rate", "-1", "--csv", file("i.csv", "1,2\n"))...)
	nowhere := []string{"feed", "--brokers", s.broker.Addr(), "--topic", "nowhere"}
	want(t, exitFailure, "topic nowhere does not exist: create it first, or give --create\n",
		append(slices.Clone(nowhere), "--csv", file("j.csv", "1,2\n"))...)
	// The topic is created even for a file without rows, and only once.
	want(t, exitDone, "0 records sent to nowhere/1",
		append(slices.Clone(nowhere), "--create", "--partition", "1", "--csv", file("j2.csv", "x,y\n"))...)
	for _, partition := range []string{"0", "1"} {
		want(t, exitDone, "1 record sent to nowhere/"+partition,
			append(slices.Clone(nowhere), "--create", "--partition", partition, "--csv", file("j3.csv", "1,2\n"))...)
	}
	several := []string{"feed", "--brokers", s.broker.Addr(), "--topic", "several"}
	want(t, exitUsage, "--partitions needs --create",
		append(slices.Clone(several), "--partitions", "3", "--csv", file("j5.csv", "1,2\n"))...)
	want(t, exitDone, "1 record sent to several/0",
		append(slices.Clone(several), "--create", "--partitions", "3", "--csv", file("j6.csv", "1,2\n"))...)
	want(t, exitDone, "1 record sent to several/2",
		append(slices.Clone(several), "--partition", "2", "--csv", file("j7.csv", "1,2\n"))...)
	want(t, exitFailure, "topic several has no partition 3",
		append(slices.Clone(several), "--partition", "3", "--csv", file("j8.csv", "1,2\n"))...)
	want(t, exitUsage, "the configuration has no stream order, only orders\n", "feed", "-c", s.config, "--stream",
		"order", "--csv", file("j4.csv", "1,2\n"))

	// Settings of the stream apply, and a contradicting flag is refused.
	stream := []string{"feed", "-c", s.config, "--stream", "orders"}
	want(t, exitUsage, "does not read partition 7",
		append(slices.Clone(stream), "--partition", "7", "--csv", file("k.csv", "1,2\n"))...)
	want(t, exitUsage, "--topic cannot be used with --stream",
		append(slices.Clone(stream), "--topic", "x", "--csv", file("l.csv", "1,2\n"))...)
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	array := strings.Replace(string(text), "topic = \"orders\", columns",
		"topic = \"orders\", codec = \"json-array\", columns", 1)
	if err := os.WriteFile(s.config, []byte(array), 0o600); err != nil {
		t.Fatal(err)
	}
	n := len(values())
	want(t, exitDone, "1 record sent",
		append(slices.Clone(stream), "--csv", file("m.csv", "id,items,amount\n1,2,3\n"))...)
	want(t, exitDone, "1 record sent", append(slices.Clone(stream), "--csv", file("n.csv", "4,5\n"))...)
	want(t, exitDone, "1 record sent",
		append(slices.Clone(stream), "--columns", "id,items", "--csv", file("o.csv", "id,items,amount\n1,2,3\n"))...)
	if got := values()[n:]; !slices.Equal(got, []string{"[3,2]", "[4,5]", "[1,2]"}) {
		t.Errorf("fed to columns amount, items: %s", got)
	}
	want(t, exitUsage, "has 3 columns, but the stream has 2 (amount, items)",
		append(slices.Clone(stream), "--csv", file("p.csv", "1,2,3\n"))...)
}

// TestFeedKeepsRecordsApart: a topic gets one record for each line, in order. A record without a row replaces a record
// that the topic does not accept, and a line that is not CSV.
func TestFeedKeepsRecordsApart(t *testing.T) {
	s := newSite(t)
	c, err := kafka.NewClient(kafka.Options{Brokers: []string{s.broker.Addr()}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fed := int64(0)
	feed := func(text string, wants []string, args ...string) {
		t.Helper()
		inside(t, fmt.Sprintf("%d records sent to orders/0 in ", len(wants)),
			append([]string{"feed", "--brokers", s.broker.Addr(), "--topic", "orders"}, args...)...)
		var got []string
		if err := c.ReadBack(t.Context(), "orders", 0, fed, func(r *kafka.Record) error {
			if r.Value == nil {
				t.Error("a tombstone")
			}
			got = append(got, string(r.Value))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if fed += int64(len(got)); !slices.Equal(got, wants) {
			t.Errorf("%.100q: fed %.200q, want %.200q", text, got, wants)
		}
	}
	text := "x,y\n1,2\n\n3,\"4\n\"5\",6\n7\n"
	null := `{"x":null,"y":null}`
	feed(text, []string{`{"x":1,"y":2}`, null, null, `{"x":5,"y":6}`, `{"x":7,"y":null}`}, "--csv",
		write(t, "a.csv", text))
	feed(text, []string{"1,2", "", "", "5,6", "7"}, "--codec", "csv", "--csv", write(t, "b.csv", text))
	feed(text, []string{"", "1,2", "", "", "5,6", "7"}, "--codec", "csv", "--header", "no", "--csv",
		write(t, "c.csv", strings.Replace(text, "x,y", `"`, 1)))
	feed(text, []string{"[1,2]", "[null,null]", "[null,null]", "[5,6]", "[7,null]"}, "--codec", "json-array", "--csv",
		write(t, "d.csv", text))
	long := strings.Repeat("9", 2_000_000) // more than a topic accepts by default
	text = "[1]\n\n[2]\n[" + long + "]\n[3]\n\"\n[" + long + "]"
	feed(text, []string{"[1]", "", "[2]", "", "[3]", `"`, ""}, "--ndjson", write(t, "e.ndjson", text))
	text = "1,2\n" + long + ",4\n5,6\n"
	feed(text, []string{"[1,2]", "", "[5,6]"}, "--codec", "json-array", "--csv", write(t, "f.csv", text))
}
