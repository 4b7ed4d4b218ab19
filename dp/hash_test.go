package dp

import (
	"crypto/hmac"
	"crypto/sha256"
	"math/rand/v2"
	"testing"
)

// TestHashes compares the hashes of hash.go with those of the standard library, at every length. It does so also
// without the shortcut, as in a build where states have another form, and checks that this build uses the shortcut.
func TestHashes(t *testing.T) {
	if !statesAreHashes {
		t.Error("states of crypto/sha256 have another form; hashes are the same, but slower")
	}
	source := rand.NewChaCha8([32]byte{1})
	check := func() {
		t.Helper()
		for n := range longestText + 1 {
			var key, a, b, sum [32]byte
			text := make([]byte, n)
			for _, p := range [][]byte{key[:], a[:], b[:], text} {
				source.Read(p)
			}
			if hash64(&a, &b) != sha256.Sum256(append(a[:], b[:]...)) {
				t.Errorf("SHA-256 of %x, %x is wrong", a, b)
			}
			k, want := newKeyedHash(&key), hmac.New(sha256.New, key[:])
			want.Write(text)
			for range 2 { // the second one must not depend on the first
				if k.sum(&sum, text); sum != [32]byte(want.Sum(nil)) {
					t.Errorf("HMAC of %d bytes is wrong", n)
				}
				k.sum(&sum, text[:n/2])
			}
		}
	}
	check()
	defer func(was bool) { statesAreHashes = was }(statesAreHashes)
	statesAreHashes = false
	check()
}
