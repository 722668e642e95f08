package store

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestCleanJSON(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", MaxNesting) + strings.Repeat("]", MaxNesting)
	for name, test := range map[string]struct{ in, want string }{
		"nothing":                             {``, ``},
		"nothing to clean":                    {" {\"b\" : 1,\n\"a\":[true,null,\"x\"]} ", " {\"b\" : 1,\n\"a\":[true,null,\"x\"]} "},
		"a huge integer":                      {`{"id":123456789012345678901234567890}`, `{"id":123456789012345678901234567890}`},
		"odd numbers":                         {`[1.0,1e400,-0,0.10]`, `[1.0,1e400,-0,0.10]`},
		"a NUL":                               {`"a\u0000b"`, `"a\ufffdb"`},
		"a backslash before u0000":            {`"a\\u0000b"`, `"a\\u0000b"`},
		"a NUL after a backslash":             {`"\\\u0000"`, `"\\\ufffd"`},
		"a NUL in a name":                     {`{"\u0000":1}`, `{"\ufffd":1}`},
		"a surrogate pair":                    {`"\ud83d\ude00"`, `"\ud83d\ude00"`},
		"a pair in capitals":                  {`"\uD83D\uDE00"`, `"\uD83D\uDE00"`},
		"a high surrogate alone":              {`"\ud83d"`, `"\ufffd"`},
		"a high surrogate before text":        {`"\ud83dx\ude00"`, `"\ufffdx\ufffd"`},
		"a high surrogate before a letter":    {`"\ud83d\u0041"`, `"\ufffd\u0041"`},
		"a high surrogate before a NUL":       {`"\ud83d\u0000"`, `"\ufffd\ufffd"`},
		"a high surrogate before a new line":  {`"\ud83d\n1234"`, `"\ufffd\n1234"`},
		"two high surrogates and a low one":   {`"\ud83d\ud83d\ude00"`, `"\ufffd\ud83d\ude00"`},
		"a low surrogate alone":               {`"\ude00"`, `"\ufffd"`},
		"bytes that are no UTF-8":             {"\"a\xff\xfeb\"", "\"a\uFFFD\uFFFDb\""},
		"a surrogate in UTF-8":                {"\"\xed\xa0\x80\"", "\"\uFFFD\uFFFD\uFFFD\""},
		"letters outside of ASCII":            {`"größer 日本 😀"`, `"größer 日本 😀"`},
		"a replacement character":             {"\"\uFFFD\"", "\"\uFFFD\""},
		"no JSON":                             {`{"a":`, `"{\"a\":"`},
		"no JSON, with a NUL and bad bytes":   {"<\x00\xff>", "\"<\uFFFD\uFFFD>\""},
		"as deep as may be":                   {deep, deep},
		"one level too deep":                  {"[" + deep + "]", `"[` + deep + `]"`},
		"brackets in a string are not levels": {`"` + strings.Repeat("[", 2*MaxNesting) + `\"["`, `"` + strings.Repeat("[", 2*MaxNesting) + `\"["`},
	} {
		t.Run(name, func(t *testing.T) {
			in := []byte(test.in)
			got := cleanJSON(in)
			if string(got) != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if string(in) != test.in {
				t.Error("the caller's bytes were changed")
			}
		})
	}
}

func TestCleanText(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":             "",
		"größer\n":     "größer\n",
		"a\x00b":       "a\uFFFDb",
		"a\xffb\x00":   "a\uFFFDb\uFFFD",
		"\xed\xa0\x80": "\uFFFD",
	} {
		if got := cleanText(in); got != want {
			t.Errorf("cleanText(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestCleanResultKeepsItsShape(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", MaxNesting) + strings.Repeat("]", MaxNesting)
	got := cleanResult([]byte(`{"text":"a\u0000 <b>","structured":` + deep + `,"dropped":{"image":1}}`))
	want := `{"dropped":{"image":1},"structured":"` + deep + `","text":"a\ufffd <b>"}`
	if string(got) != want {
		t.Errorf("too deep: got %s\nwant %s", got, want)
	}
	got = flatResult([]byte(`{"text":"a","structured":{"a":[1]},"is_error":false}`))
	want = `{"is_error":false,"structured":"{\"a\":[1]}","text":"a"}`
	if string(got) != want {
		t.Errorf("flat: got %s\nwant %s", got, want)
	}
	if got := flatResult([]byte(`[1]`)); string(got) != `"[1]"` {
		t.Errorf("flat array: got %s", got)
	}
	if got := flatResult(nil); got != nil {
		t.Errorf("flat nothing: got %s", got)
	}
}

// FuzzCleanJSON checks the rules by which Postgres takes json, and those by which its readers can take it apart.
func FuzzCleanJSON(f *testing.F) {
	for _, seed := range []string{
		`{"a":[1,"x\u0000",{"\ud83d":"\ud83d\ude00"}]}`, "\"\xff\"", `"\\u0000"`, `nul`, `[[[`, `1e999`, "\x00", `"\ud83d\ud83d\ude00"`,
		strings.Repeat("[", MaxNesting+1) + strings.Repeat("]", MaxNesting+1),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		checkStorable(t, cleanJSON(in), len(in) == 0)
		checkStorable(t, cleanResult(in), len(in) == 0)
		checkStorable(t, flatResult(in), len(in) == 0)
		if text := cleanText(string(in)); !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			t.Errorf("text cannot be stored: %q", text)
		}
		if out := cleanJSON(in); !bytes.Equal(out, cleanJSON(out)) {
			t.Errorf("clean twice differs: %q", out)
		}
		if json.Valid(in) && nesting(in) <= MaxNesting && utf8.Valid(in) && !bytes.Contains(in, []byte(`\u`)) &&
			!bytes.Equal(in, cleanJSON(in)) {
			t.Errorf("nothing to clean, but %q became %q", in, cleanJSON(in))
		}
	})
}

func checkStorable(t *testing.T, out json.RawMessage, empty bool) {
	t.Helper()
	if empty {
		if out != nil {
			t.Errorf("nothing became %q", out)
		}
		return
	}
	if !json.Valid(out) || !utf8.Valid(out) || nesting(out) > MaxNesting {
		t.Fatalf("cannot be stored: %q", out)
	}
	// No escape that stands for NUL or half a character: every one decodes to something else than U+FFFD, or says U+FFFD.
	escapes := strings.ReplaceAll(string(out), `\\`, `__`)
	pairs := 0
	for rest := escapes; ; {
		_, after, found := strings.Cut(rest, `\u`)
		if !found {
			break
		}
		digits := strings.ToLower(after[:4])
		switch {
		case digits == "0000":
			t.Fatalf("a NUL is left: %q", out)
		case digits >= "d800" && digits < "dc00":
			next := strings.ToLower(after[4:min(len(after), 10)])
			if len(next) < 6 || next[:2] != `\u` || next[2:] < "dc00" || next[2:] >= "e000" {
				t.Fatalf("half a character is left: %q", out)
			}
			pairs++
		case digits >= "dc00" && digits < "e000":
			pairs--
			if pairs < 0 {
				t.Fatalf("half a character is left: %q", out)
			}
		}
		rest = after
	}
}
