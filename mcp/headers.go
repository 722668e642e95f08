package mcp

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// The stateless revision repeats parts of a request in its headers, so that what stands between need not read bodies.

// parameter is an argument that stands in a header too, because its schema says so ("x-mcp-header").
type parameter struct {
	path   []string // of property names, from the root of the arguments
	header string   // without the prefix Mcp-Param-
	kind   string   // string, integer or boolean
}

// maxSafeInteger is the largest integer that a header may carry: beyond it not every reader has the same number.
const maxSafeInteger = 1<<53 - 1

// parameters finds the annotations of a tool's input schema. The error says which of them breaks the rules; the tool must
// then not be taken.
func parameters(schema json.RawMessage) ([]parameter, error) {
	if !bytes.Contains(schema, []byte("x-mcp-header")) {
		return nil, nil // nearly every schema
	}
	var root any
	dec := json.NewDecoder(bytes.NewReader(schema))
	dec.UseNumber()
	if err := dec.Decode(&root); err != nil {
		return nil, errors.New("its input schema is not JSON")
	}
	var found annotations
	if err := found.walk(root, nil, true); err != nil {
		return nil, err
	}
	return found.parameters, nil
}

type annotations struct {
	parameters []parameter
	headers    map[string]bool
}

// The keywords that hold schemas: one, a list of them, or a map from names to them. Values of other keywords (default,
// enum, examples) are data.
var (
	schemaKeywords = []string{"items", "additionalItems", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else",
		"unevaluatedItems", "unevaluatedProperties", "contentSchema"}
	schemaLists = []string{"allOf", "anyOf", "oneOf", "prefixItems", "items"}
	schemaMaps  = []string{"$defs", "definitions", "patternProperties", "dependentSchemas", "dependencies"}
)

// walk visits every schema below value. reachable tells whether arguments lead to it by property names alone.
func (a *annotations) walk(value any, path []string, reachable bool) error {
	schema, ok := value.(map[string]any)
	if !ok {
		return nil
	}
	if annotation, annotated := schema["x-mcp-header"]; annotated {
		if err := a.take(annotation, schema["type"], path, reachable); err != nil {
			return err
		}
	}
	if properties, ok := schema["properties"].(map[string]any); ok {
		for _, name := range slices.Sorted(maps.Keys(properties)) { // so that the same schema always has the same error
			if err := a.walk(properties[name], append(path[:len(path):len(path)], name), reachable); err != nil {
				return err
			}
		}
	}
	for _, keyword := range schemaKeywords {
		if err := a.walk(schema[keyword], path, false); err != nil {
			return err
		}
	}
	for _, keyword := range schemaLists {
		list, _ := schema[keyword].([]any)
		for _, entry := range list {
			if err := a.walk(entry, path, false); err != nil {
				return err
			}
		}
	}
	for _, keyword := range schemaMaps {
		entries, _ := schema[keyword].(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(entries)) {
			if err := a.walk(entries[name], path, false); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *annotations) take(annotation, kind any, path []string, reachable bool) error {
	header, ok := annotation.(string)
	at := quote(strings.Join(path, "."))
	switch {
	case !ok || header == "":
		return fmt.Errorf("its x-mcp-header of %s is not a name", at)
	case !httpguts.ValidHeaderFieldName(header):
		return fmt.Errorf("its x-mcp-header %s of %s is not a valid header name", quote(header), at)
	case !reachable || len(path) == 0:
		return fmt.Errorf("its x-mcp-header %s stands where no argument can be told, at %s", quote(header), at)
	case kind != "string" && kind != "integer" && kind != "boolean":
		return fmt.Errorf("its x-mcp-header %s stands on %s, which is neither a string, nor an integer, nor a boolean", quote(header), at)
	case a.headers[strings.ToLower(header)]:
		return fmt.Errorf("its x-mcp-header %s is there twice", quote(header))
	}
	if a.headers == nil {
		a.headers = map[string]bool{}
	}
	a.headers[strings.ToLower(header)] = true
	a.parameters = append(a.parameters, parameter{path: path, header: header, kind: kind.(string)})
	return nil
}

// setParameters puts the arguments that a schema wants in headers there. An argument that is absent, null or not of its
// type has no header: the server says what it thinks of that.
func setParameters(header http.Header, wanted []parameter, arguments json.RawMessage) {
	if len(wanted) == 0 {
		return
	}
	var root any
	dec := json.NewDecoder(bytes.NewReader(arguments))
	dec.UseNumber()
	if dec.Decode(&root) != nil {
		return
	}
	for _, p := range wanted {
		value := root
		for _, name := range p.path {
			object, _ := value.(map[string]any)
			value = object[name]
		}
		if text, ok := p.text(value); ok {
			header.Set("Mcp-Param-"+p.header, headerValue(text))
		}
	}
}

// text is an argument as a header has it.
func (p parameter) text(value any) (string, bool) {
	switch v := value.(type) {
	case string:
		return v, p.kind == "string"
	case bool:
		return strconv.FormatBool(v), p.kind == "boolean"
	case json.Number:
		if p.kind != "integer" {
			return "", false
		}
		// 1e3 and 2.0 are integers too. The precision is more than any that passes needs; what is too small for it comes out
		// as zero.
		f, _, err := big.ParseFloat(v.String(), 10, 128, big.ToNearestEven)
		if err != nil {
			return "", false
		}
		n, accuracy := f.Int64()
		mantissa, _, _ := strings.Cut(strings.ToLower(v.String()), "e")
		if accuracy != big.Exact || n == 0 && strings.ContainsAny(mantissa, "123456789") {
			return "", false
		}
		return strconv.FormatInt(n, 10), n >= -maxSafeInteger && n <= maxSafeInteger
	}
	return "", false
}

// headerValue is text as it may stand in a header: as it is where that is safe, in Base64 where it is not.
func headerValue(text string) string {
	if plainInHeader(text) {
		return text
	}
	return "=?base64?" + base64.StdEncoding.EncodeToString([]byte(text)) + "?="
}

func plainInHeader(text string) bool {
	for i := range len(text) {
		if text[i] < 0x20 || text[i] > 0x7e {
			return false
		}
	}
	return strings.TrimSpace(text) == text && !(strings.HasPrefix(text, "=?base64?") && strings.HasSuffix(text, "?="))
}
