package mcptest

import (
	"sync/atomic"
	"time"
)

// Clock is a clock that stands until it is moved. The zero value is ready. Safe for concurrent use.
type Clock struct{ now atomic.Int64 }

// Now is the time that the clock was moved to.
func (c *Clock) Now() time.Duration { return time.Duration(c.now.Load()) }

// Advance moves the clock on by d.
func (c *Clock) Advance(d time.Duration) { c.now.Add(int64(d)) }
