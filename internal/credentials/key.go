package credentials

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/streamdp/streamdp/internal/osfile"
)

// LoadKey reads a master key: 64 hexadecimal digits and at most one newline.
//
// LoadKey follows symbolic links, because secrets are often mounted as links. The file must be regular, writable only
// by its owner, and readable only by its owner or, with groupReadable, its group. LoadKey checks this on the opened
// file, so that nobody can replace the file between check and read. It refuses a key of zeros. No error shows the
// file's content.
func LoadKey(path string, groupReadable bool) (*[32]byte, error) {
	text, err := readSecret("key file", path, groupReadable, keyText+2) // one byte more than allowed, to notice it
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w; create one with streamdp keygen", err)
	}
	if err != nil {
		return nil, err
	}
	defer clear(text)
	key, err := parseKey(text)
	if err != nil {
		return nil, fmt.Errorf("key file %s: %w", path, err)
	}
	return key, nil
}

// keyText is the number of hexadecimal digits of a key.
const keyText = 2 * 32

// parseKey parses the text of a key file. Its errors contain only the length of the text.
func parseKey(text []byte) (*[32]byte, error) {
	text = bytes.TrimSuffix(text, []byte("\n"))
	if len(text) > keyText {
		return nil, fmt.Errorf("must contain %d hexadecimal digits, contains more", keyText)
	}
	if len(text) != keyText {
		return nil, fmt.Errorf("must contain %d hexadecimal digits, contains %d bytes", keyText, len(text))
	}
	var key [32]byte
	if _, err := hex.Decode(key[:], text); err != nil {
		clear(key[:])
		return nil, fmt.Errorf("must contain %d hexadecimal digits, contains other characters", keyText)
	}
	if key == [32]byte{} {
		return nil, errors.New("must not be a key of zeros")
	}
	return &key, nil
}

// KeyID returns an identifier of a key that reveals nothing about it: the first 8 bytes of SHA-256("streamdp/keyid" ‖
// key), in hexadecimal.
func KeyID(key *[32]byte) string {
	h := sha256.New()
	h.Write([]byte("streamdp/keyid"))
	h.Write(key[:])
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// GenerateKey writes a new master key, 32 random bytes, to a new file with mode 0600, and returns the key's KeyID.
// Without an error, the file is durable on disk. After an error the file does not exist. random must be a cryptographic
// source.
func GenerateKey(path string, random io.Reader) (id string, err error) {
	var key [32]byte
	defer clear(key[:])
	if _, err := io.ReadFull(random, key[:]); err != nil {
		return "", fmt.Errorf("key: %w", err)
	}
	if key == [32]byte{} {
		return "", errors.New("key: the random source returned only zeros")
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		return "", fmt.Errorf("key file: %w: a key file is never overwritten", err)
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("key file: %w: create its folder first: mkdir -p -m 700 %s", err, filepath.Dir(path))
	case err != nil:
		return "", fmt.Errorf("key file: %w", err)
	}
	text := append(hex.AppendEncode(make([]byte, 0, keyText+1), key[:]), '\n')
	defer clear(text)
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = osfile.SyncDir(filepath.Dir(path))
	}
	if err != nil {
		os.Remove(path)
		return "", fmt.Errorf("key file: %w", err)
	}
	return KeyID(&key), nil
}
