package mcp

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// Server is an MCP endpoint that an operator configured, as one operation sees it. It is passed by value: the client keeps
// nothing of it.
type Server struct {
	Identifier string // names it in every sentence
	URL        string
	Credential Credential
	Headers    []Header // on every request to it, beside the credential
	TLS        TLS
	// Revision is what the last operation agreed on ([Spent.Revision]), which saves asking; empty when nobody has asked yet.
	Revision string
	// Token is the access token that an earlier operation was given ([Spent.Token]), which saves asking for another.
	Token Token
}

// Header is a further header of a server. The value may be a reference, env:NAME or file:/path, and is then as secret as the
// credential.
type Header struct {
	Name  string
	Value string
}

// TLS is how one server's certificate is judged and what is shown to it. Each part is a reference to PEM, env:NAME or
// file:/path, which is read at each use; empty parts are what Go does by itself.
type TLS struct {
	CA          string // certificates that are trusted beside the system's
	Certificate string // the client's, with what it is signed by; needs Key
	Key         string
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
	// OAuth, where its TokenURL is set, is how an access token is got for the value, which is then the client's secret.
	OAuth OAuth
}

// OAuth is a client of an authorization server that gets access tokens by the client credentials grant (RFC 6749, 4.4).
type OAuth struct {
	TokenURL   string
	ClientID   string
	Scope      string            // separated by spaces; empty leaves it to the authorization server
	Parameters map[string]string // what else the token request says, such as audience or resource
	// SecretInBody sends the client's id and secret in the body of the request instead of HTTP basic authentication.
	SecretInBody bool
}

// ValidIdentifier tells whether a server can go by this name: 1 to 32 characters that stand in a tool's local name without quoting.
func ValidIdentifier(identifier string) bool {
	for i := range len(identifier) {
		if c := identifier[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return identifier != "" && len(identifier) <= 32
}

// headersOfOurOwn may not be taken by what an operator configures: the protocol's own must win.
var headersOfOurOwn = map[string]bool{
	"Accept": true, "Accept-Encoding": true, "Last-Event-Id": true, "Connection": true, "Content-Length": true, "Content-Type": true, "Host": true,
	"Transfer-Encoding": true, "Te": true, "Trailer": true, "Upgrade": true, "User-Agent": true, "Mcp-Protocol-Version": true, "Mcp-Session-Id": true,
	"Mcp-Method": true, "Mcp-Name": true, "Proxy-Authorization": true, "Proxy-Connection": true, "Keep-Alive": true,
	// To net/http these mean that a request may be sent twice.
	"Idempotency-Key": true, "X-Idempotency-Key": true,
}

// Validate checks what an operator configured. The error says what to change.
func (s Server) Validate() error {
	if !ValidIdentifier(s.Identifier) {
		return fmt.Errorf("identifier %s must be 1 to 32 characters of a-z, 0-9 and _", quote(s.Identifier))
	}
	if err := validateURL("URL", s.URL); err != nil {
		return err
	}
	if err := s.Credential.validate(); err != nil {
		return err
	}
	if err := s.validateHeaders(); err != nil {
		return err
	}
	return s.TLS.validate()
}

// validateURL checks an address; what names it in the error.
func validateURL(what, raw string) error {
	u, err := url.Parse(raw)
	if err != nil {
		return fmt.Errorf("the %s cannot be parsed: write it as https://host/path", what)
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("the %s's scheme is %s: it must be http or https", what, quote(u.Scheme))
	case u.Hostname() == "":
		return fmt.Errorf("the %s names no host: write it as https://host/path", what)
	case u.User != nil:
		return fmt.Errorf("the %s holds a user name or password: configure a credential instead", what)
	case u.Fragment != "":
		return fmt.Errorf("the %s has a fragment (#…): leave it out", what)
	}
	return nil
}

func (c Credential) validate() error {
	switch c.Placement {
	case PlaceNone, "":
		switch {
		case c.OAuth.TokenURL != "":
			return errors.New("a token URL is given but the credential's placement is none: choose bearer or header")
		case c.Reference != "":
			return errors.New("a credential is given but its placement is none: choose bearer or header")
		}
		return nil
	case PlaceBearer:
	case PlaceHeader:
		if err := validateHeaderName(c.HeaderName); err != nil {
			return fmt.Errorf("the credential cannot stand in header %s: %w", quote(c.HeaderName), err)
		}
	default:
		return fmt.Errorf("the credential's placement is %s: it must be none, bearer or header", quote(string(c.Placement)))
	}
	if err := validateReference("the credential", c.Reference); err != nil {
		return err
	}
	return c.OAuth.validate()
}

func (o OAuth) validate() error {
	if o.TokenURL == "" {
		if o.ClientID != "" || o.Scope != "" || len(o.Parameters) > 0 || o.SecretInBody {
			return errors.New("settings for OAuth are given without a token URL: add it, or leave them out")
		}
		return nil
	}
	if err := validateURL("token URL", o.TokenURL); err != nil {
		return err
	}
	if o.ClientID == "" {
		return errors.New("a token URL is given without a client id")
	}
	for name := range o.Parameters {
		switch name {
		case "", "grant_type", "client_id", "client_secret", "scope":
			return fmt.Errorf("the token request's parameter %s cannot be set this way: legwork writes it itself", quote(name))
		}
	}
	return nil
}

func (s Server) validateHeaders() error {
	taken := map[string]bool{}
	switch s.Credential.Placement {
	case PlaceBearer:
		taken["Authorization"] = true
	case PlaceHeader:
		taken[http.CanonicalHeaderKey(s.Credential.HeaderName)] = true
	}
	for _, h := range s.Headers {
		name := http.CanonicalHeaderKey(h.Name)
		if err := validateHeaderName(h.Name); err != nil {
			return fmt.Errorf("header %s cannot be added: %w", quote(h.Name), err)
		}
		if taken[name] {
			return fmt.Errorf("header %s is there twice, or is the credential's: leave one out", quote(h.Name))
		}
		taken[name] = true
		if IsReference(h.Value) {
			if err := validateReference("the value of header "+quote(h.Name), h.Value); err != nil {
				return err
			}
			continue
		}
		if !httpguts.ValidHeaderFieldValue(h.Value) || strings.TrimSpace(h.Value) != h.Value {
			return fmt.Errorf("the value of header %s cannot stand in an HTTP header: it has control characters, or white space around it", quote(h.Name))
		}
	}
	return nil
}

func validateHeaderName(name string) error {
	if !httpguts.ValidHeaderFieldName(name) {
		return errors.New("that is not a valid HTTP header name")
	}
	if name := http.CanonicalHeaderKey(name); headersOfOurOwn[name] || strings.HasPrefix(name, "Mcp-Param-") {
		return errors.New("the protocol or HTTP uses it itself")
	}
	return nil
}

func (t TLS) validate() error {
	if (t.Certificate == "") != (t.Key == "") {
		return errors.New("a client certificate and its key belong together: give both, or neither")
	}
	for _, part := range []struct{ what, reference string }{
		{"the private CA", t.CA}, {"the client certificate", t.Certificate}, {"the client certificate's key", t.Key},
	} {
		if part.reference == "" {
			continue
		}
		if err := validateReference(part.what, part.reference); err != nil {
			return err
		}
	}
	return nil
}

// IsReference tells a reference, env:NAME or file:/path, from a value that stands for itself.
func IsReference(value string) bool {
	return strings.HasPrefix(value, "env:") || strings.HasPrefix(value, "file:")
}

func validateReference(what, reference string) error {
	source, rest, _ := strings.Cut(reference, ":")
	if rest == "" || (source != "env" && source != "file") {
		return fmt.Errorf("%s must be a reference, env:NAME or file:/path, never the value itself", what)
	}
	if source == "file" && !filepath.IsAbs(rest) { // each process would look in a folder of its own
		return fmt.Errorf("the file of %s must be an absolute path: write file:/path", what)
	}
	return nil
}
