package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// Server is an MCP endpoint that an operator configured, as one operation sees it. It is passed by value: the client keeps
// nothing of it.
type Server struct {
	Identifier string // names it in every sentence
	URL        string
	Credential Credential
	// Revision is what the last operation agreed on ([Spent.Revision]), which saves asking; empty when nobody has asked yet.
	Revision string
}

// Placement is where a credential stands on a request.
type Placement string

// The placements of a credential.
const (
	PlaceNone   Placement = "none"   // the server wants none
	PlaceBearer Placement = "bearer" // Authorization: Bearer VALUE
	PlaceHeader Placement = "header" // HeaderName: VALUE
)

// Credential says where a credential is found and where it goes. It never holds the value itself.
type Credential struct {
	// Reference is env:NAME, an environment variable, or file:/path, a file that is read at each use, so that a rotated
	// secret works at once. White space around the value is dropped.
	Reference  string
	Placement  Placement
	HeaderName string // for PlaceHeader
}

// Identifiers have a form that stands in a tool's local name without quoting.
var identifierForm = regexp.MustCompile(`^[a-z0-9_]{1,32}$`)

// ValidIdentifier tells whether a server can go by this name.
func ValidIdentifier(identifier string) bool { return identifierForm.MatchString(identifier) }

// headersOfOurOwn may not be taken by a configured credential: the protocol's own must win.
var headersOfOurOwn = map[string]bool{
	"Accept": true, "Accept-Encoding": true, "Last-Event-Id": true, "Connection": true, "Content-Length": true, "Content-Type": true, "Host": true,
	"Transfer-Encoding": true, "User-Agent": true, "Mcp-Protocol-Version": true, "Mcp-Session-Id": true, "Mcp-Method": true, "Mcp-Name": true,
	// To net/http these mean that a request may be sent twice.
	"Idempotency-Key": true, "X-Idempotency-Key": true,
}

// Validate checks what an operator configured. The error says what to change.
func (s Server) Validate() error {
	if !ValidIdentifier(s.Identifier) {
		return fmt.Errorf("identifier %s must be 1 to 32 characters of a-z, 0-9 and _", quote(s.Identifier))
	}
	if err := validateURL(s.URL); err != nil {
		return err
	}
	return s.Credential.validate()
}

func validateURL(raw string) error {
	u, err := url.Parse(raw)
	if err != nil {
		return errors.New("the URL cannot be parsed: write it as https://host/path")
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("the URL's scheme is %s: it must be http or https", quote(u.Scheme))
	case u.Hostname() == "":
		return errors.New("the URL names no host: write it as https://host/path")
	case u.User != nil:
		return errors.New("the URL holds a user name or password: configure a credential instead")
	case u.Fragment != "":
		return errors.New("the URL has a fragment (#…): leave it out")
	}
	return nil
}

func (c Credential) validate() error {
	switch c.Placement {
	case PlaceNone, "":
		if c.Reference != "" {
			return errors.New("a credential is given but its placement is none: choose bearer or header")
		}
		return nil
	case PlaceBearer:
	case PlaceHeader:
		if !httpguts.ValidHeaderFieldName(c.HeaderName) {
			return fmt.Errorf("the credential's header name %s is not a valid HTTP header name", quote(c.HeaderName))
		}
		if name := http.CanonicalHeaderKey(c.HeaderName); headersOfOurOwn[name] || strings.HasPrefix(name, "Mcp-Param-") {
			return fmt.Errorf("the credential cannot stand in header %s, which the protocol uses itself", quote(c.HeaderName))
		}
	default:
		return fmt.Errorf("the credential's placement is %s: it must be none, bearer or header", quote(string(c.Placement)))
	}
	source, rest, _ := strings.Cut(c.Reference, ":")
	if rest == "" || (source != "env" && source != "file") {
		return errors.New("the credential must be a reference, env:NAME or file:/path, never the secret itself")
	}
	if source == "file" && !filepath.IsAbs(rest) { // each process would look in a folder of its own
		return errors.New("the credential's file must be an absolute path: write file:/path")
	}
	return nil
}

// secret is a credential as it stands on a request. It does not print. The value is behind a function because fmt asks no
// String method of what lies in another struct's unexported field.
type secret struct {
	header string
	value  func() string
	forms  func() [][]byte // in which it may come back; worked out once for an operation
}

// String keeps the value out of every format verb.
func (secret) String() string { return "[redacted]" }

// GoString does the same for %#v.
func (secret) GoString() string { return "[redacted]" }

// minHidden is the length below which a value is not looked for in what comes back: it would be found where it is not.
const minHidden = 6

// hide takes the credential out of what a server sent: some repeat the headers they got. What a caller hands in is changed
// in place or copied.
func (s secret) hide(data []byte) []byte {
	if s.forms == nil {
		return data
	}
	for _, form := range s.forms() {
		if bytes.Contains(data, form) {
			data = bytes.ReplaceAll(data, form, []byte("[redacted]"))
		}
	}
	return data
}

// hideIn does the same for headers, some of which are quoted.
func (s secret) hideIn(header http.Header) {
	for _, values := range header {
		for i, value := range values {
			values[i] = string(s.hide([]byte(value)))
		}
	}
}

// formsOf are the ways in which a credential may come back: as it is, as JSON writes it, as a URL does.
func formsOf(bare string) [][]byte {
	if len(bare) < minHidden {
		return nil
	}
	forms := [][]byte{[]byte(bare)}
	inJSON, _ := json.Marshal(bare)
	for _, other := range []string{string(inJSON[1 : len(inJSON)-1]), url.QueryEscape(bare), url.PathEscape(bare)} {
		if other != bare {
			forms = append(forms, []byte(other))
		}
	}
	return forms
}

// resolve reads the credential's value.
func (s Server) resolve() (secret, *Failure) {
	c := s.Credential
	if c.Placement == PlaceNone || c.Placement == "" {
		return secret{}, nil
	}
	value, why, cause := read(c.Reference)
	value = strings.TrimSpace(value)
	if why == "" && value == "" {
		why = "is empty"
	}
	if why == "" && !httpguts.ValidHeaderFieldValue(value) {
		why = "has characters that cannot stand in an HTTP header"
	}
	if why != "" {
		return secret{}, &Failure{Kind: KindMissingCredential, Asked: AskedNo, Server: s.Identifier, Err: cause, Message: fmt.Sprintf(
			"Missing credential: %s of %s %s where legwork runs, so nothing was sent.",
			quote(c.Reference), named(s.Identifier), why)}
	}
	forms := formsOf(strings.TrimPrefix(value, "Bearer "))
	header := c.HeaderName
	if c.Placement == PlaceBearer {
		header, value = "Authorization", "Bearer "+value
	}
	return secret{header: header, value: func() string { return value }, forms: func() [][]byte { return forms }}, nil
}

// maxCredentialFile is more than any token needs.
const maxCredentialFile = 64 << 10

// read looks a reference up; why is empty when it resolved.
func read(reference string) (value, why string, cause error) {
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
		case info.Size() > maxCredentialFile:
			return "", "is too large for a credential", nil
		}
		data, err := os.ReadFile(rest)
		if err != nil {
			return "", "cannot be read", err
		}
		return string(data), "", nil
	}
	return "", "is neither env:NAME nor file:/path", nil
}
