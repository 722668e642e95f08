package store

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// groupSize is how many statements go together, and groupBytes how much JSON they may bring: nobody should wait for long
	// because he goes with others.
	groupSize  = 64
	groupBytes = 256 << 10
	// groupTime is how long a group may take before the next may go beside it: its connection may have died silently.
	groupTime = 100 * time.Millisecond
	// apartTime is how long statements go one by one after a group that came to nothing for the sake of one of them, as it did
	// where that waited in vain for the lock of its row.
	apartTime = 10 * time.Second
)

// grouped sends the statements that begin and end steps. Those that come while others are under way go together then: in one
// round trip and one commit, which is most of what such a statement costs. One that comes alone is sent at once.
//
// Each has its own answer and its own error all the same. Where Postgres finds fault with one of a group, nothing of that group
// was written, and each of it is sent by itself.
type grouped struct {
	pool *pgxpool.Pool

	mu      sync.Mutex
	waiting []*statement
	sending bool      // there is a sender, whose group does not take long yet
	apart   time.Time // until when nothing goes together
}

// statement is one of a group. Nobody who gave it up reads what it read.
type statement struct {
	run, step uuid.UUID // whose rows it writes; run may be Nil
	bytes     int       // of JSON that it brings
	sql       string
	args      []any
	read      func(pgx.Rows) error // may be called again, when the statement is sent again

	ctx   context.Context // of who waits for it
	group *group          // that it went with; nil: it still waits
	err   error
	done  chan struct{}
}

// group is what goes together.
type group struct {
	statements []*statement
	waited     int                // how many of them nobody has given up
	ctx        context.Context    // of those that go together
	cancel     context.CancelFunc // when nobody waits any more
	over, late bool
}

// groupedOne sends a statement that writes the rows of a step and its run (nil: it has none) and brings so many bytes of JSON,
// and reads the only row that comes back; no row is [ErrNotFound].
func groupedOne[T any](ctx context.Context, g *grouped, run *uuid.UUID, step uuid.UUID, size int, scan pgx.RowToFunc[T], sql string, args ...any) (T, error) {
	var row, none T
	s := &statement{ctx: ctx, step: step, bytes: size, sql: sql, args: args, done: make(chan struct{})}
	if run != nil {
		s.run = *run
	}
	s.read = func(rows pgx.Rows) (err error) {
		defer func() { // a sender is nobody's task, whose end it would be
			if crash := recover(); crash != nil {
				err = fmt.Errorf("read the row: %v", crash)
			}
		}()
		row, err = one(rows, nil, func(r pgx.CollectableRow) (T, error) { return scan(apartRow{r, rows.Conn().TypeMap()}) })
		return err
	}
	if err := g.send(s); err != nil {
		return none, err
	}
	return row, nil
}

// apartRow is a row that cannot be read without harm to the others of its group, which pgx would give up too.
type apartRow struct {
	pgx.CollectableRow
	types *pgtype.Map
}

func (r apartRow) Scan(targets ...any) error {
	return pgx.ScanRow(r.types, r.FieldDescriptions(), r.RawValues(), targets...)
}

// unsentError is that ctx was over before the statement was sent.
type unsentError struct{ error }

func (e unsentError) Unwrap() error     { return e.error }
func (e unsentError) SafeToRetry() bool { return true }

// send returns when the statement is carried out and committed, or given up.
func (g *grouped) send(s *statement) error {
	g.mu.Lock()
	g.waiting = append(g.waiting, s)
	if !g.sending {
		g.sending = true
		go g.sendAll()
	}
	g.mu.Unlock()
	select {
	case <-s.done:
		return s.err
	case <-s.ctx.Done():
		return g.giveUp(s)
	}
}

func (g *grouped) giveUp(s *statement) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s.group == nil {
		g.waiting = slices.DeleteFunc(g.waiting, func(other *statement) bool { return other == s })
		return unsentError{s.ctx.Err()}
	}
	if s.group.waited--; s.group.waited == 0 {
		s.group.cancel()
	}
	return s.ctx.Err()
}

// sendAll is a sender: it sends groups for as long as statements wait, unless one of them takes long.
func (g *grouped) sendAll() {
	for {
		next, apart := g.next()
		if next == nil {
			return
		}
		late := time.AfterFunc(groupTime, func() { g.overtake(next) })
		if apart {
			g.sendApart(next)
		} else {
			g.sendGroup(next)
		}
		late.Stop()
		if g.ended(next) {
			return
		}
	}
}

// next is what is to be sent now, and whether one by one; or nil, with which a sender ends.
func (g *grouped) next() (next *group, apart bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) == 0 {
		g.sending = false
		return nil, false
	}
	n, size := 0, 0
	for n < min(len(g.waiting), groupSize) && (n == 0 || size+g.waiting[n].bytes <= groupBytes) {
		size += g.waiting[n].bytes
		n++
	}
	next = &group{statements: slices.Clone(g.waiting[:n]), waited: n}
	next.ctx, next.cancel = context.WithCancel(context.Background())
	for _, s := range next.statements {
		s.group = next
	}
	g.waiting = slices.Delete(g.waiting, 0, n)
	return next, time.Now().Before(g.apart)
}

// overtake has another sender go on, because this group takes long.
func (g *grouped) overtake(slow *group) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if slow.over {
		return
	}
	slow.late = true
	if g.sending = len(g.waiting) > 0; g.sending {
		go g.sendAll()
	}
}

// ended tells whether another sender goes on already.
func (g *grouped) ended(group *group) bool {
	group.cancel()
	g.mu.Lock()
	defer g.mu.Unlock()
	group.over = true
	return group.late
}

func (g *grouped) sendGroup(group *group) {
	if len(group.statements) == 1 {
		g.sendOne(group.statements[0])
		return
	}
	// All who write the same rows take them in one order, so that no two of them wait for each other.
	slices.SortFunc(group.statements, func(a, b *statement) int {
		if c := bytes.Compare(a.run[:], b.run[:]); c != 0 {
			return c
		}
		return bytes.Compare(a.step[:], b.step[:])
	})
	err := g.sendTogether(group)
	if err != nil {
		g.mu.Lock()
		if Locked(err) || group.late {
			g.apart = time.Now().Add(apartTime)
		}
		g.mu.Unlock()
	}
	if refusedAlone(err) {
		g.sendApart(group)
		return
	}
	for _, s := range group.statements {
		if err != nil {
			s.err = err
		}
		close(s.done)
	}
}

// sendTogether returns the error that is that of all. What only concerns one, such as that it wrote nothing, it has.
func (g *grouped) sendTogether(group *group) error {
	batch := &pgx.Batch{}
	for _, s := range group.statements {
		batch.Queue(s.sql, s.args...)
	}
	results := g.pool.SendBatch(group.ctx, batch)
	for _, s := range group.statements {
		rows, err := results.Query()
		if err != nil {
			break // Close says it again
		}
		s.err = s.read(rows)
	}
	return results.Close() // nothing is committed before
}

// refusedAlone tells whether Postgres refused one of several statements, or their commit, and lives on: then none of them was
// carried out.
func refusedAlone(err error) bool {
	return sqlState(err) != "" && !Unheard(err)
}

// sendApart sends each by itself, side by side.
func (g *grouped) sendApart(group *group) {
	var all sync.WaitGroup
	for _, s := range group.statements {
		all.Go(func() { g.sendOne(s) })
	}
	all.Wait()
}

func (g *grouped) sendOne(s *statement) {
	defer close(s.done)
	rows, err := g.pool.Query(s.ctx, s.sql, s.args...)
	if err == nil {
		err = s.read(rows)
	}
	s.err = err
}
