package dp

import (
	"crypto/hkdf"
	"crypto/sha256"
	"testing"
)

// TestUserKey: the key of tags is derived as documented, and differs between tasks and epochs.
func TestUserKey(t *testing.T) {
	t.Parallel()
	epoch := func(n uint64) *Epoch {
		e, err := NewEpoch(&[32]byte{1}, &[32]byte{2}, "orders", n, [16]byte{3}, [32]byte{4})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	e := epoch(1)
	want, err := hkdf.Key(sha256.New, e.key[:], nil, "streamdp/user/v1\x00\x00\x00\x00\x08orders-0", 16)
	if err != nil {
		t.Fatal(err)
	}
	k := e.UserKey("orders-0")
	if string(k[:]) != string(want) {
		t.Errorf("the key is %x, want %x", k, want)
	}
	if k == e.UserKey("orders-1") || k == epoch(2).UserKey("orders-0") {
		t.Error("two tasks or epochs share a key")
	}
}
