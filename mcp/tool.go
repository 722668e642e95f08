package mcp

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ToolResult is what a tool brought.
type ToolResult struct {
	// Text is the text blocks, joined by line breaks. Where blocks of other types were dropped it begins with a line
	// that says so.
	Text string `json:"text"`
	// Structured is the structured content, as the server wrote it; nil when there is none.
	Structured json.RawMessage `json:"structured"`
	// IsError is the server's word that the tool failed.
	IsError bool `json:"is_error"`
	// Dropped counts the blocks that are not text, by the protocol's own type names.
	Dropped map[string]int `json:"dropped"`
}

// Tool is one tool as a server advertises it. InputSchema is kept byte for byte.
type Tool struct {
	Name        string
	Title       string
	Description string
	InputSchema json.RawMessage
	Annotations json.RawMessage // for display; nothing is decided by it. nil when absent
	// NotCallable says why legwork cannot call the tool, worded to stand after "because"; empty when it can.
	NotCallable string
}

// SkippedTool is one entry of a catalogue that could not be taken, and why.
type SkippedTool struct {
	Name   string // empty when it had none
	Reason string
}

// Catalogue is what a server advertises.
type Catalogue struct {
	Tools   []Tool
	Skipped []SkippedTool

	// Untyped names the tools of Tools that came without an input schema, or with null. Theirs takes any object.
	Untyped []string
}

// maxToolName is more than the protocol recommends and less than would trouble a row.
const maxToolName = 256

// ValidToolName says what is wrong with a tool's name, or nothing. Any printable name is sent as it is.
func ValidToolName(name string) error {
	switch {
	case name == "":
		return errors.New("the tool's name is missing")
	case utf8.RuneCountInString(name) > maxToolName:
		return fmt.Errorf("the tool's name is longer than %d characters", maxToolName)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("the tool's name %s holds control characters or is not UTF-8", quote(name))
	}
	return nil
}

func (c ToolCall) validate() error {
	if err := ValidToolName(c.Name); err != nil {
		return err
	}
	if arguments := bytes.Trim(c.Arguments, space); len(arguments) == 0 || arguments[0] != '{' || !json.Valid(arguments) {
		return errors.New("the arguments must be a JSON object")
	}
	return nil
}

// parseToolResult reads the result of tools/call. The error is worded to go on "…, but".
func parseToolResult(raw json.RawMessage) (ToolResult, error) {
	noResult := func() (ToolResult, error) {
		return ToolResult{}, malformedf("the result is not a tool's result; it begins with %s", excerpt(raw))
	}
	if raw[0] != '{' {
		return noResult()
	}
	var result ToolResult
	var content json.RawMessage
	for name, value := range parts(raw) {
		switch name {
		case "content":
			content = value
		case "structuredContent":
			result.Structured = slices.Clone(value)
		case "isError":
			if json.Unmarshal(value, &result.IsError) != nil {
				return noResult()
			}
		}
	}
	if present(content) && content[0] != '[' {
		return noResult()
	}
	if !present(result.Structured) {
		result.Structured = nil
	}
	var texts []string
	for _, block := range parts(content) {
		kind, text := readBlock(block)
		if kind == "text" {
			texts = append(texts, text)
			continue
		}
		if result.Dropped == nil {
			result.Dropped = map[string]int{}
		}
		result.Dropped[droppedType(kind, result.Dropped)]++
	}
	if note := result.note(); note != "" {
		texts = slices.Insert(texts, 0, note)
	}
	result.Text = strings.Join(texts, "\n")
	return result, nil
}

// readBlock reads a block of content, which may be anything. One that is not as it should be is of no kind, and costs no other.
func readBlock(block json.RawMessage) (kind, words string) {
	for name, value := range parts(block) {
		if name != "type" && name != "text" || !present(value) {
			continue
		}
		if value[0] != '"' {
			return "", ""
		}
		if name == "type" {
			kind = text(value)
		} else {
			words = text(value)
		}
	}
	return kind, words
}

// droppedType is the name a dropped block is counted under. A server that makes up a type for each block is counted
// under one.
func droppedType(name string, counted map[string]int) string {
	name = strings.Trim(quote(name), `"`)
	if name == "" {
		return "unknown"
	}
	if _, ok := counted[name]; !ok && len(counted) >= 8 {
		return "other"
	}
	return name
}

// note says what was dropped, for whoever reads the text alone.
func (r ToolResult) note() string {
	if len(r.Dropped) == 0 {
		return ""
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(r.Dropped)) {
		parts = append(parts, fmt.Sprintf("%d %s", r.Dropped[name], name))
	}
	return "[dropped, because only text is kept: " + strings.Join(parts, ", ") + "]"
}

// gatherer puts a catalogue together page by page.
type gatherer struct {
	annotated bool // whether x-mcp-header means something to this server
	catalogue Catalogue
	bytes     int
	entries   int
	names     map[string]bool
}

// page takes one result of tools/list and gives the cursor of the next. The error is worded to go on "…, but".
func (g *gatherer) page(raw json.RawMessage) (next *string, err error) {
	var in struct {
		Tools      json.RawMessage `json:"tools"`
		NextCursor json.RawMessage `json:"nextCursor"`
	}
	if g.bytes += len(raw); g.bytes > MaxCatalogue {
		return nil, malformedf("the catalogue has more than %d MiB; it was refused rather than cut", MaxCatalogue>>20)
	}
	// null is how some languages write a list of none; one that is left out is no list.
	var tools []json.RawMessage
	if json.Unmarshal(raw, &in) != nil || in.Tools == nil || json.Unmarshal(in.Tools, &tools) != nil {
		return nil, malformedf("the result is not a list of tools; it begins with %s", excerpt(raw))
	}
	if g.entries += len(tools); g.entries > MaxTools {
		return nil, malformedf("the catalogue has more than %d tools; it was refused rather than cut", MaxTools)
	}
	for _, entry := range tools {
		g.take(entry)
	}
	if !present(in.NextCursor) {
		return nil, nil
	}
	if in.NextCursor[0] != '"' {
		return nil, malformedf("its nextCursor %s is not a string", excerpt(in.NextCursor))
	}
	cursor := text(in.NextCursor)
	return &cursor, nil
}

// take takes one entry, or notes why it cannot be. One bad tool costs that tool alone.
func (g *gatherer) take(entry json.RawMessage) {
	var in struct {
		Name        json.RawMessage `json:"name"`
		Title       json.RawMessage `json:"title"`
		Description json.RawMessage `json:"description"`
		InputSchema json.RawMessage `json:"inputSchema"`
		Annotations json.RawMessage `json:"annotations"`
		Execution   json.RawMessage `json:"execution"`
	}
	skip := func(name, reason string) {
		g.catalogue.Skipped = append(g.catalogue.Skipped, SkippedTool{Name: name, Reason: reason})
	}
	if entry[0] != '{' || json.Unmarshal(entry, &in) != nil {
		skip("", "the entry is not an object; it begins with "+excerpt(entry))
		return
	}
	var name string
	if !present(in.Name) || json.Unmarshal(in.Name, &name) != nil {
		skip("", "the entry has no name; it begins with "+excerpt(entry))
		return
	}
	if err := ValidToolName(name); err != nil {
		skip(strings.Trim(quote(name), `"`), err.Error())
		return
	}
	if g.names[name] {
		skip(name, "the name was advertised more than once; the first is kept")
		return
	}
	schema := in.InputSchema
	untyped := !present(schema)
	if untyped {
		schema = json.RawMessage(`{"type":"object"}`) // "takes anything" is what leaving it out means
	} else if schema[0] != '{' {
		skip(name, "the input schema is not an object; it begins with "+excerpt(schema))
		return
	}
	if g.annotated {
		if _, err := parameters(schema); err != nil {
			skip(name, err.Error())
			return
		}
	}
	if g.names == nil {
		g.names = map[string]bool{}
	}
	g.names[name] = true
	if untyped {
		g.catalogue.Untyped = append(g.catalogue.Untyped, name)
	}
	tool := Tool{Name: name, Title: text(in.Title), Description: text(in.Description), InputSchema: schema}
	if present(in.Annotations) {
		tool.Annotations = in.Annotations
	}
	if taskOnly(in.Execution) {
		tool.NotCallable = `it runs only as a task (execution.taskSupport "required"), which legwork does not do`
	}
	g.catalogue.Tools = append(g.catalogue.Tools, tool)
}

// taskOnly tells whether a tool's execution says that it is to be called as a task and in no other way.
func taskOnly(execution json.RawMessage) bool {
	var in struct {
		TaskSupport json.RawMessage `json:"taskSupport"`
	}
	return json.Unmarshal(execution, &in) == nil && text(in.TaskSupport) == "required"
}

const maxLocalName = 64

// LocalToolName is the name that a tool goes by in this installation: mcp_<identifier>_<remote name>, of at most 64
// characters of a-z, A-Z, 0-9, _ and -, which is what model APIs take. A remote name that does not fit has its other
// characters replaced and ends in a short hash of the original; hashed asks for the hash in any case, for a name that
// another server's tool has taken.
func LocalToolName(identifier, remote string, hashed bool) string {
	fits := strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' || r == '-') {
			return r
		}
		return '_'
	}, remote)
	name := "mcp_" + identifier + "_" + fits
	if !hashed && fits == remote && len(name) <= maxLocalName {
		return name
	}
	sum := sha256.Sum256([]byte(identifier + "\x00" + remote))
	suffix := "_" + hex.EncodeToString(sum[:4])
	return name[:min(len(name), maxLocalName-len(suffix))] + suffix
}
