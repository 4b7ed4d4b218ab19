package state_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"reflect"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/bin"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/state"
)

func FuzzCheckpoint(f *testing.F) {
	payload := func(file []byte) []byte { return file[len(state.CheckpointMagic)+8 : len(file)-sha256.Size] }
	f.Add(payload(streamtest.GoldenCheckpoint().Encode(nil)))
	f.Add(payload((&state.Checkpoint{Epoch: 1, Output: state.UnknownOutput}).Encode(nil)))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := state.ParseCheckpoint(data); err == nil {
			t.Fatal("a checkpoint without its hash was believed")
		}
		file := append([]byte(nil), state.CheckpointMagic...)
		file = binary.LittleEndian.AppendUint64(file, uint64(len(data)))
		file = append(file, data...)
		sum := sha256.Sum256(file)
		file = append(file, sum[:]...)
		c, err := state.ParseCheckpoint(file)
		if err != nil {
			return
		}
		again, err := state.ParseCheckpoint(c.Encode(nil))
		if err != nil || !reflect.DeepEqual(again, c) {
			t.Fatalf("%v\n%+v\n%+v", err, again, c)
		}
		if again, err = state.ParseCheckpoint(state.SlotContent(append(c.Encode(nil), data...))); err != nil ||
			!reflect.DeepEqual(again, c) {
			t.Fatalf("in a slot: %v", err)
		}
	})
}

// FuzzArchive: an archive that parses is unchanged when it is written and read again, and a truncated file has the
// messages before the cut.
func FuzzArchive(f *testing.F) {
	var list []state.Message
	for step := range uint64(3) {
		p := state.Message{Time: time.UnixMilli(5)}
		p.Step, p.Key, p.Value = step+1, []byte("orders/0/1/1"), []byte("{}")
		list = append(list, p)
	}
	f.Add(archived(list)[len(state.ArchiveMagic):], uint(7))
	f.Add([]byte{}, uint(0))
	f.Fuzz(func(t *testing.T, data []byte, cut uint) {
		got, err := state.ParseArchive(append(bytes.Clone(state.ArchiveMagic), data...))
		if err != nil {
			return
		}
		file := archived(got)
		again, err := state.ParseArchive(file)
		if err != nil || !reflect.DeepEqual(again, got) {
			t.Fatalf("%v\n%+v\n%+v", err, again, got)
		}
		part, err := state.ParseArchive(file[:cut%uint(len(file)+1)])
		if err != nil || len(part) > len(got) || len(part) > 0 && !reflect.DeepEqual(part, got[:len(part)]) {
			t.Fatalf("cut after %d bytes: %v, %d of %d messages", cut%uint(len(file)+1), err, len(part), len(got))
		}
	})
}

// archived is the file of an archive with messages.
func archived(list []state.Message) []byte {
	w := &bin.Writer{}
	w.Raw(state.ArchiveMagic)
	for i := range list {
		at := len(w.B)
		w.Uint(0)
		list[i].Encode(w)
		binary.LittleEndian.PutUint64(w.B[at:], uint64(len(w.B)-at-8))
		sum := sha256.Sum256(w.B[at+8:])
		w.Raw(sum[:])
	}
	return w.B
}

// FuzzSealed: an encrypted file that was not written with the key is refused, and any content is read back.
func FuzzSealed(f *testing.F) {
	s := &state.Sealer{Master: connect.InsecureKey(1), Task: "orders-0", On: true}
	file, err := s.Seal(nil, state.KindSecret, 7, []byte("content"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(file)
	f.Add(append(bytes.Clone(state.SealMagic), make([]byte, 64)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		content, n, err := s.Open(state.KindSecret, data)
		switch {
		case !state.IsSealed(data):
			if err != nil || !bytes.Equal(content, data) {
				t.Fatalf("a plain file is read as %x: %v", content, err)
			}
		case err == nil && !(n == 7 && string(content) == "content"):
			t.Fatalf("accepted: %x", data)
		}
		if len(state.SealedContent(data)) > len(data) {
			t.Fatal("more than there is")
		}
		sealed, err := s.Seal(nil, state.KindCheckpoint, 3, data)
		fixtures.Must(t, err)
		if content, n, err := s.Open(state.KindCheckpoint, sealed); err != nil || n != 3 ||
			!bytes.Equal(content, data) {
			t.Fatalf("%x is read back as %x, %d, %v", data, content, n, err)
		}
		if !bytes.Equal(state.SealedContent(append(bytes.Clone(sealed), data...)), sealed) {
			t.Fatal("the remainder of a longer file is not cut off")
		}
	})
}
