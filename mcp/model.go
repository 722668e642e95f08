package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	maxModelSchema = 16 << 10  // bytes of a schema as a model is given it: each question pays for it again
	maxModelLevels = 12        // schemas within schemas
	maxModelSource = 256 << 10 // bytes of the input schema, with what it does not use
	maxModelJSON   = 100       // arrays and objects within each other in it, in data too
	maxModelWork   = 100_000   // keywords looked at: references that lead to references multiply them
)

// modelPropertyName is what a property may be called.
var modelPropertyName = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,64}$`)

// ModelSchema gives a tool's input schema in the form that the function calling of model APIs takes. Where there is none the
// error is the reason, worded to stand after "it cannot be offered to a model: ".
//
// References are replaced by what they lead to, what constrains nothing is left out, and what an API insists on is added: a
// type and properties to the whole, items to an array. The order, and data (the values of default, enum, const and examples),
// stay as the server wrote them. What cannot be said without a keyword that APIs refuse is refused as a whole. The answer to
// one schema is always the same, and a schema in this form is given back byte for byte.
func ModelSchema(schema json.RawMessage) (json.RawMessage, error) {
	if len(schema) > maxModelSource {
		return nil, fmt.Errorf("its input schema is larger than %d KiB", maxModelSource>>10)
	}
	var compact bytes.Buffer
	if json.Compact(&compact, bytes.ToValidUTF8(schema, []byte("\uFFFD"))) != nil {
		return nil, errors.New("its input schema is not JSON")
	}
	document := readNode(compact.Bytes(), maxModelJSON)
	switch {
	case document == nil:
		return nil, fmt.Errorf("its input schema nests deeper than %d levels", maxModelJSON)
	case !document.begins("{"):
		return nil, errors.New("its input schema is not an object")
	}
	m := modelSchema{document: document, open: map[*node]bool{}}
	root, err := m.merged(document, "", true)
	if err != nil {
		return nil, err
	}
	if err := m.write(root, "", 1); err != nil {
		return nil, err
	}
	return m.out, nil
}

// modelSchema is a schema for models in the making.
type modelSchema struct {
	document *node
	open     map[*node]bool // the schemas that it is in the middle of
	work     int            // keywords looked at
	out      []byte
	full     bool // out would have become too large
}

// mergedSchema is a schema together with what it refers to.
type mergedSchema struct {
	object         // its keywords, without those that say nothing
	root   bool    // it is the whole
	never  bool    // nothing meets it
	from   []*node // the schemas that it is made of
	closed []*node // the properties beside each additionalProperties that keeps something out; nil where there are none
}

// merged puts a schema together with what it refers to. at is where it stands, as properties are named.
func (m *modelSchema) merged(schema *node, at string, root bool) (*mergedSchema, error) {
	s := &mergedSchema{root: root}
	if err := m.merge(s, schema, at); err != nil {
		return nil, err
	}
	for _, properties := range s.closed {
		if !sameProperties(properties, s.get("properties")) {
			return nil, fmt.Errorf(`its keyword "additionalProperties" %s cannot be merged with the properties of another schema`, where(at))
		}
	}
	return s, nil
}

// sameProperties compares what two schemas list. No list is as good as an empty one.
func sameProperties(a, b *node) bool {
	return a.sets() == b.sets() && (!a.sets() || bytes.Equal(a.raw, b.raw))
}

var errTooMuchWork = errors.New("its references lead through too many schemas")

func (m *modelSchema) merge(into *mergedSchema, schema *node, at string) error {
	if m.work += 1 + len(schema.members); m.work > maxModelWork {
		return errTooMuchWork
	}
	switch {
	case schema.is("true"):
		return nil
	case schema.is("false"):
		into.never = true
		return nil
	case !schema.begins("{"):
		return fmt.Errorf("its schema %s is neither an object nor true or false", where(at))
	}
	m.open[schema] = true
	defer delete(m.open, schema)
	into.from = append(into.from, schema)
	var reference, part *node
	for _, keyword := range schema.members {
		value := keyword.meaning()
		switch {
		case value == nil:
		case keyword.name == "$ref":
			reference = value
		case keyword.name == "allOf" && !into.root && value.begins("[") && len(value.entries) < 2:
			if len(value.entries) == 1 {
				part = value.entries[0]
			}
		default:
			if err := into.add(keyword.name, value, at); err != nil {
				return err
			}
		}
	}
	if extra := schema.get("additionalProperties"); extra.sets() && !extra.is("true") {
		into.closed = append(into.closed, schema.get("properties"))
	}
	if reference != nil {
		target, err := m.follow(reference, at)
		if err != nil {
			return err
		}
		if err := m.merge(into, target, at); err != nil {
			return err
		}
	}
	if part != nil {
		return m.merge(into, part, at)
	}
	return nil
}

// add takes one keyword. What is said already may be said again; of two annotations the one that is nearer to the reader
// counts, and that comes first.
func (s *mergedSchema) add(name string, value *node, at string) error {
	there := s.get(name)
	switch {
	case there == nil:
		s.set(name, value)
	case !bytes.Equal(there.raw, value.raw) && keywords[name].use != annotates:
		return fmt.Errorf("its keyword %s %s is given twice, with values that cannot be merged", quote(name), where(at))
	}
	return nil
}

// follow finds what a reference leads to. Nothing outside of the document is ever looked for.
func (m *modelSchema) follow(reference *node, at string) (*node, error) {
	if !reference.begins(`"`) {
		return nil, fmt.Errorf(`its keyword "$ref" %s is not a string`, where(at))
	}
	if m.work += len(reference.raw) / 64; m.work > maxModelWork { // a long one takes long to follow
		return nil, errTooMuchWork
	}
	address := text(reference.raw)
	says := "its reference " + quote(address) + " " + where(at)
	fragment, local := strings.CutPrefix(address, "#")
	if !local && address != "" {
		return nil, fmt.Errorf("%s leads out of the schema, and nothing is fetched", says)
	}
	target := m.document.at(fragment)
	switch {
	case target == nil:
		return nil, fmt.Errorf("%s leads nowhere", says)
	case m.open[target]:
		return nil, fmt.Errorf("%s does not end: it leads round to itself", says)
	}
	return target, nil
}

// write appends a schema to the result.
func (m *modelSchema) write(s *mergedSchema, at string, level int) error {
	switch {
	case s.never:
		return fmt.Errorf("its schema %s is false: no value meets it", where(at))
	case level > maxModelLevels:
		return fmt.Errorf("its schema %s nests deeper than %d levels", where(at), maxModelLevels)
	}
	for _, schema := range s.from {
		m.open[schema] = true
		defer delete(m.open, schema)
	}
	keywords, err := s.complete()
	if err != nil {
		return err
	}
	m.put("{")
	for i, keyword := range keywords {
		m.name(i > 0, keyword.name)
		if err := m.writeKeyword(s, keyword, at, level); err != nil {
			return err
		}
	}
	return m.put("}")
}

// complete gives the keywords, with those that model APIs insist on although they say nothing here.
func (s *mergedSchema) complete() ([]member, error) {
	complete, kind := s.members, s.get("type")
	if s.root {
		switch {
		case kind == nil:
			complete = append([]member{{"type", objectType}}, complete...)
		case !kind.is(`"object"`):
			return nil, fmt.Errorf(`its type at the root is %s, and model APIs take "object" there`, quote(strings.Trim(string(kind.raw), `"`)))
		}
		if s.get("properties") == nil {
			complete = append(complete, member{"properties", emptyObject})
		}
	}
	if kind != nil && s.get("items") == nil && (kind.is(`"array"`) || slices.ContainsFunc(kind.entries, func(k *node) bool { return k.is(`"array"`) })) {
		complete = append(complete, member{"items", emptyObject})
	}
	return complete, nil
}

// writeKeyword appends the value of a keyword, whose name is there already.
func (m *modelSchema) writeKeyword(s *mergedSchema, keyword member, at string, level int) error {
	name, value := keyword.name, keyword.value
	known := keywords[name]
	switch {
	case known.use == refused || s.root && (known.use == lists || slices.Contains(refusedAtRoot, name)):
		return fmt.Errorf("its keyword %s %s is refused by model APIs", quote(name), where(at))
	case name == "items" && value.begins("["):
		return fmt.Errorf("its keyword %s %s, as a list, is refused by model APIs", quote(name), where(at))
	case !keyword.fits():
		return fmt.Errorf("its keyword %s %s is not as JSON Schema has it", quote(name), where(at))
	case known.use == lists:
		m.put("[")
		for i, entry := range value.entries {
			if i > 0 {
				m.put(",")
			}
			if err := m.writeSchema(entry, below(at, name+"["+strconv.Itoa(i)+"]"), level); err != nil {
				return err
			}
		}
		return m.put("]")
	case name == "properties":
		return m.writeProperties(s, value, at, level)
	case name == "items":
		return m.writeSchema(value, at+"[]", level)
	case name == "additionalProperties" && value.begins("{"):
		at := below(at, "*")
		extra, err := m.merged(value, at, false)
		if err != nil {
			return err
		}
		if extra.never {
			return m.put("false")
		}
		return m.write(extra, at, level+1)
	}
	return m.put(string(value.raw))
}

func (m *modelSchema) writeSchema(schema *node, at string, level int) error {
	s, err := m.merged(schema, at, false)
	if err != nil {
		return err
	}
	return m.write(s, at, level+1)
}

// writeProperties leaves out a property that is false: nobody may give it, so nobody need be told of it.
func (m *modelSchema) writeProperties(s *mergedSchema, properties *node, at string, level int) error {
	required := map[string]bool{}
	if names := s.get("required"); names != nil {
		for _, name := range names.entries {
			required[text(name.raw)] = true
		}
		m.work += len(names.entries)
	}
	m.put("{")
	more := false
	for _, property := range properties.members {
		if !modelPropertyName.MatchString(property.name) {
			return fmt.Errorf("its property %s %s has a name that model APIs refuse: they take 1 to 64 of a-z, A-Z, 0-9, _, . and -",
				quote(property.name), where(at))
		}
		below := below(at, property.name)
		schema, err := m.merged(property.value, below, false)
		if err != nil {
			return err
		}
		if schema.never {
			if required[property.name] {
				return fmt.Errorf("its property %s is required and false: no value meets it", quote(below))
			}
			continue
		}
		m.name(more, property.name)
		more = true
		if err := m.write(schema, below, level+1); err != nil {
			return err
		}
	}
	return m.put("}")
}

// name appends the name of a member that is not the first, or is.
func (m *modelSchema) name(more bool, name string) {
	if more {
		m.put(",")
	}
	quoted, err := json.Marshal(name)
	if err != nil {
		panic(err) // a string always encodes
	}
	m.put(string(quoted))
	m.put(":")
}

var errModelSchemaTooLarge = fmt.Errorf("its input schema takes more than %d KiB with each reference replaced by what it leads to", maxModelSchema>>10)

// put appends text to the result, or tells that it has become too large. Whoever puts something small may leave the error to
// the next.
func (m *modelSchema) put(text string) error {
	if m.full = m.full || len(m.out)+len(text) > maxModelSchema; m.full {
		return errModelSchemaTooLarge
	}
	m.out = append(m.out, text...)
	return nil
}

// where says in a sentence where a schema stands.
func where(at string) string {
	if at == "" {
		return "at the root"
	}
	return "at " + quote(at)
}

func below(at, name string) string {
	if at == "" {
		return name
	}
	return at + "." + name
}

// use is what becomes of a keyword.
type use int

const (
	passes     use = iota // JSON Schema does not know it
	annotates             // it constrains nothing and may be worth reading
	constrains            // its value is data
	holds                 // its value is a schema, or a map of them
	lists                 // its value is a list of schemas, any or one of which is to be met
	silent                // it says nothing to a model
	refused               // model APIs refuse it
)

// keywords are those that JSON Schema has or had, and the characters that their values begin with.
var keywords = map[string]struct {
	use    use
	begins string
}{
	"$schema": {use: silent}, "$id": {use: silent}, "$anchor": {use: silent}, "$dynamicAnchor": {use: silent}, "$recursiveAnchor": {use: silent},
	"$comment": {use: silent}, "$vocabulary": {use: silent}, "$defs": {use: silent}, "definitions": {use: silent},

	"title": {annotates, `"`}, "description": {annotates, `"`}, "default": {use: annotates}, "examples": {annotates, "["},
	"deprecated": {annotates, "tf"}, "readOnly": {annotates, "tf"}, "writeOnly": {annotates, "tf"},
	"contentEncoding": {annotates, `"`}, "contentMediaType": {annotates, `"`},

	"type": {constrains, `"[`}, "enum": {constrains, "["}, "const": {use: constrains}, "format": {constrains, `"`},
	"minimum": {constrains, numbers}, "maximum": {constrains, numbers}, "exclusiveMinimum": {constrains, numbers},
	"exclusiveMaximum": {constrains, numbers}, "multipleOf": {constrains, counts},
	"minLength": {constrains, counts}, "maxLength": {constrains, counts}, "pattern": {constrains, `"`},
	"minItems": {constrains, counts}, "maxItems": {constrains, counts}, "uniqueItems": {constrains, "tf"},
	"minProperties": {constrains, counts}, "maxProperties": {constrains, counts}, "required": {constrains, "["},

	"properties": {holds, "{"}, "items": {holds, "{tf"}, "additionalProperties": {holds, "{tf"},
	"anyOf": {lists, "["}, "oneOf": {lists, "["},

	"allOf": {use: refused}, "not": {use: refused}, "if": {use: refused}, "then": {use: refused}, "else": {use: refused},
	"dependentSchemas": {use: refused}, "dependentRequired": {use: refused}, "dependencies": {use: refused},
	"patternProperties": {use: refused}, "propertyNames": {use: refused}, "unevaluatedProperties": {use: refused},
	"unevaluatedItems": {use: refused}, "contains": {use: refused}, "minContains": {use: refused}, "maxContains": {use: refused},
	"prefixItems": {use: refused}, "additionalItems": {use: refused}, "contentSchema": {use: refused},
	"$dynamicRef": {use: refused}, "$recursiveRef": {use: refused},
}

// refusedAtRoot are those that are refused there only, beside those that list schemas.
var refusedAtRoot = []string{"enum", "const"}

const (
	counts  = "0123456789"
	numbers = "-" + counts
)

var jsonTypes = []string{"null", "boolean", "object", "array", "number", "integer", "string"}

// meaning is the value of a keyword; nil where it says nothing.
func (k member) meaning() *node {
	known, ok := keywords[k.name]
	switch {
	case known.use == silent || strings.HasPrefix(k.name, "x-"):
		return nil
	case k.value.is("null") && k.name != "default" && k.name != "const":
		return nil // how some encoders leave out
	case k.name == "propertyNames" && (k.value.is("true") || k.value.is("{}") || k.value.is(`{"type":"string"}`)):
		return nil
	case k.name == "properties" && k.value.is("[]"):
		return emptyObject // how PHP writes it
	case known.use == annotates && !k.fits():
		return nil
	case !ok && k.value.objects:
		return nil // it may hold schemas, and nobody knows which of its values are any
	}
	return k.value
}

// fits tells whether a keyword's value is what JSON Schema has there.
func (k member) fits() bool {
	known := keywords[k.name]
	if known.begins != "" && !k.value.begins(known.begins) {
		return false
	}
	isType := func(n *node) bool { return n.begins(`"`) && slices.Contains(jsonTypes, text(n.raw)) }
	switch {
	case known.use == lists:
		return len(k.value.entries) > 0
	case k.name == "required":
		return !slices.ContainsFunc(k.value.entries, func(n *node) bool { return !n.begins(`"`) })
	case k.name == "type" && k.value.begins("["):
		return len(k.value.entries) > 0 && !slices.ContainsFunc(k.value.entries, func(n *node) bool { return !isType(n) })
	case k.name == "type":
		return isType(k.value)
	}
	return true
}

// object is the members of a JSON object, in order.
type object struct {
	members []member
	index   map[string]int
}

type member struct {
	name  string
	value *node
}

// set adds a member. Of several by one name the last one counts, as for encoding/json, in the place of the first.
func (o *object) set(name string, value *node) {
	if i, ok := o.index[name]; ok {
		o.members[i].value = value
		return
	}
	if o.index == nil {
		o.index = map[string]int{}
	}
	o.index[name] = len(o.members)
	o.members = append(o.members, member{name, value})
}

// get is a member's value; nil when there is none.
func (o *object) get(name string) *node {
	if i, ok := o.index[name]; ok {
		return o.members[i].value
	}
	return nil
}

// node is a value of a JSON document.
type node struct {
	raw     []byte // compact
	object         // where it is one
	entries []*node
	objects bool // whether it is an object or holds one
}

var (
	objectType  = &node{raw: []byte(`"object"`)}
	emptyObject = &node{raw: []byte(`{}`)}
)

func (n *node) is(raw string) bool      { return string(n.raw) == raw }
func (n *node) begins(with string) bool { return strings.IndexByte(with, n.raw[0]) >= 0 }

// sets tells whether there is a value that is not empty.
func (n *node) sets() bool { return n != nil && !n.is("null") && !n.is("{}") && !n.is("[]") }

// at finds what a URL's fragment leads to, which is a JSON pointer; nil when there is nothing.
func (n *node) at(fragment string) *node {
	pointer, err := url.PathUnescape(fragment)
	if err != nil || pointer != "" && pointer[0] != '/' {
		return nil
	}
	if pointer == "" {
		return n
	}
	for token := range strings.SplitSeq(pointer[1:], "/") {
		if n = n.step(token); n == nil {
			return nil
		}
	}
	return n
}

var unescapePointer = strings.NewReplacer("~1", "/", "~0", "~")

// step goes down by one token of a JSON pointer.
func (n *node) step(token string) *node {
	if !n.begins("[") {
		return n.get(unescapePointer.Replace(token))
	}
	i, err := strconv.Atoi(token)
	if err != nil || strconv.Itoa(i) != token || i < 0 || i >= len(n.entries) {
		return nil
	}
	return n.entries[i]
}

// readNode reads a value of compact, valid JSON. It is nil where it nests deeper than so many levels.
func readNode(raw json.RawMessage, levels int) *node {
	n := &node{raw: raw}
	if !n.begins("{[") {
		return n
	}
	if levels == 0 {
		return nil
	}
	isObject := n.begins("{")
	n.objects = isObject
	for name, part := range parts(raw) {
		value := readNode(part, levels-1)
		if value == nil {
			return nil
		}
		if isObject {
			n.set(name, value)
		} else {
			n.entries = append(n.entries, value)
			n.objects = n.objects || value.objects
		}
	}
	return n
}
