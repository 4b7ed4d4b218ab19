package stream

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"errors"

	"github.com/streamdp/streamdp/dp"
)

// sealer encrypts the files of a task that are as private as its records, checkpoints
// and secrets, so that who has the disk alone learns nothing from them. A file is
//
//	magic ‖ u64 number ‖ salt[32] ‖ u64 length ‖ AES-256-GCM of the content
//
// The key and the nonce are HKDF-SHA256 of the master key with the salt, which is random
// and new at every write, and a label of their own: no key encrypts twice, so no nonce
// is ever used twice under one. The number is a commit's seq, or a secret's epoch. Task,
// kind and number are authenticated: no file stands for another one.
//
// What is not encrypted is read as it is, until it can only be another's file; see strict.
type sealer struct {
	master *[32]byte
	task   string
	on     bool // files are written encrypted
	strict bool // and all are: one that is not encrypted was put there by somebody else
}

var sealMagic = []byte("streamdp sealed 1\n")

const (
	sealLabel = "streamdp/state/v1\x00"
	sealSalt  = 32
	sealTag   = 16

	kindCheckpoint = "checkpoint"
	kindSecret     = "secret"
)

// errSealed says that an encrypted file is damaged, another one, or of another key.
var errSealed = errors.New("encrypted file damaged, or encrypted with another key")

// isSealed reports whether a file is encrypted.
func isSealed(data []byte) bool { return bytes.HasPrefix(data, sealMagic) }

// cipher returns the cipher and the nonce of a salt, and what is authenticated with the
// content.
func (s *sealer) cipher(salt []byte, kind string, number uint64) (_ cipher.AEAD, nonce, with []byte, err error) {
	key, err := hkdf.Key(sha256.New, s.master[:], salt, sealLabel, 32+12)
	if err != nil {
		return nil, nil, nil, err
	}
	block, err := aes.NewCipher(key[:32])
	if err != nil {
		return nil, nil, nil, err
	}
	clear(key[:32])
	aead, err := cipher.NewGCM(block)
	for _, field := range []string{s.task, kind} {
		with = binary.LittleEndian.AppendUint64(with, uint64(len(field)))
		with = append(with, field...)
	}
	return aead, key[32:], binary.LittleEndian.AppendUint64(with, number), err
}

// seal appends the encrypted file of a content to b.
func (s *sealer) seal(b []byte, kind string, number uint64, content []byte) ([]byte, error) {
	salt := dp.NewSecret() // 32 random bytes
	aead, nonce, with, err := s.cipher(salt[:], kind, number)
	if err != nil {
		return nil, err
	}
	b = append(b, sealMagic...)
	b = binary.LittleEndian.AppendUint64(b, number)
	b = append(b, salt[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(content)+sealTag))
	return aead.Seal(b, nonce, content, with), nil
}

// open returns the content of a file, and its number where it is encrypted. A file that is
// not encrypted is its own content, or an error where every file is encrypted.
func (s *sealer) open(kind string, data []byte) (content []byte, number uint64, err error) {
	rest, sealed := bytes.CutPrefix(data, sealMagic)
	if !sealed {
		if s != nil && s.strict {
			return nil, 0, errSealed
		}
		return data, 0, nil
	}
	if s == nil || len(rest) < 8+sealSalt+8 {
		return nil, 0, errSealed
	}
	number = binary.LittleEndian.Uint64(rest)
	salt, rest := rest[8:8+sealSalt], rest[8+sealSalt:]
	length := binary.LittleEndian.Uint64(rest)
	if rest = rest[8:]; length != uint64(len(rest)) {
		return nil, 0, errSealed
	}
	aead, nonce, with, err := s.cipher(salt, kind, number)
	if err != nil {
		return nil, 0, err
	}
	if content, err = aead.Open(nil, nonce, rest, with); err != nil {
		return nil, 0, errSealed
	}
	return content, number, nil
}

// sealedContent cuts off what a longer encrypted commit has left behind the end.
func sealedContent(data []byte) []byte {
	head := len(sealMagic) + 8 + sealSalt + 8
	if len(data) < head {
		return data
	}
	if length := binary.LittleEndian.Uint64(data[head-8:]); length <= uint64(len(data)-head) {
		return data[:uint64(head)+length]
	}
	return data
}

// parse reads a checkpoint's file, encrypted or not.
func (s *store) parse(data []byte) (*checkpoint, error) {
	content, number, err := s.seal.open(kindCheckpoint, data)
	if err != nil {
		return nil, errCheckpoint
	}
	c, err := parseCheckpoint(content)
	if err == nil && isSealed(data) && c.seq != number {
		return nil, errCheckpoint
	}
	return c, err
}

// secret returns an epoch's secret; empty where it is damaged or of another key. Its
// errors are those of the disk.
func (s *store) secret(epoch uint64) ([]byte, error) {
	data, err := s.disk.ReadFile(s.path(secretName(epoch)))
	if err != nil {
		return nil, err
	}
	content, number, err := s.seal.open(kindSecret, data)
	if err != nil || isSealed(data) && number != epoch {
		return []byte{}, nil
	}
	return content, nil
}

// keepSecret writes an epoch's secret under a name that is free.
func (s *store) keepSecret(epoch uint64, secret []byte) error {
	data, err := s.form(kindSecret, epoch, secret)
	if err != nil {
		return err
	}
	return writeNew(s.disk, s.path(secretName(epoch)), data)
}

// form returns the file of a content, encrypted where that is wanted.
func (s *store) form(kind string, number uint64, content []byte) ([]byte, error) {
	if s.seal == nil || !s.seal.on {
		return content, nil
	}
	return s.seal.seal(nil, kind, number, content)
}

// migrate writes every checkpoint and secret that is there in the form that is wanted. A
// crash leaves each file in one of both, and each is read. The caller has the lock of the
// state directory. With encryption, no sum in the clear is left behind:
//   - a checkpoint or slot that can't be read, such as one of a torn write, is removed,
//     if another one holds a commit; otherwise it stays, for the operator;
//   - what stands in a slot behind its content is cut off;
//   - from then on a file that is not encrypted is refused.
func (s *store) migrate() error {
	names, err := s.disk.ReadDir(s.dir)
	if err != nil {
		return err
	}
	var unreadable []string
	for _, name := range names {
		kind := kindCheckpoint
		var number uint64
		if epoch, ok := secretEpoch(name); ok {
			kind, number = kindSecret, epoch
		} else if name != checkpointName && name != previousName && name != slotNames[0] && name != slotNames[1] {
			continue
		}
		file, err := s.disk.ReadFile(s.path(name))
		if err != nil {
			return err
		}
		data := file
		if kind == kindCheckpoint {
			data = slotContent(file)
		}
		done := isSealed(data) == s.seal.on
		if done && (kind == kindSecret || !s.seal.on) {
			continue
		}
		content, _, err := s.seal.open(kind, data)
		if kind == kindCheckpoint && err == nil {
			var c *checkpoint
			if c, err = s.parse(data); err == nil {
				number = c.seq
			}
		}
		switch {
		case err != nil:
			if kind == kindCheckpoint {
				unreadable = append(unreadable, name)
			}
			continue
		case done && len(data) == len(file):
			continue
		case done:
			if err := s.disk.Truncate(s.path(name), int64(len(data))); err != nil {
				return err
			}
			continue
		}
		if data, err = s.form(kind, number, content); err != nil {
			return err
		}
		if err := writeOver(s.disk, s.path(name), data); err != nil {
			return err
		}
	}
	if !s.seal.on {
		return nil
	}
	if len(unreadable) > 0 {
		if cp, err := s.load(); err == nil && cp != nil {
			if err := removeAll(s.disk, s.dir, unreadable...); err != nil {
				return err
			}
		}
		s.seq, s.slot = 0, noSlot // as openStore returns it
	}
	s.seal.strict = true
	return nil
}
