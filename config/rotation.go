package config

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"time"
)

// Rotation is the TLS configuration of files that may be replaced while it is in use. It is safe
// for concurrent use.
type Rotation struct {
	read  func() (*pemFiles, error)
	build func(*pemFiles) (*tls.Config, error)

	mu     sync.Mutex
	now    *tls.Config
	sum    [sha256.Size]byte // of what now was made of
	broken string            // what the last look could not use; "" where it could
	told   bool              // the caller knows of it
}

// OpenTLS reads the files of [kafka.tls]. The client's key must have the permissions of a key
// file.
func OpenTLS(t *TLS, groupReadable bool) (*Rotation, error) {
	return openRotation(
		func() (*pemFiles, error) { return readPEM(t.CAFile, t.CertFile, t.KeyFile, groupReadable) },
		func(f *pemFiles) (*tls.Config, error) { return f.config(t.CAFile, t.CertFile) })
}

// OpenServerTLS reads the files of [http.tls]. The key must have the permissions of a key file.
func OpenServerTLS(t *ServerTLS, groupReadable bool) (*Rotation, error) {
	return openRotation(
		func() (*pemFiles, error) { return readPEM("", t.CertFile, t.KeyFile, groupReadable) },
		func(f *pemFiles) (*tls.Config, error) { return f.config("", t.CertFile) })
}

func openRotation(read func() (*pemFiles, error), build func(*pemFiles) (*tls.Config, error)) (*Rotation, error) {
	r := &Rotation{read: read, build: build}
	if err := r.look(); err != nil {
		return nil, err
	}
	return r, nil
}

// Config returns the configuration in force. The caller does not change it.
func (r *Rotation) Config() *tls.Config {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// Look reads the files again. It reports whether what is in force has changed. Files that cannot
// be used change nothing; they are an error the second time that Look sees them, once: a
// certificate and its key are two files, and cannot be replaced at the same moment.
func (r *Rotation) Look() (changed bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.now
	switch err := r.look(); {
	case err == nil:
		r.broken, r.told = "", false
	case err.Error() != r.broken:
		r.broken, r.told = err.Error(), false
	case !r.told:
		r.told = true
		return false, err
	}
	return r.now != was, nil
}

func (r *Rotation) look() error {
	f, err := r.read()
	if err != nil {
		return err
	}
	defer clear(f.key)
	sum := f.sum()
	if r.now != nil && sum == r.sum {
		return nil
	}
	c, err := r.build(f)
	if err != nil {
		return err
	}
	r.now, r.sum = c, sum
	return nil
}

// Until returns when the certificate in force ends, the zero time where there is none.
func (r *Rotation) Until() time.Time {
	if c := r.Config(); len(c.Certificates) > 0 && c.Certificates[0].Leaf != nil {
		return c.Certificates[0].Leaf.NotAfter
	}
	return time.Time{}
}

// pemFiles are the texts of the files of a TLS configuration, nil where there is no such file.
type pemFiles struct{ ca, cert, key []byte }

func readPEM(ca, cert, key string, groupReadable bool) (f *pemFiles, err error) {
	f = &pemFiles{}
	if ca != "" {
		if f.ca, err = os.ReadFile(ca); err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
	}
	if cert != "" {
		if f.cert, err = os.ReadFile(cert); err != nil {
			return nil, fmt.Errorf("certificate: %w", err)
		}
		if f.key, err = readSecret("certificate's key", key, groupReadable, 1<<16); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// sum tells texts apart.
func (f *pemFiles) sum() [sha256.Size]byte {
	var b []byte
	for _, text := range [][]byte{f.ca, f.cert, f.key} {
		h := sha256.Sum256(text)
		b = append(binary.BigEndian.AppendUint64(b, uint64(len(text))), h[:]...)
	}
	return sha256.Sum256(b)
}

// config parses the texts. caFile and certFile are for messages.
func (f *pemFiles) config(caFile, certFile string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.ca != nil {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(f.ca) {
			return nil, fmt.Errorf("authorities %s: no certificate in PEM", caFile)
		}
	}
	if f.cert != nil {
		pair, err := tls.X509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, fmt.Errorf("certificate %s: %w", certFile, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
