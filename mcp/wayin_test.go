package mcp_test

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http/httpproxy"

	"legwork/mcp"
	"legwork/mcp/mcptest"
)

// authorizationServer gives access tokens out and keeps what it was asked.
type authorizationServer struct {
	url string

	mu    sync.Mutex
	asked []tokenRequest
}

type tokenRequest struct {
	ID, Secret string // by HTTP basic authentication
	Form       url.Values
}

func newAuthorizationServer(t testing.TB, answer http.HandlerFunc) *authorizationServer {
	t.Helper()
	a := &authorizationServer{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			t.Error(err)
		}
		id, secret, _ := r.BasicAuth()
		a.mu.Lock()
		a.asked = append(a.asked, tokenRequest{id, secret, r.PostForm})
		n := len(a.asked)
		a.mu.Unlock()
		if answer != nil {
			answer(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":"access-%d","token_type":"Bearer","expires_in":3600}`, n)
	}))
	t.Cleanup(server.Close)
	a.url = server.URL
	return a
}

func (a *authorizationServer) requests() []tokenRequest {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]tokenRequest{}, a.asked...)
}

// behind is a server that lets nobody in without an access token from a.
func behind(a *authorizationServer, fake *mcptest.Server) mcp.Server {
	server := modern(fake.URL)
	server.Credential = mcp.Credential{Reference: tokenReference, Placement: mcp.PlaceBearer, OAuth: mcp.OAuth{
		TokenURL: a.url, ClientID: "legwork-client", Scope: "tools:read tools:call", Parameters: map[string]string{"audience": "https://docs.example.com"},
	}}
	return server
}

func TestAnAccessTokenIsALegOfTheOperation(t *testing.T) {
	t.Parallel()
	a := newAuthorizationServer(t, nil)
	fake := mcptest.New(t, mcptest.Options{Era: mcptest.Stateless})
	client := newClient(t, parts{})
	server := behind(a, fake)

	_, spent, err := client.CallTool(t.Context(), server, echo, ample)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]leg{{"token request", "ok", 200}, {"tools/call", "ok", 200}}, legs(spent)); diff != "" {
		t.Errorf("legs (-want +got):\n%s", diff)
	}
	want := []tokenRequest{{ID: "legwork-client", Secret: token, Form: url.Values{
		"grant_type": {"client_credentials"}, "scope": {"tools:read tools:call"}, "audience": {"https://docs.example.com"},
	}}}
	if diff := cmp.Diff(want, a.requests()); diff != "" {
		t.Errorf("the token request (-want +got):\n%s", diff)
	}
	if got := fake.Requests()[0].Header.Get("Authorization"); got != "Bearer access-1" {
		t.Errorf("the call had Authorization %q", got)
	}

	t.Run("which the next operation travels with", func(t *testing.T) {
		server.Token = spent.Token
		_, again, err := client.CallTool(t.Context(), server, echo, ample)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]leg{{"tools/call", "ok", 200}}, legs(again)); diff != "" {
			t.Errorf("legs (-want +got):\n%s", diff)
		}
		if again.Token != spent.Token {
			t.Error("the token did not come back")
		}
		requests := fake.Requests()
		if got := requests[len(requests)-1].Header.Get("Authorization"); got != "Bearer access-1" {
			t.Errorf("the call had Authorization %q", got)
		}
	})
	for _, change := range []struct {
		story string
		to    func(*mcp.Server)
	}{
		{"unless the scope is another", func(s *mcp.Server) { s.Credential.OAuth.Scope = "tools:read" }},
		{"unless the client is another", func(s *mcp.Server) { s.Credential.OAuth.ClientID = "somebody" }},
		{"unless a parameter is another", func(s *mcp.Server) { s.Credential.OAuth.Parameters = map[string]string{"audience": "x"} }},
		{"unless the server is elsewhere", func(s *mcp.Server) { s.URL += "?tenant=b" }},
	} {
		t.Run(change.story, func(t *testing.T) {
			other := server
			other.Token = spent.Token
			change.to(&other)
			_, again, err := client.CallTool(t.Context(), other, echo, ample)
			if err != nil {
				t.Fatal(err)
			}
			if got := legs(again)[0].Method; got != "token request" || again.Token == spent.Token {
				t.Errorf("the first leg is %s: the token served what it was not given for", got)
			}
		})
	}
}

func TestTheSecretMayStandInTheBody(t *testing.T) {
	t.Parallel()
	a := newAuthorizationServer(t, nil)
	fake := mcptest.New(t, mcptest.Options{Era: mcptest.Stateless})
	server := behind(a, fake)
	server.Credential.OAuth.SecretInBody = true
	server.Credential.OAuth.Scope = ""
	server.Credential.OAuth.Parameters = nil
	server.Credential.Placement, server.Credential.HeaderName = mcp.PlaceHeader, "X-Access-Token"
	if _, _, err := newClient(t, parts{}).CallTool(t.Context(), server, echo, ample); err != nil {
		t.Fatal(err)
	}
	want := []tokenRequest{{Form: url.Values{
		"grant_type": {"client_credentials"}, "client_id": {"legwork-client"}, "client_secret": {token},
	}}}
	if diff := cmp.Diff(want, a.requests()); diff != "" {
		t.Errorf("the token request (-want +got):\n%s", diff)
	}
	if got := fake.Requests()[0].Header.Get("X-Access-Token"); got != "access-1" {
		t.Errorf("the call had X-Access-Token %q", got)
	}
}

// A token that was not accepted, or of which nobody said how long it lasts, does not come back for the next operation.
func TestTokensThatAreNotKept(t *testing.T) {
	t.Parallel()
	t.Run("not accepted", func(t *testing.T) {
		t.Parallel()
		a := newAuthorizationServer(t, nil)
		fake := mcptest.New(t, mcptest.Options{Era: mcptest.Stateless, On: on{"tools/call": mcptest.Status(401, nil, "")}})
		_, spent, err := newClient(t, parts{}).CallTool(t.Context(), behind(a, fake), echo, ample)
		if f := failure(t, err); f.Kind != mcp.KindHTTPStatus || !strings.Contains(f.Message, `the access token for client "legwork-client" was not accepted`) {
			t.Errorf("%s: %s", f.Kind, f.Message)
		}
		if spent.Token != (mcp.Token{}) || len(spent.Legs) != 2 {
			t.Errorf("the token came back, or was asked for again: %v", legs(spent))
		}
	})
	t.Run("without a word on how long", func(t *testing.T) {
		t.Parallel()
		a := newAuthorizationServer(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"access_token":"access","token_type":"bearer"}`)
		})
		fake := mcptest.New(t, mcptest.Options{Era: mcptest.Stateless})
		client, server := newClient(t, parts{}), behind(a, fake)
		for range 2 {
			_, spent, err := client.CallTool(t.Context(), server, echo, ample)
			if err != nil {
				t.Fatal(err)
			}
			server.Token = spent.Token
		}
		if n := len(a.requests()); n != 2 {
			t.Errorf("%d token requests for two operations", n)
		}
	})
}

func TestTokenRequestsThatFail(t *testing.T) {
	t.Parallel()
	answer := func(status int, contentType, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		}
	}
	hold := make(chan struct{})
	t.Cleanup(func() { close(hold) })
	for _, tt := range []struct {
		story  string
		answer http.HandlerFunc
		url    string
		kind   mcp.Kind
		leg    leg
		says   string
	}{
		{"refused", answer(401, "application/json", `{"error":"invalid_client","error_description":"who are you, `+token+`?"}`), "", mcp.KindMissingCredential,
			leg{"token request", "missing_credential", 401},
			`Missing credential: the authorization server of server "docs" refused an access token for client "legwork-client" with HTTP 401, as "invalid_client": "who are you, [redacted]?". Server "docs" itself was not asked.`},
		{"refused in HTML", answer(403, "text/html", "<html>go away</html>"), "", mcp.KindMissingCredential, leg{"token request", "missing_credential", 403},
			`with HTTP 403, and said "<html>go away</html>". Server "docs" itself was not asked.`},
		{"redirected", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, "", mcp.KindHTTPStatus, leg{"token request", "http_status", 307},
			`HTTP 307: the authorization server of server "docs" redirects to "/elsewhere", and redirects are never followed: if that is its address now, correct the token URL. Server "docs" itself was not asked.`},
		{"overloaded", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "120")
			http.Error(w, "busy", http.StatusServiceUnavailable)
		}, "", mcp.KindHTTPStatus, leg{"token request", "http_status", 503},
			`HTTP 503: the authorization server of server "docs" gave no access token, and said "busy"; it asks not to be called again before Retry-After "120". Server "docs" itself was not asked.`},
		{"refused under a good status", answer(200, "application/json", `{"error":"bad_verification_code","error_description":"secret `+token+` is wrong"}`), "", mcp.KindMissingCredential,
			leg{"token request", "missing_credential", 200}, `with HTTP 200, as "bad_verification_code": "secret [redacted] is wrong".`},
		{"the header repeated", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprintf(w, `{"error":"invalid_client","error_description":"header %s is wrong"}`, r.Header.Get("Authorization"))
		}, "", mcp.KindMissingCredential, leg{"token request", "missing_credential", 401}, `"header Basic [redacted] is wrong"`},
		{"no token", answer(200, "application/json", `{"token_type":"bearer"}`), "", mcp.KindMalformedResponse, leg{"token request", "malformed_response", 200},
			`Malformed answer: the authorization server of server "docs" answered token request, but with HTTP 200 and no access token. Server "docs" itself was not asked.`},
		{"not JSON", answer(200, "application/json", `hello`), "", mcp.KindMalformedResponse, leg{"token request", "malformed_response", 200}, `Server "docs" itself was not asked.`},
		{"no header value", answer(200, "application/json", `{"access_token":"a\r\nb"}`), "", mcp.KindMalformedResponse, leg{"token request", "malformed_response", 200},
			"the access token has characters that cannot stand in an HTTP header"},
		{"an answer without end", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"access_token":"`)
			for _, err := w.Write(make([]byte, 1<<16)); err == nil; _, err = w.Write(make([]byte, 1<<16)) {
			}
		}, "", mcp.KindMalformedResponse, leg{"token request", "malformed_response", 200}, "no access token"},
		{"silent", func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-hold:
			case <-r.Context().Done():
			}
		}, "", mcp.KindNoAnswer, leg{"token request", "no_answer", 0},
			`No answer: the authorization server of server "docs" was asked (token request) and did not answer within its budget of 1 s; nothing had arrived. Server "docs" itself was not asked.`},
		{"away", nil, "http://127.0.0.1:1/token", mcp.KindUnreachable, leg{"token request", "unreachable", 0},
			`Unreachable: no connection to the authorization server of server "docs" came about: the connection was refused at 127.0.0.1:1.`},
		{"behind the gate", nil, "http://metadata.test/token", mcp.KindRefusedHost, leg{"token request", "refused_host", 0},
			`Refused host: "metadata.test" of the authorization server of server "docs" leads to 169.254.169.254`},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			a := newAuthorizationServer(t, tt.answer)
			fake := mcptest.New(t, mcptest.Options{Era: mcptest.Stateless})
			server := behind(a, fake)
			if tt.url != "" {
				server.Credential.OAuth.TokenURL = tt.url
			}
			budget := ample
			if tt.kind == mcp.KindNoAnswer {
				budget = installation(time.Second)
			}
			_, spent, err := newClient(t, parts{}).CallTool(t.Context(), server, echo, budget)
			f := failure(t, err)
			if f.Kind != tt.kind || f.Asked != mcp.AskedNo || !strings.Contains(f.Message, tt.says) {
				t.Errorf("failure %s, asked %s: %s\nwant %s, asked no: …%s…", f.Kind, f.Asked, f.Message, tt.kind, tt.says)
			}
			if diff := cmp.Diff([]leg{tt.leg}, legs(spent)); diff != "" {
				t.Errorf("legs (-want +got):\n%s", diff)
			}
			if n := len(fake.Requests()); n > 0 {
				t.Errorf("the server was asked %d times", n)
			}
		})
	}
}

// What the authorization server took is not there for the call.
func TestTheTokenRequestSpendsTheBudget(t *testing.T) {
	t.Parallel()
	clock := new(mcptest.Clock)
	for _, tt := range []struct {
		story string
		took  time.Duration
		want  []time.Duration
	}{
		{"part of it", 4 * time.Second, []time.Duration{20 * time.Second, 16 * time.Second}},
		{"all of it", 20 * time.Second, []time.Duration{20 * time.Second}},
	} {
		t.Run(tt.story, func(t *testing.T) {
			a := newAuthorizationServer(t, func(w http.ResponseWriter, _ *http.Request) {
				clock.Advance(tt.took)
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprint(w, `{"access_token":"access","expires_in":3600}`)
			})
			fake := mcptest.New(t, mcptest.Options{Era: mcptest.Stateless})
			_, spent, err := newClient(t, parts{clock: clock}).CallTool(t.Context(), behind(a, fake), echo, installation(20*time.Second))
			if diff := cmp.Diff(tt.want, grants(spent)); diff != "" {
				t.Errorf("grants (-want +got):\n%s", diff)
			}
			if len(tt.want) == 1 {
				if f := failure(t, err); f.Kind != mcp.KindBudgetSpent || !strings.Contains(f.Message, "went to token request (20 s)") {
					t.Errorf("%s: %s", f.Kind, f.Message)
				}
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

func TestFurtherHeadersAreOnEveryLeg(t *testing.T) {
	t.Parallel()
	fake := mcptest.New(t, mcptest.Options{})
	server := docs(fake.URL)
	server.Credential = mcp.Credential{Reference: tokenReference, Placement: mcp.PlaceBearer}
	server.Headers = []mcp.Header{{Name: "x-tenant", Value: "acme"}, {Name: "Cf-Access-Client-Secret", Value: tokenReference}}
	client := newClient(t, parts{})
	if _, _, err := client.CallTool(t.Context(), server, echo, ample); err != nil {
		t.Fatal(err)
	}
	client.Close()
	if n := len(fake.Requests()); n != 4 {
		t.Fatalf("%d requests, want 4", n)
	}
	for _, r := range fake.Requests() {
		got := []string{r.Header.Get("Authorization"), r.Header.Get("X-Tenant"), r.Header.Get("Cf-Access-Client-Secret")}
		if diff := cmp.Diff([]string{"Bearer " + token, "acme", token}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", r.Method, diff)
		}
	}
	t.Run("a reference that leads nowhere", func(t *testing.T) {
		server.Headers = []mcp.Header{{Name: "X-Second", Value: "env:LEGWORK_NO_SUCH_VARIABLE"}}
		_, _, err := client.CallTool(t.Context(), server, echo, ample)
		if f := failure(t, err); f.Kind != mcp.KindMissingCredential || !strings.Contains(f.Message, `"env:LEGWORK_NO_SUCH_VARIABLE" of server "docs" is not set`) {
			t.Errorf("%s: %s", f.Kind, f.Message)
		}
	})
}

func TestConfigurationsThatCannotBe(t *testing.T) {
	t.Parallel()
	bearer := mcp.Credential{Reference: "env:X", Placement: mcp.PlaceBearer}
	for _, tt := range []struct {
		story  string
		change func(*mcp.Server)
		says   string
	}{
		{"a header twice", func(s *mcp.Server) { s.Headers = []mcp.Header{{Name: "X-A", Value: "1"}, {Name: "x-a", Value: "2"}} }, `header "x-a" is there twice`},
		{"the credential's header", func(s *mcp.Server) {
			s.Credential, s.Headers = bearer, []mcp.Header{{Name: "authorization", Value: "Basic x"}}
		}, `is the credential's`},
		{"a header of the protocol's", func(s *mcp.Server) { s.Headers = []mcp.Header{{Name: "mcp-method", Value: "x"}} }, `header "mcp-method" cannot be added: the protocol or HTTP uses it itself`},
		{"a value with a line break", func(s *mcp.Server) { s.Headers = []mcp.Header{{Name: "X-A", Value: "a\nb"}} }, "cannot stand in an HTTP header"},
		{"a relative file", func(s *mcp.Server) { s.Headers = []mcp.Header{{Name: "X-A", Value: "file:a"}} }, "absolute path"},
		{"a token URL without a client", func(s *mcp.Server) {
			s.Credential = bearer
			s.Credential.OAuth.TokenURL = "https://login.example.com/token"
		}, "without a client id"},
		{"a client without a token URL", func(s *mcp.Server) {
			s.Credential = bearer
			s.Credential.OAuth.ClientID = "a"
		}, "without a token URL"},
		{"a token URL without a placement", func(s *mcp.Server) {
			s.Credential.OAuth = mcp.OAuth{TokenURL: "https://login.example.com/token", ClientID: "a"}
		}, "placement is none"},
		{"a token URL that is none", func(s *mcp.Server) {
			s.Credential = bearer
			s.Credential.OAuth = mcp.OAuth{TokenURL: "login.example.com", ClientID: "a"}
		}, "the token URL's scheme"},
		{"a parameter that legwork writes", func(s *mcp.Server) {
			s.Credential = bearer
			s.Credential.OAuth = mcp.OAuth{TokenURL: "https://login.example.com/token", ClientID: "a", Parameters: map[string]string{"grant_type": "password"}}
		}, `"grant_type" cannot be set`},
		{"a certificate without a key", func(s *mcp.Server) { s.TLS.Certificate = "file:/a" }, "belong together"},
		{"PEM instead of a reference", func(s *mcp.Server) { s.TLS.CA = "-----BEGIN CERTIFICATE-----" }, "the private CA must be a reference"},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			server := docs("https://docs.example.com/mcp")
			tt.change(&server)
			if err := server.Validate(); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want …%s…", err, tt.says)
			}
		})
	}
}

func TestWhatAServerAsksForInstead(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story  string
		status int
		header []string
		says   string
	}{
		{"nothing", 401, nil, `answered tools/call with status 401; the credential "` + tokenReference + `" was not accepted.`},
		{"a scope", 403, []string{`Bearer error="insufficient_scope", scope="tools:write tools:read", resource_metadata="https://docs.example.com/.well-known/oauth-protected-resource?x=1", error_description="not enough"`},
			`was not accepted; it asks for Bearer (scope "tools:write tools:read", error "insufficient_scope", saying "not enough", see "https://docs.example.com/.well-known/oauth-protected-resource").`},
		{"two ways in one header", 401, []string{`Negotiate, Basic realm="a \"quoted\" realm"`}, `it asks for Negotiate or Basic (realm "a 'quoted' realm").`},
		{"two headers", 401, []string{`Bearer`, `DPoP algs="ES256"`}, `it asks for Bearer or DPoP.`},
		{"what breaks the rules", 401, []string{`Bearer realm="never ends`, "\"=,;="}, `it asks for Bearer (realm "never ends").`},
		{"the credential itself", 401, []string{`Bearer error_description="bad token ` + token + `"`}, `(saying "bad token [redacted]").`},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			fake := mcptest.New(t, mcptest.Options{Era: mcptest.Stateless, On: on{
				"tools/call": mcptest.Status(tt.status, http.Header{"Www-Authenticate": tt.header}, "no"),
			}})
			server := modern(fake.URL)
			server.Credential = mcp.Credential{Reference: tokenReference, Placement: mcp.PlaceBearer}
			_, spent, err := newClient(t, parts{}).CallTool(t.Context(), server, echo, ample)
			if f := failure(t, err); f.Kind != mcp.KindHTTPStatus || !strings.HasSuffix(f.Message, tt.says) {
				t.Errorf("%s: %s\nwant …%s", f.Kind, f.Message, tt.says)
			}
			if len(spent.Legs) != 1 {
				t.Errorf("%d legs: nothing else may be asked", len(spent.Legs))
			}
		})
	}
}

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

func newAuthority(t testing.TB, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{certificate: certificate, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// sign makes a certificate for both ends of a connection to this machine.
func (a *authority) sign(t testing.TB, name string) (certificate, key []byte) {
	t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &own.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return pool
}

// file writes PEM to a file and gives the reference to it.
func file(t testing.TB, data []byte) string {
	t.Helper()
	_, reference := credentialFile(t, string(data))
	return reference
}

// terminate puts TLS before a server that speaks none.
func terminate(t testing.TB, fake *mcptest.Server, config *tls.Config) string {
	t.Helper()
	target, err := url.Parse(fake.URL)
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := r.Clone(r.Context())
		out.URL.Scheme, out.URL.Host, out.RequestURI = "http", target.Host, ""
		resp, err := http.DefaultTransport.RoundTrip(out)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		for name, values := range resp.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	}))
	front.TLS = config
	front.Config.ErrorLog = log.New(io.Discard, "", 0)
	front.StartTLS()
	t.Cleanup(func() {
		front.Close()
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
	return front.URL + "/mcp"
}

func TestPrivateCAsAndClientCertificates(t *testing.T) {
	t.Parallel()
	private, other := newAuthority(t, "private CA"), newAuthority(t, "other CA")
	serverPEM, serverKey := private.sign(t, "docs server")
	pair, err := tls.X509KeyPair(serverPEM, serverKey)
	if err != nil {
		t.Fatal(err)
	}
	clientPEM, clientKey := private.sign(t, "legwork")
	strangerPEM, strangerKey := other.sign(t, "stranger")
	fake := mcptest.New(t, mcptest.Options{Era: mcptest.Stateless})
	open := terminate(t, fake, &tls.Config{Certificates: []tls.Certificate{pair}})
	mutual := func(newest uint16) string {
		return terminate(t, fake, &tls.Config{
			Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: private.pool(), MaxVersion: newest,
		})
	}
	tls13, tls12 := mutual(tls.VersionTLS13), mutual(tls.VersionTLS12)
	client := newClient(t, parts{})
	ca := file(t, private.pem)
	for _, tt := range []struct {
		story string
		url   string
		tls   mcp.TLS
		kind  mcp.Kind // empty where it goes well
		says  string
	}{
		{"a private CA that is known", open, mcp.TLS{CA: ca}, "", ""},
		{"one that is not", open, mcp.TLS{}, mcp.KindUnreachable, "its TLS certificate was not accepted"},
		{"another", open, mcp.TLS{CA: file(t, other.pem)}, mcp.KindUnreachable, "its TLS certificate was not accepted"},
		{"a client certificate", tls13, mcp.TLS{CA: ca, Certificate: file(t, clientPEM), Key: file(t, clientKey)}, "", ""},
		{"a client certificate, TLS 1.2", tls12, mcp.TLS{CA: ca, Certificate: file(t, clientPEM), Key: file(t, clientKey)}, "", ""},
		{"none where one is wanted", tls13, mcp.TLS{CA: ca}, mcp.KindUnreachable, "it did not accept the client certificate, or wants one"},
		{"none where one is wanted, TLS 1.2", tls12, mcp.TLS{CA: ca}, mcp.KindUnreachable, "it did not accept the client certificate, or wants one"},
		{"a stranger's", tls13, mcp.TLS{CA: ca, Certificate: file(t, strangerPEM), Key: file(t, strangerKey)}, mcp.KindUnreachable, "it did not accept the client certificate, or wants one"},
		{"a key that is another's", tls13, mcp.TLS{CA: ca, Certificate: file(t, clientPEM), Key: file(t, strangerKey)}, mcp.KindMissingCredential, "cannot be used"},
		{"a CA that is none", open, mcp.TLS{CA: file(t, []byte("hello"))}, mcp.KindMissingCredential, "holds no certificate (PEM)"},
		{"a CA that is not there", open, mcp.TLS{CA: "file:/no/such/file"}, mcp.KindMissingCredential, `"file:/no/such/file" of server "docs" does not exist`},
	} {
		t.Run(tt.story, func(t *testing.T) {
			server := modern(tt.url)
			server.TLS = tt.tls
			info, _, err := client.Ping(t.Context(), server, ample)
			if tt.kind != "" {
				if f := failure(t, err); f.Kind != tt.kind || f.Asked != mcp.AskedNo || !strings.Contains(f.Message, tt.says) {
					t.Errorf("failure %s, asked %s: %s\nwant %s, asked no: …%s…", f.Kind, f.Asked, f.Message, tt.kind, tt.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if info.TLS == nil || info.TLS.Subject != "CN=docs server" || info.TLS.Issuer != "CN=private CA" || !strings.HasPrefix(info.TLS.Version, "TLS 1.") || info.TLS.ExpiresAt.Before(time.Now()) {
				t.Errorf("it was secured as %+v", info.TLS)
			}
		})
	}
	t.Run("a certificate that was renewed", func(t *testing.T) {
		reference := file(t, other.pem)
		server := modern(open)
		server.TLS.CA = reference
		if _, _, err := client.Ping(t.Context(), server, ample); err == nil {
			t.Fatal("the wrong CA was trusted")
		}
		if err := os.WriteFile(strings.TrimPrefix(reference, "file:"), private.pem, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := client.Ping(t.Context(), server, ample); err != nil {
			t.Errorf("the new CA is not trusted: %v", err)
		}
	})
	t.Run("no other server is trusted by it", func(t *testing.T) {
		server := modern(open)
		server.TLS.CA = ca
		if _, _, err := client.Ping(t.Context(), server, ample); err != nil {
			t.Fatal(err)
		}
		server.TLS = mcp.TLS{}
		if _, _, err := client.Ping(t.Context(), server, ample); err == nil {
			t.Error("a connection of another server's was used")
		}
	})
	t.Run("more of them than are kept", func(t *testing.T) {
		for range 70 {
			server := modern(open)
			server.TLS.CA = file(t, append(private.pem[:len(private.pem):len(private.pem)], newAuthority(t, "one more").pem...))
			if _, _, err := client.Ping(t.Context(), server, ample); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// proxy is an HTTP proxy that keeps what it was asked for.
type proxy struct {
	address string

	mu    sync.Mutex
	asked []string
}

func newProxy(t testing.TB, status int) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{address: listener.Addr().String()}
	var open sync.WaitGroup
	open.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			open.Go(func() { p.serve(conn, status) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		open.Wait()
	})
	return p
}

func (p *proxy) serve(conn net.Conn, status int) {
	defer conn.Close()
	reader := bufio.NewReader(conn)
	r, err := http.ReadRequest(reader)
	if err != nil {
		return
	}
	p.mu.Lock()
	p.asked = append(p.asked, r.Method+" "+r.Host)
	p.mu.Unlock()
	if status != http.StatusOK {
		fmt.Fprintf(conn, "HTTP/1.1 %d no\r\nContent-Length: 0\r\n\r\n", status)
		return
	}
	_, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		return
	}
	upstream, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", port)) // whatever the name: it is the proxy that resolves it
	if err != nil {
		return
	}
	defer upstream.Close()
	if r.Method == http.MethodConnect {
		fmt.Fprint(conn, "HTTP/1.1 200 OK\r\n\r\n")
	} else if err := r.Write(upstream); err != nil {
		return
	}
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(upstream, reader)
		upstream.(*net.TCPConn).CloseWrite()
	})
	_, _ = io.Copy(conn, upstream)
	conn.Close()
	both.Wait()
}

func (p *proxy) requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string{}, p.asked...)
}

func TestAServerBehindAProxy(t *testing.T) {
	t.Parallel()
	fake := mcptest.New(t, mcptest.Options{Era: mcptest.Stateless, NoSession: true})
	port := fake.URL[strings.LastIndexByte(fake.URL, ':')+1:] // with the path
	secure := mcptest.New(t, mcptest.Options{Era: mcptest.Stateless, TLS: true})
	securePort := secure.URL[strings.LastIndexByte(secure.URL, ':')+1:]

	through := func(t *testing.T, p *proxy, tune *tls.Config) *mcp.Client {
		return newClient(t, parts{tls: tune, gate: &mcp.GateOptions{Proxy: httpproxy.Config{
			HTTPProxy: "http://" + p.address, HTTPSProxy: "http://" + p.address, NoProxy: "direct.example.com",
		}}})
	}
	t.Run("http", func(t *testing.T) {
		t.Parallel()
		p := newProxy(t, http.StatusOK)
		server := modern("http://docs.example.com:" + port)
		server.Credential = mcp.Credential{Reference: tokenReference, Placement: mcp.PlaceBearer}
		if _, _, err := through(t, p, nil).CallTool(t.Context(), server, echo, ample); err != nil {
			t.Fatal(err)
		}
		if got := p.requests(); len(got) != 1 || !strings.HasPrefix(got[0], "POST docs.example.com:") {
			t.Errorf("the proxy was asked for %q", got)
		}
		requests := fake.Requests()
		if got := requests[len(requests)-1].Header.Get("Authorization"); got != "Bearer "+token {
			t.Errorf("the call had Authorization %q", got)
		}
	})
	t.Run("https", func(t *testing.T) {
		t.Parallel()
		p := newProxy(t, http.StatusOK)
		trust := secure.TLS()
		trust.ServerName = "example.com"
		server := modern("https://docs.example.com:" + securePort)
		server.Credential = mcp.Credential{Reference: tokenReference, Placement: mcp.PlaceBearer}
		if _, _, err := through(t, p, trust).CallTool(t.Context(), server, echo, ample); err != nil {
			t.Fatal(err)
		}
		if got := p.requests(); len(got) != 1 || !strings.HasPrefix(got[0], "CONNECT docs.example.com:") {
			t.Errorf("the proxy was asked for %q", got)
		}
		requests := secure.Requests()
		if got := requests[len(requests)-1].Header.Get("Authorization"); got != "Bearer "+token {
			t.Errorf("the call had Authorization %q", got)
		}
	})
	for _, tt := range []struct {
		story, url string
		status     int
		kind       mcp.Kind
		says       string
		asked      int
	}{
		{"that refuses", "https://docs.example.com/mcp", 403, mcp.KindUnreachable, "the proxy on the way answered HTTP 403 and opened no way to it. Its process never saw the request", 1},
		{"that wants a password", "https://docs.example.com/mcp", 407, mcp.KindUnreachable, "HTTPS_PROXY", 1},
		{"that wants a password, http", "http://docs.example.com/mcp", 407, mcp.KindHTTPStatus, "HTTP_PROXY", 1},
		{"for a private address", "http://10.0.0.1/mcp", 200, mcp.KindRefusedHost, `"10.0.0.1" of server "docs"`, 0},
		{"for a metadata service", "http://169.254.169.254/mcp", 200, mcp.KindRefusedHost, `"169.254.169.254"`, 0},
		{"for an IPv6 address", "http://[fd00::1]/mcp", 200, mcp.KindRefusedHost, `"fd00::1"`, 0},
		{"for an address in disguise", "http://0x7f000001/mcp", 200, mcp.KindRefusedHost, `"0x7f000001"`, 0},
		{"for a short address", "http://127.1/mcp", 200, mcp.KindRefusedHost, `"127.1"`, 0},
		{"for localhost with a dot", "http://localhost./mcp", 200, mcp.KindRefusedHost, `"localhost."`, 0},
		{"for loopback, which goes past it", "http://127.0.0.1:1/mcp", 200, mcp.KindRefusedHost, `"127.0.0.1"`, 0},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t, tt.status)
			_, _, err := through(t, p, nil).CallTool(t.Context(), modern(tt.url), echo, ample)
			if f := failure(t, err); f.Kind != tt.kind || !strings.Contains(f.Message, tt.says) {
				t.Errorf("%s: %s\nwant %s: …%s…", f.Kind, f.Message, tt.kind, tt.says)
			}
			if n := len(p.requests()); n != tt.asked {
				t.Errorf("the proxy was asked %d times, want %d", n, tt.asked)
			}
		})
	}
	t.Run("that is away", func(t *testing.T) {
		t.Parallel()
		_, _, err := through(t, &proxy{address: "127.0.0.1:1"}, nil).CallTool(t.Context(), modern("https://docs.example.com/mcp"), echo, ample)
		if f := failure(t, err); f.Kind != mcp.KindUnreachable || !strings.Contains(f.Message, "the proxy on the way could not be reached: the connection was refused at 127.0.0.1:1") {
			t.Errorf("%s: %s", f.Kind, f.Message)
		}
	})
}

func TestPingSaysHowItIsSecured(t *testing.T) {
	t.Parallel()
	fake := mcptest.New(t, mcptest.Options{HTTP2: true})
	info, _, err := newClient(t, parts{tls: fake.TLS()}).Ping(t.Context(), docs(fake.URL), ample)
	if err != nil {
		t.Fatal(err)
	}
	if info.TLS == nil || info.TLS.Version != "TLS 1.3" || info.TLS.Protocol != "h2" {
		t.Errorf("got %+v", info.TLS)
	}
	written, err := json.Marshal(info)
	if err != nil || !strings.Contains(string(written), `"version":"TLS 1.3"`) {
		t.Errorf("got %s, %v", written, err)
	}
}
