package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/streamdp/streamdp/internal/credentials"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/httpapi"
	"github.com/streamdp/streamdp/stream/monitor"
)

// Endpoint says how to reach a daemon's HTTP server. Empty fields come from the configuration, if there is one.
type Endpoint struct {
	URL    string
	CAFile string // certificates to trust instead of the system's
	// User and PasswordFile are the user and the file of the password, if the daemon has http.basic_auth. Both or none
	// are set.
	User, PasswordFile string
}

// Instance is an instance of a group and its answer to a request for its status.
type Instance struct {
	Instance string          `json:"instance"`
	URL      string          `json:"url"`
	Error    string          `json:"error,omitempty"` // reason why the status is missing
	Status   json.RawMessage `json:"status,omitempty"`
}

// Status holds the parts of a status that commands show.
type Status struct {
	Tasks    []monitor.TaskStatus
	Patterns []httpapi.PatternStatus
	Group    *cluster.Status // nil: the daemon does not belong to a group
}

// Decode reads a daemon's answer to a request for its status.
func Decode(answer json.RawMessage) (s Status, err error) {
	err = json.Unmarshal(answer, &s)
	return s, err
}

// Group asks all members of a group for their status concurrently, and returns their answers in the order of the
// members.
func (e Endpoint) Group(ctx context.Context, cfg *config.Config, members []cluster.MemberStatus) []Instance {
	all := make([]Instance, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Go(func() {
			of := e
			all[i].Instance, all[i].URL, of.URL = m.Instance, m.URL, m.URL
			err := fmt.Errorf("the instance advertises no address: set cluster.advertise")
			if of.URL != "" {
				all[i].Status, err = of.Status(ctx, cfg)
			}
			if err != nil {
				all[i].Error = err.Error()
			}
		})
	}
	wg.Wait()
	return all
}

// Status asks a daemon for its status, which [Decode] reads. cfg is nil if there is no configuration. With a
// configuration, URL is an address that a member of the group advertises; Status then sends a password only over TLS.
//
// Errors: an [exit.Usage] or an [exit.Config] if the daemon cannot be asked in this way.
func (e Endpoint) Status(ctx context.Context, cfg *config.Config) (json.RawMessage, error) {
	client, req, err := e.request(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	res, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("no daemon answers: %w", err)
	}
	defer res.Body.Close()
	var answer struct {
		Status string
		Error  string
		Data   json.RawMessage
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || answer.Status != "success" {
		if answer.Error != "" {
			answer.Error = ": " + answer.Error
		}
		return nil, fmt.Errorf("%s did not answer with a status, but with "+
			"%s%s", req.URL.Redacted(), res.Status, answer.Error)
	}
	return answer.Data, nil
}

// request returns a request for the status, and the client to send it with.
func (e Endpoint) request(ctx context.Context, cfg *config.Config) (*http.Client, *http.Request, error) {
	if (e.User == "") != (e.PasswordFile == "") {
		return nil, nil, exit.Usagef("give both --user and --password-file, or neither")
	}
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if e.CAFile != "" {
		files, err := credentials.OpenTLS(credentials.TLSFiles{CAFile: e.CAFile}, false)
		if err != nil {
			return nil, nil, exit.Config{Err: err}
		}
		trust = files.Config()
	}
	groupReadable := false
	member := cfg != nil && e.URL != "" // true if a group's member chose the address
	if cfg == nil && e.URL == "" {
		e.URL = "http://127.0.0.1:9464"
	}
	if cfg != nil {
		groupReadable = cfg.State.KeyGroupReadable
		if !member {
			host, port, err := net.SplitHostPort(cfg.HTTP.Listen)
			if err != nil {
				return nil, nil, exit.Config{Err: err}
			}
			if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
				host = "127.0.0.1"
			}
			e.URL = "http://" + net.JoinHostPort(host, port)
			if cfg.HTTP.TLS != nil {
				e.URL = "https://" + net.JoinHostPort(host, port)
			}
		}
		if t := cfg.HTTP.TLS; t != nil && e.CAFile == "" {
			if trust, err = trustOnly(t.CertFile); err != nil {
				return nil, nil, exit.Config{Err: err}
			}
		}
		if member && !strings.HasPrefix(e.URL, "https://") {
			e.User = "" // otherwise any member of the group could obtain the password
		} else if b := cfg.HTTP.BasicAuth; b != nil && e.User == "" {
			e.User, e.PasswordFile = b.Username, b.PasswordFile
		}
	}
	if !strings.Contains(e.URL, "://") {
		e.URL = "http://" + e.URL
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(e.URL, "/")+"/api/v1/status", nil)
	if err != nil {
		return nil, nil, exit.Usage{Err: err}
	}
	if e.User != "" {
		password, err := credentials.LoadPassword(e.PasswordFile, groupReadable)
		if err != nil {
			return nil, nil, exit.Config{Err: err}
		}
		req.SetBasicAuth(e.User, password)
	}
	return &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{TLSClientConfig: trust, Proxy: http.ProxyFromEnvironment},
		// Redirects are refused, because the password is for this address only.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, req, nil
}

// trustOnly returns a TLS configuration that trusts only the certificate in a file, for any name or address of the
// listener.
func trustOnly(certFile string) (*tls.Config, error) {
	data, err := os.ReadFile(certFile)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("certificate %s: no certificate in PEM", certFile)
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, // VerifyConnection compares the certificate byte for byte
		VerifyConnection: func(s tls.ConnectionState) error {
			if !bytes.Equal(s.PeerCertificates[0].Raw, block.Bytes) {
				return fmt.Errorf("the listener's certificate differs from that in %s", certFile)
			}
			return nil
		},
	}, nil
}
