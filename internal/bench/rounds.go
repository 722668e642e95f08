package main

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// The measures of a sample. Their names say the unit by their form; see inUnits.
const (
	timeEach   = "time"   // nanoseconds for each call, on the wall
	cpuEach    = "CPU"    // nanoseconds for each call, of this process
	bytesEach  = "bytes"  // allocated for each call
	allocsEach = "allocs" // allocations for each call
)

// sample is what one round measured of one contender.
type sample map[string]float64

// contender is one way of doing the work.
type contender struct {
	name  string
	round func(context.Context) (sample, error)
}

// bound is what a figure promises of a measure: of one contender's value, or of its ratio to another's in the same round.
type bound struct {
	measure         string
	of, over        string // over is empty for the value itself
	atMost, atLeast float64
}

// verdict is how a bound fared.
type verdict struct {
	title, what       string
	median, low, high float64
	bounded, kept     bool
}

// compare lets the contenders take turns, and prints the medians of what was measured and how the bounds fared.
func (b *bench) compare(ctx context.Context, title string, measures []string, contenders []contender, bounds []bound) error {
	if !b.short { // connections, pools, caches
		for _, c := range contenders {
			if _, err := c.round(ctx); err != nil {
				return fmt.Errorf("%s, warming up: %w", c.name, err)
			}
		}
	}
	taken := map[string][]sample{}
	for range b.rounds {
		for _, c := range contenders {
			runtime.GC()
			s, err := c.round(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			taken[c.name] = append(taken[c.name], s)
		}
	}

	fmt.Fprintf(b.out, "\n  %s\n", title)
	table := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	for _, c := range contenders {
		fmt.Fprintf(table, "    %s", c.name)
		for _, m := range measures {
			if values := valuesOf(taken[c.name], m); len(values) > 0 {
				fmt.Fprintf(table, "\t%s %s", m, inUnits(m, median(values)))
			} else {
				fmt.Fprint(table, "\t")
			}
		}
		fmt.Fprintln(table)
	}
	table.Flush()
	for _, bound := range bounds {
		v := bound.judge(title, taken)
		b.verdict = append(b.verdict, v)
		fmt.Fprintf(table, "    %s\n", v.line(bound))
	}
	return table.Flush()
}

func valuesOf(samples []sample, measure string) []float64 {
	var values []float64
	for _, s := range samples {
		if v, ok := s[measure]; ok {
			values = append(values, v)
		}
	}
	return values
}

func (b bound) judge(title string, taken map[string][]sample) verdict {
	values := valuesOf(taken[b.of], b.measure)
	what := b.measure + " of " + b.of
	if b.over != "" {
		what = b.measure + ", " + b.of + " / " + b.over
		for i, other := range valuesOf(taken[b.over], b.measure) {
			values[i] /= other
		}
	}
	v := verdict{
		title: title, what: what, bounded: b.atMost > 0 || b.atLeast > 0, kept: true,
		median: median(values), low: slices.Min(values), high: slices.Max(values),
	}
	if b.atMost > 0 && v.median > b.atMost || b.atLeast > 0 && v.median < b.atLeast {
		v.kept = false
	}
	return v
}

func (v verdict) line(b bound) string {
	say := func(x float64) string {
		if b.over != "" {
			return fmt.Sprintf("%.2f", x)
		}
		return inUnits(b.measure, x)
	}
	line := fmt.Sprintf("%s\t%s\t(%s–%s)", v.what, say(v.median), say(v.low), say(v.high))
	word := map[bool]string{true: "ok", false: "over"}[v.kept]
	switch {
	case b.atMost > 0:
		return line + "\tat most " + say(b.atMost) + "\t" + word
	case b.atLeast > 0:
		return line + "\tat least " + say(b.atLeast) + "\t" + word
	}
	return line
}

func median(values []float64) float64 { return quantile(values, 0.5) }

func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	low := int(at)
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
}

// inUnits writes a value as people read it.
func inUnits(measure string, value float64) string {
	switch {
	case strings.HasPrefix(measure, "bytes"):
		return fmt.Sprintf("%.1f kB", value/1000)
	case strings.HasPrefix(measure, "share"):
		return fmt.Sprintf("%.1f %%", value*100)
	case strings.HasPrefix(measure, "allocs"), strings.HasPrefix(measure, "steps/s"), strings.HasPrefix(measure, "rows"):
		return fmt.Sprintf("%.0f", value)
	case strings.HasPrefix(measure, "goroutines"), strings.HasPrefix(measure, "connections"):
		return fmt.Sprintf("%.2f", value)
	}
	d := time.Duration(value)
	switch {
	case d.Abs() < 10*time.Microsecond:
		return d.String()
	case d.Abs() < 10*time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	}
	return fmt.Sprintf("%.1f ms", float64(d)/1e6)
}

// costs measures what this process spends on doing something n times.
func costs(n int, do func() error) (sample, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu, started := cpuTime(), time.Now()
	err := do()
	elapsed, spent := time.Since(started), cpuTime()-cpu
	runtime.ReadMemStats(&after)
	each := func(x float64) float64 { return x / float64(n) }
	return sample{
		timeEach: each(float64(elapsed)), cpuEach: each(float64(spent)),
		bytesEach: each(float64(after.TotalAlloc - before.TotalAlloc)), allocsEach: each(float64(after.Mallocs - before.Mallocs)),
	}, err
}

// cpuTime is what this process has used of all cores.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err) // only a bad argument makes it fail
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
