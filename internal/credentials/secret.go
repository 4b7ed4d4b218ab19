package credentials

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"
)

// LoadPassword reads a password: one line of at most 1000 bytes, without its newline. The file must have the
// permissions of a key file.
func LoadPassword(path string, groupReadable bool) (string, error) {
	const most = 1000
	text, err := readSecret("password file", path, groupReadable, most+2)
	if err != nil {
		return "", err
	}
	defer clear(text)
	line := bytes.TrimSuffix(text, []byte("\n"))
	switch {
	case len(line) == 0:
		return "", fmt.Errorf("password file %s: must not be empty", path)
	case len(line) > most || bytes.ContainsAny(line, "\n\x00"):
		return "", fmt.Errorf("password file %s: must contain one line of at most %d bytes", path, most)
	}
	return string(line), nil
}

// LoadToken reads a bearer token: one line of at most 64 KiB, without its newline. The file must have the permissions
// of a key file.
func LoadToken(path string, groupReadable bool) (string, error) {
	token, err := readToken(path, groupReadable, "must contain one token in one line")
	if err == nil {
		err = checkToken(token)
	}
	if err != nil {
		return "", err
	}
	return token, nil
}

// readToken reads a line of visible characters, without its newline. rule is the error's text if the file has other
// content.
func readToken(path string, groupReadable bool, rule string) (string, error) {
	text, err := readSecret("token file", path, groupReadable, maxToken+2)
	if err != nil {
		return "", err
	}
	defer clear(text)
	line := bytes.TrimSuffix(text, []byte("\n"))
	invisible := func(r rune) bool { return r <= ' ' || r > '~' }
	if len(line) == 0 || len(line) > maxToken || bytes.ContainsFunc(line, invisible) {
		return "", fmt.Errorf("token file %s: %s", path, rule)
	}
	return string(line), nil
}

// Login says how an HTTP client authenticates: with a bearer token or, if TokenFile is empty, with a user and a
// password. Without either file it does not authenticate.
type Login struct {
	TokenFile              string
	Username, PasswordFile string
}

// Authorization returns the value of the header Authorization of a request, "" for none. It reads the file of the token
// or the password for each call, because the file may change while the daemon runs. The files must have the permissions
// of a key file. No error shows their content.
func (l Login) Authorization(groupReadable bool) (string, error) {
	switch {
	case l.TokenFile != "":
		rule := fmt.Sprintf("must contain one line of at most %d visible characters", maxToken)
		token, err := readToken(l.TokenFile, groupReadable, rule)
		if err != nil {
			return "", err
		}
		return "Bearer " + token, nil
	case l.PasswordFile != "":
		password, err := LoadPassword(l.PasswordFile, groupReadable)
		if err != nil {
			return "", err
		}
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(l.Username+":"+password)), nil
	}
	return "", nil
}

// readSecret reads up to `most` bytes of a file, and fails if others can read the file.
func readSecret(what, path string, groupReadable bool, most int) ([]byte, error) {
	// O_NONBLOCK: opening a pipe that has no writer must not hang the daemon.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if err := checkMode(info.Mode(), groupReadable); err != nil {
		return nil, fmt.Errorf("%s %s: %w", what, path, err)
	}
	text := make([]byte, most)
	n, err := io.ReadFull(f, text)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		clear(text)
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return text[:n], nil
}

func checkMode(mode os.FileMode, groupReadable bool) error {
	perm := mode.Perm()
	switch {
	case runtime.GOOS == "windows":
		return errors.New("is refused: on Windows streamdp cannot check who may read it")
	case !mode.IsRegular():
		return errors.New("must be a regular file")
	case perm&0o007 != 0:
		return fmt.Errorf("must not be accessible to others: its mode is %04o; chmod 0600", perm)
	case perm&0o020 != 0:
		return fmt.Errorf("must not be writable for its group: its mode is %04o; chmod 0600", perm)
	case perm&0o040 != 0 && !groupReadable:
		return fmt.Errorf(
			"must not be readable for its group: its mode is %04o; chmod 0600, or set state.key_group_readable = "+
				"true", perm)
	}
	return nil
}
