// Package worker carries out what backends enqueue: it takes tasks from asynq, asks MCP servers through package mcp, and
// leaves rows in Postgres through package store. It is the one room where the queue, the wire and the rows meet.
//
// The row is the truth, the message is a wake-up call: a task that is delivered twice changes nothing the second time. A
// tool call is sent at most once; what failed is settled with an operator's sentence and is not repeated by the queue.
//
// A Go backend enqueues with [NewStepTask] and [NewImportTask]; any other enqueues the same JSON with a client of its own.
package worker
