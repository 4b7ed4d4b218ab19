package stream

import (
	"errors"
	"fmt"

	"streamdp/config"
	"streamdp/internal/kafka"
)

// ErrCredentials says that a file with credentials for the cluster can't be
// used.
var ErrCredentials = errors.New("credentials for the cluster")

// Cluster returns how to reach the cluster of a configuration. It reads
// certificates and password.
//
// Errors: ErrCredentials.
func Cluster(c *config.Config) (kafka.Options, error) {
	o := kafka.Options{Brokers: c.Kafka.Brokers, ClientID: c.Kafka.ClientID}
	if t := c.Kafka.TLS; t != nil {
		var err error
		if o.TLS, err = config.LoadTLS(t, c.State.KeyGroupReadable); err != nil {
			return o, fmt.Errorf("%w: %w", ErrCredentials, err)
		}
	}
	if s := c.Kafka.SASL; s != nil {
		password, err := config.LoadPassword(s.PasswordFile, c.State.KeyGroupReadable)
		if err != nil {
			return o, fmt.Errorf("%w: %w", ErrCredentials, err)
		}
		o.SASL = kafka.SASL{Mechanism: s.Mechanism, Username: s.Username, Password: password}
	}
	return o, nil
}
