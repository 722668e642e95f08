package worker

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"legwork/mcp"
	"legwork/store"
)

// contacts notes when servers were last heard of and writes it down once a second: a busy server's row must not be a lock
// that every step queues for. What it cannot write it keeps for the next second; it never fails an operation.
type contacts struct {
	store *store.Store
	log   logrus.FieldLogger

	mu      sync.Mutex
	pending map[string]store.Contact
}

func newContacts(s *store.Store, log logrus.FieldLogger) *contacts {
	return &contacts{store: s, log: log, pending: map[string]store.Contact{}}
}

// note records that an operation was completed: the server answered it. The latency is that of the leg that brought the answer.
func (c *contacts) note(server string, spent mcp.Spent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending[server] = store.Contact{
		Server: server, At: time.Now(), LatencyMS: spent.Latency().Milliseconds(), ProtocolVersion: spent.Revision,
	}
}

// run writes until ctx is done, and then once more.
func (c *contacts) run(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			c.flush(ctx)
		case <-ctx.Done():
			c.flush(context.WithoutCancel(ctx))
			return
		}
	}
}

func (c *contacts) flush(ctx context.Context) {
	c.mu.Lock()
	batch := c.pending
	c.pending = map[string]store.Contact{}
	c.mu.Unlock()
	if len(batch) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, SettleTime)
	defer cancel()
	err := c.store.RecordContacts(ctx, slices.Collect(maps.Values(batch)))
	if err == nil {
		return
	}
	c.log.WithError(err).Debug("last contacts could not be written; they are kept for the next try")
	c.mu.Lock()
	defer c.mu.Unlock()
	for server, contact := range batch {
		if _, newer := c.pending[server]; !newer {
			c.pending[server] = contact
		}
	}
}
