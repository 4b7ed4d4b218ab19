package persons

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"
)

// TestTagIsCMAC uses the examples of RFC 4493, section 4.
func TestTagIsCMAC(t *testing.T) {
	t.Parallel()
	bytesOf := func(s string) []byte {
		b, err := hex.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	key := [KeyBytes]byte(bytesOf("2b7e151628aed2a6abf7158809cf4f3c"))
	message := bytesOf(
		"6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e5130c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710")
	tagger := NewTagger(&key)
	for length, want := range map[int]string{
		16: "070a16b46b4d4144f79bdd9dd04a287c",
		40: "dfa66747de9ae63030ca32611497c827",
		64: "51f0bebf7e3b9d92fc49741779363cfe",
	} {
		if got := tagger.Tag(message[:length]); hex.EncodeToString(got[:]) != want {
			t.Errorf("%d bytes: %x, want %s", length, got, want)
		}
	}
	// For the empty message Tag returns the zero Tag, so the test compares the subkeys instead.
	if hex.EncodeToString(tagger.whole[:]) != "fbeed618357133667c85e08f7236a8de" ||
		hex.EncodeToString(tagger.short[:]) != "f7ddac306ae266ccf90bc11ee46d513b" {
		t.Errorf("subkeys %x and %x", tagger.whole, tagger.short)
	}
	if tagger.Tag(nil) != (Tag{}) || tagger.Tag([]byte{}) != (Tag{}) {
		t.Error("an empty user key has a tag")
	}
}

// TestTagsDiffer: keys that padding or lengths could confuse have different tags.
func TestTagsDiffer(t *testing.T) {
	t.Parallel()
	tagger := NewTagger(new([KeyBytes]byte))
	seen := map[Tag]string{}
	add := func(key []byte) {
		if other, there := seen[tagger.Tag(key)]; there && other != string(key) {
			t.Errorf("%q and %q have the same tag", other, key)
		}
		seen[tagger.Tag(key)] = string(key)
	}
	for n := 1; n < 50; n++ {
		zeros := make([]byte, n)
		add(zeros)
		add(append(zeros, 0x80))
	}
	if len(seen) != 98 {
		t.Errorf("%d tags", len(seen))
	}
}

// BenchmarkTag compares Tag with HMAC-SHA256, the alternative function.
func BenchmarkTag(b *testing.B) {
	for _, n := range []int{8, 16, 36} {
		user := make([]byte, n)
		b.Run(fmt.Sprint("cmac/", n), func(b *testing.B) {
			tagger := NewTagger(new([KeyBytes]byte))
			b.ReportAllocs()
			for range b.N {
				user[0] = tagger.Tag(user)[0]
			}
		})
		b.Run(fmt.Sprint("hmac/", n), func(b *testing.B) {
			mac := hmac.New(sha256.New, make([]byte, 32))
			var sum [32]byte
			b.ReportAllocs()
			for range b.N {
				mac.Reset()
				mac.Write(user)
				mac.Sum(sum[:0])
				user[0] = sum[0]
			}
		})
	}
}
