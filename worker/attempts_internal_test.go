package worker

import (
	"testing"

	"github.com/google/uuid"
)

// A claim that was acted on is never taken for one that nobody heard of, whatever became of its outcome: the step would be
// carried out a second time.
func TestAttempts(t *testing.T) {
	t.Parallel()
	var a attempts
	step, other := uuid.New(), uuid.New()
	begin := func(want attempt) {
		t.Helper()
		if before, ok := a.begin(step); !ok || before != want {
			t.Errorf("begun %v after %+v, want it after %+v", ok, before, want)
		}
	}
	begin(attempt{})
	if _, ok := a.begin(step); ok {
		t.Error("two attempts at one step at once")
	}
	if _, ok := a.begin(other); !ok {
		t.Error("no attempt at another step")
	}
	a.end(other, attempt{})
	a.end(step, attempt{unheard: true})
	begin(attempt{unheard: true})
	a.end(step, attempt{acted: true})
	begin(attempt{acted: true})
	a.end(step, attempt{})
	begin(attempt{})
	a.end(step, attempt{})
	if len(a.steps) != 0 {
		t.Errorf("%d steps are remembered of which nothing is left", len(a.steps))
	}
}
