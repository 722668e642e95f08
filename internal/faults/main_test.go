package faults

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// binary is the legwork that the tests start.
var binary string

func TestMain(m *testing.M) {
	if os.Getenv("LEGWORK_FAULTS") != "1" {
		fmt.Println("the fault tests take minutes: they run with LEGWORK_FAULTS=1, as in make faults")
		os.Exit(0)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	folder, err := os.MkdirTemp("", "legwork-faults-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(folder)
	binary = filepath.Join(folder, "legwork")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", binary, "legwork/cmd/legwork").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}
