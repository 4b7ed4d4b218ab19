package credentials

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLoadHeaders(t *testing.T) {
	path := filepath.Join(t.TempDir(), "headers")
	f := func(text string, mode os.FileMode, want string) {
		t.Helper()
		os.Remove(path)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		h, err := LoadHeaders(path, false)
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%q: %v, want %s", text, err, want)
			}
			return
		}
		if err != nil || h.Get("Authorization") != "Bearer hunter2" || len(h["X-Scope"]) != 2 || len(h) != 2 {
			t.Errorf("%q: %v, %v", text, h, err)
		}
	}
	const good = "Authorization: Bearer hunter2\n\nx-scope:a\r\nX-Scope: b: c"
	f(good, 0o600, "")
	f(good, 0o644, "must not be accessible to others")
	f("a: b\nhunter2\n", 0o600, "line 2: must be a header in the form Name: value")
	f(": hunter2", 0o600, "line 1: must be a header")
	f("a b: hunter2", 0o600, "line 1: must be a header")
	f("a:", 0o600, "line 1: must be a header")
	f("a: hunter2\x00", 0o600, "line 1: must be a header")
	f("a: hunter2 é", 0o600, "line 1: must be a header")
	f("a: "+strings.Repeat("x", 16<<10), 0o600, "must hold at most 16384 bytes")
}
