package kafka

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// SASL are the credentials of a client.
type SASL struct {
	// Mechanism is "plain", "scram-sha-256", "scram-sha-512", "oauthbearer" or "aws-msk-iam".
	// Empty: none.
	Mechanism string
	// Username and Password are used by "plain", which sends them to the broker, and by "scram-…", which only proves
	// that the client knows the password.
	Username, Password string
	// Token returns the token of oauthbearer. It is called for each connection, and each time a connection
	// re-authenticates.
	Token func(context.Context) (Token, error)
	// Sign returns the aws-msk-iam message for the broker at an address, host:port.
	Sign func(ctx context.Context, address string) ([]byte, error)
}

// Token has the data that OAUTHBEARER sends (RFC 7628).
type Token struct {
	// Text is the bearer token.
	Text string
	// Extensions are names and values that are sent with the token.
	Extensions [][2]string
}

// Client returns the client's side of the mechanism, or nil if there are no credentials. The clients of all Kafka
// libraries in this program use it.
func (s SASL) Client() (sasl.Mechanism, error) {
	auth := scram.Auth{User: s.Username, Pass: s.Password}
	switch s.Mechanism {
	case "":
		return nil, nil
	case "plain":
		return plain.Auth{User: s.Username, Pass: s.Password}.AsMechanism(), nil
	case "scram-sha-256":
		return auth.AsSha256Mechanism(), nil
	case "scram-sha-512":
		return auth.AsSha512Mechanism(), nil
	case "oauthbearer":
		if s.Token != nil {
			return bearer{s.Token}, nil
		}
	case "aws-msk-iam":
		if s.Sign != nil {
			return signer{s.Sign}, nil
		}
	}
	return nil,
		fmt.Errorf(
			"sasl mechanism %q is not plain, scram-sha-256, scram-sha-512, oauthbearer or aws-msk-iam, or it has no "+
				"credentials", s.Mechanism)
}

// credentialsError says that no credentials could be obtained, for example because the token endpoint does not answer.
// No broker has refused anything.
type credentialsError struct{ err error }

func (e *credentialsError) Error() string { return "credentials: " + e.err.Error() }
func (e *credentialsError) Unwrap() error { return e.err }

// bearer is the mechanism OAUTHBEARER, RFC 7628 section 3.1.
type bearer struct {
	token func(context.Context) (Token, error)
}

func (bearer) Name() string { return "OAUTHBEARER" }

func (b bearer) Authenticate(ctx context.Context, _ string) (sasl.Session, []byte, error) {
	t, err := b.token(ctx)
	if err == nil && t.Text == "" {
		err = errors.New("the token is empty")
	}
	if err != nil {
		return nil, nil, &credentialsError{err}
	}
	msg := append([]byte("n,,\x01auth=Bearer "), t.Text...)
	for _, x := range t.Extensions {
		msg = slices.Concat(msg, []byte{1}, []byte(x[0]), []byte{'='}, []byte(x[1]))
	}
	return bearerSession{}, append(msg, 1, 1), nil
}

type bearerSession struct{}

// Challenge accepts an empty answer. Any other answer is a refusal, in JSON.
func (bearerSession) Challenge(answer []byte) (bool, []byte, error) {
	if len(answer) == 0 {
		return true, nil, nil
	}
	var why struct{ Status string }
	if json.Unmarshal(answer, &why) != nil || len(why.Status) > 100 {
		why.Status = "no reason given"
	}
	return false, nil, fmt.Errorf("the broker refused the token: %q", why.Status)
}

// signer is the mechanism AWS_MSK_IAM.
type signer struct {
	sign func(context.Context, string) ([]byte, error)
}

func (signer) Name() string { return "AWS_MSK_IAM" }

func (s signer) Authenticate(ctx context.Context, address string) (sasl.Session, []byte, error) {
	msg, err := s.sign(ctx, address)
	if err != nil {
		return nil, nil, &credentialsError{err}
	}
	return signerSession{}, msg, nil
}

type signerSession struct{}

func (signerSession) Challenge(answer []byte) (bool, []byte, error) {
	if len(answer) == 0 {
		return false, nil, errors.New("the broker refused the signature")
	}
	return true, nil, nil
}
