package store

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// OpenTraced lets a test see the statements.
var OpenTraced = open

// The cleaners, for the tests that ask Postgres whether it takes what they return.
var (
	CleanText   = cleanText
	CleanJSON   = cleanJSON
	KeepJSON    = keepJSON
	CleanResult = cleanResult
	FlatResult  = flatResult
)

// Setting is what a setting of Postgres is on the store's connections.
func (s *Store) Setting(ctx context.Context, name string) (value string, err error) {
	err = s.pool.QueryRow(ctx, `select current_setting($1)`, name).Scan(&value)
	return value, err
}

// Gather has the statements that begin and end steps wait. send sends them once there are so many, as they go where another
// was under way when they came.
func (s *Store) Gather() (send func(n int)) {
	g := &s.steps
	until := func(holds func() bool) {
		for {
			g.mu.Lock()
			if holds() {
				g.mu.Unlock()
				return
			}
			g.mu.Unlock()
			time.Sleep(time.Millisecond)
		}
	}
	until(func() bool {
		free := !g.sending
		g.sending = true
		return free
	})
	return func(n int) {
		until(func() bool { return len(g.waiting) >= n })
		go g.sendAll()
	}
}

// ReadCrash sends a statement beside those of steps whose row crashes who reads it.
func (s *Store) ReadCrash(ctx context.Context) error {
	crash := func(pgx.CollectableRow) (int, error) { panic("odd row") }
	_, err := groupedOne(ctx, &s.steps, nil, uuid.Nil, 0, crash, `select 1`)
	return err
}
