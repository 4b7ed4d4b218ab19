package httpapi

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/credentials"
	"github.com/streamdp/streamdp/stream/connect"
)

// These limits prevent one client of the HTTP server from blocking the others. They bound the time for which a client
// may hold a connection, and the number of connections.
const (
	headerTimeout  = 5 * time.Second
	readTimeout    = 10 * time.Second
	writeTimeout   = 30 * time.Second
	idleTimeout    = 2 * time.Minute
	maxConnections = 128
)

// Access decides who may use the HTTP server.
type Access struct {
	HTTP     config.HTTP
	TLS      *credentials.Rotation // nil: no TLS
	password string
}

// NewAccess reads the certificate and the password.
//
// Errors: ErrCredentials.
func NewAccess(c *config.Config) (*Access, error) {
	a := &Access{HTTP: c.HTTP}
	var err error
	if t := c.HTTP.TLS; t != nil {
		own := credentials.TLSFiles{CertFile: t.CertFile, KeyFile: t.KeyFile}
		if a.TLS, err = credentials.OpenTLS(own, c.State.KeyGroupReadable); err != nil {
			return nil, fmt.Errorf("%w: http.tls: %w", connect.ErrCredentials, err)
		}
	}
	if b := c.HTTP.BasicAuth; b != nil {
		if a.password, err = credentials.LoadPassword(b.PasswordFile, c.State.KeyGroupReadable); err != nil {
			return nil, fmt.Errorf("%w: http.basic_auth: %w", connect.ErrCredentials, err)
		}
	}
	return a, nil
}

// CheckAccess reads the files named in [http], as a daemon does at start.
//
// Errors: ErrCredentials.
func CheckAccess(c *config.Config) error {
	_, err := NewAccess(c)
	return err
}

// Listen opens the listener. While maxConnections are open, a new connection waits until another one ends.
func (a *Access) Listen() (net.Listener, error) {
	l, err := net.Listen("tcp", a.HTTP.Listen)
	if err != nil {
		return nil, err
	}
	l = &capped{Listener: l, slots: make(chan struct{}, maxConnections), closed: make(chan struct{})}
	if a.TLS != nil {
		l = tls.NewListener(l, &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return a.TLS.Config(), nil
		}})
	}
	return l, nil
}

// capped is a listener with a maximum number of connections.
type capped struct {
	net.Listener
	slots  chan struct{}
	once   sync.Once
	closed chan struct{}
}

// Accept waits for a free slot, then for a connection.
func (c *capped) Accept() (net.Conn, error) {
	select {
	case c.slots <- struct{}{}:
	case <-c.closed:
		return nil, net.ErrClosed
	}
	conn, err := c.Listener.Accept()
	if err != nil {
		<-c.slots
		return nil, err
	}
	return &cappedConn{Conn: conn, free: sync.OnceFunc(func() { <-c.slots })}, nil
}

// Close closes the listener and makes a waiting Accept return.
func (c *capped) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Listener.Close()
}

type cappedConn struct {
	net.Conn
	free func()
}

// Close frees the slot.
func (c *cappedConn) Close() error {
	defer c.free()
	return c.Conn.Close()
}

// guard passes on only requests whose Host is one of the listener's own names. If there is a password, requests must
// also have it. Without the check of the name, a web page could make its own name resolve to this machine's address. It
// could then read, through a visitor's browser, everything that the visitor may read.
func (a *Access) guard(next http.Handler) http.Handler {
	var user, password [32]byte
	if b := a.HTTP.BasicAuth; b != nil {
		user, password = sha256.Sum256([]byte(b.Username)), sha256.Sum256([]byte(a.password))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !a.named(req.Host) {
			refuse(w, http.StatusForbidden,
				errors.New("the request's Host is not a name of this listener; add it to http.hosts"))
			return
		}
		if a.HTTP.BasicAuth != nil {
			u, p, _ := req.BasicAuth()
			gotUser, gotPassword := sha256.Sum256([]byte(u)), sha256.Sum256([]byte(p))
			if subtle.ConstantTimeCompare(gotUser[:], user[:])&subtle.ConstantTimeCompare(gotPassword[:],
				password[:]) != 1 {
				w.Header().Set("WWW-Authenticate", `Basic realm="streamdp", charset="UTF-8"`)
				refuse(w, http.StatusUnauthorized, errors.New("user and password are required"))
				return
			}
		}
		next.ServeHTTP(w, req)
	})
}

// named reports whether the Host of a request is a name of the listener. It accepts any IP address, because no web page
// from elsewhere has that origin. It also accepts an empty Host, because no browser sends a request without one.
func (a *Access) named(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"), ".")
	if zone := strings.IndexByte(host, '%'); zone >= 0 {
		host = host[:zone]
	}
	own, _, _ := net.SplitHostPort(a.HTTP.Listen)
	is := func(name string) bool { return strings.EqualFold(name, host) }
	switch {
	case host == "" || net.ParseIP(host) != nil || is("localhost") || is(own) || slices.ContainsFunc(a.HTTP.Hosts, is):
		return true
	case a.TLS != nil:
		leaf := a.TLS.Config().Certificates[0].Leaf
		return leaf != nil && leaf.VerifyHostname(host) == nil
	}
	return false
}
