package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"legwork/mcp"
	"legwork/mcp/mcptest"
	"legwork/store"
)

func TestServers(t *testing.T) {
	t.Parallel()
	i := withDatabase(t)
	i.run("server", "list").expect(t, exitDone, "legwork server add")
	if list := i.must("server", "list", "--json"); list != "[]\n" {
		t.Errorf("no servers are %q", list)
	}

	out := i.run("server", "add", "docs", "https://docs.example/mcp", "--credential", "env:DOCS_TOKEN")
	out.expect(t, exitDone, "no data class", "legwork server enable docs")
	if out.stdout != "server docs added\n" {
		t.Errorf("got %q", out.stdout)
	}
	i.run("server", "add", "docs", "https://docs.example/mcp").expect(t, exitFailed, "legwork server set docs")
	has(t, i.must("server", "list"), "docs", "disabled", "never imported", "https://docs.example/")

	out = i.run("server", "set", "docs", "--data-class", "internal", "--timeout", "60", "--name", "The docs")
	out.expect(t, exitDone, "it is disabled (legwork server enable docs)", "set LEGWORK_SHUTDOWN_TIMEOUT to 70 or more")
	out = i.with("LEGWORK_SHUTDOWN_TIMEOUT", "70").run("server", "enable", "docs")
	out.expect(t, exitDone)
	if out.stderr != "" {
		t.Errorf("something is still missing:\n%s", out.stderr)
	}
	has(t, i.must("server", "list"), "ready")
	has(t, i.must("server", "show", "docs"), "The docs", "env:DOCS_TOKEN, as a bearer token", "60 s, its own", "internal", "ready")
	has(t, i.must("server", "disable", "docs"), "server docs disabled")
	has(t, i.must("server", "show", "docs"), "disabled", "legwork server enable docs")

	i.must("server", "remove", "docs")
	for _, line := range []string{"show", "set --name x", "enable", "disable", "ping", "remove"} {
		command, flags, _ := strings.Cut(line, " ")
		i.run(append([]string{"server", command, "docs"}, strings.Fields(flags)...)...).
			expect(t, exitFailed, `there is no server "docs"`, "legwork server list")
	}
}

func TestServerCredentials(t *testing.T) {
	t.Parallel()
	i := withDatabase(t)
	i.must("server", "add", "docs", "https://docs.example/mcp")
	type auth struct{ credential, placement, header string }
	for _, step := range []struct {
		flags string
		want  auth
	}{
		{"--credential env:A", auth{"env:A", "bearer", ""}},
		{"--auth-header X-Api-Key", auth{"env:A", "header", "X-Api-Key"}},
		{"--credential file:/run/b", auth{"file:/run/b", "header", "X-Api-Key"}},
		{"--auth bearer", auth{"file:/run/b", "bearer", ""}},
		{"--auth header --auth-header X-B --credential env:C", auth{"env:C", "header", "X-B"}},
		{"--auth none", auth{"", "none", ""}},
		{"--credential env:D", auth{"env:D", "bearer", ""}},
		{"--credential=", auth{"", "none", ""}},
	} {
		i.must(append([]string{"server", "set", "docs"}, strings.Fields(step.flags)...)...)
		s := decode[store.Server](t, i.must("server", "show", "docs", "--json"))
		if got := (auth{s.Credential, s.AuthPlacement, s.AuthHeaderName}); got != step.want {
			t.Errorf("after %s: got %+v, want %+v", step.flags, got, step.want)
		}
	}

	// What is refused changes nothing.
	before := i.must("server", "show", "docs", "--json")
	i.run("server", "set", "docs", "--url", "ftp://docs.example", "--name", "x").expect(t, exitUsage, "http or https")
	if after := i.must("server", "show", "docs", "--json"); after != before {
		t.Errorf("it was\n%sand is\n%s", before, after)
	}
}

// wayIn is what of a server's row decides whether it lets legwork in.
type wayIn struct {
	Credential, Placement, Header string
	Headers                       map[string]string
	TokenURL, ClientID, Scope     string
	Parameters                    map[string]string
	InBody                        bool
	CA, Certificate, Key          string
}

func (i *installation) wayIn(identifier string) wayIn {
	i.t.Helper()
	s := decode[store.Server](i.t, i.must("server", "show", identifier, "--json"))
	return wayIn{
		s.Credential, s.AuthPlacement, s.AuthHeaderName, s.Headers, s.OAuthTokenURL, s.OAuthClientID, s.OAuthScope,
		s.OAuthParameters, s.OAuthSecretInBody, s.TLSCA, s.TLSCertificate, s.TLSKey,
	}
}

func TestServerIsAddedWithAllItWants(t *testing.T) {
	t.Parallel()
	i := withDatabase(t)
	out := i.run("server", "add", "docs", "https://docs.example/mcp", "--credential", "env:SECRET",
		"--header", "CF-Access-Client-Secret=env:CF_SECRET", "--header", "CF-Access-Client-Id=file:/run/cf id", "--header", "X-Tenant=a=b, c",
		"--oauth-token-url", "https://login.example/token", "--oauth-client-id", "legwork", "--oauth-scope", " read  write ",
		"--oauth-parameter", "resource=https://docs.example/mcp?a=b", "--oauth-parameter", "audience=docs", "--oauth-secret-in-body",
		"--tls-ca", "file:/run/ca.pem", "--tls-cert", "env:CERT", "--tls-key", "env:KEY", "--enable", "--data-class", "internal")
	out.expect(t, exitDone)
	if out.stderr != "" {
		t.Errorf("something is found fault with:\n%s", out.stderr)
	}
	want := wayIn{
		Credential: "env:SECRET", Placement: "bearer",
		Headers:  map[string]string{"CF-Access-Client-Id": "file:/run/cf id", "CF-Access-Client-Secret": "env:CF_SECRET", "X-Tenant": "a=b, c"},
		TokenURL: "https://login.example/token", ClientID: "legwork", Scope: "read write",
		Parameters: map[string]string{"audience": "docs", "resource": "https://docs.example/mcp?a=b"}, InBody: true,
		CA: "file:/run/ca.pem", Certificate: "env:CERT", Key: "env:KEY",
	}
	if diff := cmp.Diff(want, i.wayIn("docs")); diff != "" {
		t.Errorf("the row (-want +got):\n%s", diff)
	}

	has(t, i.must("server", "show", "docs"), `
Credential          env:SECRET, the secret of the OAuth client legwork
Access token        from https://login.example/token, sent as a bearer token
Scope               read write
Token request       audience=docs
                    resource=https://docs.example/mcp?a=b
Secret sent         in the body of the token request
Headers             CF-Access-Client-Id: file:/run/cf id
                    CF-Access-Client-Secret: env:CF_SECRET
                    X-Tenant: a=b, c
Private CA          file:/run/ca.pem
Client certificate  env:CERT, with the key env:KEY
`)
	i.must("server", "add", "crm", "https://crm.example/mcp", "--credential", "env:A", "--auth-header", "X-Key")
	shown := i.must("server", "show", "crm")
	has(t, shown, "env:A, in the header X-Key")
	for _, part := range []string{"Access token", "Scope", "Token request", "Secret sent", "Headers", "Private CA", "Client certificate"} {
		if strings.Contains(shown, part) {
			t.Errorf("a server that wants none of it has a line %q:\n%s", part, shown)
		}
	}
	fits(t, "server list", i.must("server", "list"), 100)
}

func TestServerWayInIsChanged(t *testing.T) {
	t.Parallel()
	i := withDatabase(t)
	i.must("server", "add", "docs", "https://docs.example/mcp")
	got := wayIn{Placement: "none"}
	const token = "https://login.example/token"
	for _, step := range []struct {
		flags  []string
		change func(*wayIn)
	}{
		{[]string{"--header", "X-A=1", "--header", "X-B=env:B"}, func(w *wayIn) { w.Headers = map[string]string{"X-A": "1", "X-B": "env:B"} }},
		{[]string{"--name", "Docs"}, func(*wayIn) {}},
		{[]string{"--header", "x-a=2"}, func(w *wayIn) { w.Headers = map[string]string{"x-a": "2", "X-B": "env:B"} }},
		{[]string{"--header", "x-b=", "--header", "X-C=3"}, func(w *wayIn) { w.Headers = map[string]string{"x-a": "2", "X-C": "3"} }},
		{[]string{"--header", "X-A=", "--header", "X-C="}, func(w *wayIn) { w.Headers = nil }},

		{[]string{"--tls-ca", "file:/run/ca"}, func(w *wayIn) { w.CA = "file:/run/ca" }},
		{[]string{"--tls-cert", "env:CERT", "--tls-key", "env:KEY"}, func(w *wayIn) { w.Certificate, w.Key = "env:CERT", "env:KEY" }},
		{[]string{"--tls-ca", ""}, func(w *wayIn) { w.CA = "" }},
		{[]string{"--tls-cert=", "--tls-key="}, func(w *wayIn) { w.Certificate, w.Key = "", "" }},

		{[]string{"--oauth-token-url", token, "--oauth-client-id", "a", "--credential", "env:S"}, func(w *wayIn) {
			w.TokenURL, w.ClientID, w.Credential, w.Placement = token, "a", "env:S", "bearer"
		}},
		{[]string{"--oauth-scope", "read", "--oauth-secret-in-body"}, func(w *wayIn) { w.Scope, w.InBody = "read", true }},
		{[]string{"--oauth-parameter", "audience=a", "--oauth-parameter", "Audience=b"}, func(w *wayIn) {
			w.Parameters = map[string]string{"audience": "a", "Audience": "b"} // these are told apart by case
		}},
		{[]string{"--oauth-parameter", "audience=c", "--oauth-parameter", "Audience="}, func(w *wayIn) {
			w.Parameters = map[string]string{"audience": "c"}
		}},
		{[]string{"--auth-header", "X-Token", "--oauth-client-id", "b"}, func(w *wayIn) { w.Placement, w.Header, w.ClientID = "header", "X-Token", "b" }},
		{[]string{"--oauth-scope", "", "--oauth-secret-in-body=false", "--oauth-parameter", "audience="}, func(w *wayIn) {
			w.Scope, w.InBody, w.Parameters = "", false, nil
		}},
		{[]string{"--oauth-scope", "read", "--oauth-secret-in-body", "--oauth-parameter", "audience=a"}, func(w *wayIn) {
			w.Scope, w.InBody, w.Parameters = "read", true, map[string]string{"audience": "a"}
		}},
		{[]string{"--oauth-token-url", ""}, func(w *wayIn) {
			w.TokenURL, w.ClientID, w.Scope, w.Parameters, w.InBody = "", "", "", nil, false // the credential stays, and is sent as it is
		}},
		{[]string{"--oauth-token-url", token, "--oauth-client-id", "a"}, func(w *wayIn) { w.TokenURL, w.ClientID = token, "a" }},
		{[]string{"--oauth-token-url=", "--credential="}, func(w *wayIn) {
			w.TokenURL, w.ClientID, w.Credential, w.Placement, w.Header = "", "", "", "none", ""
		}},
	} {
		step.change(&got)
		i.must(append([]string{"server", "set", "docs"}, step.flags...)...)
		if diff := cmp.Diff(got, i.wayIn("docs")); diff != "" {
			t.Fatalf("after %q (-want +got):\n%s", step.flags, diff)
		}
	}
}

func TestServerWayInIsRefused(t *testing.T) {
	t.Parallel()
	i := withDatabase(t)
	const token = "https://login.example/token"
	i.must("server", "add", "bare", "https://bare.example/mcp")
	i.must("server", "add", "full", "https://full.example/mcp", "--credential", "env:S", "--oauth-token-url", token, "--oauth-client-id", "a",
		"--header", "X-A=1", "--oauth-parameter", "audience=a", "--tls-cert", "env:CERT", "--tls-key", "env:KEY")
	for name, row := range map[string]struct {
		server string
		flags  []string
		says   string
	}{
		"a header without a value":           {"bare", []string{"--header", "hush"}, "--header takes NAME=VALUE"},
		"a header without a name":            {"bare", []string{"--header", "=hush"}, "--header takes NAME=VALUE"},
		"a header as it stands in HTTP":      {"bare", []string{"--header", "X-A: hush=="}, "without a colon"},
		"a header with no valid name":        {"bare", []string{"--header", "X(A)=hush"}, "not a valid HTTP header name"},
		"a header of the protocol's":         {"bare", []string{"--header", "Mcp-Session-Id=hush"}, "uses it itself"},
		"a header twice":                     {"bare", []string{"--header", "X-A=hush", "--header", "x-a=hush"}, "--header names x-a twice"},
		"a header that cannot be sent":       {"bare", []string{"--header", "X-A=hush\r\nX-B: 1"}, "cannot stand in an HTTP header"},
		"a header's reference to no file":    {"bare", []string{"--header", "X-A=file:hush"}, "must be an absolute path"},
		"a header that takes the token's":    {"full", []string{"--header", "authorization=hush"}, "is the credential's"},
		"a header that is not there":         {"full", []string{"--header", "X-B="}, "--header X-B= removes X-B, which is not there: there is X-A"},
		"a header where there is none":       {"bare", []string{"--header", "X-B="}, "there are none"},
		"a token URL without a secret":       {"bare", []string{"--oauth-token-url", token, "--oauth-client-id", "a"}, "give --credential env:NAME"},
		"a token URL without a client":       {"bare", []string{"--oauth-token-url", token, "--credential", "env:S"}, "without a client id"},
		"a token URL that is none":           {"full", []string{"--oauth-token-url", "login.example"}, "the token URL's scheme"},
		"a token URL with a password":        {"full", []string{"--oauth-token-url", "https://a:hush@login.example"}, "configure a credential instead"},
		"a client without a token URL":       {"bare", []string{"--oauth-client-id", "a"}, "--oauth-client-id belongs to --oauth-token-url"},
		"a scope without a token URL":        {"bare", []string{"--oauth-scope", "a"}, "--oauth-scope belongs to --oauth-token-url"},
		"a parameter without a token URL":    {"bare", []string{"--oauth-parameter", "a=b"}, "--oauth-parameter belongs to --oauth-token-url"},
		"a secret in no body":                {"bare", []string{"--oauth-secret-in-body"}, "--oauth-secret-in-body belongs to --oauth-token-url"},
		"a client as OAuth goes":             {"full", []string{"--oauth-token-url=", "--oauth-client-id", "b"}, "--oauth-client-id belongs to --oauth-token-url"},
		"no client any more":                 {"full", []string{"--oauth-client-id="}, "without a client id"},
		"no secret any more":                 {"full", []string{"--credential="}, "remove OAuth with --oauth-token-url="},
		"nowhere to put the token":           {"full", []string{"--auth", "none"}, "remove OAuth with --oauth-token-url="},
		"a parameter without a value":        {"full", []string{"--oauth-parameter", "hush"}, "--oauth-parameter takes NAME=VALUE"},
		"a parameter twice":                  {"full", []string{"--oauth-parameter", "a=1", "--oauth-parameter", "a=2"}, "names a twice"},
		"a parameter of legwork's own":       {"full", []string{"--oauth-parameter", "client_secret=hush"}, "legwork writes it itself"},
		"a parameter that is not there":      {"full", []string{"--oauth-parameter", "Audience="}, "there is audience"},
		"a certificate without its key":      {"bare", []string{"--tls-cert", "env:CERT"}, "belong together"},
		"a key without its certificate":      {"full", []string{"--tls-cert="}, "belong together"},
		"a CA itself":                        {"bare", []string{"--tls-ca", "hush"}, "must be a reference"},
		"a key in a file nobody would find":  {"full", []string{"--tls-key", "file:hush.pem"}, "must be an absolute path"},
		"a certificate that is no reference": {"full", []string{"--tls-cert", "/hush.pem"}, "must be a reference"},
	} {
		before := i.must("server", "show", row.server, "--json")
		for _, command := range [][]string{{"set", row.server, "--name", "changed"}, {"add", "other", "https://other.example/mcp"}} {
			if command[0] == "add" && row.server != "bare" {
				continue // what is wrong is so beside what is there
			}
			out := i.run(slices.Concat([]string{"server"}, command, row.flags)...)
			if out.code != exitUsage || !strings.Contains(out.stderr, row.says) {
				t.Errorf("%s (%s): exit code %d, want %d, and %q in:\n%s", name, command[0], out.code, exitUsage, row.says, out.stderr)
			}
			if strings.Contains(out.stderr, "hush") {
				t.Errorf("%s (%s): what may be a secret is on stderr:\n%s", name, command[0], out.stderr)
			}
		}
		if after := i.must("server", "show", row.server, "--json"); after != before {
			t.Fatalf("%s: it was\n%sand is\n%s", name, before, after)
		}
	}
	if servers := decode[[]store.Server](t, i.must("server", "list", "--json")); len(servers) != 2 {
		t.Errorf("there are %d servers, want none that was refused", len(servers))
	}
}

func TestServerCautions(t *testing.T) {
	t.Parallel()
	i := withDatabase(t)
	oauth := []string{"--credential", "env:A", "--oauth-client-id", "a", "--oauth-token-url"}
	for name, row := range map[string]struct {
		url   string
		flags []string
		want  []string // what stderr says; nothing else
	}{
		"a credential over http":           {"http://docs.example:8080/mcp", []string{"--credential", "env:A"}, []string{"its credential travels unencrypted to docs.example:8080"}},
		"a credential over https":          {"https://docs.example/mcp", []string{"--credential", "env:A"}, nil},
		"a credential that stays here":     {"http://127.0.0.1:8080/mcp", []string{"--credential", "env:A"}, nil},
		"a credential that stays here, v6": {"http://[::1]/mcp", []string{"--credential", "env:A"}, nil},
		"a credential for a name of here":  {"http://LOCALHOST/mcp", []string{"--credential", "env:A"}, nil},
		"a credential in the house":        {"http://10.0.0.1/mcp", []string{"--credential", "env:A"}, []string{"its credential travels unencrypted to 10.0.0.1"}},
		"nothing over http":                {"http://docs.example/mcp", []string{"--header", "X-Tenant=a"}, nil},
		"a secret header over http":        {"http://docs.example/mcp", []string{"--header", "X-Tenant=env:A"}, []string{"the secrets in its headers travel unencrypted"}},
		"a token asked for over http":      {"https://docs.example/mcp", append(oauth, "http://login.example/token"), []string{"the client's secret travels unencrypted to login.example"}},
		"a token sent over http":           {"http://docs.example/mcp", append(oauth, "https://login.example/token"), []string{"its access token travels unencrypted to docs.example"}},
		"a secret as it is":                {"https://docs.example/mcp", []string{"--header", "X-Api-Key=hush"}, []string{"the value of its header X-Api-Key is stored and shown as it is"}},
		"a CA without TLS":                 {"http://127.0.0.1/mcp", []string{"--tls-ca", "env:CA"}, []string{"its CA and its client certificate are of no use"}},
		"a CA for the token URL":           {"http://127.0.0.1/mcp", append(oauth, "https://login.example/token", "--tls-ca", "env:CA"), nil},
	} {
		out := i.run(slices.Concat([]string{"server", "add", "docs", row.url, "--enable", "--data-class", "test"}, row.flags)...)
		out.expect(t, exitDone, row.want...)
		if lines := strings.Count(out.stderr, "\n"); lines != len(row.want) {
			t.Errorf("%s: %d lines, want %d:\n%s", name, lines, len(row.want), out.stderr)
		}
		if strings.Contains(out.stderr, "hush") {
			t.Errorf("%s: the value is repeated:\n%s", name, out.stderr)
		}
		if set := i.run("server", "set", "docs", "--name", "changed"); set.stderr != out.stderr {
			t.Errorf("%s: when it is changed it says %q, and when it is added %q", name, set.stderr, out.stderr)
		}
		i.must("server", "remove", "docs")
	}
}

func TestServerFlags(t *testing.T) {
	t.Parallel()
	i := withDatabase(t)
	i.must("server", "add", "docs", "https://docs.example/mcp", "--requires-approval=false", "--timeout", "5", "--enable")
	s := decode[store.Server](t, i.must("server", "show", "docs", "--json"))
	if s.RequiresApproval || s.OperationTimeoutSeconds != 5 || !s.Enabled {
		t.Errorf("got %+v", s)
	}
	i.must("server", "set", "docs", "--url", "https://other.example/mcp", "--timeout", "0", "--requires-approval")
	s = decode[store.Server](t, i.must("server", "show", "docs", "--json"))
	if !s.RequiresApproval || s.OperationTimeoutSeconds != 0 || !s.Enabled || s.URL != "https://other.example/mcp" {
		t.Errorf("got %+v", s)
	}
	has(t, i.must("server", "show", "docs"), "20 s, the installation's (LEGWORK_MCP_OPERATION_TIMEOUT)", "no data class")
}

func TestPing(t *testing.T) {
	t.Parallel()
	i := withDatabase(t)
	server := docs(t)
	i.must("server", "add", "docs", server.URL) // disabled: an operator tries it first

	has(t, i.must("server", "ping", "docs"), "docs", "2025-11-25", "Capabilities", "tools", "TLS", "none", "Latency", "LEG", "initialize", "ping", "200")
	s := decode[store.Server](t, i.must("server", "show", "docs", "--json"))
	if s.LastContactAt == nil || s.LastLatencyMS == nil || s.ProtocolVersion != "2025-11-25" {
		t.Errorf("the contact was not recorded: %+v", s)
	}
	if open := server.OpenSessions(); open != 0 {
		t.Errorf("%d sessions were left open", open)
	}
	type answer struct {
		Info    *mcp.ServerInfo
		Legs    []mcp.Leg
		Failure *struct{ Kind, Asked, Message string }
	}
	if got := decode[answer](t, i.must("server", "ping", "docs", "--json")); got.Info == nil || len(got.Legs) != 3 || got.Failure != nil {
		t.Errorf("got %+v", got)
	}

	server.On("ping", mcptest.Error(-32000, "not today"))
	out := i.run("server", "ping", "docs")
	out.expect(t, exitFailed, "not today", "docs")
	has(t, out.stdout, "initialize", "rpc_error")
	if !strings.HasPrefix(out.stdout, "LEG ") || !strings.HasPrefix(out.stderr, "JSON-RPC error: ") {
		t.Errorf("stdout begins with %q, stderr with %q", out.stdout, out.stderr)
	}
	said := out.stderr
	out = i.run("server", "ping", "docs", "--json")
	out.expect(t, exitFailed, "not today")
	if out.stderr != said {
		t.Errorf("with --json it says %q, and without %q", out.stderr, said)
	}
	if got := decode[answer](t, out.stdout); got.Info != nil || got.Failure == nil || got.Failure.Kind != "rpc_error" || got.Failure.Asked != "yes" {
		t.Errorf("got %s", out.stdout)
	}

	// The gate stands before a ping too.
	i.with("LEGWORK_ALLOW_PRIVATE_NETWORKS", "false").run("server", "ping", "docs").expect(t, exitFailed, "LEGWORK_ALLOW_PRIVATE_NETWORKS")
	i.with("LEGWORK_ALLOW_PRIVATE_NETWORKS", "false").with("LEGWORK_ALLOWED_HOSTS", "127.0.0.0/8").
		run("server", "ping", "docs").expect(t, exitFailed, "not today")
}

// What was configured gets to the server, and to nobody else.
func TestPingShowsWhatAServerWants(t *testing.T) {
	t.Parallel()
	i := withDatabase(t)
	server := docs(t)
	asked := make(chan *http.Request, 1)
	authorization := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			t.Error(err)
		}
		asked <- r
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"access_token":"the-access-token","token_type":"Bearer","expires_in":60}`)
	}))
	t.Cleanup(authorization.Close)
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return "file:" + path
	}
	i.must("server", "add", "docs", server.URL, "--credential", file("the-secret"), "--auth-header", "X-Token",
		"--oauth-token-url", authorization.URL, "--oauth-client-id", "legwork", "--oauth-scope", "read write",
		"--oauth-parameter", "audience=docs", "--oauth-secret-in-body",
		"--header", "X-Gate="+file("the-gate's"), "--header", "X-Tenant=blue")
	has(t, i.must("server", "ping", "docs"), "token request", "initialize")

	request := <-asked
	want := url.Values{
		"grant_type": {"client_credentials"}, "client_id": {"legwork"}, "client_secret": {"the-secret"}, "scope": {"read write"}, "audience": {"docs"},
	}
	if diff := cmp.Diff(want, request.PostForm); diff != "" {
		t.Errorf("the token request (-want +got):\n%s", diff)
	}
	if request.Header.Get("X-Gate")+request.Header.Get("X-Tenant") != "" {
		t.Errorf("the server's headers went to its authorization server: %v", request.Header)
	}
	for _, r := range server.Requests() {
		if h := r.Header; h.Get("X-Token") != "the-access-token" || h.Get("X-Gate") != "the-gate's" || h.Get("X-Tenant") != "blue" {
			t.Errorf("%s had the headers %v", r.Method, h)
		}
	}
}

func TestPingIsInterrupted(t *testing.T) {
	t.Parallel()
	i := withDatabase(t).with("LEGWORK_MCP_OPERATION_TIMEOUT", "86400")
	server := docs(t)
	server.On("initialize", mcptest.Stall)
	i.must("server", "add", "docs", server.URL)
	ping := i.start("server", "ping", "docs")
	server.Await(t, "initialize", 1)
	ping.interrupt()
	if code := ping.end(t); code != exitFailed {
		t.Errorf("exit code %d", code)
	}
	has(t, ping.stderr.String(), "interrupted")
}

func TestImports(t *testing.T) {
	t.Parallel()
	i := installed(t)
	server := docs(t)
	i.add("docs", server.URL)
	i.add("fax", mcptest.Nowhere(t))
	i.must("server", "add", "idle", "https://idle.example/mcp")
	i.run("tool", "list").expect(t, exitDone, "legwork import --all --wait")
	i.run("import-error", "list").expect(t, exitDone, "no import errors")

	id := strings.TrimSpace(i.must("import", "docs"))
	i.worker()
	until(t, func() bool { return strings.Contains(i.must("tool", "list"), "mcp_docs_search") })
	if id == "" || strings.ContainsAny(id, " \n") {
		t.Errorf("stdout was %q, want a task's id", id)
	}

	// A tool vanishes, one comes and one is no good.
	server.SetTools(
		mcptest.Tool{Name: "search", Description: "finds pages"},
		mcptest.Tool{Name: "index"},
		mcptest.Tool{Name: "broken", Entry: json.RawMessage(`{"name":"broken","inputSchema":"none"}`)},
	)
	out := i.run("import", "docs", "--wait", "--json")
	out.expect(t, exitDone, "legwork import-error list")
	reports := decode[[]importing](t, out.stdout)
	if len(reports) != 1 || reports[0].Report == nil || *reports[0].Report != (store.ImportReport{Imported: 1, Unchanged: 1, Skipped: 1, Orphaned: 1}) {
		t.Errorf("got %s", out.stdout)
	}
	has(t, i.must("import-error", "list", "docs"), "tool_skipped", "broken")
	has(t, i.must("tool", "list", "docs"), "gone since", "mcp_docs_index")

	out = i.run("import", "--all", "--wait")
	out.expect(t, exitFailed, "idle is left out", `Unreachable`, `"fax"`)
	has(t, out.stdout, "SERVER", "docs", "succeeded", "fax", "failed", "unreachable")
	errors := decode[[]store.ImportError](t, i.must("import-error", "list", "fax", "--json"))
	if len(errors) != 1 || errors[0].Kind != "unreachable" {
		t.Fatalf("got %+v", errors)
	}
	has(t, i.must("import-error", "list", "--full"), errors[0].Message, "no: the server was not asked", "initialize", "broken")
	has(t, i.must("server", "show", "fax"), "unreachable", errors[0].Message)
	has(t, i.must("server", "list"), "fax", "error", "unreachable", "partial")

	i.must("server", "remove", "fax")
	has(t, i.must("import-error", "list", "fax"), "unreachable") // its history stays
	i.run("import-error", "list", "idle").expect(t, exitDone, "no import errors")
	for _, flag := range []string{"--limit=5", "--json"} {
		i.run("import-error", "list", "dcos", flag).expect(t, exitFailed, `there is no server "dcos"`, "legwork server list")
	}

	i.run("import", "idle").expect(t, exitFailed, "legwork server enable idle")
	i.run("import", "dcos").expect(t, exitFailed, `no server "dcos"`)
	has(t, i.must("import", "--all"), "SERVER", "TASK", "docs")
}

func TestImportOfNothing(t *testing.T) {
	t.Parallel()
	i := withDatabase(t)
	i.must("server", "add", "idle", "https://idle.example/mcp")
	for _, flags := range [][]string{{"--wait"}, {"--json"}, {"--json", "--wait"}} {
		out := i.run(append([]string{"import", "--all"}, flags...)...)
		out.expect(t, exitDone, "idle is left out", "legwork server add")
		want := ""
		if flags[0] == "--json" {
			want = "[]\n"
		}
		if out.stdout != want {
			t.Errorf("%v: got %q, want %q", flags, out.stdout, want)
		}
	}
}

func TestTools(t *testing.T) {
	t.Parallel()
	i := installed(t)
	i.add("docs", docs(t).URL)
	i.worker()
	has(t, i.must("import", "docs", "--wait"), "docs", "succeeded")

	has(t, i.must("tool", "enable", "mcp_docs_search", "mcp_docs_fail"), "mcp_docs_search enabled", "mcp_docs_fail enabled")
	has(t, i.must("tool", "disable", "mcp_docs_fail"), "mcp_docs_fail disabled")
	has(t, i.must("tool", "set-effect", "mcp_docs_search", "read-only"), "mcp_docs_search is read_only")
	for _, tool := range decode[[]store.Tool](t, i.must("tool", "list", "docs", "--json")) {
		want := map[string]store.Tool{
			"mcp_docs_search": {Enabled: true, Effect: "read_only"},
			"mcp_docs_fail":   {Enabled: false, Effect: "non_idempotent_write"},
		}[tool.Name]
		if tool.Enabled != want.Enabled || tool.Effect != want.Effect {
			t.Errorf("got %+v, want %+v", tool, want)
		}
	}
	i.run("tool", "enable", "mcp_docs_serach").expect(t, exitFailed, `no tool "mcp_docs_serach"`, "legwork tool list")
	i.run("tool", "list", "dcos").expect(t, exitFailed, `no server "dcos"`)
}
