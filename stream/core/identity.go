package core

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/streamdp/streamdp/stream/codec"
)

// ParseIdentity parses the key of a release, STREAM/PARTITION/EPOCH/STEP, or of a piece of a release,
// STREAM/PARTITION/EPOCH/STEP/PIECE. The partition of a merged stream is "merged".
func ParseIdentity(key []byte) (t Task, epoch, step uint64, ok bool) {
	parts := strings.Split(string(key), "/")
	if len(parts) == 5 {
		if n, err := strconv.ParseUint(parts[4], 10, 31); err != nil || n == 0 ||
			parts[4] != strconv.FormatUint(n, 10) {
			return t, 0, 0, false
		}
		key = key[:len(key)-len(parts[4])-1]
		parts = parts[:4]
	}
	if len(parts) != 4 {
		return t, 0, 0, false
	}
	p, whole := parsePartition(parts[1])
	epoch, err2 := strconv.ParseUint(parts[2], 10, 64)
	step, err3 := strconv.ParseUint(parts[3], 10, 64)
	t = Task{parts[0], p}
	// Accept one spelling only: a key with a leading zero belongs to no release.
	if !whole || err2 != nil || err3 != nil || string(key) != Identity(t, epoch, step) {
		return Task{}, 0, 0, false
	}
	return t, epoch, step, true
}

// Identity returns a release's key.
func Identity(t Task, epoch, step uint64) string {
	return fmt.Sprintf("%s/%s/%d/%d", t.Stream, PartitionName(t.Partition), epoch, step)
}

// ReleaseEnd returns the offset after the last record that a published release covers, or −1 if value is not a release.
// The first piece of a release is enough, because it has the offsets.
func ReleaseEnd(value []byte) int64 {
	end := int64(-1)
	fields(value, func(name string, d *json.Decoder) bool {
		var offsets [2]int64
		if name != "offsets" {
			return d.Decode(new(json.RawMessage)) == nil
		}
		if d.Decode(&offsets) == nil {
			end = offsets[1]
		}
		return false
	})
	return end
}

// ReleaseEnds returns the offsets after the records of a published release's step, one per partition, or nil if value
// is not a release. The first piece of a release is enough.
func ReleaseEnds(value []byte) (ends []int64) {
	fields(value, func(name string, d *json.Decoder) bool {
		switch name {
		case "offsets":
			var offsets [2]int64
			if d.Decode(&offsets) == nil {
				ends = []int64{offsets[1]}
			}
			return ends != nil
		case "parts":
			var parts []struct{ Offsets [2]int64 }
			if ends = nil; d.Decode(&parts) == nil {
				for _, p := range parts {
					ends = append(ends, p.Offsets[1])
				}
			}
			return false
		case "columns": // stands after both in a release
			return false
		}
		return d.Decode(new(json.RawMessage)) == nil
	})
	return ends
}

// fields calls see with the name of each field of a JSON object, in order. see must decode the field's value. fields
// stops when see returns false.
func fields(object []byte, see func(name string, d *json.Decoder) bool) {
	d := json.NewDecoder(bytes.NewReader(object))
	if token, err := d.Token(); err != nil || token != json.Delim('{') {
		return
	}
	for d.More() {
		token, err := d.Token()
		name, ok := token.(string)
		if err != nil || !ok || !see(name, d) {
			return
		}
	}
}

// ReleaseHash returns a hash of a published release's key, value and headers.
func ReleaseHash(key, value []byte, headers []codec.Header) [32]byte {
	h := sha256.New()
	field := func(b []byte) {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(b))))
		h.Write(b)
	}
	field(key)
	field(value)
	for _, x := range headers {
		field([]byte(x.Key))
		field(x.Value)
	}
	return [32]byte(h.Sum(nil))
}
