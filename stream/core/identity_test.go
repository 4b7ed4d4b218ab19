package core

import (
	"strconv"
	"strings"
	"testing"
)

func FuzzIdentity(f *testing.F) {
	for _, key := range []string{
		"orders/0/1/1", "a-1/12/3/18446744073709551615", "/0/0/0", "orders/0/01/1", "orders/+0/1/1", "orders/0/1",
		"orders/0/1/1/1", "a/2147483648/1/1", "orders/0/1/1/12", "orders/0/1/1/0", "orders/0/1/1/01",
		"orders/0/1/1/1/1",
	} {
		f.Add([]byte(key))
	}
	f.Fuzz(func(t *testing.T, key []byte) {
		task, epoch, step, ok := ParseIdentity(key)
		// A piece has its number after the release's key.
		whole, piece, isPiece := strings.Cut(strings.TrimPrefix(string(key), Identity(task, epoch, step)), "/")
		if n, err := strconv.ParseUint(piece, 10, 31); ok &&
			(whole != "" || isPiece && (err != nil || n == 0 || strconv.FormatUint(n, 10) != piece)) {
			t.Fatalf("%q is parsed as %v %d %d", key, task, epoch, step)
		}
		if !ok && (epoch != 0 || step != 0) {
			t.Fatalf("%q is refused and gives %d %d", key, epoch, step)
		}
	})
}
