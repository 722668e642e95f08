package mcp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"time"
)

// Event streams are read by the rules of the WHATWG, with three differences that real servers make necessary: a last event
// without its blank line counts if it is whole, types other than "message" are none of ours, and an event without data is
// never a message. The reader is our own, because the time after which a stream may be resumed must come out of it, and
// because it must read each byte once, whatever the pieces it comes in.

// event is one event of a stream.
type event struct {
	kind string // empty is "message"
	data []byte // valid until the next event is read
	cut  bool   // the stream ended within it
}

// place is where a stream can be taken up again.
type place struct {
	id    string        // of the last event that had one; empty when none had
	retry time.Duration // how long the server wants to be left alone first; 0 when it did not say
	final bool          // the stream brought something that will not get better by asking for it again
}

// eventReader reads events. The size of what it reads is bounded by its reader.
type eventReader struct {
	lines lineReader
	place *place
	began bool
	data  []byte
}

func newEventReader(r io.Reader, place *place) *eventReader {
	return &eventReader{lines: lineReader{r: bufio.NewReader(r)}, place: place}
}

// next reads one event that has data. The error is the reader's, io.EOF at the end.
func (e *eventReader) next() (event, error) {
	kind, some := "", false
	id, named := "", false
	e.data = e.data[:0]
	for {
		line, err := e.lines.next()
		if err != nil && err != io.EOF {
			return event{}, err
		}
		ended := err == io.EOF
		if !e.began {
			e.began = true
			line = bytes.TrimPrefix(line, byteOrderMark)
		}
		if len(line) > 0 && line[0] != ':' {
			name, value, _ := bytes.Cut(line, []byte(":"))
			value = bytes.TrimPrefix(value, []byte(" "))
			switch string(name) {
			case "data":
				if some {
					e.data = append(e.data, '\n')
				}
				e.data, some = append(e.data, value...), true
			case "event":
				kind = string(value)
			case "id":
				if bytes.IndexByte(value, 0) < 0 {
					id, named = string(value), true
				}
			case "retry":
				e.place.setRetry(value)
			}
		}
		if len(line) == 0 && !ended && named { // of an event that is whole
			e.place.id, named = id, false
		}
		switch {
		case ended && blank(e.data):
			return event{}, io.EOF
		case ended:
			return event{kind: kind, data: e.data, cut: true}, nil
		case len(line) == 0 && !blank(e.data):
			return event{kind: kind, data: e.data}, nil
		case len(line) == 0: // a keep-alive, or an event that only primes
			kind, some, e.data = "", false, e.data[:0]
		}
	}
}

// blank tells that data holds no message.
func blank(data []byte) bool { return len(bytes.TrimSpace(data)) == 0 }

func (p *place) setRetry(digits []byte) {
	for _, c := range digits {
		if c < '0' || c > '9' {
			return
		}
	}
	const most = 24 * 60 * 60 * 1000 // past every budget; more would only overflow
	if ms, err := strconv.ParseInt(string(digits), 10, 64); err == nil || len(digits) > 0 {
		if err != nil || ms > most {
			ms = most
		}
		p.retry = time.Duration(ms) * time.Millisecond
	}
}

// lineReader reads lines that end in LF, CR LF or CR. A CR ends its line at once: what follows may take for ever.
type lineReader struct {
	r      *bufio.Reader
	line   []byte
	skipLF bool
	ended  bool
}

// next gives one line without its end. At the end of the stream it gives what is left, and io.EOF.
func (l *lineReader) next() ([]byte, error) {
	l.line = l.line[:0]
	if l.ended {
		return nil, io.EOF
	}
	for {
		if _, err := l.r.Peek(1); err != nil {
			l.ended = true
			return l.line, err
		}
		chunk, _ := l.r.Peek(l.r.Buffered())
		if l.skipLF {
			l.skipLF = false
			if chunk[0] == '\n' {
				_, _ = l.r.Discard(1)
				continue
			}
		}
		i := bytes.IndexAny(chunk, "\r\n")
		if i < 0 {
			l.line = append(l.line, chunk...)
			_, _ = l.r.Discard(len(chunk))
			continue
		}
		l.line = append(l.line, chunk[:i]...)
		l.skipLF = chunk[i] == '\r'
		_, _ = l.r.Discard(i + 1)
		return l.line, nil
	}
}

// theirs is a request that a server sends us while it works on ours.
type theirs struct {
	id     json.RawMessage
	method string
}

// readStream reads an answer from an event stream, and no further than it: servers and proxies may keep a stream open for
// ever. Requests of the server's are handed to serve; notifications (progress, logging) are passed over. Where the stream
// ends without an answer, place says whether it can be taken up again. hide takes out of an event what must not be kept.
func readStream(body io.Reader, id int64, place *place, hide func([]byte) []byte, serve func(theirs)) (answer, error) {
	events := newEventReader(body, place)
	for {
		event, err := events.next()
		if err == io.EOF {
			return answer{}, malformedf("its event stream ended without an answer")
		}
		if err != nil {
			place.final = errors.Is(err, errTooLarge)
			return answer{}, err
		}
		if event.kind != "" && event.kind != "message" {
			continue
		}
		found, answered, err := parseMessages(hide(event.data), id, serve)
		switch {
		case err != nil && event.cut:
			return answer{}, malformedf("its event stream ended within the answer")
		case err != nil || answered:
			place.final = true
			return found, err
		}
	}
}
