package group

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamdp/streamdp/internal/kafka"
)

// TestAlike: both clients log in with the same messages, and report the same refusals.
func TestAlike(t *testing.T) {
	t.Parallel()
	b := start(t, 1)
	var mu sync.Mutex
	var heard []string
	accept := true
	hears := func(key kmsg.Key, answer func(kmsg.Request) kmsg.Response) {
		b.Cluster().ControlKey(int16(key), func(req kmsg.Request) (kmsg.Response, error, bool) {
			b.Cluster().KeepControl()
			mu.Lock()
			defer mu.Unlock()
			return answer(req), nil, true
		})
	}
	hears(kmsg.SASLHandshake, func(req kmsg.Request) kmsg.Response {
		heard = append(heard, req.(*kmsg.SASLHandshakeRequest).Mechanism)
		return req.ResponseKind()
	})
	hears(kmsg.SASLAuthenticate, func(req kmsg.Request) kmsg.Response {
		res := req.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		heard = append(heard, string(req.(*kmsg.SASLAuthenticateRequest).SASLAuthBytes))
		if !accept {
			res.ErrorCode = kerr.SaslAuthenticationFailed.Code
		} else if heard[0] == "AWS_MSK_IAM" {
			res.SASLAuthBytes = []byte(`{"version":"2020_10_22","request-id":"x"}`)
		}
		return res
	})
	logins := map[string]func(kafka.Options) error{
		"kafka-go": func(o kafka.Options) error {
			c, err := kafka.NewClient(o)
			if err != nil {
				return err
			}
			defer c.Close()
			return c.Probe(within(t))
		},
		"franz-go": func(o kafka.Options) error {
			_, err := Look(within(t), o, "g")
			return err
		},
	}
	for mechanism, test := range map[string]struct {
		sasl kafka.SASL
		want []string
	}{
		"oauthbearer": {kafka.SASL{Token: func(context.Context) (kafka.Token, error) {
			return kafka.Token{Text: "t0ken", Extensions: [][2]string{{"pool", "p"}}}, nil
		}}, []string{"OAUTHBEARER", "n,,\x01auth=Bearer t0ken\x01pool=p\x01\x01"}},
		"aws-msk-iam": {kafka.SASL{Sign: func(_ context.Context, address string) ([]byte, error) {
			return []byte("signed for " + address), nil
		}}, []string{"AWS_MSK_IAM", "signed for " + b.Addr()}},
		"plain": {kafka.SASL{Username: "u", Password: "p"}, []string{"PLAIN", "\x00u\x00p"}},
	} {
		test.sasl.Mechanism = mechanism
		for client, login := range logins {
			for _, fine := range []bool{true, false} {
				mu.Lock()
				heard, accept = nil, fine
				mu.Unlock()
				err := login(kafka.Options{Brokers: b.Addrs(), SASL: test.sasl})
				mu.Lock()
				if len(heard) < 2 || !slices.Equal(heard[:2], test.want) || (err == nil) != fine {
					t.Errorf("%s, %s: said %q: %v", client, mechanism, heard, err)
				}
				mu.Unlock()
				if !fine && !strings.Contains(strings.ToLower(err.Error()), "authentication") {
					t.Errorf("%s, %s, refused: %v", client, mechanism, err)
				}
			}
		}
	}
	none := errors.New("no file")
	for client, login := range logins {
		sasl := kafka.SASL{Mechanism: "oauthbearer",
			Token: func(context.Context) (kafka.Token, error) { return kafka.Token{}, none }}
		if err := login(kafka.Options{Brokers: b.Addrs(), SASL: sasl}); !errors.Is(err, none) {
			t.Errorf("%s, without a token: %v", client, err)
		}
	}
}
