// Package registry reads schemas from a schema registry with Confluent's API, which Confluent, Apicurio (at
// /apis/ccompat/v7), Redpanda and Karapace provide.
//
// A [Client] reaches the registry. [Client.Subjects] returns the versions of some subjects; they are the codec.Resolver
// of a stream's decoders. An id in a record influences only whether the list of versions is read again. No id leaves
// the process. An answer that was requested because of one record's id is not kept for other records.
// docs/theory/input.md gives the reason.
package registry

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/sr"
)

// These constants bound the memory and time that answers of a registry can take.
const (
	// MaxAnswer is the largest size of an accepted answer in bytes.
	MaxAnswer = 4 << 20
	// MaxVersions is the largest number of versions that a client reads for one stream's subjects.
	MaxVersions = 10_000
	// maxTexts is the largest total size, in bytes, of the schemas of one stream's subjects.
	maxTexts = 64 << 20
	// atOnce is the number of versions that are read concurrently.
	atOnce = 4
	// maxReferences is the largest number of other schemas to which a schema refers, directly or indirectly.
	maxReferences = 1000
)

// Options say how to reach a registry.
type Options struct {
	// URLs are addresses of the same registry, tried in turn. There must be at least one.
	URLs []string
	// Authorization returns the value of the header Authorization. It is called for every request, because a token in a
	// file may change. Nil: the header is not sent.
	Authorization func() (string, error)
	// TLS returns the TLS configuration for https. If a later call returns another configuration, new connections use
	// it. Nil: the system's authorities are trusted.
	TLS func() *tls.Config
	// Timeout bounds one request. Required.
	Timeout time.Duration

	patience, again, pause time.Duration // tests replace the constants of the same names
}

// These constants decide how long a decoder waits for the registry.
const (
	// patience is the time for which a decoder with an unknown id repeats a failing request.
	patience = 10 * time.Second
	// again is the pause after an answer that lacks the id, before the decoder asks once more. Another instance of the
	// registry may know an id that this one does not know yet.
	again = 50 * time.Millisecond
	// pause is the time between failing requests.
	pause = 500 * time.Millisecond
)

// Client reaches one registry. It is safe for concurrent use.
type Client struct {
	options Options
	http    *http.Client
	servers []*sr.Client // one for each URL

	mu       sync.Mutex
	first    int                  // index of the server that answered last
	subjects map[string]*Subjects // by name
}

// New returns a client. It sends nothing yet.
//
// Errors: a URL is invalid.
func New(o Options) (*Client, error) {
	c := &Client{options: o, subjects: map[string]*Subjects{}}
	for d, or := range map[*time.Duration]time.Duration{&c.options.patience: patience, &c.options.again: again,
		&c.options.pause: pause} {
		if *d == 0 {
			*d = or
		}
	}
	c.http = &http.Client{
		Transport:     bounded{&rotating{tls: o.TLS}},
		Timeout:       o.Timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if len(o.URLs) == 0 {
		return nil, errors.New("registry: no URL")
	}
	for _, u := range o.URLs {
		server, err := sr.NewClient(sr.URLs(u), sr.HTTPClient(c.http), sr.UserAgent("streamdp"), sr.PreReq(c.authorize))
		if err != nil {
			return nil, fmt.Errorf("registry: %w", err)
		}
		c.servers = append(c.servers, server)
	}
	return c, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

func (c *Client) authorize(req *http.Request) error {
	if c.options.Authorization == nil {
		return nil
	}
	value, err := c.options.Authorization()
	if err == nil {
		req.Header.Set("Authorization", value)
	}
	return err
}

// rotating is a transport whose connections use the current TLS configuration.
type rotating struct {
	tls func() *tls.Config // nil: system defaults

	mu        sync.Mutex
	now       *tls.Config
	transport *http.Transport // current transport; nil before the first request
}

func (r *rotating) RoundTrip(req *http.Request) (*http.Response, error) {
	return r.present().RoundTrip(req)
}

func (r *rotating) present() *http.Transport {
	var now *tls.Config
	if r.tls != nil {
		now = r.tls()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.transport == nil || now != r.now {
		r.close()
		r.transport, r.now = http.DefaultTransport.(*http.Transport).Clone(), now
		if now != nil {
			r.transport.TLSClientConfig = now.Clone()
		}
	}
	return r.transport
}

func (r *rotating) close() {
	if r.transport != nil {
		r.transport.CloseIdleConnections()
	}
}

// CloseIdleConnections is called by http.Client.CloseIdleConnections.
func (r *rotating) CloseIdleConnections() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.close()
}

// bounded is a transport that refuses answers above MaxAnswer.
type bounded struct{ *rotating }

func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.rotating.RoundTrip(req)
	if err == nil {
		resp.Body = &boundedBody{resp.Body, MaxAnswer}
	}
	return resp, err
}

type boundedBody struct {
	io.ReadCloser
	left int
}

// errTooLarge is the error of an answer that is too large.
var errTooLarge = errors.New("the answer is larger than " + strconv.Itoa(MaxAnswer>>20) + " MiB")

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= n; b.left < 0 {
		return 0, errTooLarge
	}
	return n, err
}

// ErrNotThere says that the registry does not have the subject or version.
var ErrNotThere = errors.New("is not in the registry")

// ask calls one server after another until one answers. If none answers, the error contains the errors of all servers,
// without credentials and ids of records. A server's answer that something is missing (ErrNotThere), or an answer that
// is too large (errTooLarge), is final.
func (c *Client) ask(call func(*sr.Client) error) error {
	c.mu.Lock()
	first := c.first
	c.mu.Unlock()
	var errs []error
	for i := range c.servers {
		n := (first + i) % len(c.servers)
		err := call(c.servers[n])
		var refused *sr.ResponseError
		switch {
		case err == nil:
			c.mu.Lock()
			c.first = n
			c.mu.Unlock()
			return nil
		case errors.Is(err, errTooLarge):
			return errTooLarge
		case errors.As(err, &refused) && refused.StatusCode == http.StatusNotFound &&
			refused.ErrorCode/100 == http.StatusNotFound:
			return ErrNotThere
		case errors.As(err, &refused):
			err = fmt.Errorf("registry %s answers %d %s: %s", c.options.URLs[n], refused.StatusCode,
				http.StatusText(refused.StatusCode), brief(refused.Error()))
		default:
			err = fmt.Errorf("registry %s: %s", c.options.URLs[n], brief(plainly(err)))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// plainly returns an error's message without the leading address.
func plainly(err error) string {
	var request *url.Error
	if errors.As(err, &request) {
		return request.Err.Error()
	}
	if inner := errors.Unwrap(err); inner != nil {
		return inner.Error()
	}
	return err.Error()
}

// brief shortens a server's message for a log.
func brief(s string) string {
	const most = 200
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "?")), " ")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + " …"
	}
	return s
}

// versionsOf lists the versions of a subject, including deleted ones that the registry still has.
func (c *Client) versionsOf(ctx context.Context, subject string) (versions []int, err error) {
	err = c.ask(func(s *sr.Client) (err error) {
		versions, err = s.SubjectVersions(sr.WithParams(ctx, sr.ShowDeleted), subject)
		return err
	})
	return versions, err
}

// newest, as a version number, makes [Client.at] return the newest version that is not deleted.
const newest = -1

// at returns the schema of a version.
func (c *Client) at(ctx context.Context, subject string, version int) (found sr.SubjectSchema, err error) {
	if version != newest {
		ctx = sr.WithParams(ctx, sr.ShowDeleted)
	}
	err = c.ask(func(s *sr.Client) (err error) {
		found, err = s.SchemaByVersion(ctx, subject, version)
		return err
	})
	return found, err
}
