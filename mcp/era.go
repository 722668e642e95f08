package mcp

import (
	"encoding/json"
	"net/http"
	"slices"
)

// The revisions fall into two eras. Until 2025-11-25 a session is opened by a handshake; from 2026-07-28 on there is none,
// and each request says all that the server must know.
type era int

const (
	unknown era = iota // nobody has asked yet
	handshake
	stateless
)

const (
	// RevisionStateless is the revision without a handshake.
	RevisionStateless = "2026-07-28"

	// RevisionUnnamed stands for a server of the handshake's era that answers without one, and so never says which
	// revision it speaks.
	RevisionUnnamed = "legacy"
)

// handshakeRevisions are those of the handshake, newest first. The first is asked for; any of them is taken.
var handshakeRevisions = []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}

// eraOf is what is known of a server whose last operation agreed on this revision.
func eraOf(revision string) era {
	switch {
	case revision == RevisionStateless:
		return stateless
	case revision == RevisionUnnamed || slices.Contains(handshakeRevisions, revision):
		return handshake
	}
	return unknown
}

// The error codes of the stateless revision.
const (
	codeHeaderMismatch     = -32020 // a header is missing, malformed or not what the body says
	codeCapabilityRequired = -32021
	codeVersion            = -32022 // the revision is not supported; data.supported lists those that are
	codeMethodNotFound     = -32601
	codeInvalidParams      = -32602
	codeInvalidRequest     = -32600
)

// witness is what a reply to a request in the manner of the stateless revision says about the era of its server. It is
// unknown where the reply says nothing about that: an outage, a credential that is not accepted, an overload and a
// redirect are no reason to begin another conversation.
func witness(reply *incomingReply, failure *Failure) era {
	switch {
	case failure == nil:
		return reply.kind.witness()
	case reply.err != nil && (reply.err.number == codeHeaderMismatch || reply.err.number == codeCapabilityRequired):
		return stateless
	case reply.err != nil && reply.err.number == codeVersion:
		if slices.Contains(reply.err.supported(), RevisionStateless) {
			return stateless
		}
		return handshake
	case failure.Kind == KindRPCError || failure.Kind == KindHTTPStatus:
		switch reply.status {
		case http.StatusOK, http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotAcceptable, http.StatusUnsupportedMediaType,
			http.StatusUnprocessableEntity:
			return handshake
		}
	}
	return unknown
}

// resultKind is what a result says of itself in the stateless revision. It is empty where the result is no object.
type resultKind struct {
	ResultType        json.RawMessage
	SupportedVersions json.RawMessage
	InputRequests     json.RawMessage
	RequestState      json.RawMessage
}

func kindOf(raw json.RawMessage) *resultKind {
	kind := new(resultKind)
	for name, value := range parts(raw) {
		switch name {
		case "resultType":
			kind.ResultType = value
		case "supportedVersions":
			kind.SupportedVersions = value
		case "inputRequests":
			kind.InputRequests = value
		case "requestState":
			kind.RequestState = value
		}
	}
	return kind
}

func (k *resultKind) witness() era {
	if versions := texts(k.SupportedVersions); len(versions) > 0 {
		if slices.Contains(versions, RevisionStateless) {
			return stateless
		}
		return handshake
	}
	if present(k.ResultType) {
		return stateless
	}
	return handshake
}

func (k *resultKind) complete() bool {
	return !present(k.ResultType) || string(k.ResultType) == `"complete"` || plain(k.ResultType) == "complete"
}

// texts are the strings in a list of whatever.
func texts(list json.RawMessage) []string {
	if list == nil { // as nearly always, and finding that out by reading it costs an error
		return nil
	}
	var entries []json.RawMessage
	_ = json.Unmarshal(list, &entries)
	var found []string
	for _, entry := range entries {
		if s := text(entry); s != "" {
			found = append(found, s)
		}
	}
	return found
}

// supported lists the revisions that an error of codeVersion names.
func (e *rpcError) supported() []string {
	var data struct {
		Supported json.RawMessage `json:"supported"`
	}
	_ = json.Unmarshal(e.data, &data)
	return texts(data.Supported)
}
