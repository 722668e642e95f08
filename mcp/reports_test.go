package mcp_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"legwork/mcp"
	"legwork/mcp/mcptest"
)

// What real servers and clients were reported to do. docs/servers.md says which test holds which report.

const eventStream = "text/event-stream"

// regionalCall is a call whose argument a stateless server wants in a header, made without the schema that says so.
var regionalCall = act{"call", func(t *testing.T, client *mcp.Client, server mcp.Server, budget mcp.Budget) (mcp.Spent, error) {
	_, spent, err := client.CallTool(t.Context(), server, mcp.ToolCall{Name: "echo", Arguments: json.RawMessage(`{"region":"eu"}`)}, budget)
	return spent, err
}}

// What follows an operation is not waited for, however the operation ended.
func TestNothingAfterAnOperationDelaysItsCaller(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story  string
		stalls string // the method that is never answered; empty is none
		legs   string
	}{
		{"after an answer", "", opening + ", tools/call"},
		{"after a call that was not answered", "tools/call", opening + ", tools/call"},
		{"after a handshake that was not finished", "notifications/initialized", opening},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			release := make(chan struct{})
			letGo := sync.OnceFunc(func() { close(release) })
			fake := mcptest.New(t, mcptest.Options{})
			budget, p := ample, parts{wrap: func(next http.RoundTripper) http.RoundTripper {
				return roundTripper(func(r *http.Request) (*http.Response, error) {
					if r.Method == http.MethodDelete {
						<-release
					}
					return next.RoundTrip(r)
				})
			}}
			if tt.stalls != "" {
				fake.On(tt.stalls, mcptest.Stall)
				budget, p.clock = installation(time.Second), new(mcptest.Clock)
			}
			client := newClient(t, p)
			defer letGo()

			returned := make(chan mcp.Spent, 1)
			go func() {
				_, spent, err := client.CallTool(t.Context(), docs(fake.URL), echo, budget)
				if (err == nil) != (tt.stalls == "") {
					t.Errorf("the call ended in %v", err)
				}
				returned <- spent
			}()
			spent := receive(t, returned, "the end of the call, while its session cannot be deleted,")
			letGo()
			client.Close()
			if methods(spent) != tt.legs || seen(fake) != tt.legs {
				t.Errorf("the legs are %s, the server saw %s, want %s", methods(spent), seen(fake), tt.legs)
			}
			if got := len(fake.Sent("DELETE")); got > 1 { // none where the time that it may take was over
				t.Errorf("the session was deleted %d times", got)
			}
		})
	}
}

// Whatever leg is never answered, the operation ends when its budget does.
func TestEveryLegEndsWithTheBudget(t *testing.T) {
	t.Parallel()
	two := []mcptest.Tool{{Name: "echo"}, {Name: "b"}}
	primed := mcptest.Body(eventStream, "id: 1\nretry: 1\ndata:\n\n")
	asks := mcptest.BodyThenStall(eventStream, "data: {\"jsonrpc\":\"2.0\",\"id\":\"p\",\"method\":\"ping\"}\n\n")
	stateless := func(on on) mcptest.Options {
		return mcptest.Options{Era: mcptest.Stateless, Tools: []mcptest.Tool{toolWith(regional)}, On: on}
	}
	for _, tt := range []struct {
		story  string
		server mcptest.Options
		known  func(string) mcp.Server
		act    act
		legs   string // the last is the one that the failure is about
	}{
		{"the question for the era, by a call", mcptest.Options{On: on{"stateless": mcptest.Stall}}, unknown, calls, "server/discover"},
		{"the question for the era, by an import", mcptest.Options{On: on{"stateless": mcptest.Stall}}, unknown, imports, "tools/list"},
		{"initialize", mcptest.Options{On: on{"initialize": mcptest.Stall}}, docs, calls, "initialize"},
		{"the confirmation", mcptest.Options{On: on{"notifications/initialized": mcptest.Stall}}, docs, calls, opening},
		{"the call", call(mcptest.Stall), docs, calls, opening + ", tools/call"},
		{"the ping", mcptest.Options{On: on{"ping": mcptest.Stall}}, docs, pings, opening + ", ping"},
		{"the first page", mcptest.Options{On: on{"tools/list": mcptest.Stall}}, docs, imports, "tools/list, " + opening + ", tools/list"},
		{
			"a later page", mcptest.Options{Tools: two, PageSize: 1, On: on{"tools/list": mcptest.InTurn(mcptest.Behave, mcptest.Stall)}},
			docs, imports, "tools/list, " + opening + ", tools/list, tools/list",
		},
		{
			"the handshake after a session was lost",
			mcptest.Options{On: on{"initialize": mcptest.InTurn(mcptest.Behave, mcptest.Stall), "tools/call": mcptest.Status(404, nil, "")}},
			docs, calls, opening + ", tools/call, initialize",
		},
		{
			"the call in a new session", call(mcptest.InTurn(mcptest.Status(404, nil, ""), mcptest.Stall)),
			docs, calls, opening + ", tools/call, " + opening + ", tools/call",
		},
		{"a stream that is taken up again", mcptest.Options{On: on{"tools/call": primed, "GET": mcptest.Stall}}, docs, calls, opening + ", tools/call, tools/call (resumed)"},
		{"an answer to the server", mcptest.Options{On: on{"tools/call": asks, "POST": mcptest.Stall}}, docs, calls, opening + ", answer to ping, tools/call"},
		{"the stateless call", stateless(on{"tools/call": mcptest.Stall}), modern, calls, "tools/call"},
		{"the look for a schema", stateless(on{"tools/list": mcptest.Stall}), modern, regionalCall, "tools/call, tools/list"},
		{"the call by another schema", stateless(on{"tools/call": mcptest.InTurn(mcptest.Behave, mcptest.Stall)}), modern, regionalCall, "tools/call, tools/list, tools/call"},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			fake := mcptest.New(t, tt.server)
			client := newClient(t, parts{clock: new(mcptest.Clock)}) // which grants each leg the whole second
			spent, err := tt.act.do(t, client, tt.known(fake.URL), installation(time.Second))
			all := strings.Split(tt.legs, ", ")
			last := all[len(all)-1]
			if f := failure(t, err); f.Kind != mcp.KindNoAnswer || f.Asked != mcp.AskedUnknown || !strings.Contains(f.Message, "was asked ("+last+")") {
				t.Errorf("failure %s, asked %s: %s", f.Kind, f.Asked, f.Message)
			}
			if methods(spent) != tt.legs || spent.Legs[len(spent.Legs)-1].Outcome != "no_answer" {
				t.Errorf("the legs are %v, want %s", legs(spent), tt.legs)
			}
		})
	}
}

// No request leaves without a limit, and none has another than its grant.
func TestGrantIsTheOneTimeLimit(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	bounds := map[string]time.Duration{}
	p := parts{
		tune: func(wire *http.Transport) {
			if wire.ResponseHeaderTimeout != 0 || wire.ExpectContinueTimeout != 0 || wire.HTTP2.WriteByteTimeout != 0 {
				t.Errorf("the transport has a time limit of its own: %+v", wire)
			}
		},
		wrap: func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				body, err := readAgain(r)
				if err != nil {
					return nil, err
				}
				var said struct {
					Method string `json:"method"`
				}
				if json.Unmarshal(body, &said) != nil || said.Method == "" {
					said.Method = r.Method
				}
				end, ok := r.Context().Deadline()
				mu.Lock()
				defer mu.Unlock()
				if bounds[said.Method] = time.Until(end); !ok {
					t.Errorf("%s left without a limit", said.Method)
				}
				return next.RoundTrip(r)
			})
		},
	}
	budget := installation(10 * time.Hour)
	client := newClient(t, p)
	resumed := func(x *mcptest.Exchange) {
		mcptest.Body(eventStream, "id: 1\nretry: 1\ndata: {\"jsonrpc\":\"2.0\",\"id\":\"p\",\"method\":\"ping\"}\n\n")(x)
	}
	legacy := mcptest.New(t, mcptest.Options{On: on{
		"tools/call": resumed, "GET": mcptest.Body(eventStream, `data: {"jsonrpc":"2.0","id":2,"result":{"content":[]}}`+"\n\n"),
	}})
	stateless := mcptest.New(t, mcptest.Options{Era: mcptest.Stateless, Tools: []mcptest.Tool{toolWith(regional)}})
	for _, tt := range []struct {
		act    act
		server mcp.Server
	}{
		{calls, docs(legacy.URL)}, {pings, docs(legacy.URL)}, {imports, docs(legacy.URL)}, {pings, modern(stateless.URL)}, {regionalCall, modern(stateless.URL)},
	} {
		if _, err := tt.act.do(t, client, tt.server, budget); err != nil {
			t.Fatal(err)
		}
	}
	client.Close()
	for method, limit := range bounds {
		want := budget.Total
		if method == http.MethodDelete {
			want = mcp.SessionDeletion
		}
		// What had passed when it was looked at is the machine's affair.
		if limit > want || method != http.MethodDelete && limit < want-time.Hour {
			t.Errorf("%s is bounded by %v, want %v", method, limit, want)
		}
	}
	for _, method := range []string{"initialize", "notifications/initialized", "tools/call", "GET", "POST", "ping", "tools/list", "server/discover", "DELETE"} {
		if _, ok := bounds[method]; !ok {
			t.Errorf("no %s left", method)
		}
	}
}

// readAgain reads a request's body and puts it back.
func readAgain(r *http.Request) ([]byte, error) {
	if r.Body == nil {
		return nil, nil
	}
	body, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	return body, err
}

// A server that holds its stream open is let go as soon as nothing more is wanted of it: that is how it learns that it may
// stop.
func TestStreamIsLetGo(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story string
		said  string // before it falls silent
		ends  bool   // whether that is an answer
	}{
		{"when it brought the answer", `data: {"jsonrpc":"2.0","id":$ID,"result":{"content":[]}}` + "\n\n", true},
		{"when it brought an error", `data: {"jsonrpc":"2.0","id":$ID,"error":{"code":1,"message":"no"}}` + "\n\n", true},
		{"when the budget is over", ": keep-alive\n\n", false},
	} {
		for _, era := range []mcptest.Era{mcptest.Handshake, mcptest.Stateless} {
			for _, http2 := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/era=%v/HTTP2=%v", tt.story, era, http2), func(t *testing.T) {
					t.Parallel()
					gone := make(chan struct{})
					fake := mcptest.New(t, mcptest.Options{Era: era, HTTP2: http2, On: on{"tools/call": func(x *mcptest.Exchange) {
						mcptest.Body(eventStream, tt.said)(x)
						x.Flush()
						<-x.R.Context().Done()
						close(gone)
					}}})
					server, want, p, budget := docs(fake.URL), opening+", tools/call", parts{}, ample
					if era == mcptest.Stateless {
						server, want = modern(fake.URL), "tools/call"
					}
					if http2 {
						p.tls = fake.TLS()
					}
					if !tt.ends {
						// For the clock no time passes, and for the network this much, which no machine takes to get that far.
						p.clock, budget = new(mcptest.Clock), installation(5*time.Second)
					}
					client := newClient(t, p)
					spent, err := calls.do(t, client, server, budget)
					if !tt.ends && failure(t, err).Kind != mcp.KindNoAnswer {
						t.Errorf("the call ended in %v", err)
					}
					receive(t, gone, "the end of the stream")
					client.Close()
					// Nothing but that tells the server: no cancellation, and no stream of another sort.
					if methods(spent) != want || seen(fake) != want {
						t.Errorf("the legs are %s, the server saw %s, want %s", methods(spent), seen(fake), want)
					}
				})
			}
		}
	}
}

// Some servers answer on a stream that the client is to open beside the request.
func TestAnswerIsNotLookedForElsewhere(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story  string
		answer mcptest.Behaviour
		says   string
	}{
		{"a stream with nothing in it", mcptest.Body(eventStream, ""), "its event stream ended without an answer"},
		{"a stream of keep-alives", mcptest.Body(eventStream, ":\n\nevent: ping\ndata: {}\n\n"), "its event stream ended without an answer"},
		{"202", mcptest.Status(202, nil, ""), "with HTTP 202, which gives no answer to a request"},
		{"202 with words", mcptest.Status(202, http.Header{"Content-Type": {"application/json"}}, `"Accepted"`), "with HTTP 202, which gives no answer to a request"},
		{"204", mcptest.Status(204, nil, ""), "with HTTP 204, which gives no answer to a request"},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			fake := mcptest.New(t, mcptest.Options{On: on{
				"tools/call": tt.answer, "GET": mcptest.Body(eventStream, `data: {"jsonrpc":"2.0","id":2,"result":{"content":[]}}`+"\n\n"),
			}})
			client := newClient(t, parts{})
			spent, err := calls.do(t, client, docs(fake.URL), ample)
			if f := failure(t, err); f.Kind != mcp.KindMalformedResponse || !strings.Contains(f.Message, tt.says) {
				t.Errorf("failure %s: %s", f.Kind, f.Message)
			}
			client.Close()
			if want := opening + ", tools/call"; methods(spent) != want || seen(fake) != want {
				t.Errorf("the legs are %s, the server saw %s, want %s", methods(spent), seen(fake), want)
			}
		})
	}
}

func TestResumingGoesOnFromTheLastEvent(t *testing.T) {
	t.Parallel()
	fake := mcptest.New(t, mcptest.Options{On: on{
		"tools/call": mcptest.Body(eventStream, "id: a\nretry: 1\ndata:\n\n"),
		"GET": mcptest.InTurn(
			mcptest.Body(eventStream, "id: b\nretry: 1\ndata:\n\n"),
			mcptest.Body(eventStream, "id: c d\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\nretry: 1\n\n"),
			mcptest.Body(eventStream, "id: e\ndata: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"late\"}]}}\n\n"),
		),
	}})
	client := newClient(t, parts{})
	result, spent, err := client.CallTool(t.Context(), docs(fake.URL), echo, ample)
	if err != nil || result.Text != "late" {
		t.Fatalf("%q, %v", result.Text, err)
	}
	client.Close()
	var from []string
	for _, r := range fake.Sent("GET") {
		from = append(from, r.Header.Get("Last-Event-Id"))
		if r.Header.Get("Mcp-Session-Id") != "session-1" || r.Header.Get("Mcp-Protocol-Version") != "2025-11-25" {
			t.Errorf("it was taken up again with %v", r.Header)
		}
	}
	if diff := cmp.Diff([]string{"a", "b", "c d"}, from); diff != "" {
		t.Error(diff)
	}
	if got := len(fake.Sent("tools/call")); got != 1 || len(spent.Legs) != 6 {
		t.Errorf("%d calls in legs %s", got, methods(spent))
	}
}

// Only a stream that ended too early is taken up again. One that brought something wrong will not bring anything better.
func TestStreamThatIsNotTakenUpAgain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story  string
		stream string
		kind   mcp.Kind
	}{
		{"nonsense", "id: 1\nretry: 1\ndata: hello\n\n", mcp.KindMalformedResponse},
		{"the answer to another request", "id: 1\nretry: 1\ndata: {\"jsonrpc\":\"2.0\",\"id\":99,\"result\":{}}\n\n", mcp.KindMalformedResponse},
		{"an error", "id: 1\nretry: 1\ndata: {\"jsonrpc\":\"2.0\",\"id\":$ID,\"error\":{\"code\":1,\"message\":\"no\"}}\n\n", mcp.KindRPCError},
		{"more than the limit", "id: 1\nretry: 1\ndata:\n\n" + strings.Repeat(": "+strings.Repeat("x", 1000)+"\n\n", 3000), mcp.KindResponseTooLarge},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			fake := mcptest.New(t, mcptest.Options{On: on{"tools/call": mcptest.Body(eventStream, tt.stream), "GET": mcptest.Body(eventStream, "")}})
			spent, err := calls.do(t, newClient(t, parts{}), docs(fake.URL), ample)
			if f := failure(t, err); f.Kind != tt.kind {
				t.Errorf("failure %s: %s", f.Kind, f.Message)
			}
			if got := len(fake.Sent("GET")); got != 0 {
				t.Errorf("it was taken up again %d times in legs %s", got, methods(spent))
			}
		})
	}
}

// What a stream that was taken up again brings is the answer, of whatever use; the end of the first is not reported in its
// place.
func TestResumedStreamThatBringsSomethingWrong(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story  string
		resume mcptest.Behaviour
		kind   mcp.Kind
		says   string
	}{
		{"nonsense", mcptest.Body(eventStream, "id: 2\ndata: hello\n\n"), mcp.KindMalformedResponse, "hello"},
		{"the answer to another request", mcptest.Body(eventStream, "id: 2\ndata: {\"jsonrpc\":\"2.0\",\"id\":99,\"result\":{}}\n\n"), mcp.KindMalformedResponse, "99"},
		{"an error", mcptest.Body(eventStream, "id: 2\ndata: {\"jsonrpc\":\"2.0\",\"id\":2,\"error\":{\"code\":1,\"message\":\"broken\"}}\n\n"), mcp.KindRPCError, "broken"},
		{"an error as JSON", mcptest.Body("application/json", `{"jsonrpc":"2.0","id":2,"error":{"code":1,"message":"broken"}}`), mcp.KindRPCError, "broken"},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			fake := mcptest.New(t, mcptest.Options{On: on{
				"tools/call": mcptest.Body(eventStream, "id: 1\nretry: 1\ndata:\n\n"),
				"GET":        tt.resume,
			}})
			spent, err := calls.do(t, newClient(t, parts{}), docs(fake.URL), ample)
			if f := failure(t, err); f.Kind != tt.kind || !strings.Contains(f.Message, tt.says) {
				t.Errorf("failure %s: %s", f.Kind, f.Message)
			}
			if want := opening + ", tools/call, tools/call (resumed)"; methods(spent) != want {
				t.Errorf("the legs are %s, want %s", methods(spent), want)
			}
		})
	}
}

// An answer that is too large is that on a stream that was taken up again too, and not a stream that ended.
func TestResumedStreamThatIsTooLarge(t *testing.T) {
	t.Parallel()
	fake := mcptest.New(t, mcptest.Options{On: on{
		"tools/call": mcptest.Body(eventStream, "id: 1\nretry: 1\ndata:\n\n"),
		"GET":        mcptest.Body(eventStream, "id: 2\ndata: "+strings.Repeat("x", 3<<20)+"\n\n"),
	}})
	spent, err := calls.do(t, newClient(t, parts{}), docs(fake.URL), ample)
	if f := failure(t, err); f.Kind != mcp.KindResponseTooLarge || !strings.Contains(f.Message, "2 MiB") {
		t.Errorf("failure %s: %s", f.Kind, f.Message)
	}
	if want := opening + ", tools/call, tools/call (resumed)"; methods(spent) != want || len(fake.Sent("GET")) != 1 {
		t.Errorf("the legs are %s, want %s", methods(spent), want)
	}
}

// Whatever a good status to a notification comes with, it is a receipt.
func TestReceiptsOfANotification(t *testing.T) {
	t.Parallel()
	as := func(contentType string) http.Header { return http.Header{"Content-Type": {contentType}} }
	for _, tt := range []struct {
		story   string
		receipt mcptest.Behaviour
		status  int
	}{
		{"202", mcptest.Status(202, nil, ""), 202},
		{"202 with words", mcptest.Status(202, as("text/plain"), "Accepted"), 202},
		{"204", mcptest.Status(204, nil, ""), 204},
		{"200 with nothing", mcptest.Status(200, nil, ""), 200},
		{"200 with null", mcptest.Status(200, as("application/json"), "null"), 200},
		{"200 with an object", mcptest.Status(200, as("application/json"), "{}"), 200},
		{"200 with a result", mcptest.Status(200, as("application/json"), `{"jsonrpc":"2.0","id":null,"result":null}`), 200},
		{"200 with what is no JSON", mcptest.Status(200, as("application/json"), "{"), 200},
		{"200 without a type", mcptest.Body("", "ok"), 200},
		{"200 in HTML", mcptest.Body("text/html", "<html>"), 200},
		{"200 with a stream that stays open", mcptest.BodyThenStall(eventStream, ": hello\n\n"), 200},
		{"200 in an encoding that nobody asked for", mcptest.Status(200, http.Header{"Content-Encoding": {"br"}}, "x"), 200},
		{"201", mcptest.Status(201, as("application/json"), "{}"), 201},
		{"299", mcptest.Status(299, nil, ""), 299},
	} {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/HTTP2=%v", tt.story, http2), func(t *testing.T) {
				t.Parallel()
				fake := mcptest.New(t, mcptest.Options{HTTP2: http2, On: on{"notifications/initialized": tt.receipt}})
				p := parts{}
				if http2 {
					p.tls = fake.TLS()
				}
				spent, err := calls.do(t, newClient(t, p), docs(fake.URL), ample)
				if err != nil {
					t.Fatal(err)
				}
				want := []leg{{"initialize", "ok", 200}, {"notifications/initialized", "ok", tt.status}, {"tools/call", "ok", 200}}
				if diff := cmp.Diff(want, legs(spent)); diff != "" {
					t.Error(diff)
				}
			})
		}
	}
}

// Answers of up to the limit come whole, however long their lines are.
func TestLongAnswers(t *testing.T) {
	t.Parallel()
	for _, form := range []struct{ story, contentType, before, behind string }{
		{"JSON", "application/json", "", ""},
		{"one event", eventStream, "event: message\ndata: ", "\n\n"},
		{"one event after many", eventStream, strings.Repeat("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\n", 100) + "data:", "\r\n\r\n"},
	} {
		for _, size := range []struct {
			story string
			bytes int
			kind  mcp.Kind // empty: it is taken
		}{
			{"64 KiB and one", 64<<10 + 1, ""}, {"1 MiB and one", 1<<20 + 1, ""}, {"the limit", mcp.MaxBody, ""}, {"more than the limit", mcp.MaxBody + 1<<10, mcp.KindResponseTooLarge},
		} {
			t.Run(form.story+"/"+size.story, func(t *testing.T) {
				t.Parallel()
				const frame = `{"jsonrpc":"2.0","id":2,"result":{"content":[{"type":"text","text":"%s"}]}}`
				text := strings.Repeat("x", size.bytes-len(form.before)-len(form.behind)-len(frame)+len("%s"))
				fake := mcptest.New(t, call(mcptest.Body(form.contentType, form.before+fmt.Sprintf(frame, text)+form.behind)))
				result, _, err := newClient(t, parts{}).CallTool(t.Context(), docs(fake.URL), echo, ample)
				if size.kind != "" {
					if f := failure(t, err); f.Kind != size.kind || !strings.Contains(f.Message, "2 MiB") {
						t.Errorf("failure %s: %s", f.Kind, f.Message)
					}
					return
				}
				if err != nil || result.Text != text {
					t.Errorf("%d of %d characters came, %v", len(result.Text), len(text), err)
				}
			})
		}
	}
	t.Run("a catalogue in one event", func(t *testing.T) {
		t.Parallel()
		tools := make([]mcptest.Tool, mcp.MaxTools)
		for i := range tools {
			tools[i] = mcptest.Tool{Name: fmt.Sprintf("tool_%d", i), Description: strings.Repeat("d", 4000)}
		}
		for _, era := range []mcptest.Era{mcptest.Handshake, mcptest.Stateless} {
			fake := mcptest.New(t, mcptest.Options{Era: era, Stream: true, Tools: tools})
			catalogue, _, err := newClient(t, parts{}).ListTools(t.Context(), unknown(fake.URL), ample)
			if err != nil || len(catalogue.Tools) != len(tools) || len(catalogue.Skipped) != 0 {
				t.Errorf("%d tools, %v", len(catalogue.Tools), err)
			}
		}
	})
}

// JSON is UTF-8. What a server declares beside the media type changes nothing.
func TestTextIsReadAsUTF8(t *testing.T) {
	t.Parallel()
	const text = "Zürich – 日本語 😀"
	for _, declared := range []string{
		"", "; charset=utf-8", ";charset=UTF-8", `; charset="utf-8"`, "; charset=utf8", "; charset=iso-8859-1", "; charset=utf-16", "; charset=us-ascii", "; charset", ";",
		"; charset=", "; q=0.9; charset=utf-8", "; charset=utf-8; charset=UTF-8",
	} {
		for _, media := range []string{"application/json", eventStream} {
			t.Run(media+declared, func(t *testing.T) {
				t.Parallel()
				answer := `{"jsonrpc":"2.0","id":$ID,"result":{"content":[{"type":"text","text":"` + text + `"}]}}`
				if media == eventStream {
					answer = "data: " + answer + "\n\n"
				}
				fake := mcptest.New(t, call(mcptest.Body(media+declared, answer)))
				result, _, err := newClient(t, parts{}).CallTool(t.Context(), docs(fake.URL), echo, ample)
				if err != nil || result.Text != text {
					t.Errorf("%q, %v", result.Text, err)
				}
			})
		}
	}
}

// Servers differ by a slash.
func TestURLIsAskedForAsItIsConfigured(t *testing.T) {
	t.Parallel()
	for _, target := range []string{"/mcp", "/mcp/", "/", "/a//b/../c/", "/a%2Fb%20c", "/mcp?tenant=a&key=b%26c", "/mcp/?"} {
		t.Run(target, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			asked := map[string]bool{}
			fake := mcptest.New(t, mcptest.Options{On: on{"*": func(x *mcptest.Exchange) {
				mu.Lock()
				asked[x.R.RequestURI] = true
				mu.Unlock()
				x.Behave()
			}}})
			client := newClient(t, parts{})
			if _, err := calls.do(t, client, docs(strings.TrimSuffix(fake.URL, "/mcp")+target), ample); err != nil {
				t.Fatal(err)
			}
			client.Close()
			if diff := cmp.Diff(map[string]bool{target: true}, asked); diff != "" || len(fake.Requests()) != 4 {
				t.Errorf("%d requests: %s", len(fake.Requests()), diff)
			}
		})
	}
}

// A redirect is an address to put into the configuration, not one to go to; not even on the same host.
func TestRedirectOnTheSameHostIsNotFollowed(t *testing.T) {
	t.Parallel()
	for _, status := range []int{301, 302, 303, 307, 308} {
		for _, a := range acts {
			for _, known := range []func(string) mcp.Server{unknown, docs, modern} {
				fake := mcptest.New(t, mcptest.Options{Era: mcptest.Both})
				fake.On("*", func(x *mcptest.Exchange) {
					if x.Path == "/mcp/" {
						x.Behave()
						return
					}
					mcptest.Status(status, http.Header{"Location": {"/mcp/"}}, "")(x)
				})
				server := known(fake.URL)
				server.Credential = mcp.Credential{Reference: tokenReference, Placement: mcp.PlaceHeader, HeaderName: "X-Api-Key"}
				client := newClient(t, parts{})
				spent, err := a.do(t, client, server, ample)
				if f := failure(t, err); f.Kind != mcp.KindHTTPStatus || !strings.Contains(f.Message, fmt.Sprintf(`with status %d; it redirects to "/mcp/"`, status)) {
					t.Errorf("failure %s: %s", f.Kind, f.Message)
				}
				client.Close()
				if n := len(fake.Requests()); n != 1 || len(spent.Legs) != 1 {
					t.Errorf("%d requests in legs %s, want one", n, methods(spent))
				}
			}
		}
	}
}

// An operation that failed leaves nothing behind that the next one would suffer from.
func TestFailureIsForgotten(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story string
		fails mcptest.Behaviour
	}{
		{"502", mcptest.Status(502, nil, "<html>Bad Gateway</html>")},
		{"503", mcptest.Status(503, http.Header{"Retry-After": {"3600"}}, "")},
		{"401", mcptest.Status(401, nil, "")},
		{"hangs up", mcptest.HangUp},
		{"resets", mcptest.Reset},
		{"something else than HTTP", mcptest.Raw("hello\r\n")},
		{"a body without end", mcptest.EndlessBody},
		{"nonsense", mcptest.Body("application/json", "{")},
		{"an error", mcptest.Error(-32603, "no")},
	} {
		for _, known := range []func(string) mcp.Server{docs, modern} {
			server := known("")
			t.Run(tt.story+"/"+server.Revision, func(t *testing.T) {
				t.Parallel()
				fake := mcptest.New(t, mcptest.Options{Era: mcptest.Both, On: on{"*": mcptest.InTurn(tt.fails, mcptest.Behave)}})
				server.URL = fake.URL
				client := newClient(t, parts{})
				if _, err := calls.do(t, client, server, ample); err == nil {
					t.Fatal("it did not fail")
				}
				spent, err := calls.do(t, client, server, ample)
				if err != nil {
					t.Fatal(err)
				}
				want := opening + ", tools/call"
				if server.Revision == mcp.RevisionStateless {
					want = "tools/call"
				}
				if methods(spent) != want {
					t.Errorf("the next operation had legs %s, want %s", methods(spent), want)
				}
			})
		}
	}
}

// What a busy server asks for is passed on in its words. The operation ends then.
func TestRetryAfterIsPassedOn(t *testing.T) {
	t.Parallel()
	for _, after := range []string{"0", "1", "86400", "Wed, 21 Oct 2026 07:28:00 GMT", "soon", "-1"} {
		for _, status := range []int{429, 503} {
			for _, a := range acts {
				t.Run(fmt.Sprintf("%s/%d/%s", after, status, a.name), func(t *testing.T) {
					t.Parallel()
					refuse := mcptest.Status(status, http.Header{"Retry-After": {after}}, "")
					fake := mcptest.New(t, mcptest.Options{Era: mcptest.Stateless, On: on{a.method(): mcptest.InTurn(refuse, mcptest.Behave)}})
					spent, err := a.do(t, newClient(t, parts{}), modern(fake.URL), ample)
					says := fmt.Sprintf(`answered %s with status %d; it is busy and asks not to be called again before Retry-After "%s".`, a.method(), status, after)
					if f := failure(t, err); f.Kind != mcp.KindHTTPStatus || !strings.HasSuffix(f.Message, says) {
						t.Errorf("failure %s: %s\nwant … %s", f.Kind, f.Message, says)
					}
					if diff := cmp.Diff([]leg{{a.method(), "http_status", status}}, legs(spent)); diff != "" || len(fake.Requests()) != 1 {
						t.Errorf("%d requests: %s", len(fake.Requests()), diff)
					}
				})
			}
		}
	}
}

// A number and its string are one id. Nothing else is.
func TestIDsThatAreNearlyOurs(t *testing.T) {
	t.Parallel()
	answers := map[string]string{
		"JSON": "application/json", "a stream": eventStream,
	}
	for _, id := range []string{`0`, `1`, `3`, `-2`, `2.0`, `2e0`, `"2.0"`, `" 2"`, `"02"`, `"2 "`, `"0x2"`, `""`, `[2]`, `{"id":2}`, `true`, `null`, `"null"`} {
		for story, contentType := range answers {
			t.Run(story+"/"+id, func(t *testing.T) {
				t.Parallel()
				body := `{"jsonrpc":"2.0","id":` + id + `,"result":{"content":[]}}`
				if contentType == eventStream {
					body = "data: " + body + "\n\n"
				}
				fake := mcptest.New(t, call(mcptest.Body(contentType, body))) // to the request with the id 2
				_, err := calls.do(t, newClient(t, parts{}), docs(fake.URL), ample)
				says := "the answer is for request "
				if id == "null" {
					says = "the answer has no id"
				}
				if f := failure(t, err); f.Kind != mcp.KindMalformedResponse || !strings.Contains(f.Message, says) {
					t.Errorf("failure %s: %s", f.Kind, f.Message)
				}
			})
		}
	}
}

// What a server leaves out of a schema is supplied; what it wrote is kept to the byte, and what it refers to is not fetched.
func TestSchemasAreKept(t *testing.T) {
	t.Parallel()
	elsewhere := mcptest.New(t, mcptest.Options{})
	const anything = `{"type":"object"}`
	schemas := []struct{ story, written, want string }{
		{"null", `,"inputSchema":null`, anything},
		{"none", ``, anything},
		{"nulls in it", `,"inputSchema":{"type":"object","properties":null,"required":null}`, ""},
		{"nothing in it", `,"inputSchema":{}`, ""},
		{"definitions", `,"inputSchema":{"$defs":{"a":{"type":"string"}},"type":"object","properties":{"x":{"$ref":"#/$defs/a"},"y":{"$ref":"#/properties/x"}}}`, ""},
		{"references that lead nowhere, or round", `,"inputSchema":{"type":"object","properties":{"x":{"$ref":"#/$defs/none"},"y":{"$ref":"#"}}}`, ""},
		{
			"references to the network",
			`,"inputSchema":{"$schema":"` + elsewhere.URL + `/schema","$id":"` + elsewhere.URL + `/id","type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},"x":{"$ref":"` + elsewhere.URL + `/x.json"}}}`, "",
		},
		{"white space, escapes, numbers and doubles", `,"inputSchema":{ "type" : "object",` + "\n\t" + `"a":"\u00e9<\/>","b":9007199254740993,"c":1.0,"d":1,"d":2 }`, ""},
		{"no type at the root", `,"inputSchema":{"anyOf":[{"type":"object"},{"type":"object","required":["a"]}]}`, ""},
		{"another dialect", `,"inputSchema":{"$schema":"http://json-schema.org/draft-04/schema#","type":["object","null"],"definitions":{},"x-own":[[]]}`, ""},
	}
	var entries []string
	var want []mcp.Tool
	for i, s := range schemas {
		name := fmt.Sprintf("tool_%d", i)
		entries = append(entries, `{"name":"`+name+`"`+s.written+`,"outputSchema":{"$ref":"`+elsewhere.URL+`/out.json"}}`)
		if s.want == "" {
			s.want = strings.TrimPrefix(s.written, `,"inputSchema":`)
		}
		want = append(want, mcp.Tool{Name: name, InputSchema: json.RawMessage(s.want)})
	}
	for _, era := range []mcptest.Era{mcptest.Handshake, mcptest.Stateless} {
		for _, stream := range []bool{false, true} {
			fake := mcptest.New(t, mcptest.Options{Era: era, Stream: stream, On: on{"tools/list": mcptest.Result(`{"resultType":"complete","tools":[` + strings.Join(entries, ",") + `]}`)}})
			client := newClient(t, parts{})
			catalogue, _, err := client.ListTools(t.Context(), unknown(fake.URL), ample)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, catalogue.Tools); diff != "" || len(catalogue.Skipped) != 0 || !slices.Equal(catalogue.Untyped, []string{"tool_0", "tool_1"}) {
				t.Errorf("era %v, stream %v: skipped %v, %s", era, stream, catalogue.Skipped, diff)
			}
			fake.On("tools/call", mcptest.Result(`{"content":[],"structuredContent":{}}`))
			for _, tool := range catalogue.Tools {
				_, _ = mcp.ModelSchema(tool.InputSchema)
				call := mcp.ToolCall{Name: tool.Name, Arguments: json.RawMessage(`{"region":"eu","x":1}`), InputSchema: tool.InputSchema}
				if _, _, err := client.CallTool(t.Context(), modern(fake.URL), call, ample); err != nil && era == mcptest.Stateless {
					t.Errorf("%s: %v", tool.Name, err)
				}
			}
		}
	}
	if got := elsewhere.Requests(); len(got) > 0 {
		t.Errorf("%d references were followed, the first to %s", len(got), got[0].Path)
	}
}

// What the tool says of its failure is what counts, whatever its output should have been.
func TestToolErrorIsNotHeldAgainstTheOutputSchema(t *testing.T) {
	t.Parallel()
	entry := json.RawMessage(`{"name":"echo","inputSchema":{"type":"object"},"outputSchema":{"type":"object","properties":{"found":{"type":"array"}},"required":["found"],"additionalProperties":false}}`)
	for _, structured := range []string{``, `,"structuredContent":null`, `,"structuredContent":{}`, `,"structuredContent":{"error":"E42"}`, `,"structuredContent":"E42"`, `,"structuredContent":[1]`} {
		for _, era := range []mcptest.Era{mcptest.Handshake, mcptest.Stateless} {
			fake := mcptest.New(t, mcptest.Options{Era: era, Tools: []mcptest.Tool{{Name: "echo", Entry: entry}}, On: on{
				"tools/call": mcptest.Result(`{"isError":true,"content":[{"type":"text","text":"the index is offline"}]` + structured + `}`),
			}})
			client := newClient(t, parts{})
			catalogue, spent, err := client.ListTools(t.Context(), unknown(fake.URL), ample)
			if err != nil || len(catalogue.Tools) != 1 {
				t.Fatalf("%+v, %v", catalogue, err)
			}
			server := unknown(fake.URL)
			server.Revision = spent.Revision
			result, _, err := client.CallTool(t.Context(), server, mcp.ToolCall{Name: "echo", Arguments: json.RawMessage(`{}`), InputSchema: catalogue.Tools[0].InputSchema}, ample)
			if f := failure(t, err); f.Kind != mcp.KindToolError || !strings.Contains(f.Message, "the index is offline") || !result.IsError {
				t.Errorf("%s: failure %s: %s", structured, f.Kind, f.Message)
			}
		}
	}
}

// A server that does not accept the credential is reported. Where it points for another is not asked.
func TestChallengeContactsNobody(t *testing.T) {
	t.Parallel()
	for _, status := range []int{401, 403} {
		for _, a := range acts {
			for _, known := range []func(string) mcp.Server{unknown, docs, modern} {
				elsewhere := mcptest.New(t, mcptest.Options{})
				challenge := `Bearer error="invalid_token", resource_metadata="` + elsewhere.URL + `/.well-known/oauth-protected-resource", authorization_uri="` + elsewhere.URL + `/authorize"`
				fake := mcptest.New(t, mcptest.Options{On: on{"*": mcptest.Status(status, http.Header{"Www-Authenticate": {challenge}, "Link": {"<" + elsewhere.URL + `>; rel="authorization-server"`}}, "")}})
				server := known(fake.URL)
				server.Credential = mcp.Credential{Reference: tokenReference, Placement: mcp.PlaceBearer}
				client := newClient(t, parts{})
				spent, err := a.do(t, client, server, ample)
				says := `the credential "` + tokenReference + `" was not accepted; it asks for Bearer (error "invalid_token", see "` + elsewhere.URL + `/.well-known/oauth-protected-resource").`
				if f := failure(t, err); f.Kind != mcp.KindHTTPStatus || !strings.HasSuffix(f.Message, says) {
					t.Errorf("failure %s: %s\nwant … %s", f.Kind, f.Message, says)
				}
				client.Close()
				if n := len(fake.Requests()); n != 1 || len(spent.Legs) != 1 {
					t.Errorf("%d requests in legs %s, want one", n, methods(spent))
				}
				if got := elsewhere.Requests(); len(got) > 0 {
					t.Errorf("%d requests went where the challenge points", len(got))
				}
			}
		}
	}
}

// A certificate that is not accepted ends the operation in the verifier's words, and nothing is sent.
func TestCertificatesThatAreNotAccepted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story  string
		client func(p *parts)
		says   string
	}{
		{"of an unknown authority", func(p *parts) { p.tls = nil }, "certificate signed by unknown authority"},
		{"of another host", func(p *parts) { p.tls.ServerName = "mcp.invalid" }, "not mcp.invalid"},
		{"out of date", func(p *parts) { p.tls.Time = func() time.Time { return time.Now().AddDate(100, 0, 0) } }, "certificate has expired"},
	} {
		for _, http2 := range []bool{false, true} {
			for _, a := range acts {
				t.Run(fmt.Sprintf("%s/HTTP2=%v/%s", tt.story, http2, a.name), func(t *testing.T) {
					t.Parallel()
					fake := mcptest.New(t, mcptest.Options{TLS: true, HTTP2: http2})
					p := parts{tls: fake.TLS()}
					tt.client(&p)
					spent, err := a.do(t, newClient(t, p), unknown(fake.URL), ample)
					f := failure(t, err)
					if f.Kind != mcp.KindUnreachable || f.Asked != mcp.AskedNo || !strings.Contains(f.Message, "its TLS certificate was not accepted (\"") || !strings.Contains(f.Message, tt.says) {
						t.Errorf("failure %s, asked %s: %s", f.Kind, f.Asked, f.Message)
					}
					if len(spent.Legs) != 1 || len(fake.Requests()) != 0 {
						t.Errorf("%d requests in legs %v", len(fake.Requests()), legs(spent))
					}
				})
			}
		}
	}
}

// A server's own requests are not mistaken for the answer, and there is an end to answering them.
func TestServersOwnRequests(t *testing.T) {
	t.Parallel()
	const answer = `{"jsonrpc":"2.0","id":$ID,"result":{"content":[{"type":"text","text":"ok"}]}}`
	var flood strings.Builder
	for i := range 40 {
		fmt.Fprintf(&flood, "data: {\"jsonrpc\":\"2.0\",\"id\":%d,\"method\":\"ping\",\"result\":{\"content\":[]}}\n\n", i)
	}
	for _, tt := range []struct {
		story    string
		era      mcptest.Era
		stream   string
		answered int
	}{
		{"under the id of ours", mcptest.Handshake, "data: {\"jsonrpc\":\"2.0\",\"id\":$ID,\"method\":\"elicitation/create\",\"params\":{}}\n\n", 1},
		{"in an array with the answer", mcptest.Handshake, "data: [{\"jsonrpc\":\"2.0\",\"id\":$ID,\"method\":\"ping\"}," + answer + "]\n\n", 1},
		{"without an id", mcptest.Handshake, "data: {\"jsonrpc\":\"2.0\",\"method\":\"ping\"}\n\n", 0},
		{"without end", mcptest.Handshake, flood.String(), 16},
		{"where the revision has none", mcptest.Stateless, "data: {\"jsonrpc\":\"2.0\",\"id\":$ID,\"method\":\"ping\"}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":\"x\",\"method\":\"roots/list\"}\n\n", 0},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			fake := mcptest.New(t, mcptest.Options{Era: tt.era, On: on{"tools/call": mcptest.Body(eventStream, tt.stream+"data: "+answer+"\n\n")}})
			server := docs(fake.URL)
			if tt.era == mcptest.Stateless {
				server = modern(fake.URL)
			}
			result, _, err := newClient(t, parts{}).CallTool(t.Context(), server, echo, ample)
			if err != nil || result.Text != "ok" {
				t.Errorf("%q, %v", result.Text, err)
			}
			if got := len(fake.Sent("POST")); got != tt.answered {
				t.Errorf("%d of them were answered, want %d", got, tt.answered)
			}
		})
	}
}

// A session that a server gave is ended, even where the answer that gave it was never read.
func TestSessionOfAnAnswerThatFailedIsDeleted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story  string
		answer mcptest.Behaviour
		budget time.Duration // 0 is ample
	}{
		{"nonsense", mcptest.Body("application/json", "{"), 0},
		{"a web page", mcptest.Body("text/html", "<html>"), 0},
		{"an error", mcptest.Error(-32603, "no"), 0},
		{"a body without end", mcptest.EndlessBody, 0},
		{"breaks in the middle", mcptest.BodyThenHangUp("application/json", "{"), 0},
		{"stops in the middle", mcptest.BodyThenStall(eventStream, ": hello\n\n"), time.Second},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			fake := mcptest.New(t, mcptest.Options{On: on{"initialize": func(x *mcptest.Exchange) {
				x.W.Header().Set("Mcp-Session-Id", "given")
				tt.answer(x)
			}}})
			p, budget := parts{}, ample
			if tt.budget != 0 {
				p.clock, budget = new(mcptest.Clock), installation(tt.budget)
			}
			client := newClient(t, p)
			if _, err := calls.do(t, client, docs(fake.URL), budget); err == nil {
				t.Fatal("it did not fail")
			}
			client.Close()
			deleted := fake.Sent("DELETE")
			if len(deleted) != 1 || deleted[0].Header.Get("Mcp-Session-Id") != "given" {
				t.Errorf("%d sessions were deleted, the server saw %s", len(deleted), seen(fake))
			}
		})
	}
}

var testName = regexp.MustCompile("`(Test[^`]+)`")

// docs/servers.md says which test holds which report. What it names is there, and what this file tests is named.
func TestServersPageNamesTests(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]map[string]bool{} // by the name of a test: the words of its file, among them its subtests' names
	unnamed := map[string]bool{}
	for _, file := range files {
		parsed, err := parser.ParseFile(gotoken.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		words := map[string]bool{}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == gotoken.STRING {
				if text, err := strconv.Unquote(literal.Value); err == nil {
					words[strings.ReplaceAll(text, " ", "_")] = true
				}
			}
			return true
		})
		for _, declaration := range parsed.Decls {
			function, ok := declaration.(*ast.FuncDecl)
			if !ok || function.Recv != nil || !strings.HasPrefix(function.Name.Name, "Test") {
				continue
			}
			tests[function.Name.Name] = words
			if file == "reports_test.go" {
				unnamed[function.Name.Name] = true
			}
		}
	}
	page, err := os.ReadFile("../docs/servers.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, line := range strings.Split(string(page), "\n") {
		if strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "|---") && !strings.HasPrefix(line, "| **") && !strings.HasPrefix(line, "| what ") {
			if rows++; !testName.MatchString(line) {
				t.Errorf("no test stands in the row %.80s", line)
			}
		}
		for _, found := range testName.FindAllStringSubmatch(line, -1) {
			name, subtests, _ := strings.Cut(found[1], "/")
			words, ok := tests[name]
			if !ok {
				t.Errorf("there is no test %s", found[1])
				continue
			}
			delete(unnamed, name)
			for _, subtest := range strings.Split(subtests, "/") {
				if subtest != "" && !words[subtest] {
					t.Errorf("there is no test %s: nothing is called %s beside it", found[1], subtest)
				}
			}
		}
	}
	if rows == 0 {
		t.Error("the page has no rows")
	}
	for name := range unnamed {
		t.Errorf("%s is not on the page", name)
	}
}
