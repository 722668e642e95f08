package main

import (
	"bytes"
	"math"
	"os"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" { // the figures start their own program
		os.Exit(play(role))
	}
	os.Exit(m.Run())
}

// TestFigures sees that each figure runs and gives ratios; what they are is not for a test to say.
func TestFigures(t *testing.T) {
	for _, f := range figures {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			verdicts, err := measure(t.Context(), &out, settings{rounds: 1, short: true}, []figure{f})
			if err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
			if len(verdicts) == 0 {
				t.Error("it compares nothing")
			}
			for _, v := range verdicts {
				if math.IsNaN(v.median) || math.IsInf(v.median, 0) || v.low > v.median || v.median > v.high {
					t.Errorf("%s, %s: %v (%v–%v)", v.title, v.what, v.median, v.low, v.high)
				}
				if !strings.Contains(out.String(), v.what) {
					t.Errorf("%s is not in what is printed:\n%s", v.what, out.String())
				}
			}
		})
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	taken := map[string][]sample{
		"a": {{timeEach: 10}, {timeEach: 30}, {timeEach: 24}},
		"b": {{timeEach: 10}, {timeEach: 10}, {timeEach: 20}},
	}
	for _, tt := range []struct {
		story             string
		bound             bound
		median, low, high float64
		kept              bool
	}{
		{"a ratio is taken within its round", bound{measure: timeEach, of: "a", over: "b", atMost: 1.2}, 1.2, 1, 3, true},
		{"a ratio that is too large", bound{measure: timeEach, of: "a", over: "b", atMost: 1.1}, 1.2, 1, 3, false},
		{"a ratio that is too small", bound{measure: timeEach, of: "a", over: "b", atLeast: 1.3}, 1.2, 1, 3, false},
		{"a value by itself", bound{measure: timeEach, of: "a", atMost: 24}, 24, 10, 30, true},
	} {
		v := tt.bound.judge("", taken)
		if math.Abs(v.median-tt.median) > 1e-9 || v.low != tt.low || v.high != tt.high || v.kept != tt.kept {
			t.Errorf("%s: %+v", tt.story, v)
		}
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	if chosen, err := choose([]string{"late", "call1"}); err != nil || len(chosen) != 2 || chosen[0].name != "late" {
		t.Errorf("two figures that there are: %v, %v", chosen, err)
	}
	if _, err := choose([]string{"latte"}); err == nil || !strings.Contains(err.Error(), `"latte"`) {
		t.Errorf("a figure that there is not: %v", err)
	}
}
