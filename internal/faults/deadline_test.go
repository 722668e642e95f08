package faults

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"legwork/mcp"
)

// The deadline is kept with many operations at once, against servers that stall and drip.
func TestTheDeadlineUnderLoad(t *testing.T) {
	const (
		operations = 2000
		budget     = 4 * time.Second
		late       = 250 * time.Millisecond
	)
	before := goleak.IgnoreCurrent()
	gate, err := mcp.NewGate(mcp.GateOptions{AllowPrivateNetworks: true})
	if err != nil {
		t.Fatal(err)
	}
	wire := mcp.NewHTTPTransport(gate)
	clock := mcp.MonotonicClock()
	client := mcp.NewClient(mcp.NewTransport(wire, clock), clock, "test")
	t.Run("2,000 operations", func(t *testing.T) { // whose servers are gone when it returns
		servers := []mcp.Server{
			{Identifier: "stalls", URL: newServer(t, hang).URL, Revision: "2025-11-25"},
			{Identifier: "drips", URL: newServer(t, drip).URL, Revision: "2025-11-25"},
		}
		for round := 1; ; round++ {
			worst, machine := manyAtOnce(t, client, servers, operations, budget)
			switch {
			case worst <= late+machine && machine <= time.Second:
				return
			case machine <= late:
				t.Fatalf("an operation ended %s after its grant, want %s at most and the %s that a bare timer was late", worst, late, machine)
			case round == 5:
				t.Skipf("the machine was too busy in each of %d rounds to tell anything: a bare timer was late by %s", round, machine)
			}
		}
	})
	client.Close()
	wire.CloseIdleConnections()
	goleak.VerifyNone(t, before)
}

// manyAtOnce carries out many operations that no server answers, and returns how long after its grant the latest of them
// ended, and how late a bare timer was meanwhile.
func manyAtOnce(t *testing.T, client *mcp.Client, servers []mcp.Server, operations int, budget time.Duration) (worst, machine time.Duration) {
	t.Helper()
	over, control := make(chan struct{}), make(chan time.Duration, 1)
	go func() { control <- lateness(over) }()

	type end struct {
		spent mcp.Spent
		took  time.Duration
		err   error
	}
	ends := make([]end, operations)
	var running sync.WaitGroup
	for i := range ends {
		running.Go(func() {
			began := time.Now()
			_, spent, err := client.CallTool(context.Background(), servers[i%len(servers)],
				mcp.ToolCall{Name: reads, Arguments: []byte(`{}`)}, mcp.Budget{Total: budget, Owner: mcp.OwnerInstallation})
			ends[i] = end{spent, time.Since(began), err}
		})
	}
	running.Wait()
	close(over)
	machine = <-control

	lates, kinds := make([]time.Duration, 0, operations), map[mcp.Kind]int{}
	for _, e := range ends {
		failure, ok := e.err.(*mcp.Failure)
		if !ok {
			t.Fatalf("got %v, want every operation cut short", e.err)
		}
		kinds[failure.Kind]++
		// What the grants allowed: the budget, and what the last of them was rounded up by.
		allowed := budget
		if n := len(e.spent.Legs); n > 0 {
			var earlier time.Duration
			for _, leg := range e.spent.Legs[:n-1] {
				earlier += leg.Elapsed
			}
			allowed = max(allowed, min(earlier+e.spent.Legs[n-1].Granted, budget+mcp.MinimumLeg))
		}
		lates = append(lates, e.took-allowed)
	}
	slices.Sort(lates)
	worst = lates[len(lates)-1]
	t.Logf("%d operations of %s ended %s (median), %s (99 %%) and %s (worst) after their grants; a bare timer was late by %s at most; %v",
		operations, budget, lates[len(lates)/2].Round(time.Millisecond), lates[len(lates)*99/100].Round(time.Millisecond),
		worst.Round(time.Millisecond), machine.Round(time.Millisecond), kinds)
	if machine < time.Second && kinds[mcp.KindNoAnswer] < operations/2 {
		t.Errorf("got %v, want most of them to wait for an answer", kinds)
	}
	return worst, machine
}

// lateness is how late the latest of many timers was, until over is closed: what this machine, as busy as it is, does to
// somebody who only waits. There are many because the worst of 2,000 is held against it.
func lateness(over <-chan struct{}) time.Duration {
	const (
		timers = 50
		step   = 25 * time.Millisecond
	)
	var running sync.WaitGroup
	worst := make([]time.Duration, timers)
	for i := range worst {
		running.Go(func() {
			for {
				began := time.Now()
				select {
				case <-over:
					return
				case <-time.After(step):
					worst[i] = max(worst[i], time.Since(began)-step)
				}
			}
		})
	}
	running.Wait()
	return slices.Max(worst)
}
