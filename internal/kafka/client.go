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
	"github.com/twmb/franz-go/pkg/sasl"
)

const (
	// metadataTTL is the maximum time until a change of leader is noticed: kafka-go refreshes its metadata at random
	// intervals of at most this length.
	metadataTTL = 2 * time.Second
	// requestTimeout is the timeout of every call except a fetch. A produce request tells the broker to give up after
	// half of this time.
	requestTimeout = 30 * time.Second
	// dialTimeout is the timeout for connecting to one address. connectTimeout is the timeout for a whole connection,
	// which may try several addresses and then negotiates TLS, versions and SASL.
	dialTimeout    = 5 * time.Second
	connectTimeout = 15 * time.Second
)

var errClosed = errors.New("the client is closed")

// Options describe how to reach a cluster.
type Options struct {
	// Brokers are the addresses, host:port, from which the cluster is discovered. Required.
	Brokers []string
	// ClientID is the client's name in the brokers' logs. Default "streamdp".
	ClientID string
	// Topics are the topics whose metadata the client follows. A call that names another topic fails with an unknown
	// topic. If Topics is empty, the client follows all topics of the cluster, which is expensive if there are
	// thousands.
	Topics []string
	// TLS enables TLS. It is called for each connection, so that certificates can be replaced
	// while the client is in use. ServerName defaults to the host of each address.
	TLS func() *tls.Config
	// SASL has the credentials, if the brokers require any.
	SASL SASL

	metadataTTL time.Duration // tests shorten it
}

// Client is a connection pool to one cluster. It is safe for concurrent use.
type Client struct {
	brokers   []string
	topics    []string
	clientID  string
	tls       func() *tls.Config
	mechanism sasl.Mechanism
	transport kafkago.Transport
	addr      net.Addr
	api       kafkago.Client
	stop      context.CancelFunc
	fetches   sharedFetches

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
	gates  map[int32]chan struct{} // limits on concurrent requests, by broker
}

// NewClient checks the options. It opens no connection; see Probe.
func NewClient(o Options) (*Client, error) {
	if len(o.Brokers) == 0 {
		return nil, errors.New("kafka: no broker addresses are configured")
	}
	for _, a := range o.Brokers {
		host, port, err := net.SplitHostPort(a)
		if n, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || n == 0 || host == "" {
			return nil, fmt.Errorf("kafka: broker address %q is not host:port", a)
		}
	}
	mechanism, err := o.SASL.Client()
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

		clientID:  id,
		tls:       o.TLS,
		mechanism: mechanism,
	}
	c.transport.Dial = c.dial
	c.transport.DialTimeout = connectTimeout
	c.transport.MetadataTTL = metadataTTL
	if o.metadataTTL > 0 {
		c.transport.MetadataTTL = o.metadataTTL
	}
	c.transport.MetadataTopics = c.topics
	c.transport.ClientID = id
	c.transport.Context = ctx
	c.fetches.c = c
	c.api = kafkago.Client{Addr: c.addr, Timeout: requestTimeout, Transport: &c.transport}
	return c, nil
}

// Close ends every call in progress and closes all connections. The client cannot be used afterwards: later calls, and
// a Fetch in progress, return an Error that is not Retriable.
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
	// A connection in a long poll is not idle, so it would stay open until the broker answers.
	for conn := range conns {
		conn.Close()
	}
}

func (c *Client) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// dial opens a connection, with TLS and authentication, that Close can close. kafka-go receives it as a connection that
// needs neither.
func (c *Client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if c.isClosed() {
		return nil, errClosed
	}
	d := net.Dialer{Timeout: dialTimeout}
	raw, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	t := &trackedConn{Conn: raw, owner: c}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		raw.Close()
		return nil, errClosed
	}
	c.conns[t] = struct{}{}
	c.mu.Unlock()
	conn, err := c.greet(ctx, t, address)
	if err != nil {
		t.Close()
		return nil, err
	}
	return conn, nil
}

// greet performs the TLS handshake and authentication on a new connection.
func (c *Client) greet(ctx context.Context, conn net.Conn, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if c.tls != nil {
		config := c.tls().Clone()
		if config.ServerName == "" {
			config.ServerName, _, _ = net.SplitHostPort(address)
		}
		secured := tls.Client(conn, config)
		if err := secured.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		conn = secured
	}
	if c.mechanism == nil {
		return conn, nil
	}
	if deadline, ok := ctx.Deadline(); ok {
		conn.SetDeadline(deadline)
	}
	interrupted := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	s, err := newSession(ctx, conn, c.mechanism, address, c.clientID)
	if !interrupted() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	return s, conn.SetDeadline(time.Time{})
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

// roundTrip sends one request. It adds a timeout, which kafka-go does not have. After Close it returns an error;
// kafka-go would open a new pool of connections.
func (c *Client) roundTrip(ctx context.Context, timeout time.Duration, req protocol.Message) (protocol.Message, error) {
	if c.isClosed() {
		return nil, errClosed
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	m, err := c.transport.RoundTrip(ctx, c.addr, req)
	if err != nil && c.isClosed() {
		err = errClosed // replaces the errors of the closed connections
	}
	return m, err
}

// Probe connects to the brokers, over one new connection each, and returns nil as soon as one of them has accepted the
// credentials and answered. It exists because in all other calls the pool reports a wrong address or password as a
// topic that is not found.
func (c *Client) Probe(ctx context.Context) error {
	// The remaining probes end after Probe returns, so they have a context of their own.
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
			hint := "the broker may expect TLS"
			if c.tls != nil {
				hint = "the broker may not support TLS"
			} else if c.mechanism == nil {
				hint = "the broker may expect TLS or SASL"
			}
			e.err = fmt.Errorf("%w: %s", e.err, hint)
		}
		return fmt.Errorf("broker %s: %w", address, err)
	}
	if c.isClosed() {
		return fail(errClosed)
	}
	raw, err := c.dial(ctx, "tcp", address)
	if err != nil {
		return fail(err)
	}
	// kafka.Conn does not support contexts, so its socket is closed when the context ends.
	defer context.AfterFunc(ctx, func() { raw.Close() })()
	conn := kafkago.NewConnWith(raw, kafkago.ConnConfig{ClientID: c.clientID})
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		conn.SetDeadline(deadline)
	}
	if _, err := conn.ApiVersions(); err != nil {
		return fail(err)
	}
	return nil
}
