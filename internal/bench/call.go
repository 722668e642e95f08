package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"legwork/mcp"
)

// ample is more than any call takes that is not meant to run out of time.
const ample = 30 * time.Second

var callMeasures = []string{timeEach, cpuEach, bytesEach, allocsEach}

// call3 compares one call in three legs at several concurrencies.
func call3(ctx context.Context, b *bench) error {
	for _, c := range []struct {
		at, calls  int
		floor, sdk float64
	}{{1, 6000, 1.25, 1.3}, {16, 12000, 1.35, 2}, {128, 12000, 1.35, 1.75}} {
		err := b.calls(ctx, revisionHandshake, pathPlain, c.at, c.calls, []bound{
			{measure: timeEach, of: nameLegwork, over: nameFloor, atMost: c.floor},
			{measure: cpuEach, of: nameLegwork, over: nameFloor, atMost: 1.35},
			{measure: bytesEach, of: nameLegwork, atMost: 24_000},
			{measure: allocsEach, of: nameLegwork, atMost: 260},
			{measure: timeEach, of: nameMark, over: nameLegwork, atLeast: 1},
			{measure: timeEach, of: nameSDK, over: nameLegwork, atLeast: c.sdk},
			{measure: timeEach, of: nameMark, over: nameFloor},
			{measure: timeEach, of: nameSDK, over: nameFloor},
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// call1 compares one call in one leg. The peers have no way to be told that a server is known, and ask it first.
func call1(ctx context.Context, b *bench) error {
	for _, c := range []struct{ at, calls int }{{1, 10000}, {16, 20000}} {
		err := b.calls(ctx, mcp.RevisionStateless, pathPlain, c.at, c.calls, []bound{
			{measure: timeEach, of: nameLegwork, over: nameFloor, atMost: 1.4},
			{measure: cpuEach, of: nameLegwork, over: nameFloor},
			{measure: timeEach, of: nameMark, over: nameLegwork, atLeast: 2},
			{measure: timeEach, of: nameSDK, over: nameLegwork, atLeast: 3.5},
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// call64k compares one call in three legs whose result is large.
func call64k(ctx context.Context, b *bench) error {
	for _, c := range []struct{ at, calls int }{{1, 800}, {16, 2500}} {
		err := b.calls(ctx, revisionHandshake, pathLarge, c.at, c.calls, []bound{
			{measure: timeEach, of: nameLegwork, over: nameFloor, atMost: 1.8},
			{measure: cpuEach, of: nameLegwork, over: nameFloor},
			{measure: timeEach, of: nameMark, over: nameFloor},
			{measure: timeEach, of: nameSDK, over: nameFloor},
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// calls compares the clients by so many calls at a concurrency.
func (b *bench) calls(ctx context.Context, revision, path string, concurrency, calls int, bounds []bound) error {
	clients, err := newClients(revision)
	if err != nil {
		return err
	}
	calls = b.pick(calls, 2*concurrency)
	var contenders []contender
	for _, c := range clients {
		defer c.close()
		contenders = append(contenders, contender{c.name, func(ctx context.Context) (sample, error) {
			return costs(calls, func() error {
				return together(concurrency, calls, func(int) error {
					_, err := c.call(ctx, b.stub.url(path), ample)
					return err
				})
			})
		}})
	}
	return b.compare(ctx, fmt.Sprintf("%d at once, %d calls a round", concurrency, calls), callMeasures, contenders, bounds)
}

// together does something n times, so many at once, and returns the first error.
func together(concurrency, n int, do func(i int) error) error {
	var next atomic.Int64
	var first error
	var once sync.Once
	var group sync.WaitGroup
	for range min(concurrency, n) {
		group.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := do(i); err != nil {
					once.Do(func() { first = err })
					return
				}
			}
		})
	}
	group.Wait()
	return first
}
