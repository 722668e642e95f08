package mcp

import (
	"bytes"
	"encoding/json"
	"iter"
	"unicode/utf8"
)

// An answer is found to be JSON once, by encoding/json. After that its parts are looked up here: encoding/json would read each
// value twice more and copy it, at every level (ADR 14).

// parts gives the members of an object, or the entries of an array, whose names are empty. Each value is as it is written, and
// shares its bytes with the whole. The whole must be valid JSON; a value of any other sort has no parts.
func parts(whole []byte) iter.Seq2[string, json.RawMessage] {
	return func(yield func(string, json.RawMessage) bool) {
		rest := bytes.TrimLeft(whole, space)
		if len(rest) == 0 || rest[0] != '{' && rest[0] != '[' {
			return
		}
		named, end := rest[0] == '{', rest[0]+2
		for rest[0] != end {
			rest = bytes.TrimLeft(rest[1:], space) // what opens the whole, or a comma
			if rest[0] == end {
				return
			}
			name := ""
			if named {
				length := stringLength(rest)
				name = text(rest[:length])
				rest = bytes.TrimLeft(rest[length:], space)
				rest = bytes.TrimLeft(rest[1:], space) // a colon
			}
			length := valueLength(rest)
			if !yield(name, rest[:length:length]) {
				return
			}
			rest = bytes.TrimLeft(rest[length:], space)
		}
	}
}

const space = " \t\r\n"

// valueLength is the length of the value that valid JSON begins with.
func valueLength(data []byte) int {
	switch data[0] {
	case '"':
		return stringLength(data)
	case '{', '[':
		for i, open := 0, 0; ; i++ {
			switch data[i] {
			case '{', '[':
				open++
			case '}', ']':
				if open--; open == 0 {
					return i + 1
				}
			case '"':
				i += stringLength(data[i:]) - 1
			}
		}
	}
	if end := bytes.IndexAny(data, ",]}"+space); end >= 0 {
		return end
	}
	return len(data)
}

// stringLength is the length of the string that valid JSON begins with.
func stringLength(data []byte) int {
	for i := 1; ; i++ {
		switch data[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
}

// text is the text of a string in valid JSON; anything else is no text.
func text(raw json.RawMessage) string {
	if len(raw) > 0 && raw[0] == '"' && bytes.IndexByte(raw, '\\') < 0 && utf8.Valid(raw) {
		return string(raw[1 : len(raw)-1])
	}
	var s string
	_ = json.Unmarshal(raw, &s)
	return s
}

// plain is a string's text, and any other value as it is written.
func plain(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	return string(raw)
}

func present(raw json.RawMessage) bool { return len(raw) > 0 && !bytes.Equal(raw, []byte("null")) }

// encoded is a value of ours, which can be written as JSON.
func encoded(value any) json.RawMessage {
	data, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return data
}

// oneLine is the same JSON without line breaks: a bridge may hand a message on as it came to a server on standard input, for
// which a line break ends it.
func oneLine(raw json.RawMessage) json.RawMessage {
	if !bytes.ContainsAny(raw, "\r\n") {
		return raw
	}
	var line bytes.Buffer
	_ = json.Compact(&line, raw) // which fails on nothing but what is no JSON
	return line.Bytes()
}
