// Package seal is the cipher of everything that is encrypted at rest: AES-256-GCM, under a key that encrypts one
// content only. Callers derive the key from a new random salt for each content, say what is authenticated with
// it, and own their formats.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
)

const (
	// Salt is the size of the salt from which a content's key follows.
	Salt = 32
	// Tag is by how many bytes the encrypted content is longer than the content.
	Tag = 16
)

// NoNonce is the nonce of formats whose keys are used once and come without a nonce. Do not write to it.
var NoNonce = make([]byte, 12)

// New returns the cipher under a key of 32 bytes, and overwrites the key.
func New(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	clear(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}
