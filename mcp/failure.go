package mcp

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Kind tells how an operation ended without an answer. The strings are stable: they stand in Postgres, logs and the
// dashboard.
type Kind string

// The kinds of failure. docs/failures.md says what to do about each.
const (
	KindBudgetSpent            Kind = "budget_spent"             // the budget was gone before a leg could be sent
	KindNoAnswer               Kind = "no_answer"                // sent, and the grant ended before the answer was complete
	KindUnreachable            Kind = "unreachable"              // no connection came about
	KindConnectionLost         Kind = "connection_lost"          // the connection broke after the request was sent
	KindHTTPStatus             Kind = "http_status"              // a status outside 2xx, redirects included
	KindMalformedResponse      Kind = "malformed_response"       // an answer that is not the protocol's
	KindUnsupportedContentType Kind = "unsupported_content_type" // neither JSON nor an event stream
	KindResponseTooLarge       Kind = "response_too_large"       // the body passes MaxBody
	KindRPCError               Kind = "rpc_error"                // a JSON-RPC error object
	KindToolError              Kind = "tool_error"               // the server works, the tool failed
	KindRefusedHost            Kind = "refused_host"             // the host gate refused the address
	KindMissingCredential      Kind = "missing_credential"       // the credential's reference does not resolve
	KindInvalidRequest         Kind = "invalid_request"          // the job itself is unusable
	KindInterrupted            Kind = "interrupted"              // the worker died while the operation ran
	KindCancelled              Kind = "cancelled"                // the run was cancelled before the step began
)

// Kinds lists every kind there is.
func Kinds() []Kind {
	return []Kind{
		KindBudgetSpent, KindNoAnswer, KindUnreachable, KindConnectionLost, KindHTTPStatus, KindMalformedResponse,
		KindUnsupportedContentType, KindResponseTooLarge, KindRPCError, KindToolError, KindRefusedHost,
		KindMissingCredential, KindInvalidRequest, KindInterrupted, KindCancelled,
	}
}

// Asked tells whether the far side was asked, which decides whether asking again is safe.
type Asked string

// What is known about whether the far side was asked.
const (
	AskedNo      Asked = "no"      // nothing was sent
	AskedUnknown Asked = "unknown" // it was sent; nobody knows whether the server acted on it
	AskedYes     Asked = "yes"     // the server answered
)

// Failure is how an operation ended without an answer. Message is the operator's sentence: one or two plain sentences that
// name the server and hold no secret; what a remote party wrote is cut, cleaned and quoted in it.
type Failure struct {
	Kind    Kind
	Asked   Asked
	Server  string // the server's identifier; empty when the job named none
	Message string
	Err     error // the cause, for errors.Is and errors.As; nil when there is none
}

// Error is the operator's sentence.
func (f *Failure) Error() string { return f.Message }

// Unwrap gives the cause.
func (f *Failure) Unwrap() error { return f.Err }

// InvalidRequest is the failure of a job that is unusable as it stands. The message says what to change.
func InvalidRequest(server, message string) *Failure {
	return &Failure{Kind: KindInvalidRequest, Asked: AskedNo, Server: server, Message: message}
}

// NotCallable is the failure of a step whose tool cannot be called at all; why is worded as in [Tool].
func NotCallable(server, tool, why string) *Failure {
	return InvalidRequest(server, fmt.Sprintf(
		"Invalid request: nothing was sent and tool %s of %s was not called, because %s. Import its catalogue again if the server has changed.",
		quote(tool), named(server), why))
}

// SpentBeforeStart is the failure of a job whose own limit passed before it was begun. The limit is not known any more by
// then; what is named is the setting.
func SpentBeforeStart(server string) *Failure {
	return &Failure{Kind: KindBudgetSpent, Asked: AskedNo, Server: server, Message: fmt.Sprintf(
		"Budget spent: nothing was sent and %s was not asked, because the job waited until its own limit had passed: in the queue, "+
			"or for Postgres. Enqueue it with a longer asynq Timeout or Deadline; where jobs wait in the queue, add workers.", named(server))}
}

// Interrupted is the failure of a step whose worker died while the operation ran.
func Interrupted(server, worker string) *Failure {
	return &Failure{Kind: KindInterrupted, Asked: AskedUnknown, Server: server, Message: fmt.Sprintf(
		"Interrupted: worker %s was asking %s and stopped, or could not write down what came of it. The step was not repeated, because nobody knows "+
			"whether the server acted; look there before it is enqueued again.", quote(worker), named(server))}
}

// Crashed is the failure of an operation in which legwork itself failed: what is the panic in words.
func Crashed(server, what string) *Failure {
	return &Failure{Kind: KindInterrupted, Asked: AskedUnknown, Server: server, Message: fmt.Sprintf(
		"Interrupted: legwork itself failed while it was asking %s (%s). Nothing was repeated, because nobody knows "+
			"whether the server acted; look there before it is enqueued again. The worker's log has where it failed.", named(server), quote(what))}
}

// Cancelled is the failure of a step whose run was cancelled before the step began.
func Cancelled(server, by string) *Failure {
	return &Failure{Kind: KindCancelled, Asked: AskedNo, Server: server, Message: fmt.Sprintf(
		"Cancelled: the run was cancelled by %s before this step began, so %s was not asked.", quote(by), named(server))}
}

// exchange names the request that a failure is about.
type exchange struct {
	server string
	method string
}

// failure is one of this exchange. Where it was with the authorization server, the server itself was not asked, whatever
// came of it.
func (e exchange) failure(kind Kind, asked Asked, cause error, format string, args ...any) *Failure {
	f := &Failure{Kind: kind, Asked: asked, Server: e.server, Message: fmt.Sprintf(format, args...), Err: cause}
	if e.method == methodToken {
		f.Asked = AskedNo
		f.Message += " " + strings.ToUpper(named(e.server)[:1]) + named(e.server)[1:] + " itself was not asked."
	}
	return f
}

// far names who the request is for.
func (e exchange) far() string {
	if e.method == methodToken {
		return "the authorization server of " + named(e.server)
	}
	return named(e.server)
}

func (e exchange) budgetSpent(budget Budget, legs []Leg) *Failure {
	went := "no time was left when it began"
	if len(legs) > 0 {
		went = fmt.Sprintf("the %s of this operation went to %s", seconds(budget.Total), account(legs))
	}
	return e.failure(KindBudgetSpent, AskedNo, nil,
		"Budget spent: %s was not sent and %s was not asked for it, because %s. %s",
		e.method, e.far(), went, setting(e.server, budget))
}

func (e exchange) noAnswer(grant time.Duration, budget Budget, arrived string) *Failure {
	within := fmt.Sprintf("within its budget of %s", seconds(budget.Total))
	if grant < budget.Total {
		within = fmt.Sprintf("in the %s that were left of its budget of %s", seconds(grant), seconds(budget.Total))
	}
	return e.failure(KindNoAnswer, AskedUnknown, nil, "No answer: %s was asked (%s) and did not answer %s; %s.%s",
		e.far(), e.method, within, arrived, e.mayHaveActed())
}

// putOff is for a server that ended its stream before the answer and wants to be asked for it later than there is time.
func (e exchange) putOff(pause, left time.Duration, budget Budget) *Failure {
	return e.failure(KindNoAnswer, AskedUnknown, nil,
		"No answer: %s was asked (%s), ended its stream and wants to be left alone for %s, of which %s are left in its budget of %s.%s",
		e.far(), e.method, seconds(pause), seconds(left), seconds(budget.Total), e.mayHaveActed())
}

func (e exchange) unreachable(cause error, why string) *Failure {
	return e.failure(KindUnreachable, AskedNo, cause, "Unreachable: no connection to %s came about: %s. Its process never saw the request (%s).",
		e.far(), why, e.method)
}

func (e exchange) connectionLost(cause error, after time.Duration, why, arrived string) *Failure {
	return e.failure(KindConnectionLost, AskedUnknown, cause, "Connection lost: %s was asked (%s) and the connection broke after %s (%s); %s.%s",
		e.far(), e.method, seconds(after), why, arrived, e.mayHaveActed())
}

func (e exchange) malformed(format string, args ...any) *Failure {
	return e.failure(KindMalformedResponse, AskedYes, nil, "Malformed answer: %s answered %s, but %s.%s",
		e.far(), e.method, fmt.Sprintf(format, args...), e.mayHaveActed())
}

// mayHaveActed warns where the request that was not answered is one that acts.
func (e exchange) mayHaveActed() string {
	if e.method == methodCallTool || e.method == methodCallTool+resumed {
		return " Nobody knows whether it acted."
	}
	return ""
}

// whole says that a leg took all of its grant.
func whole(grant time.Duration, budget Budget) string {
	if grant < budget.Total {
		return fmt.Sprintf("the whole %s that were left of the budget of %s", seconds(grant), seconds(budget.Total))
	}
	return fmt.Sprintf("the whole budget of %s", seconds(budget.Total))
}

// setting says whose number the budget is and what to raise.
func setting(server string, budget Budget) string {
	total := seconds(budget.Total)
	switch budget.Owner {
	case OwnerServer:
		return fmt.Sprintf("The %s are this server's own setting: raise operation_timeout_seconds of %s to allow more.", total, named(server))
	case OwnerJob:
		if budget.Total <= 0 {
			return "It was the job's own limit that had passed: enqueue it with a longer asynq Timeout or Deadline to allow more."
		}
		return fmt.Sprintf("The %s are this job's own limit: enqueue it with a longer asynq Timeout or Deadline to allow more.", total)
	default:
		return fmt.Sprintf("The %s are this installation's own setting: raise LEGWORK_MCP_OPERATION_TIMEOUT to allow more.", total)
	}
}

// account says where the time went: each leg by name, a run of the same method as one.
func account(legs []Leg) string {
	var parts []string
	for i := 0; i < len(legs); {
		method, first, took := legs[i].Method, i, time.Duration(0)
		for ; i < len(legs) && legs[i].Method == method; i++ {
			took += legs[i].Elapsed
		}
		if n := i - first; n > 1 {
			parts = append(parts, fmt.Sprintf("%d times %s (%s in all)", n, method, seconds(took)))
		} else {
			parts = append(parts, fmt.Sprintf("%s (%s)", method, seconds(took)))
		}
	}
	if n := len(parts); n > 1 {
		return strings.Join(parts[:n-1], ", ") + " and " + parts[n-1]
	}
	return strings.Join(parts, "")
}

func named(server string) string {
	if server == "" {
		return "the server"
	}
	return "server " + quote(server)
}

// seconds writes a duration as an operator reads it: to a tenth of a second, or in milliseconds below that.
func seconds(d time.Duration) string {
	if d > 0 && d < 100*time.Millisecond {
		return fmt.Sprintf("%d ms", max(1, d.Milliseconds()))
	}
	tenths := d.Round(100 * time.Millisecond)
	return strings.TrimSuffix(fmt.Sprintf("%.1f", tenths.Seconds()), ".0") + " s"
}

// maxQuoted is how many characters of a remote party's text stand in a sentence.
const maxQuoted = 200

// quote makes text that somebody else wrote fit for a sentence: white space folded, control and formatting characters
// removed (they can turn a line round on a terminal), cut to maxQuoted characters, in quotes.
func quote(text string) string {
	cleaned := make([]rune, 0, min(len(text), maxQuoted)+2)
	space := false
	for _, r := range text { // an invalid byte reads as U+FFFD
		switch {
		case unicode.IsSpace(r):
			space = len(cleaned) > 0
			continue
		case unicode.IsControl(r), unicode.Is(unicode.Cf, r), unicode.Is(unicode.Co, r):
			continue
		}
		if space {
			cleaned = append(cleaned, ' ')
			space = false
		}
		if r == '"' {
			r = '\''
		}
		if cleaned = append(cleaned, r); len(cleaned) > maxQuoted {
			cleaned = append(cleaned[:maxQuoted-1], '…')
			break
		}
	}
	return `"` + string(cleaned) + `"`
}

// excerpt is the beginning of a body, quoted.
func excerpt(body []byte) string {
	const enough = 4 * maxQuoted // folding and cleaning may take some away
	if len(body) > enough {
		body = body[:enough]
		for range utf8.UTFMax - 1 { // a character that was cut through goes as a whole
			if r, size := utf8.DecodeLastRune(body); r != utf8.RuneError || size != 1 {
				break
			}
			body = body[:len(body)-1]
		}
	}
	return quote(string(body))
}
