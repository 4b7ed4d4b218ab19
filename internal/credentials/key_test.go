package credentials

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

const keyHex = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

func TestLoadKey(t *testing.T) {
	dir := t.TempDir()
	write := func(text string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(dir, "key")
		os.Remove(path)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	f := func(text string, mode os.FileMode, groupReadable bool, want string) {
		t.Helper()
		key, err := LoadKey(write(text, mode), groupReadable)
		switch {
		case want == "" && err != nil:
			t.Errorf("%q, %o: %v", text, mode, err)
		case want == "" && hex.EncodeToString(key[:]) != strings.ToLower(strings.TrimSpace(text)):
			t.Errorf("%q: read as %x", text, key)
		case want != "" && (err == nil || key != nil || !strings.HasSuffix(err.Error(), "key: "+want)):
			t.Errorf("%q, %o: got %v, want %s", text, mode, err, want)
		}
	}
	f(keyHex, 0o600, false, "")
	f(keyHex+"\n", 0o600, false, "")
	f(strings.ToUpper(keyHex), 0o400, false, "")
	f(keyHex, 0o440, true, "")
	f(keyHex, 0o640, true, "")
	f(keyHex, 0o440, false,
		"must not be readable for its group: its mode is 0440; chmod 0600, or set state.key_group_readable = true")
	f(keyHex, 0o644, true, "must not be accessible to others: its mode is 0644; chmod 0600")
	f(keyHex, 0o601, true, "must not be accessible to others: its mode is 0601; chmod 0600")
	f(keyHex, 0o602, false, "must not be accessible to others: its mode is 0602; chmod 0600")
	f(keyHex, 0o620, true, "must not be writable for its group: its mode is 0620; chmod 0600")
	f(keyHex, 0o660, true, "must not be writable for its group: its mode is 0660; chmod 0600")
	f("", 0o600, false, "must contain 64 hexadecimal digits, contains 0 bytes")
	f("\n", 0o600, false, "must contain 64 hexadecimal digits, contains 0 bytes")
	f(keyHex[1:], 0o600, false, "must contain 64 hexadecimal digits, contains 63 bytes")
	f(keyHex+"0", 0o600, false, "must contain 64 hexadecimal digits, contains more")
	f(keyHex+"\n\n", 0o600, false, "must contain 64 hexadecimal digits, contains more")
	f(keyHex+"\r\n", 0o600, false, "must contain 64 hexadecimal digits, contains more")
	f("\n"+keyHex, 0o600, false, "must contain 64 hexadecimal digits, contains more")
	f(keyHex+strings.Repeat("\n", 1<<20), 0o600, false, "must contain 64 hexadecimal digits, contains more")
	f(" "+keyHex[1:], 0o600, false, "must contain 64 hexadecimal digits, contains other characters")
	f("g"+keyHex[1:], 0o600, false, "must contain 64 hexadecimal digits, contains other characters")
	f(keyHex[:63]+"\x00", 0o600, false, "must contain 64 hexadecimal digits, contains other characters")
	f(strings.Repeat("0", 64), 0o600, false, "must not be a key of zeros")

	// A link is followed, because mounted secrets are links. The checks apply to the file to which it leads.
	link := filepath.Join(dir, "link")
	path := write(keyHex, 0o600)
	if err := os.Symlink("key", link); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadKey(link, false); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(path, 0o604); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadKey(link, false); err == nil {
		t.Error("a link to a file open to others is accepted")
	}
	// Only regular files are accepted, and opening a pipe does not hang.
	if _, err := LoadKey(dir, false); err == nil || !strings.HasSuffix(err.Error(), "must be a regular file") {
		t.Error(err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadKey(pipe, false); err == nil || !strings.HasSuffix(err.Error(), "must be a regular file") {
		t.Error(err)
	}
	if _, err := LoadKey(filepath.Join(dir, "none"), false); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestKeyID(t *testing.T) {
	key, err := parseKey([]byte(keyHex))
	if err != nil {
		t.Fatal(err)
	}
	if got := KeyID(key); got != "12681e0c49796257" {
		t.Errorf("%s", got)
	}
}

func TestGenerateKey(t *testing.T) {
	raw, _ := hex.DecodeString(keyHex)
	path := filepath.Join(t.TempDir(), "key")
	id, err := GenerateKey(path, bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != keyHex+"\n" {
		t.Errorf("%q, %v", text, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	key, err := LoadKey(path, false)
	if err != nil || !bytes.Equal(key[:], raw) || KeyID(key) != id {
		t.Errorf("%x, %v", key, err)
	}
	// A key never replaces another file, not even through a dangling link.
	if _, err := GenerateKey(path, bytes.NewReader(bytes.Repeat([]byte{7}, 32))); !errors.Is(err, fs.ErrExist) {
		t.Error(err)
	}
	if again, err := LoadKey(path, false); err != nil || *again != *key {
		t.Error("the old key is gone")
	}
	link := path + ".link"
	if err := os.Symlink("nowhere", link); err != nil {
		t.Fatal(err)
	}
	if _, err := GenerateKey(link, bytes.NewReader(raw)); !errors.Is(err, fs.ErrExist) {
		t.Error(err)
	}
	// With a broken random source, no key is written.
	for _, random := range []io.Reader{bytes.NewReader(raw[:31]), bytes.NewReader(make([]byte, 32))} {
		none := path + ".none"
		if _, err := GenerateKey(none, random); err == nil {
			t.Error("a bad source is accepted")
		}
		if _, err := os.Lstat(none); !errors.Is(err, fs.ErrNotExist) {
			t.Error("a file is left behind")
		}
	}
	if _, err := GenerateKey(filepath.Join(path, "key"), bytes.NewReader(raw)); err == nil {
		t.Error("a key was written to a file")
	}
}

var keyPattern = regexp.MustCompile(`^[0-9a-fA-F]{64}\n?$`)

// FuzzKey: only valid keys are accepted, and no error shows the text.
func FuzzKey(f *testing.F) {
	for _, s := range []string{"", keyHex, keyHex + "\n", keyHex + "\r\n", strings.Repeat("0", 64), keyHex[1:],
		"x" + keyHex[1:]} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		before := bytes.Clone(text)
		key, err := parseKey(text)
		if !bytes.Equal(text, before) {
			t.Error("the text was changed")
		}
		isKey := keyPattern.Match(text) && strings.Trim(string(text), "0\n") != ""
		if isKey != (err == nil) || isKey != (key != nil) {
			t.Fatalf("%q: %v", text, err)
		}
		if isKey && hex.EncodeToString(key[:]) != strings.ToLower(strings.TrimSuffix(string(text), "\n")) {
			t.Errorf("%q: read as %x", text, key)
		}
		if err != nil && len(text) > 4 && strings.Contains(err.Error(), string(text)) {
			t.Errorf("%q is shown: %v", text, err)
		}
	})
}
