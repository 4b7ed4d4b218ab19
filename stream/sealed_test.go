package stream

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSealed: an encrypted file is read back by its own task, kind, number and key
// alone, no bit of it can change, and no two are equal.
func TestSealed(t *testing.T) {
	t.Parallel()
	s := &sealer{master: InsecureKey(1), task: "orders-0", on: true}
	content := []byte("what nobody shall read")
	file, err := s.seal(nil, kindSecret, 7, content)
	must(t, err)
	again, err := s.seal(nil, kindSecret, 7, content)
	must(t, err)
	body := len(sealMagic) + 8
	if bytes.Equal(file[body:body+sealSalt], again[body:body+sealSalt]) || bytes.Equal(file[body+sealSalt+8:], again[body+sealSalt+8:]) || bytes.Contains(file, content[:8]) {
		t.Error("two files share a salt or a text, or show the content")
	}
	if got, n, err := s.open(kindSecret, file); err != nil || n != 7 || !bytes.Equal(got, content) {
		t.Errorf("read back %q %d %v", got, n, err)
	}
	if got, _, err := s.open(kindSecret, content); err != nil || !bytes.Equal(got, content) {
		t.Errorf("a plain file: %q %v", got, err)
	}
	for name, other := range map[string]*sealer{
		"another key":  {master: InsecureKey(2), task: "orders-0"},
		"another task": {master: InsecureKey(1), task: "orders-1"},
		"no key":       nil,
	} {
		if got, _, err := other.open(kindSecret, file); err == nil {
			t.Errorf("%s reads %q", name, got)
		}
	}
	if got, _, err := s.open(kindCheckpoint, file); err == nil {
		t.Errorf("another kind reads %q", got)
	}
	for i := range file {
		damaged := bytes.Clone(file)
		damaged[i] ^= 1
		if got, _, err := s.open(kindSecret, damaged); err == nil && isSealed(damaged) {
			t.Errorf("byte %d may change: %q", i, got)
		}
		if got, _, err := s.open(kindSecret, file[:i]); err == nil && isSealed(file[:i]) {
			t.Errorf("%d bytes are enough: %q", i, got)
		}
	}
}

// private returns what of the state directory is as private as records, and whether all
// of it, or none, is encrypted.
func private(r *rig) (all, none bool, n int) {
	r.t.Helper()
	all, none = true, true
	for path, data := range files(r.t, filepath.Join(r.dir, "state", "tasks")) {
		name := filepath.Base(path)
		if strings.HasPrefix(name, "checkpoint") || strings.HasPrefix(name, "secret-") {
			n++
			all, none = all && isSealed([]byte(data)), none && !isSealed([]byte(data))
		}
	}
	return all, none, n
}

// TestEncryption: turned on and off, for small states and for large ones, every private
// file follows at the next start, and the releases are those of a run without it.
func TestEncryption(t *testing.T) {
	for _, large := range []bool{false, true} {
		r := newRig(t, ordersStream)
		if large {
			was := slotBytes
			slotBytes = 1
			defer func() { slotBytes = was }()
		}
		for i, on := range []bool{false, true, true, false, true} {
			r.encrypt = on
			r.produce(300*i, 300)
			x := r.start()
			x.published(uint64(3 * (i + 1)))
			x.end()
			if all, none, n := private(r); n < 2 || on && !all || !on && !none {
				t.Errorf("large %t, encrypt %t: of %d files all are encrypted %t, none is %t", large, on, n, all, none)
			}
			r.verified(3 * (i + 1))
			// Without a run too: a command migrates.
			r.encrypt = !on
			must(t, r.offline(func(context.Context, *Daemon) error { return nil }))
			if all, none, n := private(r); n < 2 || on && !none || !on && !all {
				t.Errorf("large %t, encrypt %t: of %d files all are encrypted %t, none is %t after a migration", large, !on, n, all, none)
			}
		}
		r.history("orders.dp").equals(t, r.uninterrupted(15))
	}
}

// TestEncryptedRecovery: the ways back are the same for encrypted files, and another key
// halts before anything is lost.
func TestEncryptedRecovery(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.encrypt = true
	r.produce(0, 1050)
	x := r.start()
	x.published(10)
	x.end()
	whole, err := ExportEpoch(r.options().Config, InsecureKey(r.seed), ordersTask, 0, true)
	must(t, err)
	r.seed++
	before := files(t, filepath.Join(r.dir, "state"))
	if all, err := r.verify(); err != nil || !strings.Contains(all[0].Unverifiable, "key") {
		t.Errorf("another key: %+v %v", all, err)
	}
	if _, err := ExportEpoch(r.options().Config, InsecureKey(r.seed), ordersTask, 0, true); err == nil || !strings.Contains(err.Error(), "another key") {
		t.Errorf("export with another key: %v", err)
	}
	sameFiles(t, before, files(t, filepath.Join(r.dir, "state")))
	r.seed--
	if fields, err := Inspect([]byte(before[r.file(checkpointName)])); err != nil || fields[0].Value != "encrypted" {
		t.Errorf("inspect: %v %v", fields, err)
	}
	for _, lose := range []func(){
		func() { flipByte(t, r.file(checkpointName), 300) },
		func() { flipByte(t, r.file("secret-1"), len(sealMagic)+50) },
		func() { must(t, os.RemoveAll(r.file(""))) },
	} {
		lose()
		must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.Recover(ctx, ordersTask, whole) }))
		r.verified(10)
	}
	if all, _, n := private(r); !all || n < 2 {
		t.Errorf("of %d files some are not encrypted", n)
	}
	r.produce(1050, 100)
	x = r.start()
	x.published(11)
	x.end()
	r.history("orders.dp").equals(t, r.uninterrupted(11))
}

// TestEncryptionLeavesNothing: once encryption is on, no slot holds anything in the
// clear, neither a torn one nor the rest of a longer one; and what is in the clear is
// refused from then on.
func TestEncryptionLeavesNothing(t *testing.T) {
	defer func(n int) { slotBytes = n }(slotBytes)
	slotBytes = 100
	dir := filepath.Join(t.TempDir(), "orders-0")
	open := func(on bool) *store {
		s, err := openStore(osDisk{}, dir, &sealer{master: InsecureKey(1), task: "orders-0", on: on})
		must(t, err)
		return s
	}
	sums := bytes.Repeat([]byte("RAWSUMS!"), 4000)
	inClear := func(when string) {
		t.Helper()
		for path, data := range files(t, dir) {
			if strings.Contains(data, "RAWSUMS!") {
				t.Errorf("%s %s holds sums in the clear", when, filepath.Base(path))
			}
		}
	}
	s := open(false)
	for range 3 {
		must(t, s.commit(&checkpoint{epoch: 1, state: sums, outputTopic: "o"}))
	}
	newest, torn := s.path(slotNames[s.slot]), s.path(slotNames[1-s.slot])
	plain, err := os.ReadFile(newest)
	must(t, err)
	flipByte(t, torn, 60)
	s = open(true)
	inClear("after the migration")
	cp, err := s.load()
	must(t, err)
	if cp == nil || cp.seq != 3 {
		t.Fatalf("the last commit is %+v", cp)
	}
	cp.state = sums[:8000]
	for range 2 {
		must(t, s.commit(cp))
	}
	inClear("after shorter commits")

	// As an earlier version left it: an encrypted commit in front of a rest in the clear.
	f, err := os.OpenFile(torn, os.O_WRONLY|os.O_APPEND, 0)
	must(t, write(f, err, sums))
	open(true)
	inClear("after the next start")

	// Somebody puts files in the clear there while the daemon runs.
	s = open(true)
	must(t, os.WriteFile(newest, plain, 0o600))
	must(t, os.WriteFile(torn, plain, 0o600))
	if _, err := s.load(); err == nil {
		t.Error("a checkpoint in the clear is taken")
	}
	must(t, os.WriteFile(s.path(secretName(1)), make([]byte, 32), 0o600))
	if secret, err := s.secret(1); err != nil || len(secret) != 0 {
		t.Errorf("a secret in the clear is taken: %x %v", secret, err)
	}
}
