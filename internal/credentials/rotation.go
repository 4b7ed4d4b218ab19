package credentials

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

// Rotation is a TLS configuration from files that may be replaced while it is in use. It is safe for concurrent use.
type Rotation struct {
	files         TLSFiles
	groupReadable bool

	mu     sync.Mutex
	now    *tls.Config
	sum    [sha256.Size]byte // hash of the files from which now was made
	broken string            // fault of the files when last read; "" if there was none
	told   bool              // true if the caller has been told of that fault
}

// TLSFiles are the paths of PEM files; each may be empty.
type TLSFiles struct {
	// CAFile holds the certificate authorities to trust. Empty: the system's authorities.
	CAFile string
	// CertFile and KeyFile are this side's certificate and its key. Both or none.
	CertFile string
	KeyFile  string
}

// OpenTLS reads the files. The certificate's key must have the permissions of a key file.
func OpenTLS(files TLSFiles, groupReadable bool) (*Rotation, error) {
	r := &Rotation{files: files, groupReadable: groupReadable}
	if err := r.look(); err != nil {
		return nil, err
	}
	return r, nil
}

// Config returns the configuration in force. The caller must not change it.
func (r *Rotation) Config() *tls.Config {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// Look reads the files again. It reports whether the configuration in force has changed. Files that are unusable change
// nothing. Look reports them only if a second look finds the same fault, because a certificate and its key are two
// files that cannot be replaced at the same moment. It reports each fault once.
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
	f, err := r.files.read(r.groupReadable)
	if err != nil {
		return err
	}
	defer clear(f.key)
	sum := f.sum()
	if r.now != nil && sum == r.sum {
		return nil
	}
	c, err := f.config(r.files)
	if err != nil {
		return err
	}
	r.now, r.sum = c, sum
	return nil
}

// Until returns the expiry of the certificate in force, the zero time if there is none.
func (r *Rotation) Until() time.Time {
	if c := r.Config(); len(c.Certificates) > 0 && c.Certificates[0].Leaf != nil {
		return c.Certificates[0].Leaf.NotAfter
	}
	return time.Time{}
}

// pemFiles are the contents of the files of a TLS configuration, nil for a missing file.
type pemFiles struct{ ca, cert, key []byte }

func (t TLSFiles) read(groupReadable bool) (f *pemFiles, err error) {
	f = &pemFiles{}
	if t.CAFile != "" {
		if f.ca, err = os.ReadFile(t.CAFile); err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
	}
	if t.CertFile != "" {
		if f.cert, err = os.ReadFile(t.CertFile); err != nil {
			return nil, fmt.Errorf("certificate: %w", err)
		}
		if f.key, err = readSecret("certificate's key", t.KeyFile, groupReadable, 1<<16); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// sum returns a hash of the contents.
func (f *pemFiles) sum() [sha256.Size]byte {
	var b []byte
	for _, text := range [][]byte{f.ca, f.cert, f.key} {
		h := sha256.Sum256(text)
		b = append(binary.BigEndian.AppendUint64(b, uint64(len(text))), h[:]...)
	}
	return sha256.Sum256(b)
}

// config parses the contents. Its errors name the files.
func (f *pemFiles) config(files TLSFiles) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.ca != nil {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(f.ca) {
			return nil, fmt.Errorf("certificate authorities %s: contains no certificate in PEM", files.CAFile)
		}
	}
	if f.cert != nil {
		pair, err := tls.X509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, fmt.Errorf("certificate %s: %w", files.CertFile, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
