package faults

import (
	"testing"
	"time"
)

// A worker that comes beside one with a backlog for a server does not slow that server's steps down, though it takes some of
// those that are called into the first one's places.
func TestASecondWorkerBesideABacklog(t *testing.T) {
	const (
		steps  = 3000
		before = 300 // steps whose time is taken with one worker
		beside = 900 // and with two
		share  = 0.9
	)
	s := newSite(t)
	sound := newServer(t, after(func() time.Duration { return 50 * time.Millisecond }))
	s.add("docs", sound.URL, 20*time.Second, 4)
	s.worker(nil)
	ids := s.steps(steps, "docs", writes)
	rate := func(n int) float64 {
		t.Helper()
		have := len(sound.counts())
		began := time.Now()
		sound.awaitCalls(t, have+n)
		return float64(n) / time.Since(began).Seconds()
	}
	s.awaitRows(len(ids)) // all wait at the first worker
	one := rate(before)
	s.worker(nil)
	two := rate(beside)
	t.Logf("%.0f steps a second with one worker, %.0f with two: %.2f", one, two, two/one)
	if two/one < share {
		t.Errorf("two workers carry out %.2f of what one does", two/one)
	}
	s.allSucceed(sound, ids)
}
