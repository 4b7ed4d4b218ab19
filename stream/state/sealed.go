package state

import (
	"bytes"
	"crypto/cipher"
	"encoding/binary"
	"errors"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/keys"
	"github.com/streamdp/streamdp/internal/seal"
)

// Sealer encrypts the files of a task that are as private as its records, checkpoints
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
type Sealer struct {
	Master *[32]byte
	Task   string
	On     bool // files are written encrypted
	strict bool // and all are: one that is not encrypted was put there by somebody else
}

var sealMagic = []byte("streamdp sealed 1\n")

const (
	kindCheckpoint = "checkpoint"
	kindSecret     = "secret"
)

// errSealed says that an encrypted file is damaged, another one, or of another key.
var errSealed = errors.New("encrypted file damaged, or encrypted with another key")

// IsSealed reports whether a file is encrypted.
func IsSealed(data []byte) bool { return bytes.HasPrefix(data, sealMagic) }

// SealedNumber returns the number of an encrypted file: that of a commit, or of a secret's epoch. ok is false for
// any other file.
func SealedNumber(data []byte) (number uint64, ok bool) {
	if rest, sealed := bytes.CutPrefix(data, sealMagic); sealed && len(rest) >= 8 {
		return binary.LittleEndian.Uint64(rest), true
	}
	return 0, false
}

// cipher returns the cipher and the nonce of a salt, and what is authenticated with the
// content.
func (s *Sealer) cipher(salt []byte, kind string, number uint64) (_ cipher.AEAD, nonce, with []byte, err error) {
	key, iv := keys.DeriveWithNonce(s.Master, keys.ForState, salt)
	aead, err := seal.New(key[:])
	for _, field := range []string{s.Task, kind} {
		with = binary.LittleEndian.AppendUint64(with, uint64(len(field)))
		with = append(with, field...)
	}
	return aead, iv[:], binary.LittleEndian.AppendUint64(with, number), err
}

// seal appends the encrypted file of a content to b.
func (s *Sealer) seal(b []byte, kind string, number uint64, content []byte) ([]byte, error) {
	salt := dp.NewSecret() // 32 random bytes
	aead, nonce, with, err := s.cipher(salt[:], kind, number)
	if err != nil {
		return nil, err
	}
	b = append(b, sealMagic...)
	b = binary.LittleEndian.AppendUint64(b, number)
	b = append(b, salt[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(content)+seal.Tag))
	return aead.Seal(b, nonce, content, with), nil
}

// open returns the content of a file, and its number where it is encrypted. A file that is
// not encrypted is its own content, or an error where every file is encrypted.
func (s *Sealer) open(kind string, data []byte) (content []byte, number uint64, err error) {
	rest, sealed := bytes.CutPrefix(data, sealMagic)
	if !sealed {
		if s != nil && s.strict {
			return nil, 0, errSealed
		}
		return data, 0, nil
	}
	if s == nil || len(rest) < 8+seal.Salt+8 {
		return nil, 0, errSealed
	}
	number = binary.LittleEndian.Uint64(rest)
	salt, rest := rest[8:8+seal.Salt], rest[8+seal.Salt:]
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
	head := len(sealMagic) + 8 + seal.Salt + 8
	if len(data) < head {
		return data
	}
	if length := binary.LittleEndian.Uint64(data[head-8:]); length <= uint64(len(data)-head) {
		return data[:uint64(head)+length]
	}
	return data
}

// parse reads a checkpoint's file, encrypted or not.
func (s *Store) parse(data []byte) (*Checkpoint, error) {
	content, number, err := s.Seal.open(kindCheckpoint, data)
	if err != nil {
		return nil, ErrCheckpoint
	}
	c, err := ParseCheckpoint(content)
	if err == nil && IsSealed(data) && c.Seq != number {
		return nil, ErrCheckpoint
	}
	return c, err
}

// Secret returns an epoch's secret; empty where it is damaged or of another key. Its
// errors are those of the disk.
func (s *Store) Secret(epoch uint64) ([]byte, error) {
	data, err := s.Disk.ReadFile(s.Path(SecretName(epoch)))
	if err != nil {
		return nil, err
	}
	content, number, err := s.Seal.open(kindSecret, data)
	if err != nil || IsSealed(data) && number != epoch {
		return []byte{}, nil
	}
	return content, nil
}

// form returns the file of a content, encrypted where that is wanted.
func (s *Store) form(kind string, number uint64, content []byte) ([]byte, error) {
	if s.Seal == nil || !s.Seal.On {
		return content, nil
	}
	return s.Seal.seal(nil, kind, number, content)
}

// migrate writes every checkpoint and secret that is there in the form that is wanted. A
// crash leaves each file in one of both, and each is read. The caller has the lock of the
// state directory. With encryption, no sum in the clear is left behind:
//   - a checkpoint or slot that can't be read, such as one of a torn write, is removed,
//     if another one holds a commit; otherwise it stays, for the operator;
//   - what stands in a slot behind its content is cut off;
//   - from then on a file that is not encrypted is refused.
func (s *Store) migrate() error {
	names, err := s.Disk.ReadDir(s.Dir)
	if err != nil {
		return err
	}
	var unreadable []string
	for _, name := range names {
		kind := kindCheckpoint
		var number uint64
		if epoch, ok := SecretEpoch(name); ok {
			kind, number = kindSecret, epoch
		} else if name != CheckpointName && name != PreviousName && name != slotNames[0] && name != slotNames[1] {
			continue
		}
		file, err := s.Disk.ReadFile(s.Path(name))
		if err != nil {
			return err
		}
		data := file
		if kind == kindCheckpoint {
			data = SlotContent(file)
		}
		done := IsSealed(data) == s.Seal.On
		if done && (kind == kindSecret || !s.Seal.On) {
			continue
		}
		content, _, err := s.Seal.open(kind, data)
		if kind == kindCheckpoint && err == nil {
			var c *Checkpoint
			if c, err = s.parse(data); err == nil {
				number = c.Seq
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
			if err := s.Disk.Truncate(s.Path(name), int64(len(data))); err != nil {
				return err
			}
			continue
		}
		if data, err = s.form(kind, number, content); err != nil {
			return err
		}
		if err := WriteOver(s.Disk, s.Path(name), data); err != nil {
			return err
		}
	}
	if !s.Seal.On {
		return nil
	}
	if len(unreadable) > 0 {
		if cp, err := s.Load(); err == nil && cp != nil {
			if err := RemoveAll(s.Disk, s.Dir, unreadable...); err != nil {
				return err
			}
		}
		s.seq, s.slot = 0, noSlot // as Open returns it
	}
	s.Seal.strict = true
	return nil
}
