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

// attempt is what an attempt leaves behind that did not settle its step.
type attempt struct {
	underWay bool
	unheard  bool // its claim may stand in the row
	acted    bool // its claim stands in the row, and was acted on
}

// takenUnheard tells whether a claim that nobody acted on may stand in the row.
func (a attempt) takenUnheard() bool { return a.unheard && !a.acted }

// begin tells whether an attempt may begin, which then has to end, and what the one before has left.
func (a *attempts) begin(step uuid.UUID) (before attempt, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before = a.steps[step]
	if before.underWay {
		return attempt{}, false
	}
	if a.steps == nil {
		a.steps = map[uuid.UUID]attempt{}
	}
	a.steps[step] = attempt{underWay: true}
	return before, true
}

// end ends an attempt, which leaves this.
func (a *attempts) end(step uuid.UUID, leaves attempt) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if leaves == (attempt{}) {
		delete(a.steps, step)
	} else {
		a.steps[step] = leaves
	}
}
