package group

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamdp/streamdp/internal/shardlog"
)

// silent is a connection that becomes silent at some moment.
type silent struct {
	net.Conn
	from <-chan struct{}
}

func (c silent) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		select {
		case <-c.from:
			if err == nil {
				continue
			}
		default:
		}
		return n, err
	}
}

// TestSessionSilence: brokers that accept requests and never answer do not keep a caller from stopping, neither in an
// acquisition nor in a commit.
func TestSessionSilence(t *testing.T) {
	t.Parallel()
	_, s := logs(t)
	s.timeout = 20 * time.Second
	from := make(chan struct{})
	o := s.logOptions()
	o.extra = []kgo.Opt{kgo.Dialer(func(ctx context.Context, network, host string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, host)
		return silent{c, from}, err
	})}
	prompt := func(what string, f func(ctx context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(200*time.Millisecond, cancel)
		began := time.Now()
		if err := f(ctx); err == nil {
			t.Errorf("%s succeeds without an answer", what)
		}
		if took := time.Since(began); took < 200*time.Millisecond || took > 8*time.Second {
			t.Errorf("%s ended after %v", what, took)
		}
	}
	h, err := shardlog.Acquire(t.Context(), NewLog(o), s.options())
	if err != nil {
		t.Fatal(err)
	}
	close(from)
	prompt("a commit", func(ctx context.Context) error {
		err := h.Update(ctx, map[string]shardlog.Value{"a": {Data: []byte("a")}}, nil, [][]byte{[]byte("a")})
		if !errors.Is(err, shardlog.ErrLost) {
			t.Errorf("%v", err)
		}
		h.Close()
		return err
	})
	prompt("an acquisition", func(ctx context.Context) error {
		_, err := shardlog.Acquire(ctx, NewLog(o), s.options())
		return err
	})
}
