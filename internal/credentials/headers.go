package credentials

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
)

// LoadHeaders reads headers for requests: one `Name: value` in each line, at most 16 KiB. The file must have the
// permissions of a key file. No error shows the content of a line.
func LoadHeaders(path string, groupReadable bool) (http.Header, error) {
	const most = 16 << 10
	text, err := readSecret("headers file", path, groupReadable, most+1)
	if err != nil {
		return nil, err
	}
	defer clear(text)
	if len(text) > most {
		return nil, fmt.Errorf("headers file %s: must hold at most %d bytes", path, most)
	}
	h, n := http.Header{}, 0
	for line := range bytes.Lines(text) {
		n++
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		name, value, ok := bytes.Cut(line, []byte(":"))
		if value = bytes.TrimSpace(value); !ok || !isToken(name) || !isFieldValue(value) {
			return nil, fmt.Errorf("headers file %s, line %d: must be a header in the form Name: value", path, n)
		}
		h.Add(string(name), string(value))
	}
	return h, nil
}

// isToken reports whether name is a valid name of a header.
func isToken(name []byte) bool {
	return len(name) > 0 && !bytes.ContainsFunc(name, func(r rune) bool {
		return !(r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' ||
			strings.ContainsRune("!#$%&'*+-.^_`|~", r))
	})
}

// isFieldValue reports whether value is a valid value of a header in ASCII.
func isFieldValue(value []byte) bool {
	return len(value) > 0 && !bytes.ContainsFunc(value, func(r rune) bool { return r != '\t' && (r < ' ' || r > '~') })
}
