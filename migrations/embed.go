// Package migrations holds the schema as numbered SQL files. Package store applies them.
package migrations

import "embed"

// FS holds every migration, in goose's format: one file a version, with an Up and a Down half.
//
//go:embed *.sql
var FS embed.FS
