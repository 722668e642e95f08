package worker

import (
	"context"
	"errors"
	"time"

	"legwork/mcp"
)

const (
	sweepInterval = 5 * time.Second
	sweepBatch    = 100
)

// sweep looks every few seconds after steps that nobody looks after: it settles those whose workers died, without waiting
// for their tasks to come again, which those that asynq has given up never do; it has those carried out again that may be;
// and it gives tasks to those that wait without one. It keeps no memory of steps and may run in every worker at once.
func (w *Worker) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	trouble := outage{cannot: "steps that nobody looks after cannot be looked for", canAgain: "steps that nobody looks after are looked for again"}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := errors.Join(w.settleInterrupted(ctx), w.wakeUnattended(ctx)); ctx.Err() == nil {
			trouble.note(w.log, err)
		}
	}
}

func (w *Worker) settleInterrupted(ctx context.Context) error {
	for {
		settled, err := w.store.SettleInterrupted(ctx, sweepBatch, interrupted)
		for _, step := range settled {
			w.logStep(job{}, step, mcp.Spent{}, storedFailure(step))
		}
		w.metrics.reaped("interrupted", len(settled))
		if err != nil || len(settled) < sweepBatch {
			return err
		}
	}
}

func (w *Worker) wakeUnattended(ctx context.Context) error {
	woken, err := w.wakeAll(ctx)
	if woken > 0 {
		w.log.Infof("%d steps had no task that would be delivered, and were given one", woken)
	}
	w.metrics.reaped("woken", woken)
	return err
}
