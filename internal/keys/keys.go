// Package keys derives every key of the daemon from the master key. The constants of type [Purpose] say what each key
// protects, from which key it is derived, and with which salt.
package keys

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
)

// Purpose says what a derived key protects. It is the label of the derivation, the info of HKDF.
//
// The constants below are all purposes. Each label ends with a zero byte, and no label is a prefix of another. So keys
// of two purposes are independent, for any text after the labels. Only this package of the module uses HKDF. "Master"
// is the master key of the key file, EK an epoch's key, W a key that wraps a shard's values.
type Purpose string

// These are the purposes of all keys that are derived, directly or indirectly, from the master key.
const (
	// ForLedger is the key of the MACs of the ledger's lines. From: master. Salt: none.
	ForLedger Purpose = "streamdp/ledger/v1\x00"
	// ForControl is the key of the MACs of ledger lines in the control topic, which are copies. From: master. Salt:
	// none.
	ForControl Purpose = "streamdp/control/v1\x00"
	// ForRequests is the key of the MACs of the requests that commands put into a group's control topic, and of the
	// answers there. From: master. Salt: none.
	ForRequests Purpose = "streamdp/request/v1\x00"
	// ForAnchors is the key of the MACs of record hashes. A task recognizes its input log by these MACs. Without a key,
	// anybody who guesses a record could confirm the guess by its hash. From: master. Salt: none.
	ForAnchors Purpose = "streamdp/anchor/v1\x00"
	// ForBoundaries is the key of the MACs of an epoch's boundary records, which say where steps by the clock end.
	// From: master. Salt: u64be(length of the records' key) ‖ the records' key ‖ the epoch's nonce; public.
	ForBoundaries Purpose = "streamdp/boundary/v1\x00"
	// ForPartials is the key that encrypts one record of sums without noise. The instances of a group exchange such
	// records. From: master. Salt: 32 random bytes, new in each record; public.
	ForPartials Purpose = "streamdp/partials/v1\x00"
	// ForState is the key that encrypts two kinds of state:
	//
	//   - a checkpoint's or secret's file in the state directory, with its nonce. From: master. Salt: 32 random
	//     bytes, new at every write; public.
	//   - one record of a shard's value in a group's state topic. From: W. Salt: 32 random bytes, new in each
	//     record; public.
	ForState Purpose = "streamdp/state/v1\x00"
	// ForWrap is W, the key from which the keys of a shard's top-level values are derived. From: master. Salt: none.
	ForWrap Purpose = "streamdp/wrap/v1\x00"
	// ForStore is W for values of a shard that depend on another value. For example, an epoch's checkpoint depends on
	// the epoch's secret. If that other value is deleted, the dependent values cannot be read any more. From: master.
	// Salt: the bytes of the other value; secret.
	ForStore Purpose = "streamdp/store/v1\x00"
	// ForEpoch is EK, from which an epoch's noise is derived. From: master. Salt: the epoch's secret; reference vectors
	// have none. After the label: lp(stream) ‖ u64be(epoch) ‖ nonce ‖ digest.
	ForEpoch Purpose = "streamdp/epoch/v1\x00"
	// ForNoise is the key of the MACs that give the keys of an array's noise rows. From: EK. Salt: none. After the
	// label: lp(array).
	ForNoise Purpose = "streamdp/noise/v1\x00"
	// ForAbsorbing is the key of the GMAC of the integers that noise hides. Through this GMAC the noise depends on the
	// integers. From: EK. Salt: none. After the label: lp(array).
	ForAbsorbing Purpose = "streamdp/absorb/v1\x00"
	// ForUsers is the key of the tags of persons; only its first 16 bytes are used. From: EK. Salt: none. After the
	// label: lp(task).
	ForUsers Purpose = "streamdp/user/v1\x00"
)

// Derive returns the key of a purpose, HKDF-SHA256(key, salt, purpose). The comments of the purposes say which key and
// which salt to use; nil means no salt. The caller should overwrite keys that it no longer needs.
func Derive(key *[32]byte, purpose Purpose, salt []byte) (derived [32]byte) {
	return DeriveFor(key, purpose, salt, nil)
}

// DeriveFor returns the key of one context within a purpose, HKDF-SHA256(key, salt, purpose ‖ context). No context of a
// purpose may be the beginning of another one, so contexts begin with a length.
func DeriveFor(key *[32]byte, purpose Purpose, salt, context []byte) (derived [32]byte) {
	derive(derived[:], key, purpose, salt, context)
	return derived
}

// DeriveWithNonce returns what a cipher needs: the key that Derive returns, and a nonce from the following 12 bytes of
// the derivation. Use a new salt for every content that is encrypted.
func DeriveWithNonce(key *[32]byte, purpose Purpose, salt []byte) (derived [32]byte, nonce [12]byte) {
	var both [32 + 12]byte
	derive(both[:], key, purpose, salt, nil)
	defer clear(both[:])
	return [32]byte(both[:]), [12]byte(both[32:])
}

// NewNonce returns 16 random bytes from the system's generator, as the public name of an epoch, a record or a request.
// It returns no error: the program ends if the system has no randomness.
func NewNonce() (n [16]byte) {
	rand.Read(n[:])
	return n
}

// derive fills derived with HKDF-SHA256(key, salt, purpose ‖ context).
func derive(derived []byte, key *[32]byte, purpose Purpose, salt, context []byte) {
	bytes, err := hkdf.Key(sha256.New, key[:], salt, string(purpose)+string(context), len(derived))
	if err != nil {
		panic(err) // unreachable: at most 44 bytes
	}
	copy(derived, bytes)
	clear(bytes)
}
