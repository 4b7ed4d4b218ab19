// Package seal has the cipher for everything that is encrypted at rest: AES-256-GCM, with a key that encrypts one
// content only. Callers derive the key from a new random salt for each content, choose the additional authenticated
// data, and define their own formats.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
)

const (
	// Salt is the size of the salt from which a content's key is derived.
	Salt = 32
	// Tag is the number of bytes by which the encrypted content is longer than the content.
	Tag = 16
)

// NoNonce is the nonce of formats in which each key is used only once and no nonce is stored. Do not write to it.
var NoNonce = make([]byte, 12)

// New returns the cipher for a key of 32 bytes, and overwrites the key.
func New(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	clear(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}
