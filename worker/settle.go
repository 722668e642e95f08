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

// settlement is an outcome to be written down.
type settlement struct {
	what    string       // it is the outcome of
	task    string       // that brought it
	failure *mcp.Failure // nil: success

	write func(context.Context) error
	wrote func() // hears once that it is written
	over  func() // hears once that nothing more is tried; nil: nobody has to

	// stay is for a task that must not go back into the queue, because asynq would put it away or the operation would be done
	// over again: it is kept here until the outcome is written, or the worker stops.
	stay bool
}

// settle writes an outcome down. Where that cannot be done now, it is done later, for as long as the worker lives, and the
// error says why it was not now; but an outcome whose claim was lost is not kept. A step that was called interrupted
// meanwhile gets its outcome all the same: known beats unknown.
func (w *Worker) settle(ctx context.Context, s settlement) error {
	over := s.over
	if over == nil {
		over = func() {}
	}
	kept := false
	defer func() {
		if !kept {
			over()
		}
	}()
	err := persist(ctx, s.what, s.write)
	switch {
	case err == nil:
		s.wrote()
		return nil
	case errors.Is(err, store.ErrClaimLost):
		return err
	case store.Refused(err), w.kept.Load() >= maxUnsettled:
		w.logUnsettled(s, err)
		return err
	}
	kept = true
	w.kept.Add(1)
	written := make(chan error, 1)
	w.unsettled.Go(func() {
		defer w.kept.Add(-1)
		defer over()
		err := w.persistLater(s.write)
		if err == nil {
			s.wrote()
		} else {
			w.logUnsettled(s, err)
		}
		written <- err
	})
	if s.stay {
		w.log.WithError(err).WithField("task", s.task).Info("a task is kept here until its outcome is written down")
		select {
		case err = <-written:
		case <-w.door.closing:
		}
	}
	return err
}

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

// persistLater tries for as long as the worker lives, and a last time when it stops.
func (w *Worker) persistLater(write func(context.Context) error) error {
	for pause := time.Second; ; pause = min(2*pause, 10*time.Second) {
		select {
		case <-w.stopping:
		case <-time.After(pause):
		}
		ctx, cancel := context.WithTimeout(context.Background(), SettleTime)
		err := write(ctx)
		cancel()
		if err == nil || errors.Is(err, store.ErrClaimLost) || store.Refused(err) || w.stopped() {
			return err
		}
	}
}
