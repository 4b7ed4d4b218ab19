// Package page has the status page: one HTML document that includes its style and script. It loads nothing from other
// places and shows the answers of the daemon's API.
package page

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"net/http"
)

var (
	//go:embed page.html
	document []byte
	//go:embed page.css
	style []byte
	//go:embed page.js
	script []byte
)

// assembled is the document with style and script inserted. policy allows only these two and requests to the daemon
// itself.
var assembled, policy, tag = assemble()

func assemble() (page []byte, policy, tag string) {
	page = bytes.Replace(document, []byte("/*style*/"), style, 1)
	page = bytes.Replace(page, []byte("/*script*/"), script, 1)
	hash := func(text []byte) string {
		sum := sha256.Sum256(text)
		return base64.StdEncoding.EncodeToString(sum[:])
	}
	policy = fmt.Sprintf(
		"default-src 'none'; script-src 'sha256-%s'; style-src 'sha256-%s'; connect-src 'self'; img-src data:; "+
			"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
		hash(script), hash(style))
	return page, policy, `"` + hash(page) + `"`
}

// ServeHTTP answers with the page.
func ServeHTTP(w http.ResponseWriter, req *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", tag)
	h.Set("Vary", "Accept")
	if req.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	w.Write(assembled)
}
