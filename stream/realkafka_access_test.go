package stream_test

import (
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// issuer is an OAuth server that issues unsigned tokens of user streamdp over TLS.
type issuer struct {
	url, ca string
	asked   atomic.Int64
	closed  atomic.Bool
}

func newIssuer(t *testing.T, dir string, life time.Duration) *issuer {
	t.Helper()
	c, x := kafkatest.NewCertificate(t), &issuer{ca: filepath.Join(dir, "issuer.pem")}
	fixtures.Must(t, os.WriteFile(x.ca, c.Cert, 0o600))
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x.asked.Add(1)
		if user, secret, _ := r.BasicAuth(); x.closed.Load() || user != "streamdp" || secret != "hunter2" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token": %q, "token_type": "bearer", "expires_in": %d}`, unsigned("streamdp", life),
			int(life.Seconds()))
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{c.TLS}}
	s.StartTLS()
	t.Cleanup(s.Close)
	x.url = s.URL
	return x
}

// unsigned returns a token of a user that expires after some time.
func unsigned(user string, life time.Duration) string {
	part := base64.RawURLEncoding.EncodeToString
	now := time.Now()
	return part([]byte(`{"alg":"none"}`)) + "." +
		part(
			fmt.Appendf(nil, `{"sub":%q,"iat":%.3f,"exp":%.3f}`, user, float64(now.UnixMilli())/1e3,
				float64(now.Add(life).UnixMilli())/1e3)) + "."
}

// grantSite allows user streamdp what docs/howto/access.md says that a daemon needs, and waits until the broker applies
// it.
func grantSite(b *kafkatest.Real, s *streamtest.Site) {
	s.T.Helper()
	b.Grant(kmsg.ACLResourceTypeTopic, s.In, kmsg.ACLOperationRead, kmsg.ACLOperationDescribeConfigs)
	b.Grant(kmsg.ACLResourceTypeTopic, s.Out, kmsg.ACLOperationRead, kmsg.ACLOperationWrite, kmsg.ACLOperationCreate)
	o := kafka.Options{Brokers: []string{b.SASL},
		SASL: kafka.SASL{Mechanism: "plain", Username: "streamdp", Password: "secret"}}
	needs := []connect.Right{
		{Kind: "topic", Name: s.In, Operations: []string{"Read", "DescribeConfigs"}},
		{Kind: "topic", Name: s.Out, Operations: []string{"Read", "Write", "Create"}},
	}
	for late := time.Now().Add(fixtures.Patience); ; time.Sleep(20 * time.Millisecond) {
		missing, err := connect.MissingRights(s.T.Context(), o, needs)
		if err == nil && len(missing) == 0 {
			return
		}
		if time.Now().After(late) {
			s.T.Fatalf("still missing: %v, %v", missing, err)
		}
	}
}

// TestRealKafkaOAuth: a daemon's tokens expire while it runs. Its connections present new ones in time, and no request
// fails. While the OAuth server issues none, the task waits and says why.
func TestRealKafkaOAuth(t *testing.T) {
	b := kafkatest.NewReal(t)
	if b.SASL == "" {
		t.Skip("this broker has no listener with SASL: make test-kafka starts one that has")
	}
	s := streamtest.NewSite(t, b.Addrs, kafkatest.Topic(t, b.Addrs, nil))
	x := newIssuer(t, s.Dir, 6*time.Second)
	secret := filepath.Join(s.Dir, "secret")
	fixtures.Must(t, os.WriteFile(secret, []byte("hunter2\n"), 0o600))
	s.Log = &fixtures.Journal{}
	s.Edit = strings.NewReplacer(fmt.Sprintf("brokers = [%q]", b.Addrs[0]), fmt.Sprintf(`brokers = [%q]
[kafka.sasl]
mechanism          = "oauthbearer"
token_url          = %q
token_ca_file      = %q
client_id          = "streamdp"
client_secret_file = %q
`, b.SASL, x.url, x.ca, secret))
	grantSite(b, s)
	w := streamtest.NewTraffic(t, b.Addrs, s.In)
	d := s.Run()
	for begun := time.Now(); time.Since(begun) < 9*time.Second; time.Sleep(50 * time.Millisecond) {
		w.Write(20)
		if st := d.D.Status()[0]; st.State == monitor.StateRetrying {
			t.Fatalf("retrying: %s", st.Message)
		}
	}
	w.Settle(s)
	d.Published(uint64(w.Slots / 100))
	if n := x.asked.Load(); n < 2 || n > 4 {
		t.Errorf("%d requests for tokens that last 6 s, in 9 s", n)
	}
	if log := s.Log.String(); strings.Contains(log, "level=WARN") || strings.Contains(log, "level=ERROR") {
		t.Errorf("warnings or errors:\n%s", log)
	}
	x.closed.Store(true)
	d.Wait("trouble", func(st monitor.TaskStatus) bool {
		return st.State == monitor.StateRetrying && strings.Contains(st.Message, ": 503 Service Unavailable")
	})
	x.closed.Store(false)
	w.Write(300)
	w.Settle(s)
	d.Published(uint64(w.Slots / 100))
	d.End()
	w.Expect(s.Output())
	if log := s.Log.String(); strings.Contains(log, "hunter2") || strings.Contains(log, "eyJ") {
		t.Error("the log has a secret")
	}
}

// TestRealKafkaCertificates: a daemon's certificate is replaced while it runs. After the former one has expired, and
// every connection with it, the daemon continues and has lost nothing.
func TestRealKafkaCertificates(t *testing.T) {
	b := kafkatest.NewReal(t)
	if b.Mutual == "" {
		t.Skip(
			"this broker has no listener with mutual TLS: make test-kafka starts one that has, where there is openssl")
	}
	s := streamtest.NewSite(t, b.Addrs, kafkatest.Topic(t, b.Addrs, nil))
	cert, key := filepath.Join(s.Dir, "cert.pem"), filepath.Join(s.Dir, "key.pem")
	write := func(c *kafkatest.Certificate) {
		fixtures.Must(t, os.WriteFile(cert, c.Cert, 0o600))
		fixtures.Must(t, os.WriteFile(key, c.Key, 0o600))
	}
	s.Log = &fixtures.Journal{}
	s.Edit = strings.NewReplacer(fmt.Sprintf("brokers = [%q]", b.Addrs[0]), fmt.Sprintf(`brokers = [%q]
[kafka.tls]
ca_file   = %q
cert_file = %q
key_file  = %q
`, b.Mutual, b.Authority(), cert, key))
	grantSite(b, s)
	w := streamtest.NewTraffic(t, b.Addrs, s.In)
	w.Write(300)
	w.Settle(s)
	const life = 12 * time.Second
	former, begun := b.Certificate(life), time.Now()
	write(former)
	d := s.Run()
	d.Published(3)
	write(b.Certificate(time.Hour))
	d.Wait("the new certificate",
		func(monitor.TaskStatus) bool { return strings.Contains(s.Log.String(), "certificates replaced") })
	time.Sleep(time.Until(begun.Add(life + time.Second)))
	b.Kill()
	b.Start()
	w.Write(300)
	w.Settle(s)
	d.Published(uint64(w.Slots / 100))
	d.End()
	w.Expect(s.Output())

	// The former certificate is refused now, so the daemon must have used the new one.
	write(former)
	d = s.Run()
	d.Wait("the end of the certificate", func(st monitor.TaskStatus) bool {
		return st.State == monitor.StateRetrying && strings.Contains(st.Message, "certificate")
	})
	d.End()
}
