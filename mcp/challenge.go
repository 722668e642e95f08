package mcp

import (
	"net/http"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// challenge is one way in that a server offers in WWW-Authenticate.
type challenge struct {
	scheme     string
	parameters map[string]string // names in lower case
}

// maxChallenges is how many challenges are read: more are no help to anybody.
const maxChallenges = 8

// challenges reads the challenges of all WWW-Authenticate headers (RFC 9110, 11.6.1). What breaks the rules is passed over:
// it is for display.
func challenges(header http.Header) []challenge {
	var all []challenge
	for _, value := range header.Values("WWW-Authenticate") {
		p := parser{rest: value}
		for p.skip(" \t,"); p.rest != ""; p.skip(" \t,") {
			name := p.token()
			switch {
			case name == "": // what is neither a scheme nor a parameter
				p.rest = p.rest[1:]
			case p.follows('='):
				text := p.value()
				if n := len(all); n > 0 {
					if _, twice := all[n-1].parameters[strings.ToLower(name)]; !twice {
						all[n-1].parameters[strings.ToLower(name)] = text
					}
				}
			case len(all) == maxChallenges:
				return all
			default:
				all = append(all, challenge{scheme: name, parameters: map[string]string{}})
			}
		}
	}
	return all
}

// parser reads a header from left to right.
type parser struct{ rest string }

func (p *parser) skip(cut string) { p.rest = strings.TrimLeft(p.rest, cut) }

func (p *parser) token() string {
	end := 0
	for end < len(p.rest) && httpguts.IsTokenRune(rune(p.rest[end])) {
		end++
	}
	token := p.rest[:end]
	p.rest = p.rest[end:]
	return token
}

// follows takes what is to come next, white space before it included, or nothing.
func (p *parser) follows(next byte) bool {
	rest := strings.TrimLeft(p.rest, " \t")
	if rest == "" || rest[0] != next {
		return false
	}
	p.rest = strings.TrimLeft(rest[1:], " \t")
	return true
}

// value is a token or a quoted string. One whose quotes do not end runs to the end.
func (p *parser) value() string {
	if !strings.HasPrefix(p.rest, `"`) {
		end := strings.IndexAny(p.rest, ", \t")
		if end < 0 {
			end = len(p.rest)
		}
		value := p.rest[:end]
		p.rest = p.rest[end:]
		return value
	}
	var text strings.Builder
	for i := 1; i < len(p.rest); i++ {
		switch p.rest[i] {
		case '"':
			p.rest = p.rest[i+1:]
			return text.String()
		case '\\':
			if i++; i == len(p.rest) {
				continue
			}
		}
		text.WriteByte(p.rest[i])
	}
	p.rest = ""
	return text.String()
}

// wanted says what a server that let nobody in asks for; empty when it does not say.
func wanted(header http.Header) string {
	var ways []string
	for _, c := range challenges(header) {
		var parts []string
		for _, part := range []struct{ words, name string }{
			{"scope", "scope"}, {"realm", "realm"}, {"error", "error"}, {"saying", "error_description"}, {"see", "resource_metadata"},
		} {
			if text := c.parameters[part.name]; text != "" {
				if part.name == "resource_metadata" {
					text = withoutQuery(text)
				}
				parts = append(parts, part.words+" "+quote(text))
			}
		}
		way := strings.Trim(quote(c.scheme), `"`)
		if len(parts) > 0 {
			way += " (" + strings.Join(parts, ", ") + ")"
		}
		ways = append(ways, way)
	}
	return strings.Join(ways, " or ")
}
