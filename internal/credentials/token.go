package credentials

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

const (
	// tokenTimeout is the longest time that a request for a token may take.
	tokenTimeout = 10 * time.Second
	// renewAt is the share of a token's life, in percent, after which a new one is requested. Each Kafka connection
	// authenticates again after four fifths of its token's remaining life, and so uses the new token before the old one
	// expires.
	renewAt = 75
	// pauseAfterFailure is the pause after a failed request. During the pause, all connections of the process get the
	// same error, and no other request is sent.
	pauseAfterFailure = time.Second
	// maxToken is the largest size of a token in bytes.
	maxToken = 1 << 16
)

// TokenOptions say how to request tokens for client credentials (RFC 6749, section 4.4).
type TokenOptions struct {
	// URL is the token endpoint. Required.
	URL string
	// ClientID names this client. Required.
	ClientID string
	// Secret returns the client's secret. It is called for each request. Required.
	Secret func() (string, error)
	// Scopes are the requested scopes. None: the server's default.
	Scopes []string
	// Audience is the value of the parameter "audience", which some servers require. Empty: it is not sent.
	Audience string
	// Roots are the certificate authorities to trust. Nil: the system's.
	Roots *x509.CertPool
}

// Tokens requests tokens, and reuses each while it is valid. It is safe for concurrent use.
type Tokens struct {
	o      TokenOptions
	client *http.Client
	now    func() time.Time // replaced in tests

	turn   chan struct{} // lock of the fields below
	token  string
	renew  time.Time // time from which a new token is requested
	ends   time.Time
	failed error // error of the last request, nil if it succeeded
	since  time.Time
}

// NewTokens returns Tokens for these options. It sends no request yet.
func NewTokens(o TokenOptions) *Tokens {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: o.Roots}
	return &Tokens{
		o:    o,
		now:  time.Now,
		turn: make(chan struct{}, 1),
		client: &http.Client{
			Transport: transport, Timeout: tokenTimeout,
			// Redirects are refused, because the secret may be sent to the endpoint only.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// Token returns the present token until three quarters of its life have passed, and then requests a new one. If the
// server does not issue one, Token returns the old token as long as it is valid. A token of unknown life is used once.
func (t *Tokens) Token(ctx context.Context) (string, error) {
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	now := t.now()
	if now.Before(t.renew) {
		return t.token, nil
	}
	if t.failed == nil || now.Sub(t.since) >= pauseAfterFailure {
		t.failed = t.ask(ctx)
		t.since = t.now()
		if ctx.Err() != nil {
			t.since = time.Time{} // a cancelled request says nothing about the server
		}
	}
	if t.failed == nil || t.now().Before(t.ends) {
		return t.token, nil
	}
	return "", t.failed
}

// ask requests a new token.
func (t *Tokens) ask(ctx context.Context) error {
	secret, err := t.o.Secret()
	if err != nil {
		return err
	}
	c := clientcredentials.Config{ClientID: t.o.ClientID, ClientSecret: secret, TokenURL: t.o.URL, Scopes: t.o.Scopes}
	if t.o.Audience != "" {
		c.EndpointParams = url.Values{"audience": {t.o.Audience}}
	}
	begun := t.now()
	got, err := c.Token(context.WithValue(ctx, oauth2.HTTPClient, t.client))
	if err != nil {
		return t.fault(refusal(err))
	}
	if kind := got.Type(); !strings.EqualFold(kind, "bearer") {
		return t.fault(errors.New("the token is not a bearer token"))
	}
	if err := checkToken(got.AccessToken); err != nil {
		return t.fault(err)
	}
	t.token, t.renew, t.ends = got.AccessToken, time.Time{}, time.Time{}
	if !got.Expiry.IsZero() {
		life := time.Until(got.Expiry)
		t.renew, t.ends = begun.Add(life*renewAt/100), begun.Add(life)
	}
	return nil
}

// refusal returns an error that says why there is no token. It leaves out the server's answer, because its content is
// unknown.
func refusal(err error) error {
	var answer *oauth2.RetrieveError
	if errors.As(err, &answer) && answer.Response != nil {
		text := answer.Response.Status
		if answer.ErrorCode != "" && len(answer.ErrorCode) <= 100 {
			text += fmt.Sprintf(" (%q)", answer.ErrorCode)
		}
		return errors.New(text)
	}
	var call *url.Error
	if errors.As(err, &call) {
		return call.Err
	}
	return errors.New("the answer is not a token")
}

// fault adds the endpoint to an error. It omits the query of the URL.
func (t *Tokens) fault(err error) error {
	where := "of an unreadable URL"
	if u, parsed := url.Parse(t.o.URL); parsed == nil {
		where = u.Scheme + "://" + u.Host + u.EscapedPath()
	}
	return fmt.Errorf("token endpoint %s: %w", where, err)
}

// checkToken returns an error if a text is not a bearer token (RFC 6750, section 2.1): letters, digits and -._~+/,
// followed by any number of =.
func checkToken(text string) error {
	body := strings.TrimRight(text, "=")
	other := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune("-._~+/", r))
	}
	if body == "" || len(text) > maxToken || strings.ContainsFunc(body, other) {
		return errors.New("the text is not a bearer token")
	}
	return nil
}
