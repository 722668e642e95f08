package worker

import (
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"legwork/internal/scratch/redistest"
	"legwork/store/storetest"
)

func TestIdleWatch(t *testing.T) {
	t.Parallel()
	const long = time.Minute
	start := time.Unix(1e9, 0)
	type look struct {
		at, moved int // seconds
		waits     bool
		want      bool
	}
	for name, looks := range map[string][]look{
		"nothing waits":                           {{at: 0}, {at: 50}, {at: 100}, {at: 150}},
		"jobs wait and nothing moves":             {{0, 0, true, false}, {30, 0, true, false}, {59, 0, true, false}, {60, 0, true, true}, {90, 0, true, true}},
		"a job that has just come":                {{at: 0}, {3600, 0, true, false}},
		"a job that is begun in between":          {{0, 0, true, false}, {30, 0, true, false}, {59, 40, true, false}, {80, 40, true, false}, {119, 40, true, true}},
		"nothing waits in between":                {{0, 0, true, false}, {30, 0, false, false}, {50, 0, true, false}, {100, 0, true, false}, {110, 0, true, true}},
		"looks so far apart that they say little": {{0, 0, true, false}, {61, 0, true, false}, {122, 0, true, false}},
		"it moves again":                          {{0, 0, true, false}, {60, 0, true, true}, {70, 65, true, false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var w idleWatch
			at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
			for _, l := range looks {
				if got := w.note(at(l.at), at(l.moved), l.waits, long); got != l.want {
					t.Errorf("after %d s: %v, want %v", l.at, got, l.want)
				}
			}
		})
	}
}

// opened is the health of a worker that takes no tasks, though it believes that it does.
func opened(t *testing.T, opt asynq.RedisConnOpt, concurrency int) *Health {
	t.Helper()
	h := newHealth(storetest.New(t), "test", concurrency)
	h.open(opt)
	t.Cleanup(h.close)
	h.enter(phaseWorking)
	h.fresh, h.idle = time.Nanosecond, 200*time.Millisecond
	return h
}

func TestAliveButNotWorking(t *testing.T) {
	t.Parallel()
	opt, err := asynq.ParseRedisURI(redistest.New(t))
	if err != nil {
		t.Fatal(err)
	}
	h := opened(t, opt, 2)
	queue, inspect := asynq.NewClient(opt), asynq.NewInspector(opt)
	t.Cleanup(func() { queue.Close(); inspect.Close() })
	stuck := func() bool {
		t.Helper()
		report := h.Live()
		if report.OK != (report.Checks[checkJobs] == checkIsOK) {
			t.Fatalf("the answer is %v beside %v", report.OK, report.Checks)
		}
		return !report.OK
	}
	await := func(want bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); stuck() != want; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("stuck is not %v: %v", want, h.Live())
			}
		}
	}
	// never is for what must not come: it looks on for much longer than it would take to come.
	never := func(why string) {
		t.Helper()
		for end := time.Now().Add(3 * h.idle); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if stuck() {
				t.Fatalf("%s: %v", why, h.Live().Checks)
			}
		}
	}
	never("nothing waits")
	for range 3 {
		if _, err := queue.Enqueue(asynq.NewTask(TypeStep, nil), asynq.Queue(QueueAgent)); err != nil {
			t.Fatal(err)
		}
	}
	await(true)
	report := h.Live()
	if report.Status != "not working" || !regexp.MustCompile(`^no job was begun for \d+ s although 3 wait$`).MatchString(report.Checks[checkJobs]) {
		t.Errorf("it says %+v", report)
	}
	if ready := h.Ready(); ready.OK || ready.Status != "not ready" {
		t.Errorf("ready: %+v", ready)
	}

	h.began()
	if stuck() {
		t.Error("it is called stuck although a job was begun this moment")
	}
	await(true) // one place of two is taken, and again nothing is begun
	h.began()
	never("every place is taken")
	h.settledNow()
	await(true)
	if err := inspect.PauseQueue(QueueAgent); err != nil {
		t.Fatal(err)
	}
	never("the queue is paused")
	if err := inspect.UnpauseQueue(QueueAgent); err != nil {
		t.Fatal(err)
	}
	await(true)
	h.enter(phaseStopping)
	never("a worker that stops begins nothing")
}

func TestProbesShareOneLook(t *testing.T) {
	t.Parallel()
	opt, err := asynq.ParseRedisURI(redistest.New(t))
	if err != nil {
		t.Fatal(err)
	}
	h := opened(t, opt, 1)
	h.fresh = time.Hour
	var mu sync.Mutex
	times := map[time.Time]bool{}
	var probes sync.WaitGroup
	for range 50 {
		probes.Go(func() {
			seen, ok := h.look()
			if !ok || !allOK(seen.checks) {
				t.Errorf("seen: %v", seen.checks)
			}
			mu.Lock()
			defer mu.Unlock()
			times[seen.at] = true
		})
	}
	probes.Wait()
	if len(times) != 1 {
		t.Errorf("there were %d looks", len(times))
	}
}
