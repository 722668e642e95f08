// Package mcp is the wire: it speaks the Model Context Protocol to remote servers over Streamable HTTP.
//
// # One budget per operation
//
// What somebody waits for is an operation: one tool call, one catalogue walk, one ping. An operation takes several HTTP
// requests, its legs, and all of them share one [Budget]. [Client] opens a [Deadline] when the operation starts and hands
// it to every leg; [Transport] grants each leg what is left. Nothing about a deadline or a server is kept on the client or
// the transport: both are singletons that a whole worker shares.
//
// # What it does not do
//
// It does not cancel a request in flight, does not repeat one, does not back off and breaks no circuits. A context that is
// passed in carries values; its cancellation and its deadline do not reach the wire. Only the grant ends a leg.
//
// # Failures
//
// An operation that brings no answer ends in a [*Failure], which has a kind, says whether the server was asked, and
// carries the sentence that an operator reads.
package mcp
