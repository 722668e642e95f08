package main

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"legwork/mcp"
	"legwork/store"
)

// wayInFlags are what a server wants beside a credential before it lets legwork in, as flags of add and set.
type wayInFlags struct {
	headers, parameters           []string
	tokenURL, clientID, scope     string
	secretInBody                  bool
	tlsCA, tlsCertificate, tlsKey string
}

func (w *wayInFlags) define(flags *pflag.FlagSet) {
	flags.StringArrayVar(&w.headers, "header", nil,
		"`NAME=VALUE` of a further header; VALUE may be env:NAME or file:/path; NAME= removes it; may be given several times")
	flags.StringVar(&w.tokenURL, "oauth-token-url", "",
		"where an access token is got with the credential, which is then the client's secret (OAuth 2.0 client credentials); empty removes OAuth")
	flags.StringVar(&w.clientID, "oauth-client-id", "", "the client's id there")
	flags.StringVar(&w.scope, "oauth-scope", "", "the scopes to ask for, separated by spaces")
	flags.StringArrayVar(&w.parameters, "oauth-parameter", nil,
		"`NAME=VALUE` of a further parameter of the token request, such as audience or resource; NAME= removes it; may be given several times")
	flags.BoolVar(&w.secretInBody, "oauth-secret-in-body", false,
		"send the client's id and secret in the body of the token request, not by HTTP basic authentication")
	flags.StringVar(&w.tlsCA, "tls-ca", "", "where certificates (PEM) are found that are trusted for this server beside the system's: env:NAME or file:/path; empty removes it")
	flags.StringVar(&w.tlsCertificate, "tls-cert", "", "where the client certificate (PEM) is found: env:NAME or file:/path; empty removes it")
	flags.StringVar(&w.tlsKey, "tls-key", "", "where its private key (PEM) is found; goes with --tls-cert")
}

// applyWayIn writes what was given into s.
func (f *serverFlags) applyWayIn(s *store.Server) error {
	w := &f.wayIn
	var err error
	if s.Headers, err = edited(s.Headers, "--header", w.headers, strings.EqualFold); err != nil {
		return err
	}
	for _, text := range []struct {
		flag  string
		given string
		into  *string
	}{
		{"tls-ca", w.tlsCA, &s.TLSCA}, {"tls-cert", w.tlsCertificate, &s.TLSCertificate}, {"tls-key", w.tlsKey, &s.TLSKey},
		{"oauth-token-url", w.tokenURL, &s.OAuthTokenURL}, {"oauth-client-id", w.clientID, &s.OAuthClientID},
		{"oauth-scope", strings.Join(strings.Fields(w.scope), " "), &s.OAuthScope},
	} {
		if f.given(text.flag) {
			*text.into = text.given
		}
	}
	if f.given("oauth-token-url") && w.tokenURL == "" {
		s.OAuthClientID, s.OAuthScope, s.OAuthParameters, s.OAuthSecretInBody = "", "", nil, false
	}
	// Of those that say something: --oauth-scope= beside no token URL removes what is not there.
	for _, given := range []struct {
		flag string
		says bool
	}{
		{"oauth-client-id", w.clientID != ""}, {"oauth-scope", w.scope != ""}, {"oauth-parameter", len(w.parameters) > 0},
		{"oauth-secret-in-body", w.secretInBody},
	} {
		if s.OAuthTokenURL == "" && given.says {
			return usagef("--%s belongs to --oauth-token-url, and the server has no token URL", given.flag)
		}
	}
	if s.OAuthParameters, err = edited(s.OAuthParameters, "--oauth-parameter", w.parameters, sameName); err != nil {
		return err
	}
	if f.given("oauth-secret-in-body") {
		s.OAuthSecretInBody = w.secretInBody
	}
	return nil
}

func sameName(a, b string) bool { return a == b }

// edited is a map with the NAME=VALUE of a flag put into it; NAME= takes the name out. The given map stays as it is. What is
// wrong is told without the value, which may be a secret that was meant to be a reference.
func edited(before map[string]string, flag string, pairs []string, same func(a, b string) bool) (map[string]string, error) {
	after := maps.Clone(before)
	var named []string
	for _, pair := range pairs {
		name, value, ok := strings.Cut(pair, "=")
		switch {
		case !ok || name == "" || strings.ContainsAny(name, ": \t"): // as "Name: value" is written elsewhere
			return nil, usagef("%s takes NAME=VALUE, with an equals sign and without a colon or a space in the name", flag)
		case slices.ContainsFunc(named, func(other string) bool { return same(name, other) }):
			return nil, usagef("%s names %s twice: leave one out", flag, name)
		}
		named = append(named, name)
		had := len(after)
		maps.DeleteFunc(after, func(other, _ string) bool { return same(name, other) })
		if value == "" {
			if len(after) == had {
				return nil, usagef("%s %s= removes %s, which is not there%s", flag, name, name, andThoseThatAre(before))
			}
			continue
		}
		if after == nil {
			after = map[string]string{}
		}
		after[name] = value
	}
	return after, nil
}

func andThoseThatAre(there map[string]string) string {
	if len(there) == 0 {
		return ": there are none"
	}
	return ": there is " + strings.Join(slices.Sorted(maps.Keys(there)), ", ")
}

// cautions says on stderr what an operator may not want about the way into a server.
func (a *app) cautions(s store.Server) {
	secretHeaders := false
	for _, name := range slices.Sorted(maps.Keys(s.Headers)) {
		switch {
		case mcp.IsReference(s.Headers[name]):
			secretHeaders = true
		case soundsSecret(name):
			a.hint("the value of its header %s is stored and shown as it is: if it is a secret, give env:NAME or file:/path instead", name)
		}
	}
	if s.OAuthTokenURL != "" {
		if host := unencrypted(s.OAuthTokenURL); host != "" {
			a.hint("the client's secret travels unencrypted to %s: use https:// in the token URL", host)
		}
	}
	what := ""
	switch {
	case s.OAuthTokenURL != "":
		what = "its access token travels"
	case s.Credential != "":
		what = "its credential travels"
	case secretHeaders:
		what = "the secrets in its headers travel"
	}
	if host := unencrypted(s.URL); host != "" && what != "" {
		a.hint("%s unencrypted to %s: use https:// in the URL", what, host)
	}
	if s.TLSCA+s.TLSCertificate != "" && !isHTTPS(s.URL) && !isHTTPS(s.OAuthTokenURL) {
		a.hint("its CA and its client certificate are of no use: its URL does not begin with https://")
	}
}

// soundsSecret tells whether a header of this name usually holds a secret.
func soundsSecret(name string) bool {
	name = strings.ToLower(name)
	return slices.ContainsFunc([]string{"auth", "secret", "token", "key", "password", "cookie"}, func(part string) bool {
		return strings.Contains(name, part)
	})
}

// unencrypted is the host of an http URL that leads off this machine; empty for others.
func unencrypted(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" {
		return ""
	}
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	if addr, err := netip.ParseAddr(host); err == nil && addr.Unmap().IsLoopback() || host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return ""
	}
	return u.Host
}

func isHTTPS(raw string) bool {
	u, err := url.Parse(raw)
	return err == nil && u.Scheme == "https"
}

// addWayIn adds what a server wants before it lets legwork in. References are shown as they are, and nothing is read.
func (s *sheet) addWayIn(server store.Server) {
	place := "as a bearer token"
	if server.AuthHeaderName != "" {
		place = "in the header " + server.AuthHeaderName
	}
	switch {
	case server.OAuthTokenURL != "":
		s.add("Credential", fmt.Sprintf("%s, the secret of the OAuth client %s", server.Credential, server.OAuthClientID))
		s.add("Access token", fmt.Sprintf("from %s, sent %s", server.OAuthTokenURL, place))
		s.add("Scope", server.OAuthScope)
		s.addEach("Token request", server.OAuthParameters, "=")
		if server.OAuthSecretInBody {
			s.add("Secret sent", "in the body of the token request")
		}
	case server.Credential != "":
		s.add("Credential", server.Credential+", "+place)
	default:
		s.add("Credential", "none")
	}
	s.addEach("Headers", server.Headers, ": ")
	s.add("Private CA", server.TLSCA)
	if server.TLSCertificate != "" {
		s.add("Client certificate", fmt.Sprintf("%s, with the key %s", server.TLSCertificate, server.TLSKey))
	}
}

// addEach adds a line for each member, by name; only the first has the title.
func (s *sheet) addEach(title string, members map[string]string, between string) {
	for _, name := range slices.Sorted(maps.Keys(members)) {
		s.add(title, name+between+members[name])
		title = ""
	}
}
