package state

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/streamdp/streamdp/stream/core"
)

// These are the names of a task's files, see [Store]. Callers read and write the files with the store's methods. A
// shard in logs needs the names to find the secret under which a file is sealed.
const (
	CheckpointName = "checkpoint"
	PreviousName   = "checkpoint.prev"
	TemporaryName  = CheckpointName + TemporarySuffix
	SecretPrefix   = "secret-"
	InitialPrefix  = "initial-"
	FinalPrefix    = "final-"
	ManifestPrefix = "manifest-"

	openingPrefix  = "opening-"
	deadLetterName = "dead-letter"
)

// ManifestName returns the name of an epoch's manifest.
func ManifestName(epoch uint64) string { return fmt.Sprint(ManifestPrefix, epoch) }

// SecretName returns the name of an epoch's secret.
func SecretName(epoch uint64) string { return fmt.Sprint(SecretPrefix, epoch) }

// OpeningName returns the name of the mark of an incomplete opening.
func OpeningName(epoch uint64) string { return fmt.Sprint(openingPrefix, epoch) }

// InitialName returns the name of the file with an epoch's initial parameters.
func InitialName(epoch uint64) string { return fmt.Sprint(InitialPrefix, epoch) }

func finalName(epoch uint64) string { return fmt.Sprint(FinalPrefix, epoch) }

// SecretEpoch returns the epoch in a secret's name.
func SecretEpoch(name string) (uint64, bool) { return epochOf(name, SecretPrefix) }

// epochOf returns the epoch in a name that consists of a prefix and a number.
func epochOf(name, prefix string) (uint64, bool) {
	n, err := strconv.ParseUint(strings.TrimPrefix(name, prefix), 10, 64)
	return n, err == nil && name == fmt.Sprint(prefix, n)
}

// read reads a file of the task.
// Errors: fs.ErrNotExist if it does not exist.
func (s *Store) read(name string) ([]byte, error) { return s.Disk.ReadFile(s.Path(name)) }

// create makes a file durable under an unused name.
func (s *Store) create(name string, data []byte) error { return WriteNew(s.Disk, s.Path(name), data) }

// remove removes files, which may be missing, and makes that durable.
func (s *Store) remove(names ...string) error { return RemoveAll(s.Disk, s.Dir, names...) }

// renew replaces a file. After a crash, neither the old nor the new file may exist.
func (s *Store) renew(name string, data []byte) error {
	if err := s.remove(name); err != nil {
		return err
	}
	return s.create(name, data)
}

// Unmark removes the opening mark of an epoch that is open now, or that will never be opened.
func (s *Store) Unmark(epoch uint64) error { return s.remove(OpeningName(epoch)) }

// Manifest returns the content of an epoch's manifest.
//
// Errors: fs.ErrNotExist if the file does not exist; errors of the disk.
func (s *Store) Manifest(epoch uint64) ([]byte, error) { return s.read(ManifestName(epoch)) }

// PutManifest makes an epoch's manifest durable. It fails if the epoch already has one.
func (s *Store) PutManifest(epoch uint64, file []byte) error {
	return s.create(ManifestName(epoch), file)
}

// PutSecret makes an epoch's secret durable, encrypted if that is configured. It fails if the epoch already has one.
func (s *Store) PutSecret(epoch uint64, secret []byte) error {
	data, err := s.form(kindSecret, epoch, secret)
	if err != nil {
		return err
	}
	return s.create(SecretName(epoch), data)
}

// DestroySecret removes an epoch's secret, and the parameters with which the epoch began.
func (s *Store) DestroySecret(epoch uint64) error {
	return s.remove(SecretName(epoch), InitialName(epoch))
}

// Initial returns the packed initial parameters of an epoch.
//
// Errors: fs.ErrNotExist if the epoch begins with the mechanism's default; errors of the disk.
func (s *Store) Initial(epoch uint64) ([]byte, error) { return s.read(InitialName(epoch)) }

// PutInitial makes an epoch's initial parameters durable. It fails if the epoch already has initial parameters.
func (s *Store) PutInitial(epoch uint64, packed []byte) error {
	return s.create(InitialName(epoch), packed)
}

// LastFinal returns the final parameters, packed, of the last epoch that has any, and the number of this epoch. The
// number is 0 if there is no such epoch.
func (s *Store) LastFinal() (epoch uint64, packed []byte, err error) {
	names, err := s.Disk.ReadDir(s.Dir)
	if err != nil {
		return 0, nil, err
	}
	for _, name := range names {
		if n, ok := epochOf(name, FinalPrefix); ok {
			epoch = max(epoch, n)
		}
	}
	if epoch == 0 {
		return 0, nil, nil
	}
	packed, err = s.read(finalName(epoch))
	return epoch, packed, err
}

// PutFinal makes an epoch's final parameters durable. It replaces parameters that an interrupted closing left.
func (s *Store) PutFinal(epoch uint64, packed []byte) error { return s.renew(finalName(epoch), packed) }

// DeadLetters returns the file that records up to which offset dead letters were written.
//
// Errors: fs.ErrNotExist if the file does not exist; errors of the disk.
func (s *Store) DeadLetters() ([]byte, error) { return s.read(deadLetterName) }

// PutDeadLetters replaces the file that records up to which offset dead letters were written.
func (s *Store) PutDeadLetters(data []byte) error {
	return WriteOver(s.Disk, s.Path(deadLetterName), data)
}

// Epochs returns the epochs with a manifest, and the epochs with a secret, each in ascending order.
func (s *Store) Epochs() (manifests, secrets []uint64, err error) {
	names, err := s.Disk.ReadDir(s.Dir)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		if n, err := strconv.ParseUint(strings.TrimPrefix(name, ManifestPrefix), 10, 64); err == nil && n > 0 {
			manifests = append(manifests, n)
		}
		if n, ok := SecretEpoch(name); ok {
			secrets = append(secrets, n)
		}
	}
	slices.Sort(manifests)
	return manifests, secrets, nil
}

// NewestEpoch returns the largest epoch with a manifest or a secret, 0 if there is none.
func (s *Store) NewestEpoch() (newest uint64, err error) {
	manifests, secrets, err := s.Epochs()
	return slices.Max(append(append(manifests, secrets...), 0)), err
}

// EpochFiles are the files of an epoch in a backup. A file that is not in the backup is empty here.
type EpochFiles struct{ Manifest, Secret, Initial []byte }

// Restore makes files of an epoch durable. It replaces existing files that differ.
func (s *Store) Restore(epoch uint64, from EpochFiles) error {
	if len(from.Secret) > 0 {
		was, err := s.Secret(epoch)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if !bytes.Equal(was, from.Secret) {
			if err := s.remove(SecretName(epoch)); err != nil {
				return err
			}
			if err := s.PutSecret(epoch, from.Secret); err != nil {
				return err
			}
		}
	}
	for _, f := range []struct {
		name string
		data []byte
	}{{InitialName(epoch), from.Initial}, {ManifestName(epoch), from.Manifest}} {
		if len(f.data) == 0 {
			continue
		}
		was, err := s.read(f.name)
		if err == nil && bytes.Equal(was, f.data) {
			continue
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := s.renew(f.name, f.data); err != nil {
			return err
		}
	}
	return nil
}

// ErasePrivate removes all files from which noise could be derived, and all files with exact sums. It is for a
// directory whose task moved away.
func (s *Store) ErasePrivate() error {
	names, err := s.Disk.ReadDir(s.Dir)
	if err != nil {
		return err
	}
	private := slices.DeleteFunc(names, func(n string) bool {
		return !strings.HasPrefix(n, SecretPrefix) && !strings.HasPrefix(n, InitialPrefix) &&
			!strings.HasPrefix(n, openingPrefix) && !strings.HasSuffix(n, TemporarySuffix)
	})
	if err := s.remove(private...); err != nil {
		return err
	}
	return s.Erase()
}

// OpenReader returns a store for reading a task's files. It changes nothing.
func OpenReader(d Disk, dir string, seal *Sealer) *Store {
	return &Store{Disk: d, Dir: dir, slot: noSlot, Seal: seal}
}

// TaskStore returns a store for reading the files of a task in a state directory.
func TaskStore(dir string, t core.Task, key *[32]byte) *Store {
	return OpenReader(OS{}, dir+"/tasks/"+t.String(), &Sealer{Master: key, Task: t.String()})
}
