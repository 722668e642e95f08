package mcp_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"legwork/mcp"
	"legwork/mcp/mcptest"
)

// The credential goes onto a request when its connection stands, which HTTP/1.1 and HTTP/2 tell at different places, and
// differently for a connection that is new and one that was kept.
func TestCredentialIsOnEveryLeg(t *testing.T) {
	t.Parallel()
	for _, wire := range []struct {
		story   string
		options mcptest.Options
		proto   string
	}{
		{"HTTP/1.1", mcptest.Options{}, "HTTP/1.1"},
		{"HTTP/1.1 over TLS", mcptest.Options{TLS: true}, "HTTP/1.1"},
		{"HTTP/2", mcptest.Options{HTTP2: true}, "HTTP/2.0"},
	} {
		for _, place := range []struct {
			story      string
			credential mcp.Credential
			header     string
			value      string
		}{
			{"bearer", mcp.Credential{Reference: tokenReference, Placement: mcp.PlaceBearer}, "Authorization", "Bearer " + token},
			{"header", mcp.Credential{Reference: tokenReference, Placement: mcp.PlaceHeader, HeaderName: "x-api-key"}, "X-Api-Key", token},
			{"none", mcp.Credential{Placement: mcp.PlaceNone}, "Authorization", ""},
		} {
			for _, fresh := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/fresh=%v", wire.story, place.story, fresh), func(t *testing.T) {
					t.Parallel()
					fake := mcptest.New(t, wire.options)
					p := parts{tune: func(wire *http.Transport) { wire.DisableKeepAlives = fresh }}
					if strings.HasPrefix(fake.URL, "https") {
						p.tls = fake.TLS()
					}
					client := newClient(t, p)
					server := docs(fake.URL)
					server.Credential = place.credential
					for range 2 {
						if _, _, err := client.CallTool(t.Context(), server, echo, ample); err != nil {
							t.Fatal(err)
						}
						client.Close() // for the deletion, so that the order is sure
					}

					want := []string{
						"initialize", "notifications/initialized", "tools/call", "DELETE",
						"initialize", "notifications/initialized", "tools/call", "DELETE",
					}
					if diff := cmp.Diff(want, fake.Methods()); diff != "" {
						t.Fatal(diff)
					}
					connections := map[string]bool{}
					for _, r := range fake.Requests() {
						connections[r.RemoteAddr] = true
						if r.Proto != wire.proto {
							t.Errorf("%s went over %s, want %s", r.Method, r.Proto, wire.proto)
						}
						if got := strings.Join(r.Header.Values(place.header), "|"); got != place.value {
							t.Errorf("%s had %s %q, want %q", r.Method, place.header, got, place.value)
						}
						if place.header != "Authorization" && r.Header.Get("Authorization") != "" {
							t.Errorf("%s had an Authorization header as well", r.Method)
						}
					}
					if fresh && len(connections) != len(want) {
						t.Errorf("%d connections for %d requests that share none", len(connections), len(want))
					}
					if !fresh && len(connections) != 1 {
						t.Errorf("%d connections where one is enough", len(connections))
					}
				})
			}
		}
	}
}

func TestRedirectTakesNothingToAnotherHost(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"initialize", "notifications/initialized", "tools/call"} {
		for _, status := range []int{301, 302, 303, 307, 308} {
			t.Run(fmt.Sprintf("%s/%d", method, status), func(t *testing.T) {
				t.Parallel()
				elsewhere := mcptest.New(t, mcptest.Options{})
				fake := mcptest.New(t, mcptest.Options{On: on{method: mcptest.Status(status, http.Header{"Location": {elsewhere.URL}}, "")}})
				server := docs(fake.URL)
				server.Credential = mcp.Credential{Reference: tokenReference, Placement: mcp.PlaceBearer}
				client := newClient(t, parts{})
				_, _, err := client.CallTool(t.Context(), server, echo, ample)
				if f := failure(t, err); f.Kind != mcp.KindHTTPStatus || !strings.Contains(f.Message, elsewhere.URL) {
					t.Errorf("failure %s: %s", f.Kind, f.Message)
				}
				client.Close()
				if got := elsewhere.Requests(); len(got) > 0 {
					t.Errorf("%d requests followed the redirect, the first with %v", len(got), got[0].Header)
				}
			})
		}
	}
}

// Whoever prints a server, a client or what came of a call does not print the secret.
func TestSecretIsNotPrinted(t *testing.T) {
	t.Parallel()
	fake := mcptest.New(t, mcptest.Options{On: on{"tools/call": mcptest.InTurn(
		mcptest.Status(401, nil, "Bearer "+token), mcptest.HangUp, mcptest.Raw("nonsense"), mcptest.Stall,
	)}})
	server := docs(fake.URL)
	server.Credential = mcp.Credential{Reference: tokenReference, Placement: mcp.PlaceBearer}
	client := newClient(t, parts{clock: new(mcptest.Clock)})
	for _, kind := range []mcp.Kind{mcp.KindHTTPStatus, mcp.KindConnectionLost, mcp.KindMalformedResponse, mcp.KindNoAnswer} {
		result, spent, err := client.CallTool(t.Context(), server, echo, installation(time.Second))
		f := failure(t, err)
		if f.Kind != kind {
			t.Errorf("failure %s, want %s: %s", f.Kind, kind, f.Message)
		}
		for _, v := range []any{result, spent, err, f, *f, server, f.Err} {
			for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
				if text := fmt.Sprintf(verb, v); strings.Contains(text, token) {
					t.Errorf("%s of %T prints the secret: %s", verb, v, text)
				}
			}
		}
	}
}

func TestRotatedCredentialIsReadAgain(t *testing.T) {
	t.Parallel()
	path, reference := credentialFile(t, "  first\n")
	fake := mcptest.New(t, mcptest.Options{})
	server := docs(fake.URL)
	server.Credential = mcp.Credential{Reference: reference, Placement: mcp.PlaceBearer}
	client := newClient(t, parts{})
	for _, value := range []string{"first", "second"} {
		if err := os.WriteFile(path, []byte(value+"\r\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		before := len(fake.Requests())
		if _, _, err := client.Ping(t.Context(), server, ample); err != nil {
			t.Fatal(err)
		}
		client.Close()
		sent := fake.Requests()[before:]
		if len(sent) != 4 {
			t.Fatalf("a ping sent %d requests, want 4", len(sent))
		}
		for _, r := range sent {
			if got := r.Header.Get("Authorization"); got != "Bearer "+value {
				t.Errorf("%s had %q, want the %s value", r.Method, got, value)
			}
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	_, _, err := client.Ping(t.Context(), server, ample)
	if f := failure(t, err); f.Kind != mcp.KindMissingCredential {
		t.Errorf("failure %s: %s", f.Kind, f.Message)
	}
}

func TestValidServers(t *testing.T) {
	t.Parallel()
	for _, server := range []mcp.Server{
		{Identifier: "docs", URL: "https://mcp.example.com"},
		{Identifier: "d_1", URL: "http://[::1]:8080/mcp?tenant=a"},
		{Identifier: strings.Repeat("a", 32), URL: "https://host/", Credential: mcp.Credential{Reference: "file:/run/secrets/docs", Placement: mcp.PlaceBearer}},
		{Identifier: "docs", URL: "https://host/", Credential: mcp.Credential{Reference: "env:DOCS_TOKEN", Placement: mcp.PlaceHeader, HeaderName: "X-Api-Key"}},
	} {
		if err := server.Validate(); err != nil {
			t.Errorf("%+v: %v", server, err)
		}
	}
}

// What a backend wrote as arguments is what the server reads, but for line breaks between the parts.
func TestArgumentsAreSentAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	const odd = `{"id": 9007199254740993,"big":1e400,"small":1.0,"html":"<a>&","line":"\u2028","nul":"\u0000","lone":"\ud800","z":1,"a":{"b":[]},"z":2}`
	for _, tt := range []struct{ arguments, want string }{
		{odd, odd},
		{"{\r\n\t\"a\": 1,\n\t\"b\": \"<\\n>\"\n}\n", `{"a":1,"b":"<\n>"}`},
	} {
		fake := mcptest.New(t, mcptest.Options{})
		result, _, err := newClient(t, parts{}).CallTool(t.Context(), docs(fake.URL), mcp.ToolCall{Name: "echo", Arguments: json.RawMessage(tt.arguments)}, ample)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, result.Text); diff != "" {
			t.Error(diff)
		}
	}
}
