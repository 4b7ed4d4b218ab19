package group

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// These limits bound the data that members send to each other. The coordinator stores a generation, with everything
// that each member sends and receives, in one record of at most 1 MB by default. Every member receives a list of all
// members, so the size grows with the square of their number. The data is compressed; 200 members with long names fit.
const (
	// MaxShards is the largest number of shards of a group.
	MaxShards = 4096
	// maxMembers is the largest number of members that a plan names.
	maxMembers = 4096
	// maxText is the maximum length of a text in bytes.
	maxText = 255
	// maxAssignment is the maximum decompressed size of an assignment in bytes.
	maxAssignment = 1<<10 + maxMembers*4*(maxText+1) + 2*MaxShards
	// version is the version of both layouts below. A later version under the same protocol name ("streamdp-1") may
	// only append fields: readers ignore bytes after those they know.
	version = 1
)

// profile is the user data that a member sends to the leader. It has the following layout, with integers in big endian
// and each text after a length byte: version u8; generation i32; owned: count u16, each u16, ascending; key, digest,
// instance, address, build; reads, writes: count u8, each u16.
type profile struct {
	generation    int32 // generation in which the member got the shards in owned; -1: none yet
	owned         []int
	key, digest   string
	instance      string
	address       string
	build         string
	reads, writes []int // numbers of state formats
}

// valid returns an error if the profile cannot be encoded.
func (p profile) valid() error {
	for name, s := range map[string]string{
		"key id": p.key, "digest": p.digest, "instance": p.instance, "address": p.address, "build": p.build,
	} {
		switch {
		case len(s) > maxText:
			return fmt.Errorf("the %s is longer than %d bytes", name, maxText)
		case !printable(s):
			return fmt.Errorf("the %s %q has unprintable characters", name, s)
		}
	}
	for _, formats := range [][]int{p.reads, p.writes} {
		if len(formats) == 0 || len(formats) > maxText || slices.Min(formats) < 0 || slices.Max(formats) > 1<<16-1 {
			return fmt.Errorf("state formats are %v, must be 1 to %d numbers of 16 bits each", formats, maxText)
		}
	}
	return nil
}

func (p profile) append(b []byte) []byte {
	b = append(b, version)
	b = binary.BigEndian.AppendUint32(b, uint32(p.generation))
	b = binary.BigEndian.AppendUint16(b, uint16(len(p.owned)))
	for _, s := range p.owned {
		b = binary.BigEndian.AppendUint16(b, uint16(s))
	}
	for _, s := range []string{p.key, p.digest, p.instance, p.address, p.build} {
		b = appendText(b, s)
	}
	for _, formats := range [][]int{p.reads, p.writes} {
		b = append(b, byte(len(formats)))
		for _, f := range formats {
			b = binary.BigEndian.AppendUint16(b, uint16(f))
		}
	}
	return b
}

var errUnreadable = errors.New("this build does not know its layout")

// parseProfile is the inverse of append. It ignores additional bytes at the end, and fails on any other data.
func parseProfile(b []byte) (profile, error) {
	d := decoder{b: b}
	var p profile
	d.check(d.uint8() == version)
	p.generation = int32(d.uint32())
	last := -1
	for range d.uint16() {
		s := d.uint16()
		d.check(s > last && s < MaxShards)
		if d.bad {
			break
		}
		p.owned = append(p.owned, s)
		last = s
	}
	for _, s := range []*string{&p.key, &p.digest, &p.instance, &p.address, &p.build} {
		*s = d.text()
	}
	for _, formats := range []*[]int{&p.reads, &p.writes} {
		for range d.uint8() {
			*formats = append(*formats, d.uint16())
		}
		d.check(len(*formats) > 0)
	}
	if d.bad {
		return profile{}, errUnreadable
	}
	return p, nil
}

// appendAssignment appends the data that the leader sends to the plan's member with index self. Its layout is: version
// u8; then, compressed: generation i32; format u16; self u16; members: count u16, each instance, address, build,
// standby; shards: count u16, each owner u16, 65535 for none.
func (p plan) appendAssignment(b []byte, generation int32, self int) []byte {
	var raw []byte
	raw = binary.BigEndian.AppendUint32(raw, uint32(generation))
	raw = binary.BigEndian.AppendUint16(raw, uint16(p.format))
	raw = binary.BigEndian.AppendUint16(raw, uint16(self))
	raw = binary.BigEndian.AppendUint16(raw, uint16(len(p.members)))
	for _, m := range p.members {
		for _, s := range []string{m.says.instance, m.says.address, m.says.build, m.standby} {
			raw = appendText(raw, s)
		}
	}
	raw = binary.BigEndian.AppendUint16(raw, uint16(len(p.owner)))
	for _, i := range p.owner {
		raw = binary.BigEndian.AppendUint16(raw, uint16(i))
	}
	out := bytes.NewBuffer(append(b, version))
	w, _ := flate.NewWriter(out, flate.BestCompression) // fails only for an unknown level
	w.Write(raw)                                        // these fail only if the underlying writer fails
	w.Close()
	return out.Bytes()
}

// parseAssignment is the inverse of appendAssignment.
func parseAssignment(b []byte) (Generation, error) {
	if len(b) == 0 || b[0] != version {
		return Generation{}, errUnreadable
	}
	raw, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(b[1:])), maxAssignment))
	if err != nil {
		return Generation{}, errUnreadable
	}
	d := decoder{b: raw}
	g := Generation{Number: int32(d.uint32()), Format: d.uint16(), Self: d.uint16()}
	members := d.uint16()
	d.check(members <= maxMembers && g.Self < members)
	for range members {
		m := MemberInfo{Instance: d.text(), Address: d.text(), Build: d.text(), Standby: d.text()}
		if d.bad {
			return Generation{}, errUnreadable
		}
		// Active members come first: the index of such a member is its rank.
		d.check(m.Standby != "" || len(g.Members) == g.active)
		if m.Standby == "" {
			g.active++
		}
		g.Members = append(g.Members, m)
	}
	shards := d.uint16()
	d.check(shards <= MaxShards)
	for s := range shards {
		owner := d.uint16()
		if owner == 1<<16-1 {
			g.Unowned = append(g.Unowned, s)
			continue
		}
		d.check(owner < g.active)
		if d.bad {
			break
		}
		g.Members[owner].Shards = append(g.Members[owner].Shards, s)
	}
	if d.bad {
		return Generation{}, errUnreadable
	}
	g.Shards = g.Members[g.Self].Shards
	g.Standby = g.Members[g.Self].Standby
	return g, nil
}

// printable reports whether a text can be shown unchanged on a terminal or page. This check is needed because members
// show the names of others, and anybody who may join the group can choose a name.
func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

func appendText(b []byte, s string) []byte {
	return append(append(b, byte(len(s))), s...)
}

// decoder takes values from the front of b. After the end of b, it sets bad and returns zeros.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) check(ok bool) { d.bad = d.bad || !ok }

func (d *decoder) take(n int) []byte {
	if d.check(len(d.b) >= n); d.bad {
		return make([]byte, n)
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) uint8() int     { return int(d.take(1)[0]) }
func (d *decoder) uint16() int    { return int(binary.BigEndian.Uint16(d.take(2))) }
func (d *decoder) uint32() uint32 { return binary.BigEndian.Uint32(d.take(4)) }
func (d *decoder) text() string {
	n := d.uint8()
	s := string(d.take(n))
	if d.check(printable(s)); d.bad {
		return ""
	}
	return s
}
