package cluster

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"streamdp/internal/kafka"
)

// clientOptions returns the options of a client that reaches the cluster as kafka.NewClient
// would: same brokers, same TLS, same credentials.
func clientOptions(o kafka.Options) ([]kgo.Opt, error) {
	if len(o.Brokers) == 0 {
		return nil, fmt.Errorf("no broker address is given")
	}
	id := o.ClientID
	if id == "" {
		id = "streamdp"
	}
	opts := []kgo.Opt{kgo.SeedBrokers(o.Brokers...), kgo.ClientID(id), kgo.DisableClientMetrics()}
	if o.TLS != nil {
		opts = append(opts, kgo.DialTLSConfig(o.TLS.Clone()))
	}
	auth := scram.Auth{User: o.SASL.Username, Pass: o.SASL.Password}
	switch o.SASL.Mechanism {
	case "":
	case "plain":
		opts = append(opts, kgo.SASL(plain.Auth{User: o.SASL.Username, Pass: o.SASL.Password}.AsMechanism()))
	case "scram-sha-256":
		opts = append(opts, kgo.SASL(auth.AsSha256Mechanism()))
	case "scram-sha-512":
		opts = append(opts, kgo.SASL(auth.AsSha512Mechanism()))
	default:
		return nil, fmt.Errorf("sasl mechanism %q is none of plain, scram-sha-256, scram-sha-512", o.SASL.Mechanism)
	}
	return opts, nil
}
