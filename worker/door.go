package worker

import "sync"

// door lets handlers in, until it is shut, and knows when all have left.
type door struct {
	closing chan struct{} // closed once it is shut

	mu     sync.Mutex
	closed bool
	inside sync.WaitGroup
}

func newDoor() *door { return &door{closing: make(chan struct{})} }

// enter tells whether one may come in, who then has to leave.
func (d *door) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.inside.Add(1)
	}
	return !d.closed
}

func (d *door) leave() { d.inside.Done() }

// shut is for once.
func (d *door) shut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	close(d.closing)
}

// wait waits, once it is shut, until nobody is inside.
func (d *door) wait() { d.inside.Wait() }
