package batch

import (
	"fmt"
	"strings"
	"testing"
)

// HashRecord hashes the framed record, in which null differs from empty.
func TestHashRecord(t *testing.T) {
	seen := map[[32]byte]bool{}
	for _, k := range [][]byte{nil, {}, []byte("a"), []byte("ab")} {
		for _, v := range [][]byte{nil, {}, []byte("b"), []byte("ab")} {
			for o := range int64(3) {
				h := HashRecord(o, k, v)
				if seen[h] {
					t.Errorf("hash of %d, %q, %q is taken", o, k, v)
				}
				seen[h] = true
			}
		}
	}
	const want = "d693ad6b" // printf '\x01\0\0\0\0\0\0\0\xff\xff\xff\xff\x02\0\0\0hi' | sha256sum
	if h := HashRecord(1, nil, []byte("hi")); !strings.HasPrefix(fmt.Sprintf("%x", h), want) {
		t.Errorf("hash %x", h)
	}
}
