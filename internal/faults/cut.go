package faults

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// cut is a TCP proxy that can be told to fail. It passes everything on until then.
type cut struct {
	listener net.Listener
	target   string
	running  sync.WaitGroup

	mu     sync.Mutex
	change *sync.Cond         // of anything below
	down   bool               // new connections are closed at once
	silent bool               // nothing is passed on; connections stand
	mute   []byte             // a link that passes this on to the target hears no answer any more
	delay  time.Duration      // of each chunk of an answer
	links  map[*link]struct{} // those that are open
}

type direction int

const (
	toTarget direction = iota
	toClient
)

// link is one connection through the cut.
type link struct {
	client, target net.Conn
	broken, mute   bool // under the cut's lock
	dead           bool // it too: nothing passes any more, and nobody is told
}

// newCut starts a proxy in front of a host:port. It runs until close.
func newCut(target string) (*cut, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start a proxy in front of %s: %w", target, err)
	}
	c := &cut{listener: listener, target: target, links: map[*link]struct{}{}}
	c.change = sync.NewCond(&c.mu)
	c.running.Go(c.accept)
	return c, nil
}

// address is the host:port to connect to instead of the target.
func (c *cut) address() string { return c.listener.Addr().String() }

// close breaks every connection and returns when nothing of the proxy runs any more.
func (c *cut) close() {
	c.set(func() { c.down = true })
	c.listener.Close()
	c.running.Wait()
}

// breakAll breaks every connection, drops what they held, and lets no new one stand.
func (c *cut) breakAll() { c.set(func() { c.down = true }) }

// hang stops passing anything on. Connections stand, and new ones are accepted.
func (c *cut) hang() { c.set(func() { c.silent = true }) }

// swallow lets the connections that stand pass nothing on any more, as a firewall does that has forgotten them. New ones are
// sound.
func (c *cut) swallow() {
	c.set(func() {
		for l := range c.links {
			l.dead = true
		}
	})
}

// slow passes every answer on that much later.
func (c *cut) slow(delay time.Duration) { c.set(func() { c.delay = delay }) }

// loseRepliesTo passes on what has this in it, and nothing that the target answers on that connection.
func (c *cut) loseRepliesTo(part []byte) { c.set(func() { c.mute = part }) }

// restore passes on again, what was held first.
func (c *cut) restore() {
	c.set(func() { c.down, c.silent, c.mute, c.delay = false, false, nil, 0 })
}

func (c *cut) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	if c.down {
		for l := range c.links {
			l.sever()
		}
	}
	c.change.Broadcast()
}

// sever needs the cut's lock.
func (l *link) sever() {
	l.broken = true
	l.client.Close()
	l.target.Close()
}

func (c *cut) accept() {
	for {
		client, err := c.listener.Accept()
		if err != nil {
			return // closed
		}
		c.running.Go(func() { c.connect(client) })
	}
}

func (c *cut) connect(client net.Conn) {
	defer client.Close()
	target, err := net.Dial("tcp", c.target)
	if err != nil {
		return
	}
	defer target.Close()
	l := &link{client: client, target: target}
	c.mu.Lock()
	if c.down {
		c.mu.Unlock()
		return
	}
	c.links[l] = struct{}{}
	c.mu.Unlock()

	var both sync.WaitGroup
	both.Go(func() { c.pass(l, toTarget, client, target) })
	both.Go(func() { c.pass(l, toClient, target, client) })
	both.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.links, l)
}

// pass copies one way until either side is done with it.
func (c *cut) pass(l *link, way direction, from, to net.Conn) {
	chunk := make([]byte, 64<<10)
	for {
		n, err := from.Read(chunk)
		if n > 0 {
			if !c.gate(l, way, chunk[:n]) {
				break
			}
			if _, err := to.Write(chunk[:n]); err != nil {
				break
			}
		}
		if err == io.EOF && way == toTarget { // what it said last may still be answered
			_ = to.(*net.TCPConn).CloseWrite()
			return
		}
		if err != nil {
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l.sever()
}

// gate holds a chunk back for as long as nothing may pass. It is false when the connection was broken meanwhile.
func (c *cut) gate(l *link, way direction, chunk []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if way == toTarget && c.mute != nil && bytes.Contains(chunk, c.mute) {
		l.mute = true
	}
	for (c.silent || l.dead || l.mute && way == toClient) && !l.broken {
		c.change.Wait()
	}
	if way == toClient && c.delay > 0 && !l.broken {
		delay := c.delay
		c.mu.Unlock()
		time.Sleep(delay)
		c.mu.Lock()
	}
	return !l.broken
}
