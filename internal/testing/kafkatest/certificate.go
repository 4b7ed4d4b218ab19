package kafkatest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"
)

// Certificate is a self-signed certificate for 127.0.0.1 and metrics.example.org. Tests use it for servers, for
// clients, and as the authority of both.
type Certificate struct {
	TLS       tls.Certificate
	Pool      *x509.CertPool // contains this certificate
	Cert, Key []byte         // PEM
}

// NewCertificate makes a key and a self-signed certificate.
func NewCertificate(tb testing.TB) *Certificate {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"metrics.example.org"}, IsCA: true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		tb.Fatal(err)
	}
	return pack(tb, der, key)
}

// pack returns a Certificate with the DER encoding der and its key.
func pack(tb testing.TB, der []byte, key *ecdsa.PrivateKey) *Certificate {
	tb.Helper()
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	c := &Certificate{
		TLS: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, Pool: x509.NewCertPool(),
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
	}
	if !c.Pool.AppendCertsFromPEM(c.Cert) {
		tb.Fatal("the new certificate cannot be read")
	}
	return c
}

// Issue makes a client's certificate whose common name is `name`, and which expires after `life`. authority and
// authorityKey are the certificate and key of its authority, as PEM.
func Issue(tb testing.TB, authority, authorityKey []byte, name string, life time.Duration) *Certificate {
	tb.Helper()
	ca, err := tls.X509KeyPair(authority, authorityKey)
	if err != nil {
		tb.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Minute),
		NotAfter: time.Now().Add(life),
		Subject:  pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, ca.Leaf, &key.PublicKey, ca.PrivateKey)
	if err != nil {
		tb.Fatal(err)
	}
	return pack(tb, der, key)
}
