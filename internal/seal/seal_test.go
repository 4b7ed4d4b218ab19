package seal

import (
	"bytes"
	"testing"
)

// TestNew: the key is overwritten, sizes are as documented, and the cipher opens its own output only with the same
// authenticated data.
func TestNew(t *testing.T) {
	key := [32]byte{1, 2, 3}
	again := key
	c, err := New(key[:])
	if err != nil || key != [32]byte{} {
		t.Fatalf("the key is %v after use: %v", key, err)
	}
	if c.Overhead() != Tag || c.NonceSize() != len(NoNonce) {
		t.Fatalf("tag %d, nonce %d", c.Overhead(), c.NonceSize())
	}
	sealed := c.Seal(nil, NoNonce, []byte("content"), []byte("with"))
	other, err := New(again[:])
	if err != nil {
		t.Fatal(err)
	}
	if got, err := other.Open(nil, NoNonce, sealed, []byte("with")); err != nil ||
		!bytes.Equal(got, []byte("content")) {
		t.Fatalf("opened %q: %v", got, err)
	}
	if _, err := other.Open(nil, NoNonce, sealed, []byte("without")); err == nil {
		t.Fatal("it opens for other authenticated bytes")
	}
}
