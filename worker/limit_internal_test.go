package worker

import (
	"slices"
	"testing"
	"time"
)

// A job that comes again before it is called, as one does that nobody calls for long, is one job still.
func TestAJobThatComesAgainWaitsOnce(t *testing.T) {
	t.Parallel()
	l := newLanes(5)
	l.learn("docs", 0) // a fifth of them: one
	first, second, third := job{id: "1", queue: QueueAgent}, job{id: "2", queue: QueueAgent}, job{id: "3", queue: QueueAgent}
	for _, want := range []struct {
		job
		entry
	}{
		{first, entry{ok: true, underWay: 1}},
		{second, entry{waiting: 1, underWay: 1, news: true}},
		{third, entry{waiting: 2, underWay: 1}},
		{second, entry{waited: true, waiting: 2, underWay: 1}},
		{job{id: "2", queue: QueueImport}, entry{waiting: 3, underWay: 1}}, // another queue's
	} {
		if got := l.enter("docs", want.job); got != want.entry {
			t.Errorf("job %s of queue %s: %+v, want %+v", want.id, want.queue, got, want.entry)
		}
	}
	if !l.leave("docs") {
		t.Error("nobody waits")
	}
	// The third comes by itself, and is not called afterwards.
	if got, want := l.enter("docs", third), (entry{ok: true, waited: true, waiting: 2, underWay: 1}); got != want {
		t.Errorf("the third: %+v, want %+v", got, want)
	}
	l.leave("docs")
	wantCalled(t, l, called{"2", QueueAgent, 1}, called{"2", QueueImport, 0})
}

// called is a job that was called, and how many then still waited.
type called struct {
	id, queue string
	waiting   int
}

// wantCalled calls for docs whom there is to call, when none of them comes.
func wantCalled(t *testing.T, l *lanes, want ...called) {
	t.Helper()
	var got []called
	for next, waiting, ok := l.next("docs"); ok; next, waiting, ok = l.next("docs") {
		got = append(got, called{next.id, next.queue, waiting})
		l.gone("docs", next)
	}
	if !slices.Equal(got, want) {
		t.Errorf("called %v, want %v", got, want)
	}
}

// What the log says of a server at which jobs wait again and again, it says once.
func TestThatJobsWaitIsNewsOnce(t *testing.T) {
	t.Parallel()
	l := newLanes(5)
	l.learn("docs", 1)
	first, second := job{id: "1", queue: QueueAgent}, job{id: "2", queue: QueueAgent}
	waits := func(want bool) {
		t.Helper()
		l.enter("docs", first)
		if e := l.enter("docs", second); e.news != want {
			t.Errorf("news: %v, want %v", e.news, want)
		}
		if got := l.quiet(0); len(got) != 0 {
			t.Errorf("it is quiet at %v while a job waits", got)
		}
		l.leave("docs")
		l.next("docs")
	}
	waits(true)
	waits(false)
	if got := l.quiet(time.Hour); len(got) != 0 {
		t.Errorf("it has been quiet at %v for an hour", got)
	}
	if got := l.quiet(0); len(got) != 1 || got[0] != "docs" {
		t.Errorf("it is quiet at %v, want docs", got)
	}
	if got := l.quiet(0); len(got) != 0 {
		t.Errorf("it is quiet at %v once more", got)
	}
	waits(true)
}

// Jobs may name anything: what they name and nobody has is forgotten with them.
func TestServersThatThereAreNotAreForgotten(t *testing.T) {
	t.Parallel()
	l := newLanes(5)
	l.learn("docs", 0)
	first, second := job{id: "1", queue: QueueAgent}, job{id: "2", queue: QueueAgent}
	for _, server := range []string{"docs", "nobody"} {
		if e := l.enter(server, first); !e.ok {
			t.Errorf("%s has no place: %+v", server, e)
		}
		if e := l.enter(server, second); e.ok {
			t.Errorf("%s has a second place: %+v", server, e)
		}
		if !l.leave(server) {
			t.Errorf("nobody waits for %s", server)
		}
		if next, _, ok := l.next(server); !ok || next.id != "2" {
			t.Errorf("%s: called %+v (%v), want 2", server, next, ok)
		}
		l.join(server)
		l.leave(server)
	}
	if !l.knows("docs") || l.knows("nobody") || len(l.servers) != 1 {
		t.Errorf("%d lanes are left", len(l.servers))
	}
	if _, _, ok := l.next("nobody"); ok {
		t.Error("a job is called that does not wait")
	}
}

// twoThatWait are jobs 2 and 3 of docs, whose one place job 1 has just left.
func twoThatWait() (l *lanes, second, third job) {
	l, second, third = newLanes(5), job{id: "2", queue: QueueAgent}, job{id: "3", queue: QueueAgent}
	l.learn("docs", 1)
	for _, job := range []job{{id: "1", queue: QueueAgent}, second, third} {
		l.enter("docs", job)
	}
	l.leave("docs")
	return l, second, third
}

func TestAJobThatIsPutBackIsNext(t *testing.T) {
	t.Parallel()
	l, _, _ := twoThatWait()
	next, _, _ := l.next("docs")
	l.putBack("docs", next)
	l.putBack("docs", next) // as one that has come again meanwhile
	wantCalled(t, l, called{"2", QueueAgent, 1}, called{"3", QueueAgent, 0})
}

// A place is kept for a job that was called, so that not all that wait are called into it; but not for long.
func TestAPlaceIsKeptForAJobThatWasCalled(t *testing.T) {
	t.Parallel()
	l, second, third := twoThatWait()
	next, _, ok := l.next("docs")
	if !ok || next.id != "2" {
		t.Fatalf("called %+v (%v), want 2", next, ok)
	}
	if another, _, ok := l.next("docs"); ok {
		t.Errorf("%+v is called into the place that is kept for 2", another)
	}
	l.miss(time.Hour, true)
	if another, _, ok := l.next("docs"); ok {
		t.Errorf("%+v is called into the place that was kept for less than an hour", another)
	}
	if servers, queues := l.room(); !slices.Equal(servers, []string{"docs"}) || !slices.Equal(queues, []string{QueueAgent}) {
		t.Errorf("there is room at %v for jobs of queues %v, want docs and %s", servers, queues, QueueAgent)
	}
	l.miss(0, false) // the workers are busy: whoever takes it
	wantCalled(t, l, called{"3", QueueAgent, 0})

	// One that comes has its place, and the place is not kept twice.
	l.putBack("docs", next)
	l.next("docs")
	if e := l.enter("docs", second); !e.ok {
		t.Errorf("it was called and has no place: %+v", e)
	}
	l.enter("docs", third)
	l.leave("docs")
	wantCalled(t, l, called{"3", QueueAgent, 0})
}

// Where others take the jobs that are called, more are called; where they come back, fewer.
func TestJobsAreCalledIntoThePlacesOfOthers(t *testing.T) {
	t.Parallel()
	l := newLanes(5)
	l.learn("docs", 2)
	var jobs []job
	for _, id := range []string{"1", "2", "3", "4", "5", "6", "7", "8", "9"} {
		jobs = append(jobs, job{id: id, queue: QueueAgent})
		l.enter("docs", jobs[len(jobs)-1])
	}
	call := func(want ...string) {
		t.Helper()
		var got []string
		for next, _, ok := l.next("docs"); ok; next, _, ok = l.next("docs") {
			got = append(got, next.id)
		}
		if !slices.Equal(got, want) {
			t.Errorf("called %v, want %v", got, want)
		}
	}
	l.leave("docs")
	call("3")
	l.miss(0, true) // another worker has it
	call("4", "5")
	l.miss(0, true) // these too
	call("6", "7", "8")
	for _, job := range jobs[5:8] {
		l.enter("docs", job) // of these, one has the place
	}
	call()
}
