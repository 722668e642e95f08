package worker

import (
	"context"
	"time"

	"legwork/mcp"
)

const (
	sweepInterval = 5 * time.Second
	sweepBatch    = 100
)

// sweep settles the steps whose workers died, without waiting for their tasks to come again, which those that asynq has
// given up never do. It keeps no memory and may run in every worker at once.
func (w *Worker) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		settled, err := w.store.SettleInterrupted(ctx, sweepBatch, interrupted)
		if err != nil && ctx.Err() == nil {
			w.log.WithError(err).Warn("steps whose workers died could not be looked for; the next try follows")
		}
		for _, step := range settled {
			w.logStep(job{}, step, mcp.Spent{}, storedFailure(step))
		}
	}
}
