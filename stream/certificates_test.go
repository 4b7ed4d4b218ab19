package stream

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

// TestCertificatesReplaced: a daemon whose certificates and authorities are replaced while it
// runs has them for its next connections, towards the brokers and as a listener. Files that
// cannot be used change nothing, and are told once.
func TestCertificatesReplaced(t *testing.T) {
	t.Parallel()
	var broker atomic.Pointer[kafkatest.Certificate]
	old := kafkatest.NewCertificate(t)
	broker.Store(old)
	b, err := embedded.Start(embedded.Options{Topics: []string{"orders"}, Extra: []kfake.Opt{
		kfake.TLS(&tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c := broker.Load()
			return &tls.Config{Certificates: []tls.Certificate{c.TLS}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: c.Pool}, nil
		}}),
	}})
	must(t, err)
	t.Cleanup(b.Close)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key.pem")
	// The daemon looks every few milliseconds, and is to find no file that is written by half.
	replace := func(name string, text []byte) {
		t.Helper()
		must(t, os.WriteFile(name+".new", text, 0o600))
		must(t, os.Rename(name+".new", name))
	}
	write := func(c *kafkatest.Certificate) {
		t.Helper()
		replace(cert, c.Cert)
		replace(key, c.Key)
	}
	write(old)
	r := newRigAt(t, b, b.Addr(), fmt.Sprintf("[kafka.tls]\nca_file = %[1]q\ncert_file = %[1]q\nkey_file = %[2]q\n"+
		"[registry]\nurls = [\"https://localhost:1\"]\n[registry.tls]\ncert_file = %[1]q\nkey_file = %[2]q\n", cert, key)+ordersStream)
	r.http = fmt.Sprintf("[http.tls]\ncert_file = %q\nkey_file = %q", cert, key)
	o, err := Cluster(r.options().Config)
	must(t, err)
	if r.client, err = kafka.NewClient(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.client.Close)
	r.produce(0, 150)
	x := r.start()
	x.published(1)
	page := ""
	ask := func(c *kafkatest.Certificate) error {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: c.Pool}, DisableKeepAlives: true}}
		res, err := client.Get("https://" + x.d.Addr() + "/metrics")
		if err == nil {
			page = readAll(t, res)
			res.Body.Close()
		}
		return err
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: not reached", what)
			}
		}
	}
	must(t, ask(old))
	must(t, x.in.Process.client.Probe(t.Context()))

	const refused = "new certificate files cannot be used"
	replace(key, []byte("hunter2"))
	until("all are told", func() bool { return strings.Count(r.log.String(), refused) >= 3 })
	must(t, ask(old))
	must(t, x.in.Process.client.Probe(t.Context()))

	renewed := kafkatest.NewCertificate(t)
	broker.Store(renewed)
	if err := x.in.Process.client.Probe(t.Context()); err == nil {
		t.Error("the broker takes the former certificate")
	}
	write(renewed)
	until("all are replaced", func() bool { // some may be twice: between the files of one
		log := r.log.String()
		for _, table := range []string{"kafka.tls", "http.tls", "registry.tls"} {
			if !strings.Contains(log, `msg="certificates replaced" table=`+table) {
				return false
			}
		}
		return true
	})
	must(t, ask(renewed))
	if err := ask(old); err == nil {
		t.Error("the listener has the former certificate")
	}
	must(t, x.in.Process.client.Probe(t.Context()))
	until("the metrics have the renewed certificate's end", func() bool {
		must(t, ask(renewed))
		leaf, err := x509.ParseCertificate(renewed.TLS.Certificate[0])
		must(t, err)
		end := float64(leaf.NotAfter.Unix())
		return strings.Contains(page, fmt.Sprintf("streamdp_certificate_expiry_timestamp_seconds{table=\"http.tls\"} %v\n", end)) &&
			strings.Contains(page, fmt.Sprintf("streamdp_certificate_expiry_timestamp_seconds{table=\"kafka.tls\"} %v\n", end)) &&
			strings.Contains(page, fmt.Sprintf("streamdp_certificate_expiry_timestamp_seconds{table=\"registry.tls\"} %v\n", end))
	})
	x.end()
	if log := r.log.String(); strings.Contains(log, "hunter") || strings.Count(log, refused) != 3 {
		t.Errorf("told %d times", strings.Count(log, refused))
	}
}
