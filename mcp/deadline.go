package mcp

import (
	"math"
	"time"
)

const (
	// MinimumLeg is the least that a leg is ever granted. Zero is never handed out: to net/http a timeout of zero means
	// none at all.
	MinimumLeg = time.Second

	// DefaultBudget is what an operation may take where nobody chose a number.
	DefaultBudget = 20 * time.Second
)

// Owner tells whose number a budget is, so that a sentence can name the setting that changes it.
type Owner string

const (
	// OwnerInstallation is LEGWORK_MCP_OPERATION_TIMEOUT.
	OwnerInstallation Owner = "installation"
	// OwnerServer is operation_timeout_seconds on the server's row.
	OwnerServer Owner = "server"
	// OwnerJob is the Timeout or Deadline that the job was enqueued with.
	OwnerJob Owner = "job"
)

// Budget is the time that one operation may take in all, and whose number that is.
type Budget struct {
	Total time.Duration
	Owner Owner
}

// Tighten returns the smaller of the budget and what the job allows. A job never widens a budget. A job whose time is over
// already (zero or less) leaves a budget that is spent from the start.
func (b Budget) Tighten(job time.Duration) Budget {
	if job >= b.Total {
		return b
	}
	return Budget{Total: job, Owner: OwnerJob}
}

// JobReserve is what is kept of a job's own limit for writing down how its operation ended. The queue ends the job at that
// moment to the millisecond, so the last leg may not run into it.
const JobReserve = 300 * time.Millisecond

// Deadline is opened once, at the start of an operation, and handed to every leg of it. It is a small value without
// state: copies agree with each other.
type Deadline struct {
	budget Budget
	clock  Clock
	start  time.Duration
}

// OpenDeadline starts the budget now, by the clock.
func OpenDeadline(clock Clock, budget Budget) Deadline {
	return Deadline{budget: budget, clock: clock, start: clock.Now()}
}

// Elapsed is the time since the operation started.
func (d Deadline) Elapsed() time.Duration { return d.clock.Now() - d.start }

// Remaining is what is left of the budget; zero or less when it is spent.
func (d Deadline) Remaining() time.Duration {
	// A job's limit may be as far in the past as a duration goes; taking more from that would come out as centuries left.
	return max(d.budget.Total, 0) - d.Elapsed()
}

// Grant is what a leg that is sent now may take: the remainder rounded up to a whole second, and so at least [MinimumLeg].
// It is false when the budget is spent; then nothing may be sent. The rounding lets an operation overrun its budget by
// less than a second, except where the budget is its job's.
func (d Deadline) Grant() (time.Duration, bool) {
	left := d.Remaining()
	if left <= 0 || d.budget.Owner == OwnerJob && left <= JobReserve {
		return 0, false
	}
	short := left % MinimumLeg
	if short == 0 {
		return left, true
	}
	if left > math.MaxInt64-MinimumLeg {
		return left, true // centuries: rounding up would overflow
	}
	return left - short + MinimumLeg, true
}

// bound is how long a leg with this grant may really take: less than the grant only where the job itself ends before.
func (d Deadline) bound(grant time.Duration) time.Duration {
	if d.budget.Owner != OwnerJob {
		return grant
	}
	return max(min(grant, d.Remaining()-JobReserve), time.Millisecond)
}
