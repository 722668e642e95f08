package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/net/http/httpguts"
)

// secrets are what an operation shows a server to be let in. They do not print.
type secrets struct {
	headers []secretHeader
	forms   func() [][]byte // in which they may come back; worked out once for an operation
}

// secretHeader is a header with its value behind a function, because fmt asks no String method of what lies in another
// struct's unexported field.
type secretHeader struct {
	name  string
	value func() string
}

// String keeps the values out of every format verb.
func (secrets) String() string { return "[redacted]" }

// GoString does the same for %#v.
func (secrets) GoString() string { return "[redacted]" }

// set puts the headers onto a request.
func (s secrets) set(header http.Header) {
	for _, h := range s.headers {
		header.Set(h.name, h.value())
	}
}

// with adds a header. What of its value is secret is hidden from now on; empty when nothing is.
func (s secrets) with(name, value, secret string) secrets {
	s = s.hiding(secret)
	s.headers = append(s.headers[:len(s.headers):len(s.headers)], secretHeader{name: name, value: func() string { return value }})
	return s
}

// hiding adds what is shown in no header but may come back all the same.
func (s secrets) hiding(secret string) secrets {
	if len(secret) < minHidden {
		return s
	}
	before := s.forms
	s.forms = sync.OnceValue(func() [][]byte {
		forms := formsOf(secret)
		if before != nil {
			forms = append(forms, before()...)
		}
		// A secret that is part of another must not leave the rest of that one standing.
		slices.SortStableFunc(forms, func(a, b []byte) int { return len(b) - len(a) })
		return forms
	})
	return s
}

// minHidden is the length below which a value is not looked for in what comes back: it would be found where it is not.
const minHidden = 6

// hide takes the secrets out of what a server sent: some repeat the headers they got. What a caller hands in is changed in
// place or copied.
func (s secrets) hide(data []byte) []byte {
	if s.forms == nil {
		return data
	}
	for _, form := range s.forms() {
		if bytes.Contains(data, form) {
			data = bytes.ReplaceAll(data, form, []byte(redacted))
		}
		data = hideEscaped(data, form)
	}
	return data
}

const redacted = "[redacted]"

// hideEscaped takes a secret out of where single characters of it are written in another way: \/ and \u002f in JSON, also in
// JSON that stands in a string of JSON, and %2f in a URL. Which of them are escaped is up to whoever wrote it.
func hideEscaped(data, secret []byte) []byte {
	if bytes.IndexByte(data, '\\') < 0 && bytes.IndexByte(data, '%') < 0 {
		return data
	}
	var out []byte
	kept := 0
	for i := 0; i < len(data); {
		if c := data[i]; c != secret[0] && c != '\\' && c != '%' {
			i++
			continue
		}
		end := matchEscaped(data[i:], secret)
		if end == 0 {
			i++
			continue
		}
		out = append(append(out, data[kept:i]...), redacted...)
		i += end
		kept = i
	}
	if kept == 0 {
		return data
	}
	return append(out, data[kept:]...)
}

// matchEscaped tells how much of the beginning of data is the secret; 0 where it is not.
func matchEscaped(data, secret []byte) int {
	at := 0
	for len(secret) > 0 {
		character, size := unescape(data[at:])
		if size == 0 || !bytes.HasPrefix(secret, character) {
			if at == len(data) || data[at] != secret[0] {
				return 0
			}
			character, size = data[at:at+1], 1
		}
		at, secret = at+size, secret[len(character):]
	}
	return at
}

// maxBackslashes are those of a string of JSON within two others.
const maxBackslashes = 7

// unescape reads one character that is escaped, and tells how long that is; 0 where none is.
func unescape(data []byte) (character []byte, size int) {
	if len(data) >= 3 && data[0] == '%' {
		if n, err := strconv.ParseUint(string(data[1:3]), 16, 8); err == nil {
			return []byte{byte(n)}, 3
		}
		return nil, 0
	}
	for size < len(data) && size <= maxBackslashes && data[size] == '\\' {
		size++
	}
	switch {
	case size == 0 || size > maxBackslashes:
		return nil, 0
	case size < len(data) && data[size] == 'u' && len(data) >= size+5:
		if n, err := strconv.ParseUint(string(data[size+1:size+5]), 16, 16); err == nil {
			return []byte(string(rune(n))), size + 5
		}
	case size < len(data) && bytes.IndexByte([]byte(`/"'`), data[size]) >= 0:
		return data[size : size+1], size + 1
	case size > 1:
		return []byte(`\`), size
	}
	return nil, 0
}

// hideIn does the same for headers, some of which are quoted.
func (s secrets) hideIn(header http.Header) {
	if s.forms == nil {
		return
	}
	for _, values := range header {
		for i, value := range values {
			values[i] = string(s.hide([]byte(value)))
		}
	}
}

// formsOf are the ways in which a secret may come back: as it is, as JSON writes it, as a URL does.
func formsOf(bare string) [][]byte {
	forms := [][]byte{[]byte(bare)}
	inJSON, _ := json.Marshal(bare)
	for _, other := range []string{string(inJSON[1 : len(inJSON)-1]), url.QueryEscape(bare), url.PathEscape(bare)} {
		if other != bare {
			forms = append(forms, []byte(other))
		}
	}
	return forms
}

// resolve reads what the server wants in its headers. An access token is no part of it: that is asked for, see authorize.
func (s Server) resolve() (secrets, *Failure) {
	var all secrets
	for _, h := range s.Headers {
		value, secret := h.Value, ""
		if IsReference(h.Value) {
			var failure *Failure
			if value, failure = s.secretOf(h.Value); failure != nil {
				return secrets{}, failure
			}
			secret = value
		}
		all = all.with(h.Name, value, secret)
	}
	if c := s.Credential; c.Placement != PlaceNone && c.Placement != "" && c.OAuth.TokenURL == "" {
		value, failure := s.secretOf(c.Reference)
		if failure != nil {
			return secrets{}, failure
		}
		all = s.placed(all, value)
	}
	return all, nil
}

// placed adds the credential's value, or the access token's, where the server wants it.
func (s Server) placed(all secrets, value string) secrets {
	if s.Credential.Placement == PlaceBearer {
		return all.with("Authorization", "Bearer "+value, value)
	}
	return all.with(s.Credential.HeaderName, value, strings.TrimPrefix(value, "Bearer "))
}

// secretOf reads a reference whose value is to stand in a header.
func (s Server) secretOf(reference string) (string, *Failure) {
	value, why, cause := read(reference, maxSecret)
	value = strings.TrimSpace(value)
	switch {
	case why != "":
	case value == "":
		why = "is empty"
	case !httpguts.ValidHeaderFieldValue(value):
		why = "has characters that cannot stand in an HTTP header"
	}
	if why != "" {
		return "", s.missing(reference, why, cause)
	}
	return value, nil
}

// missing is the failure of a reference that gave nothing that can be used.
func (s Server) missing(reference, why string, cause error) *Failure {
	return &Failure{Kind: KindMissingCredential, Asked: AskedNo, Server: s.Identifier, Err: cause, Message: fmt.Sprintf(
		"Missing credential: %s of %s %s where legwork runs, so nothing was sent.", quote(reference), named(s.Identifier), why)}
}

// maxSecret is more than any token needs, and maxPEM more than any chain of certificates.
const (
	maxSecret = 64 << 10
	maxPEM    = 1 << 20
)

// read looks a reference up; why is empty when it resolved.
func read(reference string, most int64) (value, why string, cause error) {
	source, rest, _ := strings.Cut(reference, ":")
	switch source {
	case "env":
		value, ok := os.LookupEnv(rest)
		if !ok {
			return "", "is not set", nil
		}
		return value, "", nil
	case "file":
		info, err := os.Stat(rest)
		switch {
		case errors.Is(err, os.ErrNotExist):
			return "", "does not exist", err
		case err != nil:
			return "", "cannot be read", err
		case !info.Mode().IsRegular():
			return "", "is not a regular file", nil
		case info.Size() > most:
			return "", "is too large for what it is", nil
		}
		data, err := os.ReadFile(rest)
		if err != nil {
			return "", "cannot be read", err
		}
		return string(data), "", nil
	}
	return "", "is neither env:NAME nor file:/path", nil
}
