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

// Sealer encrypts the files of a task that are as private as its records: checkpoints and secrets. Somebody who has
// only the disk learns nothing from them. A file is
//
//	magic ‖ u64 number ‖ salt[32] ‖ u64 length ‖ AES-256-GCM of the content
//
// Key and nonce are derived by HKDF-SHA256 from the master key and the salt, each with its own label. The salt is
// random and new at every write. So each key encrypts only once, and no nonce is used twice under one key. The number
// is a commit's Seq, or a secret's epoch. Task, kind and number are authenticated, so no file can replace another.
//
// Unencrypted files are accepted until strict is set. From then on, only somebody else can have written them.
type Sealer struct {
	Master *[32]byte
	Task   string
	On     bool // files are encrypted when written
	strict bool // all files are known to be encrypted: somebody else wrote any unencrypted one
}

var sealMagic = []byte("streamdp sealed 1\n")

const (
	kindCheckpoint = "checkpoint"
	kindSecret     = "secret"
)

// errSealed is the error of an encrypted file that is damaged, is in the place of another file, or has another key.
var errSealed = errors.New("encrypted file damaged, or encrypted with another key")

// IsSealed reports whether a file is encrypted.
func IsSealed(data []byte) bool { return bytes.HasPrefix(data, sealMagic) }

// SealedNumber returns the number in an encrypted file: a commit's Seq, or a secret's epoch. ok is false if the file is
// not encrypted.
func SealedNumber(data []byte) (number uint64, ok bool) {
	if rest, sealed := bytes.CutPrefix(data, sealMagic); sealed && len(rest) >= 8 {
		return binary.LittleEndian.Uint64(rest), true
	}
	return 0, false
}

// cipher returns the cipher and the nonce for a salt, and the data that is authenticated with the content.
func (s *Sealer) cipher(salt []byte, kind string, number uint64) (_ cipher.AEAD, nonce, with []byte, err error) {
	key, iv := keys.DeriveWithNonce(s.Master, keys.ForState, salt)
	aead, err := seal.New(key[:])
	for _, field := range []string{s.Task, kind} {
		with = binary.LittleEndian.AppendUint64(with, uint64(len(field)))
		with = append(with, field...)
	}
	return aead, iv[:], binary.LittleEndian.AppendUint64(with, number), err
}

// seal encrypts content and appends the resulting file to b.
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

// open returns the content of a file, and its number if it is encrypted. It returns an unencrypted file unchanged or,
// if all files must be encrypted, an error.
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

// sealedContent cuts off the bytes after the end of the content. They are left from a longer encrypted commit.
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

// parse parses a checkpoint's file, encrypted or not.
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

// Secret returns an epoch's secret. The secret is empty if the file is damaged or encrypted with another key. All
// errors come from the disk.
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

// form returns the bytes of the file for a content, encrypted if that is configured.
func (s *Store) form(kind string, number uint64, content []byte) ([]byte, error) {
	if s.Seal == nil || !s.Seal.On {
		return content, nil
	}
	return s.Seal.seal(nil, kind, number, content)
}

// migrate rewrites every existing checkpoint and secret as configured, encrypted or not. After a crash, each file is in
// one of the two forms, and both can be read. The caller has the lock of the state directory. With encryption, no
// unencrypted sum remains:
//   - a checkpoint or slot that cannot be read, for example because of a torn write, is removed
//     if another one has a commit; otherwise it remains, for the operator;
//   - bytes in a slot after its content are cut off;
//   - from then on, an unencrypted file is refused.
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
		s.seq, s.slot = 0, noSlot // Open must return with these values.
	}
	s.Seal.strict = true
	return nil
}
