package mcptest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Era is which requests a server serves.
type Era int

const (
	// Handshake serves those of the revisions until 2025-11-25, where initialize comes before all others.
	Handshake Era = iota
	// Stateless serves those of revision 2026-07-28, each of which says all that the server must know.
	Stateless
	// Both serves either.
	Both
)

const statelessRevision = "2026-07-28"

// meta is what every stateless request says.
type meta struct {
	ProtocolVersion    *string         `json:"io.modelcontextprotocol/protocolVersion"`
	ClientCapabilities json.RawMessage `json:"io.modelcontextprotocol/clientCapabilities"`
}

func (x *Exchange) meta() (m meta) {
	var params struct {
		Meta json.RawMessage `json:"_meta"`
	}
	_ = json.Unmarshal(x.Params, &params)
	_ = json.Unmarshal(params.Meta, &m)
	return m
}

// stateless tells whether a request is made in the manner of the stateless revision, well or badly.
func (x *Exchange) stateless() bool {
	return x.meta().ProtocolVersion != nil || x.Header.Get("Mcp-Method") != "" || x.Header.Get("Mcp-Protocol-Version") == statelessRevision
}

// complete answers with a result, which says that it is complete where that is to be said.
func (x *Exchange) complete(result json.RawMessage) {
	if x.modern {
		var fields map[string]json.RawMessage
		if json.Unmarshal(result, &fields) == nil && fields["resultType"] == nil {
			separator := ","
			if len(fields) == 0 {
				separator = ""
			}
			result = json.RawMessage(`{"resultType":"complete"` + separator + strings.TrimSpace(string(result))[1:])
		}
	}
	x.Result(string(result))
}

// refuse answers with a JSON-RPC error under an HTTP status of its own.
func (x *Exchange) refuse(status, code int, message, data string) {
	object := map[string]any{"code": code, "message": message}
	if data != "" {
		object["data"] = json.RawMessage(data)
	}
	x.W.Header().Set("Content-Type", "application/json")
	x.W.WriteHeader(status)
	_, _ = fmt.Fprintf(x.W, `{"jsonrpc":"2.0","id":%s,"error":%s}`, x.id(), marshal(object))
}

// Refuse answers with a JSON-RPC error under an HTTP status of its own. Data is JSON, or empty for none.
func Refuse(status, code int, message, data string) Behaviour {
	return func(x *Exchange) { x.refuse(status, code, message, data) }
}

// behaveStateless is what revision 2026-07-28 prescribes. What a client must not send at all is refused too, so that it is
// noticed.
func (s *Server) behaveStateless(x *Exchange) {
	const badRequest, mismatch, badParams = -32600, -32020, -32602
	refuse := func(code int, message string) { x.refuse(http.StatusBadRequest, code, message, "") }
	accept, m := x.Header.Get("Accept"), x.meta()
	switch {
	case x.HTTPMethod != http.MethodPost:
		x.status(http.StatusMethodNotAllowed, "only POST is served")
		return
	case x.Method == http.MethodPost:
		refuse(badRequest, "the body is no JSON-RPC request")
		return
	case !slices.Contains([]string{"server/discover", "tools/list", "tools/call"}, x.Method):
		x.refuse(http.StatusNotFound, -32601, "method not found", "")
		return
	case x.ID == nil || string(x.ID) == "null":
		refuse(badRequest, "the id is missing")
		return
	case x.Header.Get("Content-Type") != "application/json":
		x.status(http.StatusUnsupportedMediaType, "the content type is not application/json")
		return
	case !strings.Contains(accept, "application/json") || !strings.Contains(accept, "text/event-stream"):
		x.status(http.StatusNotAcceptable, "JSON and event streams are not both accepted")
		return
	case x.Header.Get("Mcp-Session-Id") != "" || x.Header.Get("Last-Event-Id") != "":
		refuse(badRequest, "there are no sessions to speak of")
		return
	case m.ProtocolVersion == nil:
		refuse(badParams, "_meta names no protocol version")
		return
	case !strings.HasPrefix(string(m.ClientCapabilities), "{"):
		refuse(badParams, "_meta names no client capabilities")
		return
	case x.Header.Get("Mcp-Protocol-Version") != *m.ProtocolVersion:
		refuse(mismatch, "Mcp-Protocol-Version is not what the body says")
		return
	case *m.ProtocolVersion != statelessRevision:
		x.refuse(http.StatusBadRequest, -32022, "unsupported protocol version",
			fmt.Sprintf(`{"supported":[%q],"requested":%q}`, statelessRevision, *m.ProtocolVersion))
		return
	case x.Header.Get("Mcp-Method") != x.Method:
		refuse(mismatch, "Mcp-Method is not what the body says")
		return
	}
	if complaint := s.mismatch(x); complaint != "" {
		refuse(mismatch, complaint)
		return
	}
	switch x.Method {
	case "server/discover":
		x.complete(marshal(map[string]any{
			"supportedVersions": []string{statelessRevision},
			"capabilities":      map[string]any{"tools": struct{}{}},
			"_meta":             map[string]any{"io.modelcontextprotocol/serverInfo": map[string]string{"name": "mcptest", "version": "1"}},
			"ttlMs":             60_000,
			"cacheScope":        "public",
		}))
	case "tools/list":
		s.list(x)
	case "tools/call":
		s.call(x)
	}
}

// mismatch is what is wrong with the headers that repeat a call, or nothing.
func (s *Server) mismatch(x *Exchange) string {
	want := http.Header{}
	if x.Method == "tools/call" {
		var params struct {
			Name      string         `json:"name"`
			Arguments map[string]any `json:"arguments"`
		}
		dec := json.NewDecoder(strings.NewReader(string(x.Params)))
		dec.UseNumber()
		if dec.Decode(&params) != nil {
			return "" // s.call says so
		}
		want.Set("Mcp-Name", params.Name)
		s.mu.Lock()
		for _, tool := range s.tools {
			if tool.Name == params.Name {
				mirror(want, tool.InputSchema, params.Arguments)
			}
		}
		s.mu.Unlock()
	}
	for name, values := range x.Header {
		if name != "Mcp-Name" && !strings.HasPrefix(name, "Mcp-Param-") {
			continue
		}
		got, err := DecodeHeader(values[0])
		switch {
		case err != nil:
			return name + " cannot be read: " + err.Error()
		case len(values) > 1 || want[name] == nil:
			return name + " is there without need"
		case got != want.Get(name):
			return name + " is not what the body says"
		}
		want.Del(name)
	}
	for name := range want {
		return name + " is missing"
	}
	return ""
}

// mirror puts the arguments that a schema wants in headers there, not encoded.
func mirror(header http.Header, schema json.RawMessage, arguments map[string]any) {
	var s struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	_ = json.Unmarshal(schema, &s)
	for name, property := range s.Properties {
		var p struct {
			Header string `json:"x-mcp-header"`
		}
		_ = json.Unmarshal(property, &p)
		switch argument := arguments[name].(type) {
		case map[string]any:
			mirror(header, property, argument)
		case string, bool, json.Number:
			if p.Header != "" {
				header.Set("Mcp-Param-"+p.Header, fmt.Sprint(argument))
			}
		}
	}
}

// DecodeHeader reads a value as the stateless revision has it in Mcp-Name and Mcp-Param headers. The error says which of
// its rules the value breaks; to encode what needs no encoding breaks them too, since common servers compare such a value
// as it stands.
func DecodeHeader(value string) (string, error) {
	encoded, prefixed := strings.CutPrefix(value, "=?base64?")
	encoded, suffixed := strings.CutSuffix(encoded, "?=")
	if !prefixed || !suffixed {
		if !plain(value) {
			return "", fmt.Errorf("%q may not stand in a header as it is", value)
		}
		return value, nil
	}
	text, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil {
		return "", fmt.Errorf("%q is not Base64", encoded)
	}
	if plain(string(text)) && !(strings.HasPrefix(string(text), "=?base64?") && strings.HasSuffix(string(text), "?=")) {
		return "", fmt.Errorf("%q was encoded without need", text)
	}
	return string(text), nil
}

// plain tells whether a text is visible ASCII and inner spaces alone.
func plain(text string) bool {
	return strings.Trim(text, " ") == text && !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
}

// NotInitialized answers a stateless request as servers of the TypeScript SDK do that keep sessions.
func NotInitialized(x *Exchange) {
	Status(http.StatusBadRequest, http.Header{"Content-Type": {"application/json"}},
		`{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: Server not initialized"},"id":null}`)(x)
}

// UnsupportedVersion answers a stateless request as servers of the TypeScript SDK do that keep none.
func UnsupportedVersion(x *Exchange) {
	Status(http.StatusBadRequest, http.Header{"Content-Type": {"application/json"}},
		`{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: Unsupported protocol version"},"id":null}`)(x)
}

// ServerError answers a stateless request as servers of the Python SDK do, under an id of their own.
func ServerError(x *Exchange) {
	Status(http.StatusBadRequest, http.Header{"Content-Type": {"application/json"}},
		`{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"Bad Request: Missing session ID"}}`)(x)
}

// HandshakeVersions answers a stateless request as servers of the Go SDK do that keep sessions: they discover nothing but
// revisions of the handshake, and refuse all else for its revision.
func HandshakeVersions(x *Exchange) {
	const supported = `["2025-11-25","2025-06-18","2025-03-26","2024-11-05"]`
	if x.Method == "server/discover" {
		x.Result(`{"resultType":"complete","supportedVersions":` + supported + `,"capabilities":{"tools":{}},"ttlMs":0,"cacheScope":"private"}`)
		return
	}
	x.refuse(http.StatusBadRequest, -32022, "Unsupported protocol version", `{"supported":`+supported+`,"requested":"2026-07-28"}`)
}

// Lenient answers a stateless request as early servers of the TypeScript SDK do: by what they would answer after a
// handshake. It runs tools.
func Lenient(x *Exchange) { x.server.handle(x) }

// EmptyResult answers anything with a result that says nothing, as some servers answer server/discover.
func EmptyResult(x *Exchange) { x.Result(`{}`) }
