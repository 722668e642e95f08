package worker

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/hibiken/asynq"

	"legwork/store"
)

const (
	// pruneBatch and prunePause keep a removal of many rows from being noticed by anybody else.
	pruneBatch = 500
	prunePause = 100 * time.Millisecond
	// pruneTime bounds one batch, which is not broken off: what it removed would not be known.
	pruneTime = 10 * time.Second

	retainSoon     = 2 * time.Second // until the first look
	retainInterval = 10 * time.Minute
)

// Horizon is the midnight (UTC) before which everything is older than so many days.
func Horizon(days int) time.Time {
	return time.Now().UTC().AddDate(0, 0, -days).Truncate(24 * time.Hour)
}

// Prune removes all rows that ended before that time (see [store.Store.Prune]), and what Redis still has of their tasks, in
// small batches with pauses between them. When ctx ends, it ends after the batch that is under way, with ctx's error. The
// count is of what was removed, beside an error too.
func Prune(ctx context.Context, rows *store.Store, opt asynq.RedisConnOpt, before time.Time) (store.Pruned, error) {
	q, err := openQueue(opt)
	if err != nil {
		return store.Pruned{}, err
	}
	defer q.close()
	return prune(ctx, rows, q, before)
}

func prune(ctx context.Context, rows *store.Store, q *queue, before time.Time) (store.Pruned, error) {
	var pruned store.Pruned
	for {
		batch, err := pruneOnce(context.WithoutCancel(ctx), rows, q, before)
		pruned.Add(batch)
		if err != nil || max(batch.Steps, batch.Runs, batch.ImportErrors) < pruneBatch {
			return pruned, err
		}
		if !wait(ctx, prunePause) {
			return pruned, ctx.Err()
		}
	}
}

func pruneOnce(ctx context.Context, rows *store.Store, q *queue, before time.Time) (store.Pruned, error) {
	ctx, cancel := context.WithTimeout(ctx, pruneTime)
	defer cancel()
	return rows.Prune(ctx, before, pruneBatch, q.forget)
}

// retain removes rows as they get too old. It may run in every worker at once; they look at different moments.
func (w *Worker) retain(ctx context.Context) {
	for pause := rand.N(retainSoon); ; pause = retainInterval*9/10 + rand.N(retainInterval/5) {
		if !wait(ctx, pause) {
			return
		}
		before := Horizon(w.retention)
		pruned, err := prune(ctx, w.store, w.queue, before)
		if pruned.Any() {
			w.log.Infof("removed %s that ended before %s", pruned, before.Format(time.DateOnly))
		}
		if err != nil && ctx.Err() == nil {
			w.log.WithError(err).Warn("old rows could not be removed; it is tried again in about 10 minutes")
		}
	}
}
