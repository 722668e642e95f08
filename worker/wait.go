package worker

import (
	"context"
	"time"
)

// wait tells whether that time has passed before ctx was done.
func wait(ctx context.Context, pause time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pause):
		return true
	}
}

// within waits until done is closed, but not for longer than that, and tells whether it was.
func within(most time.Duration, done <-chan struct{}) bool {
	late := time.NewTimer(most)
	defer late.Stop()
	select {
	case <-done:
		return true
	case <-late.C:
		return false
	}
}
