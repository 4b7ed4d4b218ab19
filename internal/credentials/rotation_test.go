package credentials

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

// TestRotation: new files are used only if all of them are valid, and files that stay broken are reported once.
func TestRotation(t *testing.T) {
	dir := t.TempDir()
	cert, key, ca := filepath.Join(dir, "cert"), filepath.Join(dir, "key"), filepath.Join(dir, "ca")
	write := func(path string, text []byte) {
		t.Helper()
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a, b := kafkatest.NewCertificate(t), kafkatest.NewCertificate(t)
	write(cert, a.Cert)
	write(key, a.Key)
	write(ca, a.Cert)
	r, err := OpenTLS(TLSFiles{CAFile: ca, CertFile: cert, KeyFile: key}, false)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := r.Until(), r.Config().Certificates[0].Leaf.NotAfter; !got.Equal(want) || got.IsZero() {
		t.Errorf("ends at %v, want %v", got, want)
	}
	look := func(what string, changed bool, fault string, want *kafkatest.Certificate) {
		t.Helper()
		got, err := r.Look()
		if got != changed || (err == nil) != (fault == "") ||
			err != nil && (!strings.Contains(err.Error(), fault) || strings.Contains(err.Error(), "hunter")) {
			t.Errorf("%s: changed %v, %v", what, got, err)
		}
		c := r.Config()
		if string(c.Certificates[0].Certificate[0]) != string(want.TLS.Certificate[0]) {
			t.Errorf("%s: the wrong certificate is in force", what)
		}
	}
	look("nothing new", false, "", a)
	write(cert, b.Cert)
	look("half", false, "", a)
	look("still half", false, "private key does not match", a)
	look("told already", false, "", a)
	write(key, b.Key)
	look("both", true, "", b)
	look("nothing new", false, "", b)
	write(key, []byte("hunter2"))
	look("no key", false, "", b)
	look("no key", false, "certificate", b)
	if err := os.Chmod(key, 0o644); err != nil {
		t.Fatal(err)
	}
	look("open to others", false, "", b)
	look("open to others", false, "must not be accessible to others", b)
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	look("no file", false, "", b)
	look("no file", false, "no such file", b)
	write(key, b.Key)
	look("as before", false, "", b)
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	look("away again", false, "", b)
	look("away again", false, "no such file", b)
	write(key, b.Key)
	write(ca, []byte("hunter2"))
	look("no authority", false, "", b)
	look("no authority", false, "no certificate in PEM", b)
	write(ca, b.Cert)
	look("another authority", true, "", b)
	if !r.Config().RootCAs.Equal(b.Pool) {
		t.Error("the old authorities are still trusted")
	}

	if _, err := OpenTLS(TLSFiles{CertFile: cert, KeyFile: filepath.Join(dir, "none")}, false); err == nil {
		t.Error("a listener without a key is accepted")
	}
	if r, err := OpenTLS(TLSFiles{}, false); err != nil || !r.Until().IsZero() || r.Config().RootCAs != nil {
		t.Errorf("the table alone: %v", err)
	}
}
