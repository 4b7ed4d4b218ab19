package core

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/streamdp/streamdp/config"
)

// Partitions returns the partitions that an epoch reads.
func Partitions(m *Manifest) []int {
	if m.Partition == Merged {
		return m.Numbers()
	}
	return []int{m.Partition}
}

// Changes lists the differences between a stream's configuration and an epoch's that affect the guarantee.
func Changes(s *config.Stream, m *Manifest) []string {
	if m.Partition == Merged && s.Input.All() {
		// An epoch keeps the partitions that the topic had when it opened.
		s = s.Over(m.Numbers())
	}
	digest := s.Digest(m.Partition, Versions(s))
	if bytes.Equal(digest[:], m.Digest) {
		return nil
	}
	changes := s.Changes(m.Config, m.Partition)
	for k, v := range Versions(s) {
		if m.Versions[k] != v {
			changes = append(changes, fmt.Sprintf("version of %s: %s → %s", k, m.Versions[k], v))
		}
	}
	return changes
}

// ParseParameters parses packed little-endian float64s.
func ParseParameters(data []byte) ([]float64, error) {
	if len(data)%8 != 0 || len(data) == 0 {
		return nil, fmt.Errorf("%d bytes are not a whole number of float64s", len(data))
	}
	x := make([]float64, len(data)/8)
	for i := range x {
		x[i] = math.Float64frombits(binary.LittleEndian.Uint64(data[8*i:]))
		if x[i]-x[i] != 0 {
			return nil, fmt.Errorf("number %d is not finite", i+1)
		}
	}
	return x, nil
}

// PackParameters encodes parameters for ParseParameters.
func PackParameters(x []float64) []byte {
	data := make([]byte, 0, 8*len(x))
	for _, v := range x {
		data = binary.LittleEndian.AppendUint64(data, math.Float64bits(v))
	}
	return data
}
