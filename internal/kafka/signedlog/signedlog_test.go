package signedlog

import (
	"encoding/hex"
	"testing"

	"github.com/streamdp/streamdp/internal/kafka"
)

// TestSignature: signatures are the same as those already in topics. A record counts only if the signature is its only
// header.
func TestSignature(t *testing.T) {
	l := &Log{Header: "h", Key: [32]byte{1}}
	for _, c := range []struct {
		prefix string
		parts  [][]byte
		want   string // computed with another implementation of HMAC-SHA256
	}{
		{"", [][]byte{[]byte("value")}, "bb08466ba672425f152f9a627316820d51deb58966d9af444e7d9c0f2701a228"},
		{"id", [][]byte{Sized([]byte("a")), []byte("b")},
			"696490c0167aae6f25ac41eb326f0984344cc66217e8e71c0a3ba4411e0cb684e15d"},
	} {
		signature := l.Sign([]byte(c.prefix), c.parts...)
		if got := hex.EncodeToString(signature); got != c.want {
			t.Errorf("the signature is %s", got)
		}
		signed := func(headers ...kafka.Header) bool {
			return l.Signed(&kafka.Record{Headers: headers}, []byte(c.prefix), c.parts...)
		}
		good := l.Headers(signature)[0]
		other := kafka.Header{Key: "other", Value: signature}
		if !signed(good) || signed() || signed(other) || signed(good, other) ||
			signed(kafka.Header{Key: "h", Value: signature[1:]}) {
			t.Errorf("%s: another header counts, or this one does not", c.want)
		}
		if l.Signed(&kafka.Record{Headers: []kafka.Header{good}}, []byte(c.prefix), append(c.parts, []byte{0})...) {
			t.Errorf("%s: it counts for other content", c.want)
		}
	}
}
