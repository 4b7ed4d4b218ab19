package stream

import (
	"errors"
	"fmt"

	"streamdp/config"
	"streamdp/internal/kafka"
)

// ErrCredentials says that a certificate, a key or a password cannot be used. It may be
// for the cluster or for the HTTP server.
var ErrCredentials = errors.New("credentials")

// ErrCluster says that something needs the files of a state directory, and the configuration has a
// table [cluster].
var ErrCluster = errors.New("not possible with [cluster] in this version: it needs the files of a state directory (streamdp cluster export writes a copy of them, for reading)")

// Cluster returns how to reach the cluster of a configuration. It reads the certificates
// and the password.
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
