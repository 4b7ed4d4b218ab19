package codec

import "encoding/binary"

// homeOf returns a key's home: the partition to which the default partitioner of Kafka's Java producer sends records
// with this key. A record without a key has no home; for it, homeOf returns one of the partitions.
func homeOf(key []byte, partitions int) int {
	return int(murmur2(key)&0x7fffffff) % partitions
}

// murmur2 is the hash of org.apache.kafka.common.utils.Utils: MurmurHash2 by Austin Appleby, 32
// bits, little-endian, with the seed 0x9747b28c.
func murmur2(b []byte) uint32 {
	const m = 0x5bd1e995
	h := uint32(0x9747b28c) ^ uint32(len(b))
	for ; len(b) >= 4; b = b[4:] {
		k := binary.LittleEndian.Uint32(b) * m
		k ^= k >> 24
		h = h*m ^ k*m
	}
	if len(b) > 0 {
		for i, c := range b {
			h ^= uint32(c) << (8 * i)
		}
		h *= m
	}
	h ^= h >> 13
	h *= m
	return h ^ h>>15
}
