package mcp

import (
	"encoding/json"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http/httpguts"

	"legwork/mcp/mcptest"
)

func TestAnnotations(t *testing.T) {
	t.Parallel()
	at := func(header, kind string, path ...string) parameter {
		return parameter{path: path, header: header, kind: kind}
	}
	const text = `{"type":"string","x-mcp-header":"A"}`
	for _, tt := range []struct {
		story  string
		schema string
		want   []parameter
		err    string // what stands in it
	}{
		{"none", `{"type":"object","properties":{"a":{"type":"string"}}}`, nil, ""},
		{"of each type, in a fixed order", `{"properties":{"c":{"type":"boolean","x-mcp-header":"C"},"a":` + text + `,"b":{"type":"integer","x-mcp-header":"b-2"}}}`,
			[]parameter{at("A", "string", "a"), at("b-2", "integer", "b"), at("C", "boolean", "c")}, ""},
		{"deep", `{"properties":{"a":{"properties":{"b":{"type":"object","properties":{"c":` + text + `}}}}}}`, []parameter{at("A", "string", "a", "b", "c")}, ""},
		{"a property that is called so", `{"properties":{"x-mcp-header":{"type":"string"},"properties":` + text + `}}`, []parameter{at("A", "string", "properties")}, ""},
		{"every character of a token", "{\"properties\":{\"a\":{\"type\":\"string\",\"x-mcp-header\":\"!#$%&'*+-.^_`|~09azAZ\"}}}", []parameter{at("!#$%&'*+-.^_`|~09azAZ", "string", "a")}, ""},
		{"in a default, which is data", `{"properties":{"a":{"type":"object","default":{"x-mcp-header":5}}},"enum":[{"x-mcp-header":""}]}`, nil, ""},

		{"no name", `{"properties":{"a":{"type":"string","x-mcp-header":""}}}`, nil, `of "a" is not a name`},
		{"a name that is none", `{"properties":{"a":{"type":"string","x-mcp-header":5}}}`, nil, "is not a name"},
		{"a null name", `{"properties":{"a":{"type":"string","x-mcp-header":null}}}`, nil, "is not a name"},
		{"a space", `{"properties":{"a":{"type":"string","x-mcp-header":"a b"}}}`, nil, `"a b" of "a" is not a valid header name`},
		{"a colon", `{"properties":{"a":{"type":"string","x-mcp-header":"a:"}}}`, nil, "not a valid header name"},
		{"a line", `{"properties":{"a":{"type":"string","x-mcp-header":"a\r\nb"}}}`, nil, "not a valid header name"},
		{"beyond ASCII", `{"properties":{"a":{"type":"string","x-mcp-header":"Größe"}}}`, nil, "not a valid header name"},
		{"twice", `{"properties":{"a":` + text + `,"b":` + text + `}}`, nil, `"A" is there twice`},
		{"twice in another case and at another depth", `{"properties":{"a":` + text + `,"b":{"properties":{"c":{"type":"integer","x-mcp-header":"a"}}}}}`, nil, `"a" is there twice`},
		{"a number", `{"properties":{"a":{"type":"number","x-mcp-header":"A"}}}`, nil, `stands on "a", which is neither a string, nor an integer, nor a boolean`},
		{"an object", `{"properties":{"a":{"type":"object","x-mcp-header":"A"}}}`, nil, "which is neither"},
		{"several types", `{"properties":{"a":{"type":["string","null"],"x-mcp-header":"A"}}}`, nil, "which is neither"},
		{"no type", `{"properties":{"a":{"x-mcp-header":"A"}}}`, nil, "which is neither"},
		{"at the root", `{"type":"string","x-mcp-header":"A"}`, nil, "where no argument can be told"},
		{"in items", `{"properties":{"a":{"type":"array","items":` + text + `}}}`, nil, `stands where no argument can be told, at "a"`},
		{"in a tuple", `{"properties":{"a":{"prefixItems":[{},` + text + `]}}}`, nil, "where no argument can be told"},
		{"in a tuple of old", `{"properties":{"a":{"items":[` + text + `]}}}`, nil, "where no argument can be told"},
		{"below items", `{"properties":{"a":{"items":{"properties":{"b":` + text + `}}}}}`, nil, "where no argument can be told"},
		{"in anyOf", `{"anyOf":[{"properties":{"a":` + text + `}}]}`, nil, "where no argument can be told"},
		{"in oneOf", `{"oneOf":[{"properties":{"a":` + text + `}}]}`, nil, "where no argument can be told"},
		{"in allOf", `{"properties":{"a":{"allOf":[` + text + `]}}}`, nil, "where no argument can be told"},
		{"in not", `{"not":{"properties":{"a":` + text + `}}}`, nil, "where no argument can be told"},
		{"in if", `{"if":{"properties":{"a":` + text + `}}}`, nil, "where no argument can be told"},
		{"in then", `{"then":{"properties":{"a":` + text + `}}}`, nil, "where no argument can be told"},
		{"in else", `{"else":{"properties":{"a":` + text + `}}}`, nil, "where no argument can be told"},
		{"in a definition", `{"$defs":{"x":` + text + `},"properties":{"a":{"$ref":"#/$defs/x"}}}`, nil, "where no argument can be told"},
		{"in a definition of old", `{"definitions":{"x":` + text + `}}`, nil, "where no argument can be told"},
		{"by a pattern", `{"patternProperties":{"^a":` + text + `}}`, nil, "where no argument can be told"},
		{"in all other properties", `{"additionalProperties":` + text + `}`, nil, "where no argument can be told"},
		{"in what depends on another", `{"dependentSchemas":{"a":{"properties":{"b":` + text + `}}}}`, nil, "where no argument can be told"},
		{"in what depends on another, of old", `{"dependencies":{"c":["a"],"a":{"properties":{"b":` + text + `}}}}`, nil, "where no argument can be told"},
		{"not JSON", `{"x-mcp-header"`, nil, "not JSON"},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			got, err := parameters(json.RawMessage(tt.schema))
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want … %s", err, tt.err)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(parameter{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A reason stands in a row that an import of the same catalogue must not change.
func TestAnnotationsHaveOneReason(t *testing.T) {
	t.Parallel()
	schema := json.RawMessage(`{"$defs":{"q":{"x-mcp-header":5},"p":{"x-mcp-header":6}},"properties":{"d":{"x-mcp-header":""},"c":{"x-mcp-header":"a b"},"b":{"type":"number","x-mcp-header":"B"},"a":{"x-mcp-header":1}}}`)
	_, first := parameters(schema)
	for range 50 {
		if _, again := parameters(schema); again.Error() != first.Error() {
			t.Fatalf("the reason is %q now and %q again", first, again)
		}
	}
}

func TestArgumentsAsHeadersHaveThem(t *testing.T) {
	t.Parallel()
	const absent = "absent"
	for _, tt := range []struct{ kind, argument, want string }{
		{"string", `"a"`, "a"}, {"string", `""`, ""}, {"string", `5`, absent}, {"string", `true`, absent}, {"string", `null`, absent}, {"string", `["a"]`, absent}, {"string", `{}`, absent},
		{"boolean", `true`, "true"}, {"boolean", `false`, "false"}, {"boolean", `"true"`, absent}, {"boolean", `1`, absent},
		{"integer", `0`, "0"}, {"integer", `-0`, "0"}, {"integer", `-7`, "-7"}, {"integer", `1e3`, "1000"}, {"integer", `2.0`, "2"}, {"integer", `25e-1`, absent}, {"integer", `20e-1`, "2"},
		{"integer", `9007199254740991`, "9007199254740991"}, {"integer", `-9007199254740991`, "-9007199254740991"},
		{"integer", `9007199254740992`, absent}, {"integer", `-9007199254740992`, absent}, {"integer", `9007199254740993`, absent},
		{"integer", `9007199254740991.0`, "9007199254740991"}, {"integer", `9007199254740991.25`, absent}, {"integer", `9223372036854775808`, absent}, {"integer", `-9223372036854775809`, absent},
		{"integer", `1e999999999`, absent}, {"integer", `1e-999999999`, absent}, {"integer", `1.5`, absent}, {"integer", `"5"`, absent}, {"integer", `true`, absent},
	} {
		header := http.Header{}
		setParameters(header, []parameter{{path: []string{"a"}, header: "A", kind: tt.kind}}, json.RawMessage(`{"a":`+tt.argument+`}`))
		got := absent
		if values := header["Mcp-Param-A"]; len(values) == 1 {
			got = values[0]
		}
		if got != tt.want {
			t.Errorf("%s as %s is %q, want %q", tt.argument, tt.kind, got, tt.want)
		}
	}
}

func FuzzHeaderValue(f *testing.F) {
	for _, seed := range []string{
		"", " ", "a", " a", "a ", "a b", "\t", "a\tb", "\x00", "\x7f", "~", "日本", "\xff", "=?base64?", "?=", "=?base64?=", "=?base64??=", "=?base64?YQ==?=", "=?BASE64?YQ==?=", "\r\nX: y",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		value := headerValue(text)
		if !httpguts.ValidHeaderFieldValue(value) || strings.TrimSpace(value) != value || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Fatalf("headerValue(%q) = %q may not stand in a header", text, value)
		}
		got, err := mcptest.DecodeHeader(value)
		if err != nil || got != text {
			t.Fatalf("headerValue(%q) = %q, which reads %q, %v", text, value, got, err)
		}
	})
}

func FuzzParameters(f *testing.F) {
	for _, seed := range [][2]string{
		{`{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}`, `{"a":"b"}`},
		{`{"properties":{"a":{"type":"integer","x-mcp-header":"A"},"b":{"properties":{"c":{"type":"boolean","x-mcp-header":"C"}}}}}`, `{"a":1e3,"b":{"c":true}}`},
		{`{"properties":{"a":{"type":"integer","x-mcp-header":"a"}}}`, `{"a":9007199254740991.4}`},
		{`{"properties":{"a":{"type":"integer","x-mcp-header":"a"}}}`, `{"a":-1e-999999999}`},
		{`{"items":{"x-mcp-header":"A"}}`, `[]`}, {`{"x-mcp-header":5}`, ``}, {`[{"x-mcp-header":5}]`, `{}`},
		{`{"properties":{"":{"type":"string","x-mcp-header":"!"}}}`, `{"":"\u0000\ud800"}`},
	} {
		f.Add([]byte(seed[0]), []byte(seed[1]))
	}
	f.Fuzz(func(t *testing.T, schema, arguments []byte) {
		wanted, err := parameters(schema)
		if err != nil {
			if reason := err.Error(); !utf8.ValidString(reason) || strings.ContainsFunc(reason, unicode.IsControl) || len(reason) > 16*maxQuoted {
				t.Fatalf("%q is no reason to show", reason)
			}
			return
		}
		seen := map[string]bool{}
		for _, p := range wanted {
			if !httpguts.ValidHeaderFieldName(p.header) || seen[strings.ToLower(p.header)] || len(p.path) == 0 {
				t.Fatalf("%+v was taken from %s", p, schema)
			}
			seen[strings.ToLower(p.header)] = true
		}
		header := http.Header{}
		setParameters(header, wanted, arguments)
		if len(header) > len(wanted) {
			t.Fatalf("%d headers come of %d parameters", len(header), len(wanted))
		}
		for _, p := range wanted {
			values := header.Values("Mcp-Param-" + p.header)
			if len(values) == 0 {
				continue
			}
			text, err := mcptest.DecodeHeader(values[0])
			if err != nil || len(values) != 1 {
				t.Fatalf("header %s is %q: %v", p.header, values, err)
			}
			switch p.kind {
			case "boolean":
				if text != "true" && text != "false" {
					t.Fatalf("a boolean is %q", text)
				}
			case "integer":
				n, ok := new(big.Int).SetString(text, 10)
				if !ok || n.CmpAbs(big.NewInt(maxSafeInteger)) > 0 || n.String() != text {
					t.Fatalf("an integer is %q", text)
				}
			}
		}
	})
}
