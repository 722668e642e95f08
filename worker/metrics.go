package worker

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"legwork/mcp"
)

const (
	// maxServers is how many servers have series of their own. Further ones are counted together.
	maxServers = 200

	// other is the label of what has none of its own.
	other = "other"

	// outcomeSucceeded is the outcome of an operation that did not fail; every other is the kind of its failure.
	outcomeSucceeded = "succeeded"

	// reapedInterrupted and reapedWoken are what becomes of a step that nobody looked after.
	reapedInterrupted = "interrupted"
	reapedWoken       = "woken"
)

var (
	// durationBuckets reach from an answer on the same machine to a budget that somebody raised.
	durationBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40, 60}
	// grantBuckets are whole seconds, as grants are.
	grantBuckets = []float64{1, 2, 3, 5, 8, 10, 15, 20, 30, 45, 60, 120, 300, 600}
	// shareBuckets are close together where an operation is about to fail, and have one for what was over by the rounding.
	shareBuckets = []float64{.01, .05, .1, .25, .5, .75, .9, 1, 1.1}
)

// The label values that are known beforehand. What comes from elsewhere counts under other, so that nobody can add series.
var (
	knownOutcomes = outcomes()
	knownMethods  = []string{
		"initialize", "notifications/initialized", "ping", "server/discover", "tools/call", "tools/list", "token request",
	}
)

func outcomes() []string {
	all := []string{outcomeSucceeded, mcp.OutcomeOK}
	for _, kind := range mcp.Kinds() {
		all = append(all, string(kind))
	}
	return all
}

// Metrics counts what a worker does, in a registry of its own. Its methods may be called on nil, which counts nothing, and
// at once. It belongs to one worker.
type Metrics struct {
	registry *prometheus.Registry
	health   atomic.Pointer[Health] // of the worker whose queues are looked at; nil before there is one

	operations  *prometheus.CounterVec
	inFlight    *prometheus.GaugeVec
	waitingJobs *prometheus.GaugeVec
	legs        *prometheus.HistogramVec
	budgetUsed  *prometheus.HistogramVec
	grants      prometheus.Histogram
	settleDelay prometheus.Histogram
	stepsReaped *prometheus.CounterVec
	crashes     prometheus.Counter

	mu           sync.Mutex
	servers      map[string]struct{} // those with series of their own
	waitingOther map[string]int      // jobs that wait for servers without
}

// NewMetrics makes the metrics of one worker; version is that of this program.
func NewMetrics(version string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		servers:  map[string]struct{}{}, waitingOther: map[string]int{},
		operations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "legwork_operations_total", Help: "Operations that have ended, by outcome: succeeded, or the kind of failure.",
		}, []string{"server", "kind", "outcome"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "legwork_operations_in_flight", Help: "Operations under way with a server.",
		}, []string{"server"}),
		waitingJobs: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "legwork_jobs_waiting", Help: "Jobs put off because as many operations as it may have are under way with their server.",
		}, []string{"server"}),
		legs: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "legwork_leg_duration_seconds", Help: "What one request took, to the end of its answer.", Buckets: durationBuckets,
		}, []string{"server", "method", "outcome"}),
		budgetUsed: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "legwork_budget_used_ratio", Help: "What operations took, as a share of their budget.", Buckets: shareBuckets,
		}, []string{"server"}),
		grants: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "legwork_leg_granted_seconds", Help: "What one request was allowed to take.", Buckets: grantBuckets,
		}),
		settleDelay: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "legwork_settle_delay_seconds", Help: "From the end of an operation until its outcome stood in its row.", Buckets: durationBuckets,
		}),
		stepsReaped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "legwork_steps_reaped_total", Help: "Steps that nobody looked after: interrupted, or given a new task (woken).",
		}, []string{"outcome"}),
		crashes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "legwork_handler_crashes_total", Help: "Jobs during which legwork itself failed.",
		}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "legwork_build_info", Help: "1, with the version as a label.", ConstLabels: prometheus.Labels{"version": strings.ToValidUTF8(version, "�")},
	})
	build.Set(1)
	m.registry.MustRegister(
		m.operations, m.inFlight, m.waitingJobs, m.legs, m.budgetUsed, m.grants, m.settleDelay, m.stepsReaped, m.crashes, build,
		healthCollector{m}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	m.reaped(reapedInterrupted, 0) // there from the start, so that the first one is seen as a rise
	m.reaped(reapedWoken, 0)
	return m
}

// Handler answers with the metrics. What is asked for at that moment, in Redis and Postgres, is bounded and shared with
// [Health].
func (m *Metrics) Handler() http.Handler {
	// Few at once: each gathers everything.
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

// watch tells whose queues and checks are shown.
func (m *Metrics) watch(health *Health) {
	if m != nil {
		m.health.Store(health)
	}
}

// begun counts an operation that begins with a server.
func (m *Metrics) begun(server string) {
	if m == nil {
		return
	}
	m.inFlight.WithLabelValues(m.label(server)).Inc()
}

// ended counts an operation that has ended; what is "step" or "import". A failure that is nil stands for success.
func (m *Metrics) ended(server, what string, spent mcp.Spent, failure *mcp.Failure) {
	if m == nil {
		return
	}
	server = m.label(server)
	outcome := outcomeSucceeded
	if failure != nil {
		outcome = known(knownOutcomes, string(failure.Kind))
	}
	m.inFlight.WithLabelValues(server).Dec()
	m.operations.WithLabelValues(server, what, outcome).Inc()
	if spent.Budget.Total > 0 && spent.Elapsed > 0 {
		m.budgetUsed.WithLabelValues(server).Observe(spent.Elapsed.Seconds() / spent.Budget.Total.Seconds())
	}
	for _, leg := range spent.Legs {
		// A stream that is taken up again goes on with the answer to the same method.
		method := known(knownMethods, strings.TrimSuffix(leg.Method, " (resumed)"))
		m.legs.WithLabelValues(server, method, known(knownOutcomes, leg.Outcome)).Observe(leg.Elapsed.Seconds())
		m.grants.Observe(leg.Granted.Seconds())
	}
}

// waiting tells how many jobs are put off because so many operations are under way with a server.
func (m *Metrics) waiting(server string, jobs int) {
	if m == nil {
		return
	}
	label := m.label(server)
	if label != other {
		m.waitingJobs.WithLabelValues(label).Set(float64(jobs))
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waitingOther[server] = jobs
	if jobs == 0 {
		delete(m.waitingOther, server)
	}
	sum := 0
	for n := range maps.Values(m.waitingOther) {
		sum += n
	}
	m.waitingJobs.WithLabelValues(other).Set(float64(sum))
}

// settled counts an outcome that stands in its row, this long after its operation ended.
func (m *Metrics) settled(after time.Duration) {
	if m == nil {
		return
	}
	m.settleDelay.Observe(after.Seconds())
}

// reaped counts steps that dead workers or lost wake-ups left behind; outcome is "interrupted" or "woken".
func (m *Metrics) reaped(outcome string, steps int) {
	if m == nil {
		return
	}
	m.stepsReaped.WithLabelValues(outcome).Add(float64(steps))
}

// crashed counts a handler that panicked.
func (m *Metrics) crashed() {
	if m == nil {
		return
	}
	m.crashes.Inc()
}

// label is a server's own label while there are few enough; one that has it keeps it.
func (m *Metrics) label(server string) string {
	if server == other {
		return other
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, has := m.servers[server]; has {
		return server
	}
	if len(m.servers) >= maxServers {
		return other
	}
	m.servers[server] = struct{}{}
	return server
}

func known(values []string, value string) string {
	if slices.Contains(values, value) {
		return value
	}
	return other
}

var (
	queueDepth = prometheus.NewDesc("legwork_queue_depth", "Tasks in a queue of Redis, by asynq's state.", []string{"queue", "state"}, nil)
	queueAge   = prometheus.NewDesc("legwork_queue_oldest_seconds", "How long the oldest task of a queue that could be taken has waited.", []string{"queue"}, nil)
	poolInUse  = prometheus.NewDesc("legwork_postgres_connections_in_use", "Connections to Postgres that a statement uses.", nil, nil)
	poolMost   = prometheus.NewDesc("legwork_postgres_connections_max", "Connections to Postgres that there may be.", nil, nil)
	checkOK    = prometheus.NewDesc("legwork_check_ok", "1 where a check of /healthz says ok, otherwise 0.", []string{"check"}, nil)
)

// healthCollector looks at the queues and the checks when somebody asks for the metrics.
type healthCollector struct{ m *Metrics }

func (healthCollector) Describe(descs chan<- *prometheus.Desc) {
	descs <- queueDepth
	descs <- queueAge
	descs <- poolInUse
	descs <- poolMost
	descs <- checkOK
}

func (c healthCollector) Collect(metrics chan<- prometheus.Metric) {
	health := c.m.health.Load()
	if health == nil {
		return
	}
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	seen, ok := health.look()
	if !ok {
		return
	}
	inUse, most := health.store.Connections()
	gauge(poolInUse, float64(inUse))
	gauge(poolMost, float64(most))
	for check, says := range seen.checks {
		value := 0.0
		if says == checkIsOK {
			value = 1
		}
		gauge(checkOK, value, check)
	}
	for queue, info := range seen.queues { // none when Redis does not say
		for state, n := range map[string]int{
			"pending": info.Pending, "active": info.Active, "scheduled": info.Scheduled, "retry": info.Retry,
			"archived": info.Archived, "completed": info.Completed,
		} {
			gauge(queueDepth, float64(n), queue, state)
		}
		gauge(queueAge, info.Latency.Seconds(), queue)
	}
}
