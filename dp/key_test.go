package dp

import (
	"crypto/hkdf"
	"crypto/sha256"
	"testing"

	"github.com/streamdp/streamdp/internal/keys"
)

// TestUserKey checks that the key of tags is derived as documented, and differs by task and epoch.
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

// TestEpochKeys checks that an epoch's keys equal the keys of the first version, with a secret and without.
func TestEpochKeys(t *testing.T) {
	var master, salt [32]byte
	for i := range master {
		master[i], salt[i] = byte(i), byte(100+i)
	}
	for _, c := range []struct {
		secret                     *[32]byte
		epoch, user, noise, absorb string
	}{
		{nil, "4764db1049106622ff3e32c32299a99b2b41693e4251153bfb3de442d6740047", "4709df066ccf8628bb41b80657f2a5e4",
			"a44b0fc440891b1f1b13c729e1cd51c8793c099e5e44d01ae643b5fa1994d04f",
			"dc894bccb079c53dd1e2dfd3f325cf8f72ccd87f99451e3874aaa27b42bd02f3"},
		{&salt, "3b4b4845472c68d715811a06dac984aa982a8687b99995c6fb066356c4d4ecd3", "a9e733f57b3101bafa9f8c9bb0412df5",
			"81c069ab005e9c682a733a4661a0602e07c646737745a640bb71a71ca5428aa1",
			"06e7de66a218518f2c476b562c039cc7e0554ca687031fbf757c61040c642484"},
	} {
		e, err := NewEpoch(&master, c.secret, "s/0", 7, [16]byte{1, 2}, [32]byte{3, 4})
		if err != nil {
			t.Fatal(err)
		}
		user := e.UserKey("orders-0")
		wantHex(t, "epoch", e.key[:], c.epoch)
		wantHex(t, "users", user[:], c.user)
		noise := keys.DeriveFor(&e.key, keys.ForNoise, nil, lengthPrefixed("a"))
		wantHex(t, "noise", noise[:], c.noise)
		absorbing := keys.DeriveFor(&e.key, keys.ForAbsorbing, nil, lengthPrefixed("a"))
		wantHex(t, "absorbing", absorbing[:], c.absorb)
	}
}

// derive returns a key that is derived from the epoch's key.
func (e *Epoch) derive(purpose keys.Purpose, context []byte) []byte {
	key := keys.DeriveFor(&e.key, purpose, nil, context)
	return key[:]
}
