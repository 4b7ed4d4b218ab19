package batch

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// No block of snappy may state a length that its bytes cannot produce.
func TestSnappyLengths(t *testing.T) {
	for name, body := range map[string][]byte{
		"a block of a gigabyte": append(binary.AppendUvarint(nil, 1<<30), 0, 0, 0),
		"no length":             {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		"a frame beyond the body": append(append(bytes.Clone(xerial), make([]byte, 8)...), 0xff, 0xff, 0xff,
			0xff, 1, 1),
		"half a frame's length": append(append(bytes.Clone(xerial), make([]byte, 8)...), 0, 0),
		"a frame of a gigabyte": append(append(append(bytes.Clone(xerial), make([]byte, 8)...), 0, 0, 0, 8),
			append(binary.AppendUvarint(nil, 1<<30), 0, 0, 0)...),
	} {
		if snappyFits(body) {
			t.Errorf("snappy: %s fits", name)
		}
	}
}

// The window of a zstd frame is reduced to what its blocks can fill, and a window above 128 MB is refused.
func TestZstdWindows(t *testing.T) {
	block := func(last byte, kind byte, stored int, content ...byte) []byte {
		n := uint32(stored)<<3 | uint32(kind)<<1 | uint32(last)
		return append([]byte{byte(n), byte(n >> 8), byte(n >> 16)}, content...)
	}
	frame := func(descriptor byte, header []byte, blocks ...[]byte) []byte {
		f := append([]byte{0x28, 0xb5, 0x2f, 0xfd, descriptor}, header...)
		return append(f, bytes.Join(blocks, nil)...)
	}
	const level22 = (27 - 10) << 3
	var many [][]byte
	for range 1200 {
		many = append(many, block(0, 1, 128<<10, 0))
	}
	many = append(many, block(1, 1, 1, 0))
	skipped := append([]byte{0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0}, 1, 2, 3)
	for name, test := range map[string]struct {
		body   []byte
		window int // window descriptor afterwards; −1: refused
	}{
		"one raw block":        {frame(0, []byte{level22}, block(1, 0, 2, 'a', 'b')), 0},
		"one compressed block": {frame(0, []byte{level22}, block(1, 2, 2, 'a', 'b')), (17 - 10) << 3},
		"a window it fills":    {frame(0, []byte{level22}, many...), level22},
		"a window it needs":    {frame(0, []byte{0}, block(1, 0, 2, 'a', 'b')), 0},
		"a checksum":           {append(frame(4, []byte{level22}, block(1, 0, 2, 'a', 'b')), 1, 2, 3, 4), 0},
		"two frames": {
			append(frame(0, []byte{level22}, block(1, 0, 2, 'a', 'b')),
				frame(0, []byte{level22}, block(1, 2, 1, 'a'))...), 0},
		"two, the second bad": {
			append(frame(0, []byte{level22}, block(1, 0, 2, 'a', 'b')), frame(0, []byte{level22 + 8}, many...)...), -1},
		"more than 128 MB":       {frame(0, []byte{level22 + 1}, many...), -1},
		"a checksum that is cut": {append(frame(4, []byte{level22}, block(1, 0, 2, 'a', 'b')), 1, 2, 3), -1},
		"a block that is cut":    {frame(0, []byte{0}, block(1, 0, 3, 'a', 'b')), -1},
		"no last block":          {frame(0, []byte{0}, block(0, 0, 2, 'a', 'b')), -1},
		"a reserved block":       {frame(0, []byte{0}, block(1, 3, 2, 'a', 'b')), -1},
		"a size it has":          {frame(0x20, []byte{2}, block(1, 0, 2, 'a', 'b')), 2},
		"a size it has not":      {frame(0xa0, []byte{0, 0, 0, 64}, block(1, 0, 2, 'a', 'b')), -1},
		"another format":         {[]byte("something else"), -1},
		"to be skipped, cut":     {skipped[:10], -1},
		"half a magic":           {[]byte{0x28, 0xb5}, -1},
	} {
		for _, before := range [][]byte{nil, skipped} {
			b := append(bytes.Clone(before), test.body...)
			if fits := zstdFits(b); fits != (test.window >= 0) || fits && int(b[len(before)+5]) != test.window {
				t.Errorf("%s: fits %v, window %#x, want %#x", name, fits, b[min(len(b)-1, len(before)+5)], test.window)
			}
		}
	}
}
