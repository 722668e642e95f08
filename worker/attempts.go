package worker

import (
	"sync"

	"github.com/google/uuid"
)

// attempts keep a worker to one attempt at a step at a time, whatever tasks bring it, so that a claim in its name is either
// the attempt's that is under way, or one whose reply was lost and that nobody acted on. Its zero value is ready.
type attempts struct {
	mu    sync.Mutex
	steps map[uuid.UUID]attempt
}

type attempt struct {
	underWay bool
	unheard  bool // its claim may stand in the row
}

// begin tells whether an attempt may begin, which then has to end, and whether a claim of an earlier one may stand in the row
// without its having heard so.
func (a *attempts) begin(step uuid.UUID) (unheard, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.steps[step]
	if before.underWay {
		return false, false
	}
	if a.steps == nil {
		a.steps = map[uuid.UUID]attempt{}
	}
	a.steps[step] = attempt{underWay: true}
	return before.unheard, true
}

// end ends an attempt. unheard is whether its claim, or one before, may stand in the row.
func (a *attempts) end(step uuid.UUID, unheard bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if unheard {
		a.steps[step] = attempt{unheard: true}
	} else {
		delete(a.steps, step)
	}
}
