package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

const (
	// metadataTTL bounds how long a moved leader goes unnoticed: kafka-go
	// refreshes at random moments up to this long apart.
	metadataTTL = 2 * time.Second
	// requestTimeout bounds every call but a fetch. The broker is told to give
	// up on a produce after half of it.
	requestTimeout = 30 * time.Second
	// dialTimeout bounds connecting to one address; a connection may try
	// several, and then negotiates TLS, versions and SASL.
	dialTimeout    = 5 * time.Second
	connectTimeout = 15 * time.Second
)

var errClosed = errors.New("the client is closed")

// Options describe how to reach a cluster.
type Options struct {
	// Brokers are addresses, host:port, from which the cluster is discovered.
	// Required.
	Brokers []string
	// ClientID is what brokers log. Default "streamdp".
	ClientID string
	// Topics are the topics whose metadata is followed; calls that name
	// another one fail with an unknown topic. Empty follows all topics of the
	// cluster, which is expensive where there are thousands.
	Topics []string
	// TLS enables TLS. ServerName defaults to the host of each address.
	TLS *tls.Config
	// SASL are the credentials, if the brokers ask for any.
	SASL SASL

	metadataTTL time.Duration // tests shorten it
}

// Client is a connection pool to one cluster. It is safe for concurrent use.
type Client struct {
	brokers   []string
	topics    []string
	dialer    kafkago.Dialer
	transport kafkago.Transport
	addr      net.Addr
	api       kafkago.Client
	stop      context.CancelFunc
	fetches   sharedFetches

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
	gates  map[int32]chan struct{} // by broker
}

// NewClient checks the options. It connects to nothing; see Probe.
func NewClient(o Options) (*Client, error) {
	if len(o.Brokers) == 0 {
		return nil, errors.New("kafka: no broker address is given")
	}
	for _, a := range o.Brokers {
		host, port, err := net.SplitHostPort(a)
		if n, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || n == 0 || host == "" {
			return nil, fmt.Errorf("kafka: broker address %q is not host:port", a)
		}
	}
	mechanism, err := o.SASL.mechanism()
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	id := o.ClientID
	if id == "" {
		id = "streamdp"
	}
	ctx, stop := context.WithCancel(context.Background())
	c := &Client{
		brokers: slices.Clone(o.Brokers),
		topics:  slices.Clone(o.Topics),
		addr:    kafkago.TCP(o.Brokers...),
		stop:    stop,
		conns:   make(map[net.Conn]struct{}),
	}
	c.dialer = kafkago.Dialer{
		ClientID:      id,
		Timeout:       connectTimeout,
		DialFunc:      c.dial,
		TLS:           o.TLS,
		SASLMechanism: mechanism,
	}
	c.transport.Dial = c.dial
	c.transport.DialTimeout = connectTimeout
	c.transport.MetadataTTL = metadataTTL
	if o.metadataTTL > 0 {
		c.transport.MetadataTTL = o.metadataTTL
	}
	c.transport.MetadataTopics = c.topics
	c.transport.ClientID = id
	c.transport.TLS = o.TLS
	c.transport.SASL = mechanism
	c.transport.Context = ctx
	c.fetches.c = c
	c.api = kafkago.Client{Addr: c.addr, Timeout: requestTimeout, Transport: &c.transport}
	return c, nil
}

// Close ends every call in progress and closes all connections. The client
// cannot be used afterwards.
func (c *Client) Close() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	conns := c.conns
	c.conns = nil
	c.mu.Unlock()
	c.stop()
	c.transport.CloseIdleConnections()
	// A connection in the middle of a long poll is not idle and would stay
	// until the broker answers.
	for conn := range conns {
		conn.Close()
	}
}

func (c *Client) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// dial opens a connection that Close knows of.
func (c *Client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if c.isClosed() {
		return nil, errClosed
	}
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	t := &trackedConn{Conn: conn, owner: c}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		conn.Close()
		return nil, errClosed
	}
	c.conns[t] = struct{}{}
	return t, nil
}

type trackedConn struct {
	net.Conn
	owner *Client
}

func (t *trackedConn) Close() error {
	t.owner.mu.Lock()
	delete(t.owner.conns, t)
	t.owner.mu.Unlock()
	return t.Conn.Close()
}

// roundTrip sends one request. kafka-go has no timeout of its own, and after
// Close it would open a new pool of connections.
func (c *Client) roundTrip(ctx context.Context, timeout time.Duration, req protocol.Message) (protocol.Message, error) {
	if c.isClosed() {
		return nil, errClosed
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return c.transport.RoundTrip(ctx, c.addr, req)
}

// Probe connects to the brokers, one new connection each, and returns nil as
// soon as one of them has accepted the credentials and answered. It exists
// because the pool reports a wrong address or password in all other calls as a
// topic that is not found.
func (c *Client) Probe(ctx context.Context) error {
	// Ending the probes that are still under way is not the caller's business,
	// so they have a context of their own.
	probes, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	results := make(chan error, len(c.brokers))
	for _, a := range c.brokers {
		go func() { results <- c.probe(ctx, probes, a) }()
	}
	var all []error
	for range c.brokers {
		err := <-results
		if err == nil {
			return nil
		}
		all = append(all, err)
	}
	return errors.Join(all...)
}

func (c *Client) probe(caller, ctx context.Context, address string) error {
	fail := func(err error) error {
		err = callError(caller, "connect", "", -1, err)
		var e *Error
		if errors.As(err, &e) && e.kind == kindNetwork && e.err.Error() == "the broker closed the connection" {
			hint := "it may expect TLS"
			if c.dialer.TLS != nil {
				hint = "it may not speak TLS"
			} else if c.dialer.SASLMechanism == nil {
				hint = "it may expect TLS or SASL"
			}
			e.err = fmt.Errorf("%w: %s", e.err, hint)
		}
		return fmt.Errorf("broker %s: %w", address, err)
	}
	if c.isClosed() {
		return fail(errClosed)
	}
	// kafka.Conn knows no context: its socket is closed when the context ends.
	d := c.dialer
	var release func() bool
	d.DialFunc = func(dctx context.Context, network, a string) (net.Conn, error) {
		conn, err := c.dial(dctx, network, a)
		if err == nil {
			release = context.AfterFunc(ctx, func() { conn.Close() })
		}
		return conn, err
	}
	conn, err := d.DialContext(ctx, "tcp", address)
	defer func() {
		if release != nil {
			release()
		}
	}()
	if err != nil {
		return fail(err)
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		conn.SetDeadline(deadline)
	}
	if _, err := conn.ApiVersions(); err != nil {
		return fail(err)
	}
	return nil
}
