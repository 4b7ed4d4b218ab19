package stream_test

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

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/twmb/franz-go/pkg/kfake"
)

// TestCertificatesReplaced replaces certificates and authorities while a daemon runs. The daemon uses the new ones for
// its next connections, both to brokers and from HTTP clients. Files that cannot be used change nothing, and are
// reported once.
func TestCertificatesReplaced(t *testing.T) {
	t.Parallel()
	var broker atomic.Pointer[kafkatest.Certificate]
	old := kafkatest.NewCertificate(t)
	broker.Store(old)
	b, err := embedded.Start(embedded.Options{Topics: []string{"orders"}, Extra: []kfake.Opt{
		kfake.TLS(&tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c := broker.Load()
			return &tls.Config{Certificates: []tls.Certificate{c.TLS}, ClientAuth: tls.RequireAndVerifyClientCert,
				ClientCAs: c.Pool}, nil
		}}),
	}})
	fixtures.Must(t, err)
	t.Cleanup(b.Close)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key.pem")
	// The daemon checks the files every few milliseconds, so a file must never be half written.
	replace := func(name string, text []byte) {
		t.Helper()
		fixtures.Must(t, os.WriteFile(name+".new", text, 0o600))
		fixtures.Must(t, os.Rename(name+".new", name))
	}
	write := func(c *kafkatest.Certificate) {
		t.Helper()
		replace(cert, c.Cert)
		replace(key, c.Key)
	}
	write(old)
	r := streamtest.NewRigAt(t, b, b.Addr(),
		fmt.Sprintf("[kafka.tls]\nca_file = %[1]q\ncert_file = %[1]q\nkey_file = %[2]q\n"+
			"[registry]\nurls = [\"https://localhost:1\"]\n[registry.tls]\ncert_file = %[1]q\nkey_file = %[2]q\n", cert,
			key)+fixtures.OrdersStream)
	r.Http = fmt.Sprintf("[http.tls]\ncert_file = %q\nkey_file = %q", cert, key)
	o, err := connect.Cluster(r.Options().Config)
	fixtures.Must(t, err)
	if r.Client, err = kafka.NewClient(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Client.Close)
	r.Produce(0, 150)
	x := r.Start()
	x.Published(1)
	page := ""
	ask := func(c *kafkatest.Certificate) error {
		client := &http.Client{
			Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: c.Pool}, DisableKeepAlives: true}}
		res, err := client.Get("https://" + x.D.Addr() + "/metrics")
		if err == nil {
			page = fixtures.ReadAll(t, res)
			res.Body.Close()
		}
		return err
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(fixtures.Patience); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: not reached", what)
			}
		}
	}
	fixtures.Must(t, ask(old))
	fixtures.Must(t, x.In.Process.Client.Probe(t.Context()))

	const refused = "cannot use the new certificate files"
	replace(key, []byte("hunter2"))
	until("all are told", func() bool { return strings.Count(r.Log.String(), refused) >= 3 })
	fixtures.Must(t, ask(old))
	fixtures.Must(t, x.In.Process.Client.Probe(t.Context()))

	renewed := kafkatest.NewCertificate(t)
	broker.Store(renewed)
	if err := x.In.Process.Client.Probe(t.Context()); err == nil {
		t.Error("the broker accepts the former certificate")
	}
	write(renewed)
	until("all are replaced", func() bool { // some may be replaced twice, if the daemon looks between two files
		log := r.Log.String()
		for _, table := range []string{"kafka.tls", "http.tls", "registry.tls"} {
			if !strings.Contains(log, `msg="certificates replaced" table=`+table) {
				return false
			}
		}
		return true
	})
	fixtures.Must(t, ask(renewed))
	if err := ask(old); err == nil {
		t.Error("the listener still has the former certificate")
	}
	fixtures.Must(t, x.In.Process.Client.Probe(t.Context()))
	until("the metrics have the renewed certificate's end", func() bool {
		fixtures.Must(t, ask(renewed))
		leaf, err := x509.ParseCertificate(renewed.TLS.Certificate[0])
		fixtures.Must(t, err)
		end := float64(leaf.NotAfter.Unix())
		return strings.Contains(page,
			fmt.Sprintf("streamdp_certificate_expiry_timestamp_seconds{table=\"http.tls\"} %v\n", end)) &&
			strings.Contains(page,
				fmt.Sprintf("streamdp_certificate_expiry_timestamp_seconds{table=\"kafka.tls\"} %v\n", end)) &&
			strings.Contains(page,
				fmt.Sprintf("streamdp_certificate_expiry_timestamp_seconds{table=\"registry.tls\"} %v\n", end))
	})
	x.End()
	if log := r.Log.String(); strings.Contains(log, "hunter") || strings.Count(log, refused) != 3 {
		t.Errorf("reported %d times", strings.Count(log, refused))
	}
}
