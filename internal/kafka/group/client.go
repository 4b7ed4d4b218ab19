package group

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamdp/streamdp/internal/kafka"
)

// dialTimeout is the maximum time to connect to a broker, including TLS.
const dialTimeout = 10 * time.Second

// clientOptions returns the options of a client that reaches the cluster with the same brokers, TLS and credentials as
// kafka.NewClient.
func clientOptions(o kafka.Options) ([]kgo.Opt, error) {
	if len(o.Brokers) == 0 {
		return nil, fmt.Errorf("no broker addresses are configured")
	}
	id := o.ClientID
	if id == "" {
		id = "streamdp"
	}
	opts := []kgo.Opt{kgo.SeedBrokers(o.Brokers...), kgo.ClientID(id), kgo.DisableClientMetrics()}
	if o.TLS != nil {
		opts = append(opts, kgo.Dialer(func(ctx context.Context, network, address string) (net.Conn, error) {
			// The TLS configuration is built for each connection, because certificates may have been replaced.
			d := tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTimeout}, Config: o.TLS()}
			return d.DialContext(ctx, network, address)
		}))
	}
	mechanism, err := o.SASL.Client()
	if err != nil {
		return nil, err
	}
	if mechanism != nil {
		opts = append(opts, kgo.SASL(mechanism))
	}
	return opts, nil
}
