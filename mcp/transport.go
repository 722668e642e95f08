package mcp

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Transport sends legs. It is a singleton: what it needs to know about an operation or a server comes with each call.
// Safe for concurrent use.
type Transport struct {
	http  http.RoundTripper
	clock Clock
}

// NewTransport sends legs through rt, which is [NewConnections]' outside tests. rt must not follow redirects and must
// set no time limit of its own on a request.
func NewTransport(rt http.RoundTripper, clock Clock) *Transport {
	return &Transport{http: rt, clock: clock}
}

// resumed marks the legs that take a stream up again.
const resumed = " (resumed)"

func (f *flight) exchange() exchange {
	method := f.message.Method
	if f.resume != "" {
		method += resumed
	}
	return exchange{server: f.operation.server.Identifier, method: method}
}

// incomingReply is what a leg brought. Beside a failure it holds what the server said of it: the status, and the JSON-RPC
// error where there was one.
type incomingReply struct {
	answer
	session string
	status  int
	tls     *TLSInfo
	kind    *resultKind // of a result in the manner of the stateless revision
	place   place       // where an event stream that ended without an answer can be taken up again
}

// flight is one leg, as its operation wants it sent and under way. It is one value, which is on the heap because net/http's
// hooks point to it: what a leg needs while it waits is neither copied from frame to frame nor allocated piece by piece.
type flight struct {
	operation *operation
	message   message
	session   string      // Mcp-Session-Id, once the server gave one
	revision  string      // Mcp-Protocol-Version, once agreed on
	extra     http.Header // what the stateless revision repeats in headers
	resume    string      // the event after which a stream is taken up again; then the message is not sent, but awaited
	serves    bool        // the operation answers what the server asks meanwhile

	grant    time.Duration
	started  time.Duration // by the clock
	progress progress
	body     bounded // of the answer
	reply    incomingReply
}

// send sends the leg, bounded as a whole by what the deadline grants: connecting, TLS, headers and the last byte of the
// body. A leg that was not sent leaves no record in its operation.
func (f *flight) send() *Failure {
	req, cancel, failure := f.prepare()
	if failure != nil {
		return failure
	}
	defer cancel()
	failure = f.carry(req)
	f.record(failure)
	return failure
}

// prepare makes the request, unless there is no time left for it.
func (f *flight) prepare() (*http.Request, context.CancelFunc, *Failure) {
	o := f.operation
	if _, ok := o.deadline.Grant(); !ok {
		return nil, nil, f.exchange().budgetSpent(o.deadline.budget, o.legs)
	}
	body := f.message.encode()
	var ok bool
	if f.grant, ok = o.deadline.Grant(); !ok { // again, because large arguments take a while to write down
		return nil, nil, f.exchange().budgetSpent(o.deadline.budget, o.legs)
	}
	method := http.MethodPost
	if f.resume != "" {
		method, body = http.MethodGet, nil
	}
	ctx, cancel := context.WithTimeout(o.ctx, o.deadline.bound(f.grant))
	req, err := f.build(ctx, method, body)
	if err != nil {
		cancel()
		return nil, nil, InvalidRequest(o.server.Identifier, fmt.Sprintf(
			"Invalid request: the URL of %s is unusable, so nothing was sent. Correct it with \"legwork server set\".", named(o.server.Identifier)))
	}
	f.started = o.client.transport.clock.Now()
	return req, cancel, nil
}

// record notes how the leg ended.
func (f *flight) record(failure *Failure) {
	o := f.operation
	leg := Leg{Method: f.exchange().method, Granted: f.grant, Elapsed: f.elapsed(), Outcome: OutcomeOK, Status: f.reply.status}
	if failure != nil {
		leg.Outcome = string(failure.Kind)
	}
	o.legs = append(o.legs, leg)
}

// elapsed is the time since the leg was sent.
func (f *flight) elapsed() time.Duration { return f.operation.client.transport.clock.Now() - f.started }

// trace is a context for the leg's request: it notes how far that comes, bounds its dial and says which connections it may go over.
// The secrets go onto the request when a connection stands, which is after the gate approved of the address, and before the
// first byte is written; header is nil where none belong there.
func (f *flight) trace(ctx context.Context, header http.Header) context.Context {
	p := &f.progress
	if end, ok := ctx.Deadline(); ok {
		p.end = end
		ctx = context.WithValue(ctx, grantEnd{}, &p.end)
	}
	if f.operation.identity != nil {
		ctx = context.WithValue(ctx, identityKey{}, f.operation.identity)
	}
	p.header, p.secrets = header, &f.operation.secrets
	p.hooks = httptrace.ClientTrace{GetConn: p.getConn, GotConn: p.gotConn, WroteRequest: p.wroteRequest, GotFirstResponseByte: p.gotFirstByte}
	return httptrace.WithClientTrace(ctx, &p.hooks)
}

// What each request says alike; nobody changes them.
var (
	bodyType     = []string{"application/json"}
	acceptAny    = []string{"application/json, text/event-stream"}
	acceptStream = []string{"text/event-stream"}
	userAgent    = []string{"legwork"}

	revisionHeaders = func() map[string][]string {
		all := map[string][]string{RevisionStateless: {RevisionStateless}}
		for _, revision := range handshakeRevisions {
			all[revision] = []string{revision}
		}
		return all
	}()
)

// build makes the request.
func (f *flight) build(ctx context.Context, method string, body []byte) (*http.Request, error) {
	header := make(http.Header, 8)
	ctx = f.trace(ctx, header)
	req, err := http.NewRequestWithContext(ctx, method, f.operation.server.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body == nil {
		req.Body, req.ContentLength = nil, 0
	}
	req.Header = header
	if body != nil {
		header["Content-Type"], header["Accept"] = bodyType, acceptAny
	}
	if f.resume != "" {
		header["Accept"] = acceptStream
		header.Set("Last-Event-Id", f.resume)
	}
	header["User-Agent"] = userAgent
	for name, values := range f.extra {
		header[name] = values
	}
	if f.session != "" {
		header.Set("Mcp-Session-Id", f.session)
	}
	if f.revision != "" {
		if header["Mcp-Protocol-Version"] = revisionHeaders[f.revision]; header["Mcp-Protocol-Version"] == nil {
			header.Set("Mcp-Protocol-Version", f.revision)
		}
	}
	return req, nil
}

// carry is the request and its answer. The reply's status is 0 when none came.
func (f *flight) carry(req *http.Request) *Failure {
	resp, err := f.operation.client.transport.http.RoundTrip(req)
	if err != nil {
		return f.broken(req.Context(), err)
	}
	return f.receive(req.Context(), resp)
}

// receive reads the answer.
func (f *flight) receive(ctx context.Context, resp *http.Response) *Failure {
	defer resp.Body.Close()
	f.progress.reach(headers)
	f.operation.secrets.hideIn(resp.Header)
	f.body.body = resp.Body
	var failure *Failure
	var err error
	f.reply, failure, err = f.read(resp)
	f.progress.bytes(f.body.read)
	if err != nil {
		failure = f.broken(ctx, err)
	}
	f.reply.status, f.reply.tls = resp.StatusCode, tlsInfo(resp.TLS)
	return failure
}

// read makes of a response what it means. An error is one of reading, which only the caller can judge.
func (f *flight) read(resp *http.Response) (incomingReply, *Failure, error) {
	ex := f.exchange()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		failure, rpc := f.refusal(resp)
		return incomingReply{answer: answer{err: rpc}}, failure, nil
	}
	reply := incomingReply{session: resp.Header.Get("Mcp-Session-Id")}
	if !visible(reply.session) {
		return incomingReply{}, ex.malformed("the session id it gave is not visible ASCII"), nil
	}
	if f.message.ID == 0 {
		// Whatever came with the receipt of a notification is of no interest.
		letEnd(resp.Body)
		return reply, nil, nil
	}
	if resp.StatusCode == http.StatusAccepted || resp.StatusCode == http.StatusNoContent {
		return reply, ex.malformed("with HTTP %d, which gives no answer to a request", resp.StatusCode), nil
	}
	if encoding := resp.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return reply, ex.malformed("the body is encoded as %s, which was not asked for", quote(encoding)), nil
	}

	var err error
	declared := resp.Header.Get("Content-Type")
	media, _, _ := strings.Cut(declared, ";") // its parameters change nothing, however they are written
	media = strings.ToLower(strings.TrimSpace(media))
	switch {
	case media == "application/json":
		reply.answer, err = readJSON(&f.body, resp.ContentLength, f.message.ID, f.operation.secrets.hide)
	case media == "text/event-stream":
		var serve func(theirs)
		if f.serves {
			serve = f.operation.answerTheirs
		}
		reply.answer, err = readStream(&f.body, f.message.ID, &reply.place, f.operation.secrets.hide, serve)
		if err == nil {
			letEnd(resp.Body)
		}
	default:
		what := "no content type"
		if declared != "" {
			what = "content type " + quote(declared)
		}
		return reply, ex.failure(KindUnsupportedContentType, AskedYes, nil,
			"Unsupported content type: %s answered %s with %s, which is neither JSON nor an event stream. Its URL may lead to something other than an MCP endpoint.",
			named(ex.server), ex.method, what), nil
	}
	if err != nil {
		useless := incomingReply{session: reply.session, place: reply.place}
		var bad errMalformed
		if errors.As(err, &bad) {
			return useless, ex.malformed("%s", bad.what), nil
		}
		return useless, nil, err
	}
	if reply.err != nil {
		return reply, rpcRefusal(ex, resp.StatusCode, reply.err), nil
	}
	return reply, nil, nil
}

// letEnd gives a body of which nothing more is wanted a moment to end, so that its connection can be used again by the
// next leg. One that stays open costs that connection and nothing else.
func letEnd(stream io.ReadCloser) {
	if stream == http.NoBody {
		return
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.CopyN(io.Discard, stream, 1<<10)
	}()
	moment := time.NewTimer(2 * time.Millisecond)
	defer moment.Stop()
	select {
	case <-ended:
	case <-moment.C:
		stream.Close() // ends the read
		<-ended
	}
}

// visible reports whether a session id is what the protocol allows: visible ASCII. Anything else could not be sent back.
func visible(id string) bool {
	for i := range len(id) {
		if id[i] < 0x21 || id[i] > 0x7e {
			return false
		}
	}
	return true
}

// refusal is the failure for a status outside 2xx. A server that explains itself in JSON-RPC is quoted, unless the status
// itself tells the operator what to do.
func (f *flight) refusal(resp *http.Response) (*Failure, *rpcError) {
	ex := f.exchange()
	status := resp.StatusCode
	say := ""
	switch {
	case status < 200:
		say = "it switched to something that is not HTTP" // and its body is the bare connection
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		say = f.notLetIn(resp.Header)
	case status == http.StatusProxyAuthRequired:
		say = "that is said by a proxy on the way, which wants a user and password of its own: they belong into HTTP_PROXY or HTTPS_PROXY"
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		say = "it is busy and did not say for how long"
		if after := resp.Header.Get("Retry-After"); after != "" {
			say = "it is busy and asks not to be called again before Retry-After " + quote(after)
		}
	case status >= 300 && status < 400:
		say = "redirects are never followed"
		if to := resp.Header.Get("Location"); to != "" {
			say = "it redirects to " + quote(withoutQuery(to)) + ", and redirects are never followed: if that is its address now, correct its URL"
		}
	default:
		data, _ := io.ReadAll(io.LimitReader(&f.body, maxErrorBody))
		data = f.operation.secrets.hide(data)
		if rpc := errorObject(data, f.message.ID); rpc != nil {
			return rpcRefusal(ex, status, rpc), rpc
		}
		say = "the status says that it did not do what was asked"
		if len(bytes.TrimSpace(data)) > 0 {
			say = "it said " + excerpt(data)
		}
	}
	return ex.failure(KindHTTPStatus, AskedYes, nil, "HTTP %d: %s answered %s with status %d; %s.", status, named(ex.server), ex.method, status, say), nil
}

// notLetIn says what was shown to a server that let nobody in, and what it asks for instead.
func (f *flight) notLetIn(header http.Header) string {
	credential := &f.operation.server.Credential
	say := "it wants a credential and none is configured"
	switch {
	case credential.OAuth.TokenURL != "":
		say = fmt.Sprintf("the access token for client %s was not accepted", quote(credential.OAuth.ClientID))
	case credential.Placement != PlaceNone && credential.Placement != "":
		say = fmt.Sprintf("the credential %s was not accepted", quote(credential.Reference))
	}
	if asks := wanted(header); asks != "" {
		say += "; it asks for " + asks
	}
	return say
}

// errorObject finds a JSON-RPC error in a body, whatever its id: servers answer what they could not read with ids of
// their own. It is nil where there is none.
func errorObject(data []byte, id int64) *rpcError {
	data = bytes.TrimPrefix(bytes.TrimSpace(data), byteOrderMark)
	if !bytes.HasPrefix(data, []byte("{")) { // some send an event stream under any status
		if event, err := newEventReader(bytes.NewReader(data), new(place)).next(); err == nil {
			data = event.data
		}
	}
	var object struct {
		Code json.RawMessage `json:"code"`
	}
	in, err := readMessage(bytes.TrimSpace(data))
	if err != nil || !present(in.Error) || json.Unmarshal(in.Error, &object) != nil || object.Code == nil {
		return nil
	}
	rpc := parseError(in.Error)
	rpc.forUs = sameID(in.ID, id)
	return rpc
}

func rpcRefusal(ex exchange, status int, rpc *rpcError) *Failure {
	with := ""
	if status != http.StatusOK {
		with = fmt.Sprintf(" and HTTP %d", status)
	}
	return ex.failure(KindRPCError, AskedYes, nil, "JSON-RPC error: %s refused %s with code %s%s; it said %s%s.",
		named(ex.server), ex.method, strings.Trim(quote(rpc.code), `"`), with, quote(rpc.message), rpc.wants())
}

// wants says what a server would have liked better, where the code is one that says so in its data.
func (e *rpcError) wants() string {
	var data struct {
		Supported json.RawMessage `json:"supported"`
		Required  json.RawMessage `json:"requiredCapabilities"`
	}
	_ = json.Unmarshal(e.data, &data)
	switch {
	case e.number == codeVersion && present(data.Supported):
		return ", and speaks " + excerpt(data.Supported)
	case e.number == codeCapabilityRequired && present(data.Required):
		return ", and wants a client that is capable of " + excerpt(data.Required)
	}
	return ""
}

// withoutQuery drops what may be secret from an address that a server pointed to.
func withoutQuery(location string) string {
	u, err := url.Parse(location)
	if err != nil {
		return "an address that cannot be parsed"
	}
	u.RawQuery, u.Fragment, u.User = "", "", nil
	return u.String()
}

// broken judges an error of connecting, sending or reading by how far the leg had come.
func (f *flight) broken(ctx context.Context, err error) *Failure {
	ex, budget, after := f.exchange(), f.operation.deadline.budget, f.elapsed()
	var refused *refusedAddress
	if errors.As(err, &refused) {
		return ex.refusedHost(refused)
	}
	phase, arrived := f.progress.state()
	ended := ctx.Err() != nil
	switch {
	case phase < connected && ended:
		return ex.unreachable(err, "connecting took "+whole(f.grant, budget))
	case phase < connected:
		return ex.unreachable(err, whyUnreachable(err))
	case phase < written && strings.Contains(err.Error(), "client conn could not be established"):
		return ex.unreachable(err, "the connection was closed before HTTP/2 was agreed on") // net/http keeps the type to itself
	case phase < firstByte && refusesCertificate(err):
		// With TLS 1.3 the server says so when the request is under way already, but it has not opened it.
		return ex.unreachable(err, whyUnreachable(err))
	case ended:
		return ex.noAnswer(f.grant, budget, arrived)
	case errors.Is(err, errTooLarge):
		return ex.failure(KindResponseTooLarge, AskedYes, err, "Response too large: %s answered %s with more than the limit of %d MiB; the rest was not read.",
			named(ex.server), ex.method, MaxBody>>20)
	case isCorrupt(err):
		return ex.malformed("the compressed body is corrupt").because(err)
	case phase >= firstByte && !isBroken(err):
		return ex.malformed("what came is not HTTP as it should be (%s)", quote(err.Error())).because(err)
	}
	return ex.connectionLost(err, after, whyLost(err), arrived)
}

// because adds the cause.
func (f *Failure) because(err error) *Failure {
	f.Err = err
	return f
}

func (e exchange) refusedHost(refused *refusedAddress) *Failure {
	leads := "is an address"
	if refused.host != refused.address {
		leads = "leads to " + refused.address + ", an address"
	}
	return e.failure(KindRefusedHost, AskedNo, refused,
		"Refused host: %s of %s %s that is not on the public internet, so nothing was sent. If it is meant, add %s to LEGWORK_ALLOWED_HOSTS, or set LEGWORK_ALLOW_PRIVATE_NETWORKS=true for all private networks.",
		quote(refused.host), e.far(), leads, refused.host)
}

// refusesCertificate tells whether the far side ended the TLS handshake because of the client certificate, or for want of one.
func refusesCertificate(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error" && slices.ContainsFunc(
		[]string{"certificate", "handshake failure", "access denied"}, // crypto/tls keeps its alerts to itself
		func(text string) bool { return strings.Contains(op.Err.Error(), text) })
}

func isCorrupt(err error) bool {
	var corrupt flate.CorruptInputError
	return errors.As(err, &corrupt) || errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum)
}

// isBroken reports whether the connection itself gave out, rather than what came over it being unreadable.
func isBroken(err error) bool {
	var op *net.OpError
	var errno syscall.Errno
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.As(err, &op) || errors.As(err, &errno) {
		return true
	}
	// net/http keeps the types of these to itself.
	return slices.ContainsFunc([]string{
		"server closed idle connection", "stream error", "connection error", "GOAWAY", "client connection lost", "client connection force closed",
	}, func(text string) bool { return strings.Contains(err.Error(), text) })
}

func whyLost(err error) string {
	switch {
	case errors.Is(err, syscall.ECONNRESET):
		return "it was reset"
	case errors.Is(err, syscall.EPIPE):
		return "it was closed while the request was written"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), strings.Contains(err.Error(), "server closed idle connection"):
		return "it was closed"
	}
	return quote(err.Error())
}

// whyUnreachable puts the common causes in plain words and leaves the rest as they come.
func whyUnreachable(err error) string {
	var dns *net.DNSError
	var op *net.OpError
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var proxy *proxyRefused
	at := ""
	if errors.As(err, &op) && op.Op == "proxyconnect" {
		return "the proxy on the way could not be reached: " + whyUnreachable(op.Err)
	}
	if op != nil && op.Addr != nil {
		at = " at " + op.Addr.String()
	}
	switch {
	case errors.As(err, &proxy):
		return proxy.Error()
	case refusesCertificate(err):
		return "it did not accept the client certificate, or wants one (" + quote(op.Err.Error()) + ")"
	case errors.As(err, &dns) && dns.IsNotFound:
		return fmt.Sprintf("the name %s does not resolve", quote(dns.Name))
	case errors.As(err, &dns):
		return fmt.Sprintf("looking up the name %s failed (%s)", quote(dns.Name), quote(dns.Err))
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the connection was refused" + at
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "there is no route to it" + at
	case errors.Is(err, syscall.ETIMEDOUT):
		return "connecting timed out" + at
	case errors.As(err, &certificate):
		return "its TLS certificate was not accepted (" + quote(certificate.Err.Error()) + ")"
	case errors.As(err, &record), strings.Contains(err.Error(), "HTTP response to HTTPS client"):
		return "it does not speak TLS there; its URL may have to begin with http"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return "the connection was closed while it was being set up"
	}
	return quote(err.Error())
}

// The phases of a leg, in order.
const (
	connecting = iota // no connection yet, or none that passed the gate
	connected         // a connection stands; from here on the server may have seen something
	written           // the request is written
	firstByte         // something came back
	headers           // the headers are complete
)

// progress is how far a leg has come: what tells a dead host from a silent server. net/http calls its trace from
// goroutines of its own.
type progress struct {
	mu    sync.Mutex
	phase int
	body  int64

	// For the hooks, which are one value with it so that a leg costs fewer. See trace.
	hooks   httptrace.ClientTrace
	header  http.Header
	secrets *secrets
	end     time.Time
}

func (p *progress) getConn(string) { p.reach(connecting) }

func (p *progress) gotConn(httptrace.GotConnInfo) {
	if p.header != nil {
		p.secrets.set(p.header)
	}
	p.reach(connected)
}

func (p *progress) wroteRequest(info httptrace.WroteRequestInfo) {
	if info.Err == nil {
		p.reach(written)
	}
}

func (p *progress) gotFirstByte() { p.reach(firstByte) }

func (p *progress) reach(phase int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Only connecting leads back: when a kept connection turned out to be closed before anything was written on it,
	// net/http begins again. A server that answers early is past written before the request is.
	if phase == connecting || phase > p.phase {
		p.phase = phase
	}
}

func (p *progress) bytes(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.body = n
}

// state is the phase and, in words, what had arrived.
func (p *progress) state() (phase int, arrived string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.phase < firstByte:
		arrived = "nothing had arrived"
	case p.phase < headers:
		arrived = "part of the headers had arrived"
	default:
		arrived = fmt.Sprintf("the headers and %d bytes of the body had arrived", p.body)
	}
	return p.phase, arrived
}
