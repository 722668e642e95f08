package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"legwork/mcp"
	"legwork/store"
)

// maxUnsettled is how many outcomes are kept that could not be written down. Operations leave few, because none is begun
// while nothing can be written; jobs that are refused or whose own time is up may leave many.
const maxUnsettled = 10000

// persist writes what must not be lost, for as long as SettleTime allows. The last error of the database is what comes
// back, not that time was up.
func persist(ctx context.Context, what string, write func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, SettleTime)
	defer cancel()
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := write(ctx)
		if err == nil || errors.Is(err, store.ErrClaimLost) || store.Refused(err) {
			return err
		}
		if !wait(ctx, pause) {
			return fmt.Errorf("%s could not be settled within %s: %w", what, SettleTime, err)
		}
	}
}

// write writes an outcome down and then calls wrote; where that cannot be done now, it is done later, and the error says why
// it was not now. An outcome whose claim was lost is not kept. what names the operation.
func (w *Worker) write(ctx context.Context, job job, what string, failure *mcp.Failure, write func(context.Context) error, wrote func()) error {
	err := persist(ctx, what, write)
	switch {
	case err == nil:
		wrote()
	case !errors.Is(err, store.ErrClaimLost):
		w.settleLater(err, write, func(err error) {
			if err == nil {
				wrote()
			} else {
				w.logUnsettled(job.id, what, failure, err)
			}
		})
	}
	return err
}

// settleLater keeps an outcome that could not be written down because of that error, and goes on trying for as long as the
// worker lives; over hears how that ended. A step that was called interrupted meanwhile gets its outcome all the same: known
// beats unknown.
func (w *Worker) settleLater(err error, write func(context.Context) error, over func(error)) {
	if store.Refused(err) || w.kept.Load() >= maxUnsettled {
		over(err)
		return
	}
	w.kept.Add(1)
	w.unsettled.Go(func() {
		defer w.kept.Add(-1)
		for pause := time.Second; ; pause = min(2*pause, 10*time.Second) {
			select {
			case <-w.stopping:
			case <-time.After(pause):
			}
			ctx, cancel := context.WithTimeout(context.Background(), SettleTime)
			err := write(ctx)
			cancel()
			if err == nil || errors.Is(err, store.ErrClaimLost) || store.Refused(err) || w.stopped() {
				over(err)
				return
			}
		}
	})
}
