package mcp

import (
	"encoding/json"
	"time"
)

// OutcomeOK is the outcome of a leg that brought what it was sent for. Every other outcome is a failure [Kind].
const OutcomeOK = "ok"

// Leg is the record of one HTTP request of an operation. A leg that was refused because the budget was spent was never
// sent and leaves no record.
type Leg struct {
	Method  string        // the JSON-RPC method, or "token request"
	Granted time.Duration // what it was allowed to take
	Elapsed time.Duration // what it took, to the end of the body
	Outcome string        // OutcomeOK or the kind of the failure
	Status  int           // the HTTP status; 0 when no response came
}

// legRow is a leg as it is stored: whole milliseconds, and status null when there was none.
type legRow struct {
	Method    string `json:"method"`
	GrantedMS int64  `json:"granted_ms"`
	ElapsedMS int64  `json:"elapsed_ms"`
	Outcome   string `json:"outcome"`
	Status    *int   `json:"status"`
}

// MarshalJSON writes the form that stands in the legs column.
func (l Leg) MarshalJSON() ([]byte, error) {
	row := legRow{Method: l.Method, GrantedMS: l.Granted.Milliseconds(), ElapsedMS: l.Elapsed.Milliseconds(), Outcome: l.Outcome}
	if l.Status != 0 {
		row.Status = &l.Status
	}
	return json.Marshal(row)
}

// UnmarshalJSON reads the form that stands in the legs column.
func (l *Leg) UnmarshalJSON(data []byte) error {
	var row legRow
	if err := json.Unmarshal(data, &row); err != nil {
		return err
	}
	*l = Leg{
		Method:  row.Method,
		Granted: time.Duration(row.GrantedMS) * time.Millisecond,
		Elapsed: time.Duration(row.ElapsedMS) * time.Millisecond,
		Outcome: row.Outcome,
	}
	if row.Status != nil {
		l.Status = *row.Status
	}
	return nil
}

// Spent is the account of one operation, answered or not.
type Spent struct {
	Budget   Budget
	Legs     []Leg         // in the order sent
	Elapsed  time.Duration // of the whole operation
	Revision string        // the protocol revision agreed on; empty when the server never said
	Token    Token         // the access token that the next operation may travel with; none where there was none, or it was not accepted
}

// Latency is how long the leg that ended the operation took; zero when none was sent.
func (s Spent) Latency() time.Duration {
	if len(s.Legs) == 0 {
		return 0
	}
	return s.Legs[len(s.Legs)-1].Elapsed
}
