package kafka

import (
	"context"
	"fmt"

	kafkasasl "github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	franzsasl "github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// SASL are the credentials of a client.
type SASL struct {
	// Mechanism is "plain", "scram-sha-256" or "scram-sha-512". Empty: none.
	Mechanism string
	// Username and Password are sent (plain) or proved (scram) to the broker.
	Username, Password string
}

func (s SASL) mechanism() (kafkasasl.Mechanism, error) {
	auth := scram.Auth{User: s.Username, Pass: s.Password}
	switch s.Mechanism {
	case "":
		return nil, nil
	case "plain":
		return plain.Mechanism{Username: s.Username, Password: s.Password}, nil
	case "scram-sha-256":
		return challenged{auth.AsSha256Mechanism()}, nil
	case "scram-sha-512":
		return challenged{auth.AsSha512Mechanism()}, nil
	}
	return nil, fmt.Errorf("sasl mechanism %q is none of plain, scram-sha-256, scram-sha-512", s.Mechanism)
}

// challenged makes franz-go's SCRAM usable in kafka-go, whose own needs four
// more modules for preparing strings that Kafka brokers do not prepare.
type challenged struct{ franzsasl.Mechanism }

func (m challenged) Start(ctx context.Context) (kafkasasl.StateMachine, []byte, error) {
	host := ""
	if md := kafkasasl.MetadataFromContext(ctx); md != nil {
		host = md.Host
	}
	s, first, err := m.Authenticate(ctx, host)
	return challengedSession{s}, first, err
}

type challengedSession struct{ franzsasl.Session }

func (s challengedSession) Next(_ context.Context, challenge []byte) (bool, []byte, error) {
	return s.Challenge(challenge)
}
