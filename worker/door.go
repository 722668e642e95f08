package worker

import (
	"sync"
	"time"
)

// door lets handlers in, until it is shut, and knows when all have left.
type door struct {
	closing chan struct{} // closed once it is shut

	mu     sync.Mutex
	closed time.Time // zero: it is open
	inside sync.WaitGroup
}

func newDoor() *door { return &door{closing: make(chan struct{})} }

// enter tells whether one may come in, who then has to leave.
func (d *door) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed.IsZero() {
		return false
	}
	d.inside.Add(1)
	return true
}

func (d *door) leave() { d.inside.Done() }

// shut is for once.
func (d *door) shut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = time.Now()
	close(d.closing)
}

// openUntil tells whether it is open, or was shut no longer ago than that.
func (d *door) openUntil(after time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed.IsZero() || time.Since(d.closed) < after
}

// wait waits, once it is shut, until nobody is inside.
func (d *door) wait() { d.inside.Wait() }
