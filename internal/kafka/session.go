package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
)

// A session is a connection that has shown its credentials, and shows them again before the
// broker ends it (KIP-368). kafka-go shows them once: its connections would be closed in the
// middle of the work of a broker with connections.max.reauth.ms, or when a token expires.
//
// The user of the connection sends a request and reads the whole answer before the next
// request. So the first Write after a Read begins a request, and nothing is under way: there
// the session may speak itself.
type session struct {
	net.Conn
	mechanism sasl.Mechanism
	address   string
	clientID  string
	version   int16 // of SaslAuthenticate
	between   bool  // no request is under way
	id        int32 // of the last request of the session itself

	// The broker answers until ends; from renew on the credentials are shown again. Zero: never.
	renew, ends time.Time
}

const (
	// renewAt is the part of a session's life after which the credentials are shown again, in
	// percent. Java's client does it at 85 to 95.
	renewAt = 80
	// leastSession is the least time between two authentications that brokers accept, and
	// something for the clocks.
	leastSession = 1100 * time.Millisecond
	// maxSASLAnswer is the size of an answer beyond which it is none of a broker.
	maxSASLAnswer = 1 << 20
)

// newSession shows the credentials to the broker at address. It does not close conn.
func newSession(ctx context.Context, conn net.Conn, mechanism sasl.Mechanism, address,
	clientID string) (*session, error) {
	s := &session{Conn: conn, mechanism: mechanism, address: address, clientID: clientID}
	versions := kmsg.NewPtrApiVersionsRequest()
	offered := kmsg.NewPtrApiVersionsResponse()
	if err := s.exchange(versions, offered); err != nil {
		return nil, err
	}
	for _, k := range offered.ApiKeys {
		if k.ApiKey == int16(kmsg.SASLAuthenticate) {
			s.version = min(1, k.MaxVersion)
		}
	}
	if err := s.authenticate(ctx); err != nil {
		return nil, err
	}
	s.between = true
	return s, nil
}

// Write shows the credentials first, where that is due and a request begins.
func (s *session) Write(b []byte) (int, error) {
	if s.between && !s.renew.IsZero() && time.Now().After(s.renew) {
		if err := s.again(); err != nil {
			return 0, err
		}
	}
	s.between = false
	return s.Conn.Write(b)
}

func (s *session) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	s.between = s.between || n > 0
	return n, err
}

// again shows the credentials once more. While the session lasts it is no failure that there
// are none: the next request tries again.
func (s *session) again() error {
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	err := s.authenticate(ctx)
	var none *credentialsError
	if errors.As(err, &none) && time.Now().Before(s.ends) {
		s.renew = time.Now().Add(time.Second)
		return nil
	}
	return err
}

func (s *session) authenticate(ctx context.Context) error {
	begun := time.Now()
	// The credentials come first: without them, nothing has been said to the broker.
	exchange, msg, err := s.mechanism.Authenticate(ctx, s.address)
	if err != nil {
		var none *credentialsError
		if !errors.As(err, &none) {
			err = &credentialsError{err}
		}
		return err
	}
	hello := kmsg.NewPtrSASLHandshakeRequest()
	hello.Version, hello.Mechanism = 1, s.mechanism.Name()
	greeting := kmsg.NewPtrSASLHandshakeResponse()
	if err := s.exchange(hello, greeting); err != nil {
		return err
	}
	if greeting.ErrorCode != 0 {
		return kafkago.Error(greeting.ErrorCode)
	}
	life := time.Duration(0)
	for done := false; ; {
		req := kmsg.NewPtrSASLAuthenticateRequest()
		req.Version, req.SASLAuthBytes = s.version, msg
		res := kmsg.NewPtrSASLAuthenticateResponse()
		switch err := s.exchange(req, res); {
		case errors.Is(err, io.EOF): // so say some that they refuse the credentials
			return kafkago.SASLAuthenticationFailed
		case err != nil:
			return err
		case res.ErrorCode != 0:
			return kafkago.Error(res.ErrorCode)
		}
		life = time.Duration(min(res.SessionLifetimeMillis, 1<<40)) * time.Millisecond
		if done {
			break
		}
		if done, msg, err = exchange.Challenge(res.SASLAuthBytes); err != nil {
			return fmt.Errorf("%w: %w", kafkago.SASLAuthenticationFailed, err)
		}
		if done && len(msg) == 0 {
			break
		}
	}
	s.renew, s.ends = time.Time{}, time.Time{}
	if life > 0 {
		s.renew = begun.Add(max(life*renewAt/100, leastSession))
		s.ends = begun.Add(life)
	}
	return nil
}

// exchange sends a request and reads its answer. The requests of a session are no part of the
// count of kafka-go, which reads no answer to them.
func (s *session) exchange(req kmsg.Request, res kmsg.Response) error {
	s.id--
	format := kmsg.NewRequestFormatter(kmsg.FormatterClientID(s.clientID))
	msg := format.AppendRequest(nil, req, s.id)
	defer clear(msg)
	if _, err := s.Conn.Write(msg); err != nil {
		return err
	}
	var head [8]byte
	if _, err := io.ReadFull(s.Conn, head[:]); err != nil {
		return err
	}
	size := int32(binary.BigEndian.Uint32(head[:4]))
	if size < 4 || size > maxSASLAnswer || int32(binary.BigEndian.Uint32(head[4:])) != s.id {
		return errors.New("malformed response")
	}
	body := make([]byte, size-4)
	if _, err := io.ReadFull(s.Conn, body); err != nil {
		return err
	}
	res.SetVersion(req.GetVersion())
	return res.ReadFrom(body)
}
