package store

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// MaxNesting is how deep JSON may nest before it is kept as a string. Postgres reads json by recursion, and refuses some
// thousand levels as a stack that is too deep.
const MaxNesting = 500

// replacement is U+FFFD, which stands where something stood that cannot be stored.
const replacement = "\uFFFD"

// cleanText returns text as Postgres can store it: invalid UTF-8 and NUL become U+FFFD.
func cleanText(text string) string {
	if utf8.ValidString(text) && strings.IndexByte(text, 0) < 0 {
		return text
	}
	return strings.ReplaceAll(strings.ToValidUTF8(text, replacement), "\x00", replacement)
}

// cleanJSON returns JSON as Postgres can store it, and as later readers can take it apart: in strings, invalid UTF-8 and
// the escapes of NUL and of lone surrogates become U+FFFD. Everything else stays byte for byte. What is no JSON, or nests
// deeper than MaxNesting, becomes one JSON string that holds its text. Nothing at all stays nil.
func cleanJSON(raw json.RawMessage) json.RawMessage {
	return cleanJSONWithin(raw, MaxNesting)
}

// keepJSON is JSON that is stored byte for byte wherever Postgres takes it so, escapes that cannot be read as text included.
func keepJSON(raw json.RawMessage) json.RawMessage {
	if utf8.Valid(raw) && json.Valid(raw) && !NestsTooDeep(raw) {
		return raw
	}
	return cleanJSON(raw)
}

func cleanJSONWithin(raw json.RawMessage, levels int) json.RawMessage {
	if len(raw) == 0 {
		return nil
	}
	if !json.Valid(raw) || nestsDeeper(raw, levels) {
		return quoteJSON(string(raw))
	}
	return cleanStrings(raw)
}

// cleanResult is cleanJSON for a step's result. An object keeps its shape: only the member that nests too deep becomes a
// string, so that its readers still find the others.
func cleanResult(raw json.RawMessage) json.RawMessage {
	if !json.Valid(raw) || !NestsTooDeep(raw) {
		return cleanJSON(raw)
	}
	return cleanMembers(raw, func(member json.RawMessage) json.RawMessage { return cleanJSONWithin(member, MaxNesting-1) })
}

// flatResult is the result with every member that is an object or an array kept as a string: what is left to try when
// Postgres refuses it otherwise.
func flatResult(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return nil
	}
	return cleanMembers(raw, func(member json.RawMessage) json.RawMessage { return cleanJSONWithin(member, 0) })
}

// cleanLegs is cleanJSON for the legs of an operation; a JSON null, which is how Go writes a nil slice, is none either.
func cleanLegs(raw json.RawMessage) json.RawMessage {
	if string(raw) == "null" {
		return nil
	}
	return cleanJSON(raw)
}

// cleanMembers rebuilds an object with each member cleaned, in the order of the names; what is no object becomes a string.
func cleanMembers(raw json.RawMessage, clean func(json.RawMessage) json.RawMessage) json.RawMessage {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil || members == nil {
		return quoteJSON(string(raw))
	}
	for name, member := range members {
		members[name] = clean(member)
	}
	var rebuilt bytes.Buffer
	encoder := json.NewEncoder(&rebuilt)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(members); err != nil {
		return quoteJSON(string(raw))
	}
	return cleanStrings(bytes.TrimSuffix(rebuilt.Bytes(), []byte("\n"))) // the names
}

// quoteJSON is text as a JSON string.
func quoteJSON(text string) json.RawMessage {
	var quoted bytes.Buffer
	encoder := json.NewEncoder(&quoted)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(cleanText(text)); err != nil {
		panic(err) // a string always encodes
	}
	return bytes.TrimSuffix(quoted.Bytes(), []byte("\n"))
}

// nesting is how many arrays and objects are open at once at the deepest place of valid JSON.
func nesting(raw json.RawMessage) int {
	depth, deepest := 0, 0
	inString := false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '[' || c == '{':
			depth++
			deepest = max(deepest, depth)
		case c == ']' || c == '}':
			depth--
		}
	}
	return deepest
}

// NestsTooDeep tells whether valid JSON nests deeper than MaxNesting.
func NestsTooDeep(raw json.RawMessage) bool { return nestsDeeper(raw, MaxNesting) }

// nestsDeeper follows only what has brackets enough.
func nestsDeeper(raw json.RawMessage, levels int) bool {
	return bytes.Count(raw, []byte{'{'})+bytes.Count(raw, []byte{'['}) > levels && nesting(raw) > levels
}

// cleanStrings cleans the strings of valid JSON. Backslashes and bytes outside of ASCII occur nowhere but in strings, so
// it need not know where they begin. It returns raw itself when there is nothing to clean.
func cleanStrings(raw json.RawMessage) json.RawMessage {
	if utf8.Valid(raw) && !bytes.Contains(raw, []byte(`\u`)) {
		return raw
	}
	var out []byte
	kept := 0 // raw[:kept] is in out, or is as it was
	replace := func(from, to int, with string) {
		out = append(append(out, raw[kept:from]...), with...)
		kept = to
	}
	for i := 0; i < len(raw); {
		switch c := raw[i]; {
		case c == '\\' && raw[i+1] == 'u':
			end := i + 6
			switch unit := hexUnit(raw[i+2 : end]); {
			case isHighSurrogate(unit):
				if len(raw) >= end+6 && raw[end] == '\\' && raw[end+1] == 'u' && isLowSurrogate(hexUnit(raw[end+2:end+6])) {
					end += 6
				} else {
					replace(i, end, `\ufffd`)
				}
			case unit == 0 || isLowSurrogate(unit):
				replace(i, end, `\ufffd`)
			}
			i = end
		case c == '\\':
			i += 2
		case c < utf8.RuneSelf:
			i++
		default:
			r, size := utf8.DecodeRune(raw[i:])
			if r == utf8.RuneError && size == 1 {
				replace(i, i+1, replacement)
			}
			i += size
		}
	}
	if kept == 0 {
		return raw
	}
	return append(out, raw[kept:]...)
}

// hexUnit is the UTF-16 unit that four hexadecimal digits stand for.
func hexUnit(digits []byte) uint16 {
	var unit uint16
	for _, c := range digits {
		unit <<= 4
		switch {
		case c <= '9':
			unit |= uint16(c - '0')
		case c <= 'F':
			unit |= uint16(c - 'A' + 10)
		default:
			unit |= uint16(c - 'a' + 10)
		}
	}
	return unit
}

func isHighSurrogate(unit uint16) bool { return unit >= 0xD800 && unit < 0xDC00 }
func isLowSurrogate(unit uint16) bool  { return unit >= 0xDC00 && unit < 0xE000 }
