package scratch

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A Program is something this package can start.
type Program string

// The programs, by the names they are known by.
const (
	PostgresProgram Program = "postgres"
	RedisProgram    Program = "redis-server"
)

// find is nil when the program is installed, otherwise a *Missing.
func (p Program) find() error {
	var err error
	switch p {
	case PostgresProgram:
		_, err = findPostgres()
	case RedisProgram:
		_, err = findRedis()
	default:
		err = fmt.Errorf("unknown program %q", string(p))
	}
	return err
}

// Missing is the error for programs that are not installed. It says what to install.
type Missing struct {
	Programs []Program
}

// packages are the programs' packages where Debian, Homebrew and Fedora keep them.
var packages = map[Program]struct{ apt, brew, dnf string }{
	PostgresProgram: {apt: "postgresql", brew: "postgresql@17", dnf: "postgresql-server"},
	RedisProgram:    {apt: "redis-server", brew: "redis", dnf: "redis"},
}

func (m *Missing) Error() string {
	var names, apt, brew, dnf []string
	for _, p := range m.Programs {
		names = append(names, string(p))
		apt = append(apt, packages[p].apt)
		brew = append(brew, packages[p].brew)
		dnf = append(dnf, packages[p].dnf)
	}
	verb := "is"
	if len(names) > 1 {
		verb = "are"
	}
	return fmt.Sprintf("%s %s not installed: run \"apt-get install %s\" on Debian or Ubuntu, \"brew install %s\" on macOS, \"dnf install %s\" on Fedora",
		strings.Join(names, " and "), verb, strings.Join(apt, " "), strings.Join(brew, " "), strings.Join(dnf, " "))
}

// postgresPlaces are where packages put Postgres without putting it on PATH.
var postgresPlaces = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/usr/libexec/postgresql*",
	"/opt/homebrew/opt/postgresql*/bin",
	"/usr/local/opt/postgresql*/bin",
	"/usr/local/pgsql/bin",
}

// findPostgres returns the folder that holds both initdb and postgres: the
// first on PATH, or else the newest that a package installed.
func findPostgres() (string, error) {
	places := filepath.SplitList(os.Getenv("PATH"))
	for _, pattern := range postgresPlaces {
		found, _ := filepath.Glob(pattern)
		places = append(places, newestFirst(found)...)
	}
	for _, place := range places {
		if executable(filepath.Join(place, "initdb")) && executable(filepath.Join(place, "postgres")) {
			return filepath.Abs(place)
		}
	}
	return "", &Missing{Programs: []Program{PostgresProgram}}
}

// findRedis returns the path of redis-server, or of Valkey's server, which is
// the same to its clients and takes its place in some distributions.
func findRedis() (string, error) {
	places := filepath.SplitList(os.Getenv("PATH"))
	for _, pattern := range []string{
		"/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/opt/homebrew/bin",
		"/opt/homebrew/opt/redis*/bin", "/usr/local/opt/redis*/bin",
	} {
		found, _ := filepath.Glob(pattern)
		places = append(places, newestFirst(found)...)
	}
	for _, name := range []string{"redis-server", "valkey-server"} {
		for _, place := range places {
			if program := filepath.Join(place, name); executable(program) {
				return filepath.Abs(program)
			}
		}
	}
	return "", &Missing{Programs: []Program{RedisProgram}}
}

func executable(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

var version = regexp.MustCompile(`[0-9]+(\.[0-9]+)?`)

// newestFirst sorts paths by the version number in them, so that 9.6 comes
// after 17 and not before.
func newestFirst(paths []string) []string {
	number := func(path string) float64 {
		n, _ := strconv.ParseFloat(version.FindString(path), 64)
		return n
	}
	slices.SortStableFunc(paths, func(a, b string) int {
		switch x, y := number(a), number(b); {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	return paths
}
