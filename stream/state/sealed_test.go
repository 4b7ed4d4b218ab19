package state_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/seal"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/recovery"
	"github.com/streamdp/streamdp/stream/state"
)

// TestSealed: an encrypted file can be read only for the same task, kind and number, and with the same key. Each
// changed bit is detected, and no two files are equal.
func TestSealed(t *testing.T) {
	t.Parallel()
	s := &state.Sealer{Master: connect.InsecureKey(1), Task: "orders-0", On: true}
	content := []byte("what nobody shall read")
	file, err := s.Seal(nil, state.KindSecret, 7, content)
	fixtures.Must(t, err)
	again, err := s.Seal(nil, state.KindSecret, 7, content)
	fixtures.Must(t, err)
	body := len(state.SealMagic) + 8
	if bytes.Equal(file[body:body+seal.Salt], again[body:body+seal.Salt]) ||
		bytes.Equal(file[body+seal.Salt+8:], again[body+seal.Salt+8:]) || bytes.Contains(file, content[:8]) {
		t.Error("two files share a salt or a text, or show the content")
	}
	if got, n, err := s.Open(state.KindSecret, file); err != nil || n != 7 || !bytes.Equal(got, content) {
		t.Errorf("read back %q %d %v", got, n, err)
	}
	if got, _, err := s.Open(state.KindSecret, content); err != nil || !bytes.Equal(got, content) {
		t.Errorf("a plain file: %q %v", got, err)
	}
	for name, other := range map[string]*state.Sealer{
		"another key":  {Master: connect.InsecureKey(2), Task: "orders-0"},
		"another task": {Master: connect.InsecureKey(1), Task: "orders-1"},
		"no key":       nil,
	} {
		if got, _, err := other.Open(state.KindSecret, file); err == nil {
			t.Errorf("%s reads %q", name, got)
		}
	}
	if got, _, err := s.Open(state.KindCheckpoint, file); err == nil {
		t.Errorf("another kind reads %q", got)
	}
	for i := range file {
		damaged := bytes.Clone(file)
		damaged[i] ^= 1
		if got, _, err := s.Open(state.KindSecret, damaged); err == nil && state.IsSealed(damaged) {
			t.Errorf("byte %d may change: %q", i, got)
		}
		if got, _, err := s.Open(state.KindSecret, file[:i]); err == nil && state.IsSealed(file[:i]) {
			t.Errorf("%d bytes are enough: %q", i, got)
		}
	}
}

// private counts the files of the state directory that are as private as records. It reports whether all of them, or
// none, are encrypted.
func private(r *streamtest.Rig) (all, none bool, n int) {
	r.T.Helper()
	all, none = true, true
	for path, data := range fixtures.Files(r.T, filepath.Join(r.Dir, "state", "tasks")) {
		name := filepath.Base(path)
		if strings.HasPrefix(name, "checkpoint") || strings.HasPrefix(name, "secret-") {
			n++
			all, none = all && state.IsSealed([]byte(data)), none && !state.IsSealed([]byte(data))
		}
	}
	return all, none, n
}

// TestEncryption: if encryption is turned on or off, for small and large states, every private file is rewritten at the
// next start, and the releases equal those of a run without encryption.
func TestEncryption(t *testing.T) {
	for _, large := range []bool{false, true} {
		r := streamtest.NewRig(t, fixtures.OrdersStream)
		if large {
			was := state.SlotBytes
			state.SlotBytes = 1
			defer func() { state.SlotBytes = was }()
		}
		for i, on := range []bool{false, true, true, false, true} {
			r.Encrypt = on
			r.Produce(300*i, 300)
			x := r.Start()
			x.Published(uint64(3 * (i + 1)))
			x.End()
			if all, none, n := private(r); n < 2 || on && !all || !on && !none {
				t.Errorf("large %t, encrypt %t: of %d files all are encrypted %t, none is %t", large, on, n, all, none)
			}
			r.Verified(3 * (i + 1))
			// A command also migrates the files, without running the daemon.
			r.Encrypt = !on
			fixtures.Must(t, r.Offline(func(context.Context, *stream.Daemon) error { return nil }))
			if all, none, n := private(r); n < 2 || on && !none || !on && !all {
				t.Errorf("large %t, encrypt %t: of %d files all are encrypted %t, none is %t after a migration", large,
					!on, n, all, none)
			}
		}
		r.History("orders.dp").Equals(t, r.Uninterrupted(15))
	}
}

// TestEncryptedRecovery: recovery works in the same way with encrypted files, and another key causes a halt before
// anything is lost.
func TestEncryptedRecovery(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Encrypt = true
	r.Produce(0, 1050)
	x := r.Start()
	x.Published(10)
	x.End()
	whole, err := recovery.ExportEpoch(r.Options().Config, connect.InsecureKey(r.Seed), fixtures.OrdersTask, 0, true)
	fixtures.Must(t, err)
	r.Seed++
	before := fixtures.Files(t, filepath.Join(r.Dir, "state"))
	if all, err := r.Verify(); err != nil || !strings.Contains(all[0].Unverifiable, "key") {
		t.Errorf("another key: %+v %v", all, err)
	}
	if _, err := recovery.ExportEpoch(r.Options().Config, connect.InsecureKey(r.Seed), fixtures.OrdersTask, 0,
		true); err == nil || !strings.Contains(err.Error(), "another key") {
		t.Errorf("export with another key: %v", err)
	}
	fixtures.SameFiles(t, before, fixtures.Files(t, filepath.Join(r.Dir, "state")))
	r.Seed--
	if fields, err := recovery.Inspect([]byte(before[r.File(state.CheckpointName)])); err != nil ||
		fields[0].Value != "encrypted" {
		t.Errorf("inspect: %v %v", fields, err)
	}
	for _, lose := range []func(){
		func() { fixtures.FlipByte(t, r.File(state.CheckpointName), 300) },
		func() { fixtures.FlipByte(t, r.File("secret-1"), len(state.SealMagic)+50) },
		func() { fixtures.Must(t, os.RemoveAll(r.File(""))) },
	} {
		lose()
		fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
			return streamtest.Recover(ctx, d, fixtures.OrdersTask, whole)
		}))
		r.Verified(10)
	}
	if all, _, n := private(r); !all || n < 2 {
		t.Errorf("of %d files some are not encrypted", n)
	}
	r.Produce(1050, 100)
	x = r.Start()
	x.Published(11)
	x.End()
	r.History("orders.dp").Equals(t, r.Uninterrupted(11))
}

// TestEncryptionLeavesNothing: once encryption is on, no slot contains unencrypted data, not even a torn slot or the
// bytes left from a longer commit. From then on unencrypted files are refused.
func TestEncryptionLeavesNothing(t *testing.T) {
	defer func(n int) { state.SlotBytes = n }(state.SlotBytes)
	state.SlotBytes = 100
	dir := filepath.Join(t.TempDir(), "orders-0")
	open := func(on bool) *state.Store {
		s, err := state.Open(state.OS{}, dir, &state.Sealer{Master: connect.InsecureKey(1), Task: "orders-0", On: on})
		fixtures.Must(t, err)
		return s
	}
	sums := bytes.Repeat([]byte("RAWSUMS!"), 4000)
	inClear := func(when string) {
		t.Helper()
		for path, data := range fixtures.Files(t, dir) {
			if strings.Contains(data, "RAWSUMS!") {
				t.Errorf("%s %s holds sums in the clear", when, filepath.Base(path))
			}
		}
	}
	s := open(false)
	for range 3 {
		fixtures.Must(t, s.Commit(&state.Checkpoint{Epoch: 1, State: sums, OutputTopic: "o"}))
	}
	newest, torn := s.Path(state.SlotNames[(*s.Slot())]), s.Path(state.SlotNames[1-(*s.Slot())])
	plain, err := os.ReadFile(newest)
	fixtures.Must(t, err)
	fixtures.FlipByte(t, torn, 60)
	s = open(true)
	inClear("after the migration")
	cp, err := s.Load()
	fixtures.Must(t, err)
	if cp == nil || cp.Seq != 3 {
		t.Fatalf("the last commit is %+v", cp)
	}
	cp.State = sums[:8000]
	for range 2 {
		fixtures.Must(t, s.Commit(cp))
	}
	inClear("after shorter commits")

	// This is the state that an earlier version left: an encrypted commit followed by an unencrypted remainder.
	f, err := os.OpenFile(torn, os.O_WRONLY|os.O_APPEND, 0)
	fixtures.Must(t, state.Write(f, err, sums))
	open(true)
	inClear("after the next start")

	// Somebody adds unencrypted files while the daemon runs.
	s = open(true)
	fixtures.Must(t, os.WriteFile(newest, plain, 0o600))
	fixtures.Must(t, os.WriteFile(torn, plain, 0o600))
	if _, err := s.Load(); err == nil {
		t.Error("a checkpoint in the clear is taken")
	}
	fixtures.Must(t, os.WriteFile(s.Path(state.SecretName(1)), make([]byte, 32), 0o600))
	if secret, err := s.Secret(1); err != nil || len(secret) != 0 {
		t.Errorf("a secret in the clear is taken: %x %v", secret, err)
	}
}
