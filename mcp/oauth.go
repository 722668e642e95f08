package mcp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

// Token is an access token as an authorization server gave it to an operation. It serves later operations of the server
// that it was asked for, until shortly before it expires. It does not print, and its zero value is none.
type Token struct{ issued *issued }

type issued struct {
	value   func() string // see secretHeader
	expires time.Time
	client  [sha256.Size]byte // what it was asked for
}

// methodToken stands for the token request in legs and sentences.
const methodToken = "token request"

// tokenReserve is what a token must still be good for when an operation sets out with it.
const tokenReserve = time.Minute

// serves tells whether an operation of the server that may take as long as this can set out with the token.
func (t Token) serves(s Server, budget time.Duration) bool {
	return t.issued != nil && t.issued.client == s.client() && time.Until(t.issued.expires) > min(budget, tokenReserve)
}

// client is a sum of all that a token request says and of where the token goes, so that no token outlives its settings.
func (s Server) client() [sha256.Size]byte {
	o := s.Credential.OAuth
	text := fmt.Sprintf("%q %q %q %q %q %v", s.URL, s.Credential.Reference, o.TokenURL, o.ClientID, o.Scope, o.SecretInBody)
	for _, name := range slices.Sorted(maps.Keys(o.Parameters)) {
		text += fmt.Sprintf(" %q %q", name, o.Parameters[name])
	}
	return sha256.Sum256([]byte(text))
}

// authorize sees to the access token that the server wants: the one that the operation was sent out with, or a new one,
// which is a leg like any other.
func (o *operation) authorize() *Failure {
	if o.server.Credential.OAuth.TokenURL == "" {
		return nil
	}
	o.token = o.server.Token
	if !o.token.serves(o.server, o.deadline.budget.Total) {
		o.token = Token{}
		secret, failure := o.server.secretOf(o.server.Credential.Reference)
		if failure != nil {
			return failure
		}
		// In what the authorization server says: the secret, and the header that it stands in.
		pair := url.QueryEscape(o.server.Credential.OAuth.ClientID) + ":" + url.QueryEscape(secret)
		o.secrets = o.secrets.hiding(secret).hiding(base64.StdEncoding.EncodeToString([]byte(pair)))
		f := &flight{operation: o, message: message{Method: methodToken}}
		token, failure := f.token(secret)
		if failure != nil {
			return failure
		}
		o.token = token
	}
	o.secrets = o.server.placed(o.secrets, o.token.issued.value())
	return nil
}

// token asks for an access token, bounded by what the deadline grants.
func (f *flight) token(secret string) (Token, *Failure) {
	o := f.operation
	var ok bool
	if f.grant, ok = o.deadline.Grant(); !ok {
		return Token{}, f.exchange().budgetSpent(o.deadline.budget, o.legs)
	}
	ctx, cancel := context.WithTimeout(o.ctx, o.deadline.bound(f.grant))
	defer cancel()

	settings := &o.server.Credential.OAuth
	parameters := url.Values{}
	for name, value := range settings.Parameters {
		parameters.Set(name, value)
	}
	config := clientcredentials.Config{
		ClientID: settings.ClientID, ClientSecret: secret, TokenURL: settings.TokenURL, EndpointParams: parameters,
		AuthStyle: oauth2.AuthStyleInHeader, // said, because finding out would be a second request
	}
	if settings.Scope != "" {
		config.Scopes = []string{settings.Scope}
	}
	if settings.SecretInBody {
		config.AuthStyle = oauth2.AuthStyleInParams
	}
	line := &tokenLine{flight: f}
	client := &http.Client{Transport: line, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

	f.started = o.client.transport.clock.Now()
	given, err := config.Token(context.WithValue(ctx, oauth2.HTTPClient, client))
	failure := line.failure
	switch {
	case failure != nil:
	case err != nil:
		failure = f.refusedToken(err)
	case !httpguts.ValidHeaderFieldValue(given.AccessToken):
		failure = f.exchange().malformed("the access token has characters that cannot stand in an HTTP header")
	}
	f.record(failure)
	if failure != nil {
		return Token{}, failure
	}
	// Without a word on how long it lasts, a token serves the operation that asked for it.
	value := given.AccessToken
	return Token{&issued{value: func() string { return value }, expires: given.Expiry, client: o.server.client()}}, nil
}

// refusedToken is the failure for an answer that holds no token.
func (f *flight) refusedToken(err error) *Failure {
	ex, o, status := f.exchange(), f.operation, f.reply.status
	var retrieve *oauth2.RetrieveError
	if !errors.As(err, &retrieve) {
		return ex.malformed("with HTTP %d and no access token", status).because(err)
	}
	hidden := func(text string) string { return string(o.secrets.hide([]byte(text))) } // under any status it may repeat what it was sent
	code, description := hidden(retrieve.ErrorCode), hidden(retrieve.ErrorDescription)
	said := "and did not say why"
	switch {
	case code != "" && description != "":
		said = fmt.Sprintf("as %s: %s", quote(code), quote(description))
	case code != "":
		said = "as " + quote(code)
	case len(bytes.TrimSpace(retrieve.Body)) > 0:
		said = "and said " + excerpt(o.secrets.hide(retrieve.Body))
	}
	header := retrieve.Response.Header
	switch {
	case status >= 300 && status < 400: // and these say nothing about the credential
		to := "elsewhere"
		if location := header.Get("Location"); location != "" {
			to = "to " + quote(withoutQuery(hidden(location)))
		}
		return ex.failure(KindHTTPStatus, AskedNo, nil, "HTTP %d: %s redirects %s, and redirects are never followed: if that is its address now, correct the token URL.",
			status, ex.far(), to)
	case status == http.StatusTooManyRequests, status >= 500:
		if after := header.Get("Retry-After"); after != "" {
			said += "; it asks not to be called again before Retry-After " + quote(after)
		}
		return ex.failure(KindHTTPStatus, AskedNo, nil, "HTTP %d: %s gave no access token, %s.", status, ex.far(), said)
	}
	return ex.failure(KindMissingCredential, AskedNo, nil,
		"Missing credential: %s refused an access token for client %s with HTTP %d, %s.", ex.far(), quote(o.server.Credential.OAuth.ClientID), status, said)
}

// maxTokenAnswer is more than any answer to a token request needs.
const maxTokenAnswer = 256 << 10

// tokenLine carries the one request of a token leg, to the last byte of its answer. Its failure is how the leg ended where
// no whole answer came.
type tokenLine struct {
	flight  *flight
	failure *Failure
}

// RoundTrip sends the request that the OAuth library made.
func (l *tokenLine) RoundTrip(req *http.Request) (*http.Response, error) {
	f := l.flight
	broken := func(err error) (*http.Response, error) {
		l.failure = f.broken(req.Context(), err)
		return nil, err
	}
	ctx := f.trace(req.Context(), nil) // its secret stands in it already; no other header of the server's belongs to it
	req = req.Clone(ctx)
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "legwork")
	resp, err := f.operation.client.transport.http.RoundTrip(req)
	if err != nil {
		return broken(err)
	}
	defer resp.Body.Close()
	defer context.AfterFunc(ctx, func() { resp.Body.Close() })()
	f.progress.reach(headers)
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxTokenAnswer))
	f.progress.bytes(int64(len(body)))
	if err != nil {
		return broken(err)
	}
	f.reply.status = resp.StatusCode
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		body = f.operation.secrets.hide(body)
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}
