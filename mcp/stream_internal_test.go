package mcp

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestEventReader(t *testing.T) {
	t.Parallel()
	type read struct {
		Kind, Data string
		Cut        bool
	}
	for _, tt := range []struct {
		name, stream string
		want         []read
		id           string
		retry        time.Duration
	}{
		{"one event", "data: {}\n\n", []read{{Data: "{}"}}, "", 0},
		{"no space after the colon, and two", "data:a\n\ndata:  b\n\n", []read{{Data: "a"}, {Data: " b"}}, "", 0},
		{"lines that end in CR LF", "event: message\r\ndata: a\r\n\r\ndata: b\r\n\r\n", []read{{Kind: "message", Data: "a"}, {Data: "b"}}, "", 0},
		{"lines that end in CR", "data: a\r\rdata: b\r\r", []read{{Data: "a"}, {Data: "b"}}, "", 0},
		{"data over several lines", "data: {\ndata: \"a\":1\ndata\ndata: }\n\n", []read{{Data: "{\n\"a\":1\n\n}"}}, "", 0},
		{"comments and unknown fields", ": keep-alive\n\nfoo: bar\nwhatever\ndata: a\n: more\n\n", []read{{Data: "a"}}, "", 0},
		{"a byte order mark", "\ufeffdata: a\n\n", []read{{Data: "a"}}, "", 0},
		{"a byte order mark in the middle is no field", "data: a\n\n\ufeffdata: b\n\n", []read{{Data: "a"}}, "", 0},
		{"an event that only primes", "id: 7\nretry: 250\ndata:\n\ndata: a\n\n", []read{{Data: "a"}}, "7", 250 * time.Millisecond},
		{"the type of an event without data is forgotten", "event: ping\n\ndata: a\n\n", []read{{Data: "a"}}, "", 0},
		{"an id with a NUL", "id: 1\ndata: a\n\nid: 2\x003\ndata: b\n\n", []read{{Data: "a"}, {Data: "b"}}, "1", 0},
		{"an empty id takes the last one back", "id: 1\ndata: a\n\nid\ndata: b\n\n", []read{{Data: "a"}, {Data: "b"}}, "", 0},
		{"the id of an event that was cut does not count", "id: 1\ndata: a\n\nid: 2\ndata: b", []read{{Data: "a"}, {Data: "b", Cut: true}}, "1", 0},
		{"a retry that is no number", "retry: 1s\nretry: -1\ndata: a\n\n", []read{{Data: "a"}}, "", 0},
		{"a retry past all reason", "retry: 99999999999999999999\ndata: a\n\n", []read{{Data: "a"}}, "", 24 * time.Hour},
		{"a last event without its blank line", "data: a\n\ndata: b\n", []read{{Data: "a"}, {Data: "b", Cut: true}}, "", 0},
		{"nothing but keep-alives", ":\n\n:\n\n\n\n", nil, "", 0},
		{"nothing", "", nil, "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for name, reader := range map[string]io.Reader{
				"at once": strings.NewReader(tt.stream), "byte by byte": iotest.OneByteReader(strings.NewReader(tt.stream)),
			} {
				var at place
				events := newEventReader(reader, &at)
				var got []read
				for {
					event, err := events.next()
					if err == io.EOF {
						break
					}
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, read{event.kind, string(event.data), event.cut})
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
				if at.id != tt.id || at.retry != tt.retry {
					t.Errorf("%s: resumable after %q in %s, want %q in %s", name, at.id, at.retry, tt.id, tt.retry)
				}
			}
		})
	}
}

func TestReadStream(t *testing.T) {
	t.Parallel()
	const result = `{"jsonrpc":"2.0","id":7,"result":{"a":1}}`
	for _, tt := range []struct {
		name, stream string
		says         string // of the error; empty: the result came
		served       []string
	}{
		{"the answer", "data: " + result + "\n\n", "", nil},
		{"after other things", "event: ping\ndata: x\n\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{}}\n\ndata: " + result + "\n\n", "", nil},
		{"after requests of the server's", "data: {\"jsonrpc\":\"2.0\",\"id\":\"s1\",\"method\":\"ping\"}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"roots/list\"}\n\ndata: " + result + "\n\n", "", []string{`ping "s1"`, "roots/list 2"}},
		{"in an array", "data: [{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\"}," + result + "]\n\n", "", nil},
		{"in an array with what is no message", "data: [5," + result + "]\n\n", "not a JSON-RPC message", nil},
		{"after events of white space", "data:\ndata:\n\ndata:  \n\ndata: " + result + "\n\n", "", nil},
		{"without its blank line", "data: " + result, "", nil},
		{"cut in the middle", "data: " + result[:20], "ended within the answer", nil},
		{"never", ": keep-alive\n\n", "ended without an answer", nil},
		{"somebody else's", "data: {\"jsonrpc\":\"2.0\",\"id\":8,\"result\":{}}\n\n", "for request", nil},
		{"no JSON", "data: hello\n\n", "not JSON", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var served []string
			found, err := readStream(strings.NewReader(tt.stream), 7, new(place), secrets{}.hide, func(asked theirs) {
				served = append(served, asked.method+" "+string(asked.id))
			})
			switch {
			case tt.says == "" && (err != nil || string(found.result) != `{"a":1}`):
				t.Errorf("got %s, %v", found.result, err)
			case tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)):
				t.Errorf("got %v, want …%s…", err, tt.says)
			}
			if diff := cmp.Diff(tt.served, served); diff != "" {
				t.Errorf("requests of the server's (-want +got):\n%s", diff)
			}
		})
	}
}
