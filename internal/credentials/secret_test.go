package credentials

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAuthorization: token and password are read for each call, from files that only their owner may read.
func TestAuthorization(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	write := func(text string, mode os.FileMode) {
		t.Helper()
		if err := errors.Join(os.WriteFile(file, []byte(text), mode), os.Chmod(file, mode)); err != nil {
			t.Fatal(err)
		}
	}
	token := Login{TokenFile: file}
	basic := Login{Username: "me", PasswordFile: file}
	for _, c := range []struct{ text, token, basic string }{
		{"one\n", "Bearer one", "Basic bWU6b25l"},
		{"two", "Bearer two", "Basic bWU6dHdv"},
		{"a b", "", "Basic bWU6YSBi"},
		{"", "", ""},
		{"a\r\nX: b", "", ""},
	} {
		write(c.text, 0o600)
		for r, want := range map[Login]string{token: c.token, basic: c.basic} {
			got, err := r.Authorization(false)
			if got != want || (err != nil) != (want == "") {
				t.Errorf("%q gives %q, %v", c.text, got, err)
			}
			if err != nil && c.text != "" && strings.Contains(err.Error(), c.text) {
				t.Errorf("the error shows the secret: %v", err)
			}
		}
	}
	write("one", 0o604)
	for _, r := range []Login{token, basic} {
		if _, err := r.Authorization(false); err == nil {
			t.Error("a file that others may read is accepted")
		}
	}
	if got, err := (Login{}).Authorization(false); got != "" || err != nil {
		t.Error(got, err)
	}
}
