package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"
)

const (
	bytesHeld       = "bytes held"
	goroutinesHeld  = "goroutines held"
	connectionsHeld = "connections held"
)

// held compares what an operation holds on to while its server does not answer the call.
func held(ctx context.Context, b *bench) error {
	operations := b.pick(2000, 20)
	var contenders []contender
	for _, name := range []string{nameLegwork, nameSDK, nameMark} {
		contenders = append(contenders, contender{name, func(ctx context.Context) (sample, error) {
			// A new one each time, because what a pool keeps is not what an operation holds.
			clients, err := newClients(revisionHandshake)
			if err != nil {
				return nil, err
			}
			for _, c := range clients {
				if c.name == name {
					defer c.close()
					return b.hold(ctx, c, operations)
				}
			}
			return nil, fmt.Errorf("there is no client %q", name)
		}})
	}
	measures := []string{bytesHeld, goroutinesHeld, connectionsHeld}
	return b.compare(ctx, fmt.Sprintf("%d operations whose servers do not answer the call", operations), measures, contenders, []bound{
		{measure: bytesHeld, of: nameLegwork, atMost: 33_000},
		{measure: goroutinesHeld, of: nameLegwork, atMost: 3.2},
		{measure: connectionsHeld, of: nameLegwork, atMost: 1},
		{measure: bytesHeld, of: nameSDK, over: nameLegwork},
		{measure: bytesHeld, of: nameMark, over: nameLegwork},
	})
}

func (b *bench) hold(ctx context.Context, c client, operations int) (sample, error) {
	if _, err := b.stub.until(ctx, "rest", func(s stats) bool { return s.Held == 0 && s.Open == 0 }); err != nil {
		return nil, err
	}
	bytesBefore, goroutinesBefore := inUse()
	var group sync.WaitGroup
	for i := range operations {
		group.Go(func() { _, _ = c.call(ctx, b.stub.url(pathStall), 2*time.Minute) }) // it ends in an error
		if i%100 == 99 {
			time.Sleep(20 * time.Millisecond) // so that they are not all in their first leg at once
		}
	}
	now, err := b.stub.until(ctx, fmt.Sprintf("hold %d requests", operations), func(s stats) bool { return s.Held == operations })
	time.Sleep(idleTime + time.Second) // until what earlier legs left is gone: it is the pool's, and held by no operation
	bytesAfter, goroutinesAfter := inUse()
	if err == nil {
		now, err = b.stub.ask(ctx, "/stats")
	}
	if _, released := b.stub.ask(ctx, "/release"); released != nil && err == nil {
		err = released
	}
	group.Wait()
	c.close()
	each := func(x int) float64 { return float64(x) / float64(operations) }
	return sample{bytesHeld: each(bytesAfter - bytesBefore), goroutinesHeld: each(goroutinesAfter - goroutinesBefore), connectionsHeld: each(now.Open)}, err
}

// inUse is what this process holds of heap and stacks, and how many goroutines it has.
func inUse() (bytes, goroutines int) {
	runtime.GC()
	runtime.GC() // what had a finalizer, and what pools kept for one more round
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc + m.StackInuse), runtime.NumGoroutine()
}
