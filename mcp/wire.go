package mcp

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
)

// The methods that legwork speaks.
const (
	methodInitialize  = "initialize"
	methodInitialized = "notifications/initialized"
	methodCallTool    = "tools/call"
	methodListTools   = "tools/list"
	methodPing        = "ping"
	methodDiscover    = "server/discover"
)

const (
	// MaxBody is the most that one answer may be, after decompression.
	MaxBody = 2 << 20

	maxHeader    = 64 << 10 // of one response
	maxErrorBody = 64 << 10 // what is read of a body that comes with a failing status
)

// message is one JSON-RPC message of ours. A notification has no id.
type message struct {
	ID     int64
	Method string
	Params any // *params, or what encoding/json makes of anything else; nil for none

	// reply stands in place of all else in an answer of ours.
	reply *reply
}

// reply is our answer to a request of a server's.
type reply struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  any             `json:"result,omitempty"`
	Error   any             `json:"error,omitempty"`
}

func (m message) encode() []byte {
	if m.reply != nil {
		m.reply.JSONRPC = "2.0"
		return encoded(m.reply)
	}
	b := append(make([]byte, 0, 512), `{"jsonrpc":"2.0"`...)
	if m.ID != 0 {
		b = strconv.AppendInt(append(b, `,"id":`...), m.ID, 10)
	}
	b = append(append(append(b, `,"method":"`...), m.Method...), '"')
	switch p := m.Params.(type) {
	case nil:
	case *params:
		b = p.append(append(b, `,"params":`...))
	default:
		b = append(append(b, `,"params":`...), encoded(p)...)
	}
	return append(b, '}')
}

// params are those of all requests but initialize. What is raw is JSON already, and is sent as it was written.
type params struct {
	Name         string
	Arguments    json.RawMessage
	Meta         json.RawMessage
	Cursor       *string
	RequestState json.RawMessage
}

// append adds those that there are, as JSON.
func (p *params) append(b []byte) []byte {
	b = append(b, '{')
	begun := len(b)
	member := func(key string, value json.RawMessage) {
		if len(b) > begun {
			b = append(b, ',')
		}
		b = append(append(append(b, key...), ':'), value...)
	}
	if p.Name != "" {
		member(`"name"`, encoded(p.Name))
	}
	if p.Arguments != nil {
		member(`"arguments"`, oneLine(p.Arguments))
	}
	if p.Meta != nil {
		member(`"_meta"`, p.Meta)
	}
	if p.Cursor != nil {
		member(`"cursor"`, encoded(p.Cursor))
	}
	if p.RequestState != nil {
		member(`"requestState"`, p.RequestState)
	}
	return append(b, '}')
}

// incoming is a JSON-RPC message of theirs, of whatever sort.
type incoming struct {
	ID     json.RawMessage
	Method string
	Result json.RawMessage
	Error  json.RawMessage
}

// rpcError is a JSON-RPC error object, read tolerantly: servers send codes as strings and leave messages out.
type rpcError struct {
	number  int    // the code; 0 where it is none
	code    string // as it was written
	message string
	data    json.RawMessage
	forUs   bool // it names the id of our request
}

// answer is what a server said to a request: a result or an error.
type answer struct {
	result json.RawMessage
	err    *rpcError
}

// errMalformed says what is wrong with an answer, in words that go on "…, but".
type errMalformed struct{ what string }

func (e errMalformed) Error() string { return e.what }

func malformedf(format string, args ...any) error { return errMalformed{fmt.Sprintf(format, args...)} }

var byteOrderMark = []byte("\ufeff")

// parseAnswer reads the answer to the request with this id from a body that holds nothing else.
func parseAnswer(body []byte, id int64) (answer, error) {
	found, answered, err := parseMessages(body, id, nil)
	if err == nil && !answered {
		err = malformedf("what came is a message of its own, not an answer; it begins with %s", excerpt(body))
	}
	return found, err
}

// parseMessages reads one message, or the array of them that revision 2025-03-26 allows, and finds the answer to the
// request with this id among them. Requests of the server's are handed to serve.
func parseMessages(body []byte, id int64, serve func(theirs)) (found answer, answered bool, err error) {
	body = bytes.TrimSpace(bytes.TrimPrefix(body, byteOrderMark))
	if len(body) == 0 {
		return answer{}, false, malformedf("the answer is empty")
	}
	if body[0] != '[' {
		in, err := readMessage(body)
		if err != nil {
			return answer{}, false, err
		}
		return in.take(id, serve)
	}
	var messages []json.RawMessage
	if json.Unmarshal(body, &messages) != nil || len(messages) == 0 {
		return answer{}, false, noMessage(body)
	}
	var wrong error
	for _, message := range messages {
		in, err := readMessage(message)
		if err != nil {
			return answer{}, false, err
		}
		found, answered, err := in.take(id, serve)
		if answered {
			return found, true, nil
		}
		wrong = cmp.Or(err, wrong)
	}
	return answer{}, false, wrong
}

func readMessage(message []byte) (in incoming, err error) {
	if !bytes.HasPrefix(message, []byte("{")) || !json.Valid(message) {
		return incoming{}, noMessage(message)
	}
	for name, value := range parts(message) {
		switch name {
		case "id":
			in.ID = value
		case "method":
			if json.Unmarshal(value, &in.Method) != nil {
				return incoming{}, noMessage(message)
			}
		case "result":
			in.Result = value
		case "error":
			in.Error = value
		}
	}
	return in, nil
}

// take hands a request of the server's to serve, and reads an answer.
func (in incoming) take(id int64, serve func(theirs)) (found answer, answered bool, err error) {
	if in.Method != "" {
		if serve != nil && present(in.ID) {
			serve(theirs{id: in.ID, method: in.Method})
		}
		return answer{}, false, nil
	}
	found, err = in.answer(id)
	return found, err == nil, err
}

// noMessage says what is wrong with what is no JSON-RPC message.
func noMessage(body []byte) error {
	if !json.Valid(body) {
		return malformedf("the answer is not JSON; it begins with %s", excerpt(body))
	}
	return malformedf("the answer is not a JSON-RPC message; it begins with %s", excerpt(body))
}

func (in incoming) answer(id int64) (answer, error) {
	if present(in.Error) {
		// An error about a request that the server could not read carries no id, or null.
		if present(in.ID) && !sameID(in.ID, id) {
			return answer{}, malformedf("the answer is an error for request %s, not for %d", excerpt(in.ID), id)
		}
		return answer{err: parseError(in.Error)}, nil
	}
	switch {
	case !present(in.Result):
		return answer{}, malformedf("the answer has neither a result nor an error")
	case !present(in.ID):
		return answer{}, malformedf("the answer has no id, so it cannot be told what it answers")
	case !sameID(in.ID, id):
		return answer{}, malformedf("the answer is for request %s, not for %d", excerpt(in.ID), id)
	}
	return answer{result: in.Result}, nil
}

// sameID takes 7 and "7" for the same: with one request a leg nothing can be mistaken, and some servers turn ids to strings.
func sameID(raw json.RawMessage, id int64) bool {
	want := strconv.FormatInt(id, 10)
	return string(raw) == want || string(raw) == `"`+want+`"`
}

func parseError(raw json.RawMessage) *rpcError {
	var object struct {
		Code    json.RawMessage `json:"code"`
		Message json.RawMessage `json:"message"`
		Data    json.RawMessage `json:"data"`
	}
	if json.Unmarshal(raw, &object) != nil {
		return &rpcError{code: "none", message: plain(raw)}
	}
	e := &rpcError{code: "none", message: plain(object.Message), data: object.Data}
	if present(object.Code) {
		e.code = plain(object.Code)
		e.number, _ = strconv.Atoi(e.code)
	}
	if e.message == "" {
		e.message = plain(object.Data)
	}
	return e
}

// readJSON reads an answer that is one JSON body. hide takes out of it what must not be kept.
// Length is what the server says that the body has, or less than 0.
func readJSON(body io.Reader, length, id int64, hide func([]byte) []byte) (answer, error) {
	const most = 128 << 10 // on a stranger's word
	// The end is found past the last byte: with room for one more, a body of its declared length needs no other buffer.
	data := make([]byte, 0, min(cmp.Or(max(length, 0), 511), most)+1)
	for {
		n, err := body.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		if err == io.EOF {
			return parseAnswer(hide(data), id)
		}
		if err != nil {
			return answer{}, err
		}
		if len(data) == cap(data) {
			data = slices.Grow(data, len(data))
		}
	}
}

var errTooLarge = errors.New("body passes the limit")

// bounded reads at most MaxBody bytes and counts them. What it counts is read after RoundTrip returned and is only used
// by the goroutine that reads.
type bounded struct {
	body io.Reader
	read int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.read > MaxBody {
		return 0, errTooLarge
	}
	if most := MaxBody + 1 - b.read; int64(len(p)) > most {
		p = p[:most]
	}
	n, err := b.body.Read(p)
	b.read += int64(n)
	if b.read > MaxBody {
		return n, errTooLarge
	}
	return n, err
}
