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

// A session is a connection that authenticates, and authenticates again before the broker would close it (KIP-368).
// kafka-go authenticates only once. A broker with connections.max.reauth.ms would close kafka-go's connections in the
// middle of their work, also when a token expires.
//
// The user of the connection sends a request and reads the whole answer before the next request. So the first Write
// after a Read begins a new request while none is in progress, and the session can send its own requests at that
// moment.
type session struct {
	net.Conn
	mechanism sasl.Mechanism
	address   string
	clientID  string
	version   int16 // version of the SaslAuthenticate request
	between   bool  // whether no request is in progress
	id        int32 // id of the session's own last request

	// The broker ends the session at ends. From renew on, the session re-authenticates. Zero times: never.
	renew, ends time.Time
}

const (
	// renewAt is the percentage of its lifetime after which a session re-authenticates. Java's client uses 85 to 95.
	renewAt = 80
	// leastSession is the least time between two authentications that brokers accept, plus a margin for differing
	// clocks.
	leastSession = 1100 * time.Millisecond
	// maxSASLAnswer is the maximum size of an answer; a larger one is not from a Kafka broker.
	maxSASLAnswer = 1 << 20
)

// newSession authenticates to the broker at address. It does not close conn.
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

// Write re-authenticates first if that is due and b is the beginning of a request.
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

// again re-authenticates. If no credentials can be obtained, it returns no error as long as the session lasts: the next
// request tries again.
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
	// Get the credentials first: if there are none, nothing has been sent to the broker yet.
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
		case errors.Is(err, io.EOF): // some brokers refuse credentials this way
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

// exchange sends one of the session's own requests and reads its answer. These requests have negative ids, outside of
// kafka-go's count, and kafka-go does not see their answers.
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
