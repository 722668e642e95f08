package faults

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"legwork/mcp"
)

// A server that hangs, with a queue of steps for it, leaves the steps of the others most of their throughput.
func TestOneHungServer(t *testing.T) {
	const (
		healthy = 3
		waiting = 200
		load    = 400 // steps of the healthy servers in one measurement
		rounds  = 3
		budget  = 3 * time.Second
		share   = 0.8
	)
	s := newSite(t)
	sound := newServer(t, after(func() time.Duration { return 100 * time.Millisecond }))
	for i := range healthy {
		s.add(fmt.Sprintf("sound%d", i), sound.URL, 20*time.Second, 0)
	}
	sick := newServer(t, hang)
	s.add("sick", sick.URL, budget, 0)
	s.worker(settings{"LEGWORK_CONCURRENCY": "20"})
	measure := func() float64 {
		t.Helper()
		began := time.Now()
		var ids []uuid.UUID
		for i := range load {
			ids = append(ids, s.step(fmt.Sprintf("sound%d", i%healthy), writes))
		}
		for _, row := range s.awaitAll(ids, bound) {
			if row.Status != "succeeded" {
				t.Errorf("got %s", brief(row))
			}
		}
		return load / time.Since(began).Seconds()
	}
	measure() // servers are got to know, connections opened

	var ratios []float64
	for round := range rounds {
		alone := measure()
		before := len(sick.counts())
		sick.act(hang)
		ids := s.steps(waiting, "sick", writes)
		sick.awaitCalls(t, before+1)
		beside := measure()
		left := len(s.unended(ids))
		ratios = append(ratios, beside/alone)
		t.Logf("round %d: %.0f steps a second alone, %.0f beside a hung server for which %d steps waited at the end: %.2f",
			round, alone, beside, left, beside/alone)
		if left < waiting/2 {
			t.Errorf("only %d steps waited for the hung server: nothing was tried", left)
		}
		if round < rounds-1 {
			sick.act(answer) // spares the time until the rest has run into the budget
		}
		for id, row := range s.awaitAll(ids, 2*bound) {
			if n := sick.called(id); n != 1 || row.Status != "succeeded" && row.FailureKind != string(mcp.KindNoAnswer) {
				t.Errorf("called %d times and %s, want one call with or without an answer", n, brief(row))
			}
		}
	}
	slices.Sort(ratios)
	if median := ratios[rounds/2]; median < share {
		t.Errorf("the healthy servers' steps had %.2f of their throughput beside a hung one, want %.2f", median, share)
	}
}
