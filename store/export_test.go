package store

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
