// Package browser drives a headless Chromium through its debugging pipe, for tests.
package browser

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// names are the names of the program in Linux distributions.
var names = []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome",
	"google-chrome-stable", "chrome"}

// Find returns the path of the browser: $STREAMDP_BROWSER, or one found in $PATH; "" if there is none.
func Find() string {
	if path := os.Getenv("STREAMDP_BROWSER"); path != "" {
		return path
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// Page is a page in a browser of its own. It records the page's requests, exceptions and warnings.
type Page struct {
	t       testing.TB
	cmd     *exec.Cmd
	in      *os.File
	mu      sync.Mutex
	next    int
	waiting map[int]chan reply
	session string
	gone    chan struct{}

	requests, complaints []string
}

type reply struct {
	Result json.RawMessage
	Error  *struct{ Message string }
}

// limit is how long one command may take.
const limit = 30 * time.Second

// Open starts a browser with one empty page. The browser ends with the test.
func Open(t testing.TB, path string) *Page {
	t.Helper()
	theirs, in, err := os.Pipe()
	must(t, err)
	out, answers, err := os.Pipe()
	must(t, err)
	// Not t.TempDir: the browser may still write there when the test ends.
	profile, err := os.MkdirTemp("", "browser")
	must(t, err)
	p := &Page{t: t, in: in, waiting: map[int]chan reply{}, gone: make(chan struct{})}
	p.cmd = exec.Command(path, "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
		"--disable-dev-shm-usage", "--no-first-run",
		"--hide-scrollbars", "--force-color-profile=srgb", "--disable-background-networking",
		"--disable-component-update", "--user-data-dir="+profile, "about:blank")
	p.cmd.ExtraFiles = []*os.File{theirs, answers}
	must(t, p.cmd.Start())
	theirs.Close()
	answers.Close()
	go p.read(out)
	t.Cleanup(func() {
		in.Close()
		p.cmd.Process.Kill()
		p.cmd.Wait()
		out.Close()
		os.RemoveAll(profile)
	})
	var target struct{ TargetID string }
	p.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	p.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	p.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Network", "Log"} {
		p.call(domain+".enable", nil, nil)
	}
	return p
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// read receives answers and events until the browser ends.
func (p *Page) read(out *os.File) {
	defer close(p.gone)
	r := bufio.NewReaderSize(out, 1<<20)
	for {
		line, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m struct {
			ID     int
			Method string
			Params json.RawMessage
			reply
		}
		if json.Unmarshal(bytes.TrimSuffix(line, []byte{0}), &m) != nil {
			continue
		}
		p.mu.Lock()
		if m.ID > 0 {
			if c := p.waiting[m.ID]; c != nil {
				delete(p.waiting, m.ID)
				c <- m.reply
			}
		} else {
			p.event(m.Method, m.Params)
		}
		p.mu.Unlock()
	}
}

// event records requests, errors and warnings.
func (p *Page) event(method string, params json.RawMessage) {
	switch method {
	case "Network.requestWillBeSent":
		var e struct{ Request struct{ URL string } }
		json.Unmarshal(params, &e)
		p.requests = append(p.requests, e.Request.URL)
	case "Runtime.exceptionThrown":
		p.complaints = append(p.complaints, string(params))
	case "Runtime.consoleAPICalled":
		var e struct{ Type string }
		if json.Unmarshal(params, &e); e.Type == "error" || e.Type == "warning" || e.Type == "assert" {
			p.complaints = append(p.complaints, string(params))
		}
	case "Log.entryAdded":
		var e struct {
			Entry struct{ Level, Text, URL string }
		}
		if json.Unmarshal(params, &e); e.Entry.Level == "error" || e.Entry.Level == "warning" {
			p.complaints = append(p.complaints, e.Entry.Text+" "+e.Entry.URL)
		}
	}
}

// call sends a command and waits for its answer.
func (p *Page) call(method string, params, out any) {
	p.t.Helper()
	must(p.t, p.try(method, params, out))
}

func (p *Page) try(method string, params, out any) error {
	c := make(chan reply, 1)
	p.mu.Lock()
	p.next++
	id := p.next
	p.waiting[id] = c
	p.mu.Unlock()
	message := map[string]any{"id": id, "method": method}
	if params != nil {
		message["params"] = params
	}
	if p.session != "" {
		message["sessionId"] = p.session
	}
	text, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if _, err := p.in.Write(append(text, 0)); err != nil {
		return err
	}
	select {
	case r := <-c:
		if r.Error != nil {
			return fmt.Errorf("%s: %s", method, r.Error.Message)
		}
		if out == nil {
			return nil
		}
		return json.Unmarshal(r.Result, out)
	case <-p.gone:
		return errors.New("the browser ended")
	case <-time.After(limit):
		return fmt.Errorf("%s: no answer for %v", method, limit)
	}
}

// Requests returns the addresses that the page has requested.
func (p *Page) Requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.requests...)
}

// Complaints returns what went wrong on the page: exceptions, errors and warnings.
func (p *Page) Complaints() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.complaints...)
}

// Forget clears the recorded requests and complaints.
func (p *Page) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests, p.complaints = nil, nil
}

// Go opens an address.
func (p *Page) Go(url string) {
	p.t.Helper()
	var r struct{ ErrorText string }
	if p.call("Page.navigate", map[string]any{"url": url}, &r); r.ErrorText != "" {
		p.t.Fatalf("%s: %s", url, r.ErrorText)
	}
}

// Eval evaluates a JavaScript expression, awaits it if it is a promise, and decodes its value into out.
func (p *Page) Eval(expression string, out any) {
	p.t.Helper()
	must(p.t, p.eval(expression, out))
}

func (p *Page) eval(expression string, out any) error {
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	err := p.try("Runtime.evaluate",
		map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &r)
	switch {
	case err != nil:
		return err
	case r.ExceptionDetails != nil:
		return fmt.Errorf("%s %s", r.ExceptionDetails.Text, r.ExceptionDetails.Exception.Description)
	case out == nil || r.Result.Value == nil:
		return nil
	}
	return json.Unmarshal(r.Result.Value, out)
}

// Until waits until an expression is true.
func (p *Page) Until(ctx context.Context, what, expression string) {
	p.t.Helper()
	for {
		var ok bool
		if err := p.eval("Boolean("+expression+")", &ok); err == nil && ok {
			return
		}
		select {
		case <-ctx.Done():
			var text string
			p.eval("document.body.innerText", &text)
			p.t.Fatalf("the page does not show in time: %s\n%.2000s\n%s", what, text,
				strings.Join(p.Complaints(), "\n"))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Size sets the width and height of the window in pixels.
func (p *Page) Size(width, height int) {
	p.t.Helper()
	p.call("Emulation.setDeviceMetricsOverride",
		map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
}

// Prefers sets a media preference, such as "prefers-color-scheme": "dark".
func (p *Page) Prefers(name, value string) {
	p.t.Helper()
	p.call("Emulation.setEmulatedMedia",
		map[string]any{"features": []map[string]string{{"name": name, "value": value}}}, nil)
}

// Key presses and releases a key, given by its name.
func (p *Page) Key(key string) {
	p.t.Helper()
	for _, kind := range []string{"rawKeyDown", "keyUp"} {
		p.call("Input.dispatchKeyEvent",
			map[string]any{"type": kind, "key": key, "code": key,
				"windowsVirtualKeyCode": map[string]int{"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39,
					"Home": 36, "End": 35}[key]}, nil)
	}
}

// Picture writes a picture of the whole page to a PNG file, or of its first height pixels if height is not 0.
func (p *Page) Picture(path string, height int) {
	p.t.Helper()
	var layout struct {
		CSSContentSize struct{ Width, Height float64 }
	}
	p.call("Page.getLayoutMetrics", nil, &layout)
	h := layout.CSSContentSize.Height
	if height > 0 {
		h = min(h, float64(height))
	}
	var shot struct{ Data string }
	p.call("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true,
		"clip": map[string]any{"x": 0, "y": 0, "width": layout.CSSContentSize.Width, "height": h, "scale": 1}}, &shot)
	png, err := base64.StdEncoding.DecodeString(shot.Data)
	must(p.t, err)
	must(p.t, os.WriteFile(path, png, 0o644))
}
