package state

// This file exports internals to the tests in package state_test.

import (
	"github.com/streamdp/streamdp/internal/bin"
	"github.com/streamdp/streamdp/internal/persons"
)

const (
	KindCheckpoint = kindCheckpoint
	KindSecret     = kindSecret
)

var (
	SealedContent   = sealedContent
	ArchiveMagic    = archiveMagic
	CheckpointMagic = checkpointMagic
	SealMagic       = sealMagic
	SlotNames       = slotNames
)

func (x *Archive) Close() { x.close() }

func (x *Archive) Files(a0 uint64) ([]string, error) { return x.files(a0) }

func (x *Checkpoint) UsersAt(a0 int) (persons.Position, bool) { return x.usersAt(a0) }

func (x *Checkpoint) UsersOfPart(a0 int) string { return x.usersOfPart(a0) }

func (x *Message) Encode(a0 *bin.Writer) { x.encode(a0) }

func (x *Sealer) Open(a0 string, a1 []byte) ([]byte, uint64, error) { return x.open(a0, a1) }

func (x *Sealer) Seal(a0 []byte, a1 string, a2 uint64, a3 []byte) ([]byte, error) {
	return x.seal(a0, a1, a2, a3)
}

func (x *Store) Slot() *int { return &x.slot }
