package mcp

import (
	"bytes"
	"encoding/json"
	"maps"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestParts(t *testing.T) {
	t.Parallel()
	type part struct{ Name, Value string }
	for _, tt := range []struct {
		whole string
		want  []part
	}{
		{``, nil},
		{`"a"`, nil},
		{`7`, nil},
		{` { } `, nil},
		{"[\n]", nil},
		{`{"a":1}`, []part{{"a", "1"}}},
		{` { "a" : 1 , "b" : null } `, []part{{"a", "1"}, {"b", "null"}}},
		{`{"a":{"b":[{"c":"}]"}]},"d":"\\","e":"\"}"}`, []part{{"a", `{"b":[{"c":"}]"}]}`}, {"d", `"\\"`}, {"e", `"\"}"`}}},
		{`{"":0,"\u0061\"":true,"a":[ ],"a":-1.5e3}`, []part{{"", "0"}, {`a"`, "true"}, {"a", "[ ]"}, {"a", "-1.5e3"}}},
		{`[1 ,"two",[3],{"four":4}, null]`, []part{{"", "1"}, {"", `"two"`}, {"", "[3]"}, {"", `{"four":4}`}, {"", "null"}}},
	} {
		var got []part
		for name, value := range parts([]byte(tt.whole)) {
			got = append(got, part{name, string(value)})
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: %s", tt.whole, diff)
		}
	}
	for name := range parts([]byte(`{"a":1,"b":2}`)) {
		if name != "a" {
			t.Errorf("%s came after the end", name)
		}
		break
	}
}

// What is found by hand is what encoding/json finds.
func FuzzParts(f *testing.F) {
	for _, seed := range []string{
		`{"a": {"b":[1,"]}",{"c":"\\"}]} , "d\u0000":"\ud800"}`, `[ 1, [], {}, "\"", true ]`, "{\"\xff\":\"\xff\"}", `""`, ` null`, `{"a":1,"a":2}`, "[\"\u2028\"]",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, whole []byte) {
		if !json.Valid(whole) {
			t.Skip("only valid JSON is taken apart")
		}
		var object map[string]json.RawMessage
		var array []json.RawMessage
		switch bytes.TrimSpace(whole)[0] {
		case '{':
			if err := json.Unmarshal(whole, &object); err != nil {
				t.Fatal(err)
			}
		case '[':
			if err := json.Unmarshal(whole, &array); err != nil {
				t.Fatal(err)
			}
		}
		members := map[string]json.RawMessage{}
		var entries []json.RawMessage
		for name, value := range parts(whole) {
			if object != nil {
				members[name] = value
			} else {
				entries = append(entries, value)
			}
			var want string
			_ = json.Unmarshal(value, &want)
			if got := text(value); got != want || !utf8.ValidString(got) {
				t.Errorf("the text of %s is %q, not %q", value, got, want)
			}
		}
		same := func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }
		if len(object) != len(members) || !maps.EqualFunc(object, members, same) {
			t.Errorf("%s has the members %s, not %s", whole, members, object)
		}
		if diff := cmp.Diff(len(array), len(entries)); diff != "" {
			t.Fatal(diff)
		}
		for i := range array {
			if !same(array[i], entries[i]) {
				t.Errorf("entry %d of %s is %s, not %s", i, whole, entries[i], array[i])
			}
		}
	})
}

// What outlives its answer shares no bytes with it: the answer may be 2 MiB, and what follows may take minutes.
func TestWhatIsKeptIsCopied(t *testing.T) {
	t.Parallel()
	raw := []byte(`{"content":[{"type":"text","text":"a"}],"structuredContent":{"b":1},"resultType":"input_required","requestState":{"c":2}}`)
	result, err := parseToolResult(raw)
	if err != nil {
		t.Fatal(err)
	}
	o := operation{}
	state, failure := o.incomplete(methodCallTool, kindOf(raw))
	if failure != nil {
		t.Fatal(failure)
	}
	clear(raw)
	if result.Text != "a" || string(result.Structured) != `{"b":1}` || string(state) != `{"c":2}` {
		t.Errorf("%+v, state %s", result, state)
	}
}
