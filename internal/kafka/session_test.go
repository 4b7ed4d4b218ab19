package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"

	"github.com/streamdp/streamdp/internal/kafka/embedded"
)

// shown counts how often a mechanism was asked for credentials; while it is empty, there are no credentials.
type shown struct {
	sasl.Mechanism
	n     atomic.Int64
	empty atomic.Bool
}

func (s *shown) Authenticate(ctx context.Context, host string) (sasl.Session, []byte, error) {
	if s.n.Add(1); s.empty.Load() {
		return nil, nil, errors.New("nothing to show")
	}
	return s.Mechanism.Authenticate(ctx, host)
}

// TestSessionRenews: a connection re-authenticates before the broker ends its session, and not in the middle of a
// request. Missing credentials are an error only when the session has ended.
func TestSessionRenews(t *testing.T) {
	t.Parallel()
	b := startBroker(t, embedded.Options{Topics: []string{"in"}, Extra: []kfake.Opt{
		kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-512", "u", "secret"),
		kfake.BrokerConfigs(map[string]string{"connections.max.reauth.ms": "60000"}),
	}})
	var handshakes atomic.Int64
	b.Cluster().ControlKey(int16(kmsg.SASLHandshake), func(kmsg.Request) (kmsg.Response, error, bool) {
		b.Cluster().KeepControl()
		handshakes.Add(1)
		return nil, nil, false
	})
	c, err := NewClient(
		Options{Brokers: b.Addrs(), SASL: SASL{Mechanism: "scram-sha-512", Username: "u", Password: "secret"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m := &shown{Mechanism: c.mechanism}
	c.mechanism = m
	raw, err := c.dial(t.Context(), "tcp", b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	s := raw.(*session)
	if life := time.Until(s.ends); life <= 0 || life > time.Minute || s.ends.Sub(s.renew) != 12*time.Second {
		t.Fatalf("ends in %v, %v after the renewal", life, s.ends.Sub(s.renew))
	}
	due := false // credentials are due in the middle of the request
	ask := func() error {
		req := kmsg.NewPtrMetadataRequest()
		req.Version = 4
		msg := kmsg.NewRequestFormatter().AppendRequest(nil, req, 7)
		// The request is written in pieces, as kafka-go does: credentials between them would break it.
		for len(msg) > 0 {
			n, err := s.Write(msg[:min(5, len(msg))])
			if err != nil {
				return err
			}
			msg = msg[n:]
			if due {
				s.renew = time.Now().Add(-time.Second)
			}
		}
		var head [8]byte
		if _, err := readFull(s, head[:]); err != nil {
			return err
		}
		if head[7] != 7 {
			return fmt.Errorf("answer %v", head)
		}
		_, err := readFull(s, make([]byte, int(head[2])<<8+int(head[3])-4))
		return err
	}
	step := func(what string, handshake, shows int64) {
		t.Helper()
		if err := ask(); err != nil || handshakes.Load() != handshake || m.n.Load() != shows {
			t.Fatalf("%s: %v, %d handshakes, shown %d times, want %d and %d", what, err, handshakes.Load(), m.n.Load(),
				handshake, shows)
		}
	}
	step("at once", 1, 1)
	due = true
	step("due in the middle of a request", 1, 1)
	due = false
	step("then at the next one", 2, 2)
	s.renew = time.Now().Add(-time.Second)
	step("when it is due", 3, 3)
	step("not at every request", 3, 3)
	m.empty.Store(true)
	s.renew = time.Now()
	step("without credentials, while the session lasts", 3, 4)
	s.renew, s.ends = time.Now().Add(-2*time.Second), time.Now().Add(-time.Second)
	err = ask()
	if e, ok := callError(t.Context(), "fetch", "in", 0, err).(*Error); !ok || e.Label() != "token" || !e.Retriable() ||
		Unauthorized(e) || handshakes.Load() != 3 {
		t.Fatalf("without credentials, after the session: %v", err)
	}
}

func readFull(s *session, b []byte) (n int, err error) {
	for n < len(b) {
		m, err := s.Read(b[n:])
		if n += m; err != nil {
			return n, err
		}
	}
	return n, nil
}

// TestBearer: OAUTHBEARER's messages follow RFC 7628, and a refusal has its reason.
func TestBearer(t *testing.T) {
	m, err := SASL{Mechanism: "oauthbearer", Token: func(context.Context) (Token, error) {
		return Token{"vF9dft4qmT", [][2]string{{"logicalCluster", "lkc-1"}, {"identityPoolId", "p"}}}, nil
	}}.Client()
	if err != nil {
		t.Fatal(err)
	}
	s, msg, err := m.Authenticate(t.Context(), "b:9092")
	if err != nil || m.Name() != "OAUTHBEARER" ||
		string(msg) != "n,,\x01auth=Bearer vF9dft4qmT\x01logicalCluster=lkc-1\x01identityPoolId=p\x01\x01" {
		t.Fatalf("%s %q, %v", m.Name(), msg, err)
	}
	if done, more, err := s.Challenge(nil); !done || more != nil || err != nil {
		t.Errorf("accepted: %v %q %v", done, more, err)
	}
	for answer, want := range map[string]string{
		`{"status":"invalid_token","scope":""}`: `"invalid_token"`, "x": "no reason given",
	} {
		if done, _, err := s.Challenge([]byte(answer)); done || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v %v", answer, done, err)
		}
	}
	for name, token := range map[string]func(context.Context) (Token, error){
		"none":  func(context.Context) (Token, error) { return Token{}, errors.New("no file") },
		"empty": func(context.Context) (Token, error) { return Token{}, nil },
	} {
		m, err := SASL{Mechanism: "oauthbearer", Token: token}.Client()
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := m.Authenticate(t.Context(), "b:9092"); !uncredited(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := (SASL{Mechanism: "oauthbearer"}).Client(); err == nil {
		t.Error("without tokens")
	}
}
