package worker

import (
	"context"
	"sync"
	"time"

	"legwork/mcp"
)

const (
	sweepInterval = 5 * time.Second
	sweepBatch    = 100

	// sweepTime bounds one look: a connection that has died silently must not be waited on for ever.
	sweepTime = 15 * time.Second
)

// sweep looks every few seconds after steps that nobody looks after: it settles those whose workers died, without waiting
// for their tasks to come again, which those that asynq has given up never do; it has those carried out again that may be;
// and it gives tasks to those that wait without one. It keeps no memory of steps and may run in every worker at once. What
// needs Redis does not hold up what does not.
func (w *Worker) sweep(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() {
		w.lookEvery(ctx, w.settleInterrupted, &outage{
			cannot: "steps of dead workers cannot be settled", canAgain: "steps of dead workers are settled again",
		})
	})
	both.Go(func() {
		w.lookEvery(ctx, w.wakeUnattended, &outage{
			cannot: "steps without a task cannot be looked for", canAgain: "steps without a task are looked for again",
		})
	})
	both.Wait()
}

func (w *Worker) lookEvery(ctx context.Context, look func(context.Context) error, trouble *outage) {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		limited, cancel := context.WithTimeout(ctx, sweepTime)
		err := look(limited)
		cancel()
		if ctx.Err() == nil {
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
		if err == nil {
			w.claims.also(w.log)
		}
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
