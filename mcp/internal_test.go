package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestQuote(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ story, text, want string }{
		{"nothing", "", `""`},
		{"words", "no such document", `"no such document"`},
		{"white space is folded and trimmed", " \t\r\na\n\n\u2028 b\u00a0c ", `"a b c"`},
		{"quotes", `say "a"`, `"say 'a'"`},
		{"control characters", "a\x00b\x1b[31mc\x7fd\u0085e", `"ab[31mcd e"`},
		{"what turns a line round", "a\u202eb\u200bc\ufeffd\u2066e", `"abcde"`},
		{"private use", "a\ue000b", `"ab"`},
		{"not UTF-8", "a\xffb", "\"a\ufffdb\""},
		{"other scripts", "日本語 ok", `"日本語 ok"`},
		{"exactly as long as may be", strings.Repeat("é", 200), `"` + strings.Repeat("é", 200) + `"`},
		{"one too long", strings.Repeat("é", 201), `"` + strings.Repeat("é", 199) + `…"`},
		{"a space where it is cut", strings.Repeat("a", 198) + " bcd", `"` + strings.Repeat("a", 198) + ` …"`},
		{"white space behind the end", strings.Repeat("a", 200) + "  \n", `"` + strings.Repeat("a", 200) + `"`},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, quote(tt.text)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestExcerpt(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story string
		body  []byte
		want  string
	}{
		{"short", []byte("ab"), `"ab"`},
		{"long", bytes.Repeat([]byte("a"), 2000), `"` + strings.Repeat("a", 199) + `…"`},
		{"cut through a character", []byte(strings.Repeat(" ", 798) + "日本"), `""`},
		{"binary", bytes.Repeat([]byte{0x80}, 2000), `"` + strings.Repeat("\ufffd", 199) + `…"`},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, excerpt(tt.body)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestSeconds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		d    time.Duration
		want string
	}{
		{0, "0 s"}, {1, "1 ms"}, {37 * time.Millisecond, "37 ms"}, {99999 * time.Microsecond, "99 ms"}, {100 * time.Millisecond, "0.1 s"},
		{949 * time.Millisecond, "0.9 s"}, {950 * time.Millisecond, "1 s"}, {time.Second, "1 s"}, {1500 * time.Millisecond, "1.5 s"},
		{20 * time.Second, "20 s"}, {100 * time.Second, "100 s"}, {math.MaxInt64, "9223372036.9 s"}, {-time.Second, "-1 s"},
	} {
		if got := seconds(tt.d); got != tt.want {
			t.Errorf("seconds(%d) = %q, want %q", tt.d, got, tt.want)
		}
	}
}

func TestAccount(t *testing.T) {
	t.Parallel()
	leg := func(method string, elapsed time.Duration) Leg { return Leg{Method: method, Elapsed: elapsed} }
	for _, tt := range []struct {
		legs []Leg
		want string
	}{
		{nil, ""},
		{[]Leg{leg("a", time.Second)}, "a (1 s)"},
		{[]Leg{leg("a", time.Second), leg("b", 2*time.Second)}, "a (1 s) and b (2 s)"},
		{[]Leg{leg("a", time.Second), leg("b", 2*time.Second), leg("b", time.Second), leg("a", 0)}, "a (1 s), 2 times b (3 s in all) and a (0 s)"},
	} {
		if got := account(tt.legs); got != tt.want {
			t.Errorf("account = %q, want %q", got, tt.want)
		}
	}
}

func TestSecretDoesNotPrint(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte("s3cret"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, failure := Server{
		Credential: Credential{Reference: "file:" + path, Placement: PlaceBearer}, Headers: []Header{{Name: "X-Second", Value: "file:" + path}},
	}.resolve()
	shown := http.Header{}
	s.set(shown)
	if failure != nil || shown.Get("Authorization") != "Bearer s3cret" || shown.Get("X-Second") != "s3cret" {
		t.Fatal("the credentials do not resolve")
	}
	token := Token{&issued{value: func() string { return "s3cret" }}}
	o := &operation{secrets: s, token: token, server: Server{Identifier: "docs", Token: token}}
	f := &flight{operation: o}
	for _, v := range []any{s, &s, f, *o, token, &token, Spent{Token: token}, []secrets{s}, map[string]secrets{"a": s}, errors.New(fmt.Sprint(s))} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			if text := fmt.Sprintf(verb, v); strings.Contains(text, "s3cret") || strings.Contains(text, fmt.Sprintf("%x", "s3cret")) {
				t.Errorf("%s of %T prints the secret: %s", verb, v, text)
			}
		}
	}
}

// spoken reports whether text is fit for an operator's sentence.
func spoken(text string) error {
	switch {
	case !utf8.ValidString(text):
		return errors.New("it is not UTF-8")
	case strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) }):
		return errors.New("it holds control characters")
	case utf8.RuneCountInString(text) > 2*maxQuoted:
		return errors.New("it does not end")
	}
	return nil
}

func FuzzQuote(f *testing.F) {
	for _, seed := range []string{
		"", "words", "\x00\x1b[0m", "\u202e", "\"quoted\"", "a \xff b", strings.Repeat("a", 198) + " b c d", strings.Repeat(" a", 150), "日本語",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, quoted := range []string{quote(text), excerpt([]byte(text))} {
			if err := spoken(quoted); err != nil {
				t.Fatalf("%q: %v", quoted, err)
			}
			if n := utf8.RuneCountInString(quoted); n > maxQuoted+2 || n < 2 {
				t.Fatalf("%q is %d characters long", quoted, n)
			}
			if quoted[0] != '"' || quoted[len(quoted)-1] != '"' || strings.Contains(quoted[1:len(quoted)-1], `"`) {
				t.Fatalf("%q is not one quotation", quoted)
			}
		}
	})
}

// checkAnswer holds an answer, or the error in its place, against what every caller relies on.
func checkAnswer(t *testing.T, a answer, err error) {
	t.Helper()
	if err != nil {
		var bad errMalformed
		if !errors.As(err, &bad) {
			t.Fatalf("error %v (%T) is not about the answer", err, err)
		}
		if err := spoken(bad.what); err != nil {
			t.Fatalf("%q: %v", bad.what, err)
		}
		return
	}
	if (a.err == nil) == (a.result == nil) {
		t.Fatalf("the answer has result %s and error %v", a.result, a.err)
	}
	if a.result != nil {
		checkToolResult(t, a.result)
		checkPage(t, a.result)
	}
}

func checkToolResult(t *testing.T, raw json.RawMessage) {
	t.Helper()
	result, err := parseToolResult(raw)
	if err != nil {
		checkAnswer(t, answer{}, err)
		return
	}
	if result.Structured != nil && !json.Valid(result.Structured) {
		t.Fatalf("structured content %q is not JSON", result.Structured)
	}
	if len(result.Dropped) > 9 {
		t.Fatalf("%d types of dropped blocks are counted", len(result.Dropped))
	}
	for name, n := range result.Dropped {
		if err := spoken(name); err != nil || name == "" || n < 1 {
			t.Fatalf("%d dropped blocks of type %q: %v", n, name, err)
		}
	}
	if len(result.Dropped) > 0 && !strings.HasPrefix(result.Text, "[dropped, ") {
		t.Fatalf("text %q does not begin with what was dropped", result.Text)
	}
	if !utf8.ValidString(result.Text) {
		t.Fatalf("text %q is not UTF-8", result.Text)
	}
}

var localForm = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

func checkPage(t *testing.T, raw json.RawMessage) {
	t.Helper()
	var g gatherer
	if _, err := g.page(raw); err != nil {
		checkAnswer(t, answer{}, err)
		return
	}
	if len(g.catalogue.Tools)+len(g.catalogue.Skipped) != g.entries {
		t.Fatalf("%d entries became %d tools and %d skipped", g.entries, len(g.catalogue.Tools), len(g.catalogue.Skipped))
	}
	names := map[string]bool{}
	for _, tool := range g.catalogue.Tools {
		if ValidToolName(tool.Name) != nil || names[tool.Name] {
			t.Fatalf("tool %q was taken", tool.Name)
		}
		names[tool.Name] = true
		if !json.Valid(tool.InputSchema) || tool.InputSchema[0] != '{' {
			t.Fatalf("the schema of %q is %q", tool.Name, tool.InputSchema)
		}
		if local := LocalToolName("docs", tool.Name, false); !localForm.MatchString(local) {
			t.Fatalf("tool %q is called %q here", tool.Name, local)
		}
	}
	for _, skipped := range g.catalogue.Skipped {
		if err := spoken(skipped.Reason); err != nil || skipped.Reason == "" {
			t.Fatalf("reason %q: %v", skipped.Reason, err)
		}
	}
}

func FuzzParseAnswer(f *testing.F) {
	for _, seed := range []string{
		``, `null`, `{}`, `[]`, "\ufeff{}", `{"jsonrpc":"2.0","id":7,"result":{}}`, `{"id":"7","result":{"content":[{"type":"text","text":"a"},{"type":"image"}]}}`,
		`{"id":7,"result":{"tools":[{"name":"a"},{"name":"a"},null,5,{"name":"\u0000"}],"nextCursor":"x"}}`, `{"id":7,"error":{"code":-32600,"message":"m","data":[1]}}`,
		`{"id":null,"error":"no"}`, `{"id":7,"method":"ping"}`, `{"id":8,"result":1}`, `{"id":7,"result":null,"error":null}`, `{"id":7,"result":{}`, "\xff\xfe{}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		a, err := parseAnswer(body, 7)
		checkAnswer(t, a, err)
	})
}

func FuzzReadStream(f *testing.F) {
	for _, seed := range []string{
		"", "\n\n", "data: {\"id\":7,\"result\":{}}\n\n", "data:{\"id\":7,\ndata:\"result\":{}}", ": c\n\nevent: ping\ndata: x\n\n", "\ufeffdata: {}\r\n\r\n",
		"data: {\"method\":\"x\"}\n\ndata: {\"id\":\"7\",\"error\":{}}\r\r", "id: \x00\nretry: x\ndata\n\n", "event: message\ndata: [\n\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) > 1<<16 {
			t.Skip("long streams are tested elsewhere")
		}
		a, err := readStream(bytes.NewReader(body), 7, new(place), secrets{}.hide, nil)
		checkAnswer(t, a, err)
		// How a stream is cut into packets is the network's affair.
		b, bytewise := readStream(iotest.OneByteReader(bytes.NewReader(body)), 7, new(place), secrets{}.hide, nil)
		if fmt.Sprint(err) != fmt.Sprint(bytewise) || !bytes.Equal(a.result, b.result) || fmt.Sprint(a.err) != fmt.Sprint(b.err) {
			t.Fatalf("read at once: %s, %v, %v\nread bytewise: %s, %v, %v", a.result, a.err, err, b.result, b.err, bytewise)
		}
	})
}

// resultOf is a seed as parseAnswer would hand it on, or nil.
func resultOf(data []byte) json.RawMessage {
	a, err := parseAnswer([]byte(`{"id":7,"result":`+string(data)+`}`), 7)
	if err != nil {
		return nil
	}
	return a.result
}

func FuzzParseToolResult(f *testing.F) {
	for _, seed := range []string{
		`{}`, `[]`, `"x"`, `{"content":[]}`, `{"content":null,"isError":true}`, `{"content":[{"type":"text","text":"a\u0000\ud800"}],"structuredContent":{"n":9007199254740993}}`,
		`{"content":[{"type":"\u0000"},{"type":""},{},null,5,{"type":"a"},{"type":"b"},{"type":"c"},{"type":"d"},{"type":"e"},{"type":"f"},{"type":"g"},{"type":"h"},{"type":"i"}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if raw := resultOf(data); raw != nil {
			checkToolResult(t, raw)
		}
	})
}

func FuzzCataloguePage(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"tools":null}`, `{"tools":[]}`, `{"tools":[{"name":"a","inputSchema":{"type":"object"}},{"name":"a"}],"nextCursor":"2"}`,
		`{"tools":[null,5,"x",[],{},{"name":""},{"name":"\u0000"},{"name":"日本/ b","inputSchema":[]},{"name":"c","inputSchema":null,"title":5}]}`,
		`{"tools":[{"name":"\ud800\u202e"}],"nextCursor":5}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if raw := resultOf(data); raw != nil {
			checkPage(t, raw)
		}
	})
}

func FuzzLocalToolName(f *testing.F) {
	for _, seed := range []string{"", "search", "a b", "日本", strings.Repeat("x", 300), "a\xff", "a-b_C9"} {
		f.Add("docs", seed, false)
		f.Add(strings.Repeat("a", 32), seed, true)
	}
	f.Fuzz(func(t *testing.T, identifier, remote string, hashed bool) {
		if !ValidIdentifier(identifier) {
			t.Skip("no identifier")
		}
		name := LocalToolName(identifier, remote, hashed)
		if !localForm.MatchString(name) || !strings.HasPrefix(name, "mcp_"+identifier+"_") {
			t.Fatalf("LocalToolName(%q, %q, %v) = %q", identifier, remote, hashed, name)
		}
		if again := LocalToolName(identifier, remote, hashed); again != name {
			t.Fatalf("it is %q now and %q again", name, again)
		}
		if hashed || strings.TrimPrefix(name, "mcp_"+identifier+"_") == remote {
			return
		}
		// A name that had to be changed ends in the hash of what it was.
		if want := LocalToolName(identifier, remote, true); name != want {
			t.Fatalf("LocalToolName(%q, %q) = %q without the hash of %q", identifier, remote, name, want)
		}
	})
}

// A secret that comes back is found however its characters are written.
func TestSecretsAreFoundHoweverTheyAreEscaped(t *testing.T) {
	t.Parallel()
	const secret = `ab/c"d\e+f=%9`
	hidden := secrets{}.hiding(secret)
	each := func(form string) string {
		var b strings.Builder
		for i := range len(secret) {
			fmt.Fprintf(&b, form, secret[i])
		}
		return b.String()
	}
	inJSON := func(text string) string {
		data, _ := json.Marshal(text)
		return strings.Trim(string(data), `"`)
	}
	for name, written := range map[string]string{
		"as it is":                      secret,
		"in JSON":                       inJSON(secret),
		"in JSON, as PHP does":          strings.ReplaceAll(inJSON(secret), "/", `\/`),
		"in JSON, all by number":        each(`\u%04x`),
		"in JSON, in capitals":          each(`\u%04X`),
		"in JSON in JSON":               inJSON(inJSON(secret)),
		"in JSON in JSON, as PHP does":  strings.ReplaceAll(inJSON(strings.ReplaceAll(inJSON(secret), "/", `\/`)), "/", `\/`),
		"in a URL":                      url.QueryEscape(secret),
		"in a URL, in small letters":    each("%%%02x"),
		"in a URL, as little as can be": strings.ReplaceAll(strings.ReplaceAll(secret, "%", "%25"), "/", "%2f"),
	} {
		for _, around := range []string{"%s", `{"a":"x %s y","b":"\u0041%%41\\\\\\"}`, "%[1]s%[1]s"} {
			text := fmt.Sprintf(around, written)
			got := string(hidden.hide([]byte(text)))
			if want := fmt.Sprintf(around, redacted); got != want {
				t.Errorf("%s: %s became %s, want %s", name, text, got, want)
			}
		}
	}
	for _, other := range []string{`ab/c"d\e+f=%8`, `ab\u002`, `ab%2`, `ab\`, strings.Repeat(`\`, 100), "%", ""} {
		if got := string(hidden.hide([]byte(other))); got != other {
			t.Errorf("%s became %s", other, got)
		}
	}
}
