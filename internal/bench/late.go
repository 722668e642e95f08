package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"legwork/mcp"
)

const (
	lateMedian = "lateness, median"
	lateWorst  = "lateness, worst"
)

// late compares when the error is there after time is up, for many operations at once.
func late(ctx context.Context, b *bench) error {
	operations := b.pick(200, 10)
	clients, err := newClients(revisionHandshake)
	if err != nil {
		return err
	}
	for _, server := range []struct {
		path, what string
		budget     time.Duration
	}{
		{pathMute, "servers that do not answer the first leg", time.Second},
		{pathStall, "servers that do not answer the call", time.Second},
		{pathSlow, fmt.Sprintf("servers that take %s for each leg and do not answer the call", slowLeg), 2 * time.Second},
		{pathDrip, "servers that drip", time.Second},
		{pathWedged, "servers that answer neither the call nor the session's deletion", time.Second},
	} {
		var contenders []contender
		for _, c := range clients {
			if c.name == nameFloor {
				continue // it has no limit
			}
			contenders = append(contenders, contender{c.name, func(ctx context.Context) (sample, error) {
				lateness := make([]float64, operations)
				err := together(operations, operations, func(i int) error {
					end, err := c.call(ctx, b.stub.url(server.path), server.budget)
					lateness[i] = float64(time.Since(end))
					return asItShould(c.name, err)
				})
				c.close()
				return sample{lateMedian: median(lateness), lateWorst: quantile(lateness, 1)}, err
			}})
		}
		err := b.compare(ctx, fmt.Sprintf("%d at once, a budget of %s, %s", operations, server.budget, server.what), []string{lateMedian, lateWorst}, contenders, []bound{
			{measure: lateMedian, of: nameLegwork, atMost: float64(3 * time.Millisecond)},
			{measure: lateWorst, of: nameLegwork, atMost: float64(50 * time.Millisecond)},
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// asItShould is nil for an error that says that time ran out.
func asItShould(name string, err error) error {
	var failure *mcp.Failure
	switch {
	case err == nil:
		return errors.New("a call should have run out of time and did not")
	case name != nameLegwork || errors.As(err, &failure) && failure.Kind == mcp.KindNoAnswer:
		return nil
	}
	return err
}
