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
	// tokenTimeout bounds a request for a token.
	tokenTimeout = 10 * time.Second
	// renewAt is the part of a token's life after which another one is asked for, in percent.
	// Clients show their token again after four fifths of what is left of it, so each has seen
	// the new one before the old one ends.
	renewAt = 75
	// pauseAfterFailure is how long nobody asks after a failure: the connections of a process
	// share its answer.
	pauseAfterFailure = time.Second
	// maxToken is the size in bytes beyond which a text is no token.
	maxToken = 1 << 16
)

// TokenOptions are how to ask for tokens by client credentials (RFC 6749, section 4.4).
type TokenOptions struct {
	// URL is the token endpoint. Required.
	URL string
	// ClientID names this client. Required.
	ClientID string
	// Secret returns the client's secret. It is called for each request. Required.
	Secret func() (string, error)
	// Scopes are asked for. None: the server's default.
	Scopes []string
	// Audience is sent as the parameter audience, which some servers want. Empty: not sent.
	Audience string
	// Roots are the authorities to trust. Nil: the system's.
	Roots *x509.CertPool
}

// Tokens asks for tokens, and keeps one as long as it is good. It is safe for concurrent use.
type Tokens struct {
	o      TokenOptions
	client *http.Client
	now    func() time.Time // tests have their own

	turn   chan struct{} // holds the fields below
	token  string
	renew  time.Time // from then on another one is asked for
	ends   time.Time
	failed error // of the last request
	since  time.Time
}

// NewTokens asks for nothing yet.
func NewTokens(o TokenOptions) *Tokens {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: o.Roots}
	return &Tokens{
		o:    o,
		now:  time.Now,
		turn: make(chan struct{}, 1),
		client: &http.Client{
			Transport: transport, Timeout: tokenTimeout,
			// The secret is for the endpoint, and for nobody that it names.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// Token returns a token: the one that it has, until three quarters of that one's life have
// passed, and then a new one. While the server gives none, the old one is returned as long as it
// is good. A token whose life the server does not tell is used once.
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
			t.since = time.Time{} // it says nothing about the server
		}
	}
	if t.failed == nil || t.now().Before(t.ends) {
		return t.token, nil
	}
	return "", t.failed
}

// ask asks for a new token.
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

// refusal says why there is no token, without the server's answer: nobody knows what is in it.
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
	return errors.New("the answer is no token")
}

// fault says which endpoint has given no token. What the URL asks for is left out.
func (t *Tokens) fault(err error) error {
	where := "of an unreadable URL"
	if u, parsed := url.Parse(t.o.URL); parsed == nil {
		where = u.Scheme + "://" + u.Host + u.EscapedPath()
	}
	return fmt.Errorf("token endpoint %s: %w", where, err)
}

// checkToken reports what is wrong with a text that should be a bearer token (RFC 6750, section
// 2.1): letters, digits and -._~+/, and then signs =.
func checkToken(text string) error {
	body := strings.TrimRight(text, "=")
	other := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune("-._~+/", r))
	}
	if body == "" || len(text) > maxToken || strings.ContainsFunc(body, other) {
		return errors.New("the text is no bearer token")
	}
	return nil
}
