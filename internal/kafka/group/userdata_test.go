package group

import (
	"bytes"
	"compress/flate"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func joined(says map[string][]byte) (all []kmsg.JoinGroupResponseMember) {
	for id, b := range says {
		m := kmsg.NewJoinGroupResponseMember()
		m.MemberID, m.ProtocolMetadata = id, b
		all = append(all, m)
	}
	return all
}

func info(generation int32) kgo.BalanceInfo { return kgo.BalanceInfo{Generation: generation} }

var example = profile{
	generation: 12, owned: []int{0, 7, 4095}, key: "a1b2", digest: strings.Repeat("d", 64),
	instance: "höst-1", address: "https://host-1:8080", build: "v1.2.3", reads: []int{1, 2}, writes: []int{2},
}

// Builds of different versions talk to each other, so these bytes must never change.
func TestProfileBytes(t *testing.T) {
	const want = "\x01\x00\x00\x00\x0c\x00\x03\x00\x00\x00\x07\x0f\xff\x04a1b2\x40" +
		"dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd" +
		"\x07h\xc3\xb6st-1\x13https://host-1:8080\x06v1.2.3\x02\x00\x01\x00\x02\x01\x00\x02"
	b := example.append(nil)
	if string(b) != want {
		t.Errorf("%q", b)
	}
	// Bytes that a later version appends are ignored.
	if p, err := parseProfile(append(b, "more"...)); err != nil || !reflect.DeepEqual(p, example) {
		t.Errorf("%+v, %v", p, err)
	}
	for n := range b {
		if p, err := parseProfile(b[:n]); err == nil {
			t.Fatalf("of %d bytes, %d are %+v", len(b), n, p)
		}
	}
	for at, bad := range map[int]string{0: "\x02", 8: "\x00\x08\x00\x07", 9: "\x00\x00", 11: "\x10\x00"} {
		c := slices.Clone(b)
		copy(c[at:], bad)
		if p, err := parseProfile(c); err == nil {
			t.Errorf("with %q at %d: %+v", bad, at, p)
		}
	}
	for _, change := range []func(*profile){
		func(p *profile) { p.writes = nil },
		func(p *profile) { p.owned = []int{3, 3} },
		func(p *profile) { p.instance = "a\x1b[2J" }, // this name would clear a terminal that shows the group
		func(p *profile) { p.build = "\xff" },
	} {
		p := example
		change(&p)
		if q, err := parseProfile(p.append(nil)); err == nil {
			t.Errorf("%+v is read as %+v", p, q)
		}
	}
	for _, change := range []func(*profile){
		func(p *profile) { p.digest = strings.Repeat("x", 256) },
		func(p *profile) { p.reads = nil },
		func(p *profile) { p.writes = []int{1 << 16} },
		func(p *profile) { p.reads = []int{-1} },
		func(p *profile) { p.instance = "a\x1b[2J" },
		func(p *profile) { p.address = "a\xff" },
	} {
		p := example
		if change(&p); p.valid() == nil {
			t.Errorf("%+v is valid", p)
		}
	}
}

func TestAssignmentBytes(t *testing.T) {
	p := plan{format: 2, owner: []int{1, 0, 1, -1}, members: []planned{
		{id: "x", says: profile{instance: "a", address: "a:1", build: "v1"}},
		{id: "y", says: profile{instance: "b"}},
		{id: "z", says: profile{instance: "c"}, standby: StandbyKey},
	}}
	raw := "\x00\x00\x00\x09\x00\x02\x00\x01\x00\x03" + "\x01a\x03a:1\x02v1\x00" + "\x01b\x00\x00\x00" +
		"\x01c\x00\x00\x03key" +
		"\x00\x04\x00\x01\x00\x00\x00\x01\xff\xff"
	b := p.appendAssignment(nil, 9, 1)
	want := Generation{
		Number: 9, Shards: []int{0, 2}, Self: 1, Unowned: []int{3}, Format: 2, active: 2,
		Members: []MemberInfo{{"a", "a:1", "v1", []int{1}, ""}, {"b", "", "", []int{0, 2}, ""},
			{"c", "", "", nil, StandbyKey}},
	}
	if g, err := parseAssignment(b); err != nil || !reflect.DeepEqual(g, want) {
		t.Errorf("%+v, %v", g, err)
	}
	if g, err := parseAssignment(packed(raw)); err != nil || !reflect.DeepEqual(g, want) {
		t.Errorf("of the bytes that stand for good: %+v, %v", g, err)
	}
	if g, err := parseAssignment(packed(raw + "more")); err != nil || !reflect.DeepEqual(g, want) {
		t.Errorf("with more at the end: %+v, %v", g, err)
	}
	for n := range raw {
		if g, err := parseAssignment(packed(raw[:n])); err == nil {
			t.Errorf("of %d bytes, %d are %+v", len(raw), n, g)
		}
	}
	for _, c := range [][2]string{
		{"\x00\x01\x00\x03", "\x00\x03\x00\x03"}, // self is not a member
		// an active member after one on standby: b, if c is active
		{"\x01b\x00\x00\x00", "\x01b\x00\x00\x01x"},
		{"\x00\x01\x00\x00\x00\x01\xff", "\x00\x01\x00\x02\x00\x01\xff"},           // a shard of a member on standby
		{"\x00\x04\x00\x01", "\x10\x01" + strings.Repeat("\x00\x01", MaxShards-2)}, // too many shards
	} {
		bad := strings.Replace(raw, c[0], c[1], 1)
		if c[1] == "\x01b\x00\x00\x01x" {
			bad = strings.Replace(bad, "\x03key", "\x00", 1)
		}
		if g, err := parseAssignment(packed(bad)); err == nil {
			t.Errorf("with %q for %q: %+v", c[1], c[0], g)
		}
	}
	for _, text := range []string{"\x03\x1b[J", "\x03a\nb"} {
		if g, err := parseAssignment(packed(strings.Replace(raw, "\x03a:1", text, 1))); err == nil {
			t.Errorf("with %q: %+v", text, g)
		}
	}
	for _, b := range [][]byte{nil, {2}, {1}, b[:len(b)-1], append([]byte{2}, b[1:]...)} {
		if g, err := parseAssignment(b); err == nil {
			t.Errorf("%q is %+v", b, g)
		}
	}
	// However large the decompressed size is, only little of the data is kept.
	if _, err := parseAssignment(packed(strings.Repeat("\xff", 64<<20))); err == nil {
		t.Error("64 MiB are an assignment")
	}
}

func packed(raw string) []byte {
	b := bytes.NewBuffer([]byte{version})
	w, _ := flate.NewWriter(b, flate.BestSpeed)
	w.Write([]byte(raw))
	w.Close()
	return b.Bytes()
}

// A large group fits into one record of the coordinator.
func TestAssignmentSize(t *testing.T) {
	const n = 200
	r := rand.New(rand.NewPCG(1, 1))
	var all []candidate
	for i := range n {
		all = append(all, candidate{id: fmt.Sprint(i), says: profile{
			key: "k", reads: []int{1}, writes: []int{1}, build: "v1.2.3-0.20261123120000-0123456789ab",
			instance: fmt.Sprintf("streamdp-%08x-%04x.streamdp.svc.cluster.local", r.Uint32(), r.IntN(1<<16)),
			address:  fmt.Sprintf("10.%d.%d.%d:8080", r.IntN(256), r.IntN(256), r.IntN(256)),
		}})
	}
	p := balance(all, 1024)
	total := 0
	for i := range n {
		total += len(p.encodeAssignment("streamdp.state", 1, i)) +
			len(encodeProfile("streamdp.state", p.members[i].says)) + 200
	}
	t.Logf("%d bytes for %d members", total, n)
	if total > 1<<20 {
		t.Errorf("%d bytes", total)
	}
}

func FuzzProfile(f *testing.F) {
	f.Add(example.append(nil))
	f.Add(encodeProfile("g.state", example))
	f.Fuzz(func(t *testing.T, b []byte) {
		decodeProfile(b)
		p, err := parseProfile(b)
		if err != nil {
			return
		}
		if again := p.append(nil); p.valid() != nil || !bytes.HasPrefix(b, again) {
			t.Errorf("%q is %+v, and that %q", b, p, again)
		}
	})
}

func FuzzAssignment(f *testing.F) {
	f.Add(
		[]byte(
			"\x00\x00\x00\x09\x00\x02\x00\x01\x00\x02\x01a\x03a:1\x02v1\x00\x01b\x00\x00\x03key\x00\x02\x00\x00\xff\xff"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		parseAssignment(append([]byte{version}, raw...))
		decodeAssignment(raw)
		g, err := parseAssignment(packed(string(raw)))
		if err != nil {
			return
		}
		if len(g.Members) == 0 || g.Active() > len(g.Members) || g.Members[g.Self].Standby != g.Standby {
			t.Fatalf("%+v", g)
		}
		seen := map[int]int{}
		for i, m := range g.Members {
			for _, s := range m.Shards {
				seen[s]++
			}
			if i >= g.Active() && len(m.Shards) > 0 {
				t.Fatalf("%+v stands by", m)
			}
		}
		for _, s := range g.Unowned {
			seen[s]++
		}
		for s, n := range seen {
			if n != 1 || s >= len(seen) {
				t.Fatalf("shard %d has %d owners of %d shards", s, n, len(seen))
			}
		}
	})
}
