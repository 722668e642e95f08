package store

import "context"

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
