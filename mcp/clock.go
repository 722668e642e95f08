package mcp

import "time"

// Clock reads monotonic time: the duration since some fixed start. Budgets are measured by nothing else, so that a wall
// clock that is stepped in the middle of an operation neither grants time nor takes it away. Implementations are safe for
// concurrent use.
type Clock interface {
	Now() time.Duration
}

// MonotonicClock is the machine's monotonic clock.
func MonotonicClock() Clock { return monotonicClock{start: time.Now()} }

type monotonicClock struct{ start time.Time }

// Now relies on time.Time keeping its monotonic reading, which Since then uses.
func (c monotonicClock) Now() time.Duration { return time.Since(c.start) }
