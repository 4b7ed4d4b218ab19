// Package client sends requests to running daemons: commands over the control socket of a state directory, and requests
// for their status over HTTP.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"

	"github.com/streamdp/streamdp/stream/httpapi"
	"github.com/streamdp/streamdp/stream/task"
)

// Change sends the request q to the daemon that runs on a state directory. If no daemon runs there, asked is false and
// the error nil.
func Change(ctx context.Context, dir string, q task.Request) (asked bool, err error) {
	var answer task.Answer
	if asked, err = post(ctx, dir, "/epoch/"+q.Kind, q, &answer); err == nil && asked {
		err = answer.Err()
	}
	return asked, err
}

// Reload tells the daemon that runs on a state directory to read its configuration again. The answer says whether it
// did. If no daemon runs there, both results are nil.
func Reload(ctx context.Context, dir string, q httpapi.ReloadRequest) (*httpapi.ReloadAnswer, error) {
	var answer httpapi.ReloadAnswer
	asked, err := post(ctx, dir, "/reload", q, &answer)
	if err != nil || !asked {
		return nil, err
	}
	return &answer, nil
}

// post sends a request to the control socket of the daemon that runs on a state directory, and decodes the reply into
// answer. asked is false if no daemon runs there.
func post(ctx context.Context, dir, path string, q, answer any) (asked bool, err error) {
	socket := filepath.Join(dir, httpapi.ControlSocket)
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	body, err := json.Marshal(q)
	if err != nil {
		return false, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://daemon"+path, bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	res, err := client.Do(req)
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return false, nil // no daemon
	}
	if err != nil {
		return true, err
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(answer); err != nil {
		return true, fmt.Errorf("the daemon answered %s", res.Status)
	}
	return true, nil
}
