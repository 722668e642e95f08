package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"legwork/store"
)

const (
	// overdue is how long a living worker has had to see to something before it is called broken.
	overdue = time.Minute
	// idleRun is how long nothing has happened in a run that somebody should have ended.
	idleRun = 24 * time.Hour

	doctorRows = 20 // named for each finding at most
)

// Finding is one sort of thing that is broken, in sentences for an operator.
type Finding struct {
	// Kind does not change between versions: step_interrupted, step_left_behind, step_without_task, step_without_server,
	// import_abandoned, run_not_ended, queue_paused.
	Kind     string   `json:"kind"`
	Count    int      `json:"count"`
	Rows     []string `json:"rows"`     // ids or names, the first 20
	Wrong    string   `json:"wrong"`    // what is wrong
	Meaning  string   `json:"meaning"`  // what that means
	Repair   string   `json:"repair"`   // what a repair does, or what is left to do by hand
	Repaired int      `json:"repaired"` // how many of them were
}

// Report is what [Doctor] found.
type Report struct {
	Findings []Finding `json:"findings"`
	// Advice is what breaks nothing now, one sentence or two each.
	Advice []string `json:"advice"`
}

// Healthy tells whether nothing is wrong, or no longer.
func (r Report) Healthy() bool {
	for _, f := range r.Findings {
		if f.Repaired < f.Count {
			return false
		}
	}
	return true
}

// Doctor looks for what living workers do not mend: what an outside hand broke, and what nobody mends because no worker
// lives. With repair it mends what can be mended without asking anybody, which is harmless to do twice or beside workers.
// It tells what it found until an error ended it.
func Doctor(ctx context.Context, rows *store.Store, opt asynq.RedisConnOpt, repair bool) (Report, error) {
	report := Report{Findings: []Finding{}, Advice: []string{}}
	if err := rows.Check(ctx); err != nil {
		return report, err
	}
	q, err := openQueue(opt)
	if err != nil {
		return report, err
	}
	defer q.close()
	if err := ping(ctx, q.redis); err != nil {
		return report, unreachableRedis(err)
	}
	if err := q.publish(ctx); err != nil {
		return report, err
	}
	d := &doctor{rows: rows, queue: q, repair: repair}
	for _, look := range []func(context.Context) ([]Finding, error){
		d.stepsPastLease, d.stepsWaiting, d.imports, d.runs, d.queues,
	} {
		found, err := look(ctx)
		for _, f := range found {
			if f.Count > 0 {
				report.Findings = append(report.Findings, f)
			}
		}
		if err != nil {
			return report, err
		}
	}
	report.Advice = append(report.Advice, redisAdvice(ctx, q.redis)...)
	if servers, err := q.inspect.Servers(); err == nil && len(servers) == 0 {
		report.Advice = append(report.Advice, `No worker takes tasks from this Redis: start "legwork worker", or see whether its LEGWORK_REDIS_URL is another.`)
	}
	return report, nil
}

func ping(ctx context.Context, client redis.UniversalClient) error {
	ctx, cancel := context.WithTimeout(ctx, ClaimTime)
	defer cancel()
	return client.Ping(ctx).Err()
}

type doctor struct {
	rows   *store.Store
	queue  *queue
	repair bool
}

// found begins a finding of these rows. The sentence says "is" and "was" of one, "are" and "were" of several.
func found[T fmt.Stringer](kind string, rows []T, one, several string) Finding {
	f := Finding{Kind: kind, Count: len(rows), Rows: []string{}, Wrong: counted(len(rows), one, several)}
	for _, row := range rows[:min(len(rows), doctorRows)] {
		f.Rows = append(f.Rows, row.String())
	}
	return f
}

func counted(n int, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, several)
}

func (d *doctor) stepsPastLease(ctx context.Context) ([]Finding, error) {
	repeatable, final, err := d.rows.StepsPastLease(ctx, overdue)
	if err != nil {
		return nil, err
	}
	interrupted := found("step_interrupted", final,
		"step runs as far as its row says, but its lease ended more than a minute ago.",
		"steps run as far as their rows say, but their leases ended more than a minute ago.")
	interrupted.Meaning = "Their workers died, and no other has settled them. Nobody knows whether the servers acted, and the tools may not be called again."
	interrupted.Repair = "A repair settles them as interrupted."
	if d.repair && len(final) > 0 {
		interrupted.Repaired, err = d.settleInterrupted(ctx, final)
	}
	if err != nil {
		return []Finding{interrupted}, err
	}

	behind, err := d.withoutTask(ctx, repeatable)
	left := found("step_left_behind", behind,
		"step runs as far as its row says, but its lease ended more than a minute ago and no task will bring it back.",
		"steps run as far as their rows say, but their leases ended more than a minute ago and no task will bring them back.")
	left.Meaning = "Their workers died, and no other has taken them over. Their tools may be called again."
	left.Repair = "A repair gives each a new task, so that the next worker carries it out again."
	if err == nil {
		left.Repaired, err = d.wake(ctx, behind)
	}
	return []Finding{interrupted, left}, err
}

// settleInterrupted settles all steps that are interrupted, and tells how many of these are.
func (d *doctor) settleInterrupted(ctx context.Context, steps []store.StepClaim) (int, error) {
	for {
		settled, err := d.rows.SettleInterrupted(ctx, sweepBatch, interrupted)
		if err != nil {
			return 0, err
		}
		if len(settled) == 0 {
			break
		}
	}
	_, left, err := d.rows.StepsPastLease(ctx, overdue)
	return len(steps) - common(steps, left), err
}

// common counts what is in both.
func common[T comparable](a, b []T) int {
	in := map[T]bool{}
	for _, v := range a {
		in[v] = true
	}
	n := 0
	for _, v := range b {
		if in[v] {
			n++
		}
	}
	return n
}

func (d *doctor) stepsWaiting(ctx context.Context) ([]Finding, error) {
	known, unknown, err := d.rows.StepsWaiting(ctx, overdue)
	if err != nil {
		return nil, err
	}
	alone, err := d.withoutTask(ctx, known)
	waiting := found("step_without_task", alone,
		"step has waited for more than a minute and has no task in Redis.",
		"steps have waited for more than a minute and have no tasks in Redis.")
	waiting.Meaning = "No worker hears of them: Redis lost their tasks, somebody archived them, or whoever inserted the rows enqueued none. " +
		"A living worker would have given them tasks."
	waiting.Repair = "A repair gives each a task, in the place of one that is archived or completed."
	if err == nil {
		waiting.Repaired, err = d.wake(ctx, alone)
	}

	nowhere := found("step_without_server", unknown,
		"step waits for a server that there is not.",
		"steps wait for servers that there are not.")
	nowhere.Meaning = "The worker that takes them fails them, and asks nobody."
	nowhere.Repair = `A repair leaves them as they are: add the servers with "legwork server add" before a worker comes to them, if they are meant.`
	return []Finding{waiting, nowhere}, err
}

func (d *doctor) imports(ctx context.Context) ([]Finding, error) {
	servers, err := d.rows.ImportsPastLease(ctx, overdue)
	if err != nil {
		return nil, err
	}
	f := found("import_abandoned", names(servers),
		"import was begun and not settled, and its lease ended more than a minute ago.",
		"imports were begun and not settled, and their leases ended more than a minute ago.")
	f.Meaning = "Their workers died. The catalogues are as they were before."
	f.Repair = `A repair takes the claims off the servers; import them again with "legwork import SERVER".`
	if d.repair && len(servers) > 0 {
		if err := d.rows.ReleaseImports(ctx, overdue); err != nil {
			return []Finding{f}, err
		}
		left, err := d.rows.ImportsPastLease(ctx, overdue)
		if err != nil {
			return []Finding{f}, err
		}
		f.Repaired = len(servers) - common(servers, left)
	}
	return []Finding{f}, nil
}

func (d *doctor) runs(ctx context.Context) ([]Finding, error) {
	oldest, total, err := d.rows.IdleRuns(ctx, idleRun, doctorRows)
	if err != nil {
		return nil, err
	}
	f := found("run_not_ended", oldest, "", "")
	f.Count, f.Wrong = total, counted(total,
		"run has not been ended, though no step of it is left and nothing has happened in it for a day.",
		"runs have not been ended, though no step of them is left and nothing has happened in them for a day.")
	f.Meaning = "Runs are ended by the backend that began them. One that is not ended is never removed as old."
	f.Repair = `A repair leaves them as they are: let the backend end them, or end them with "legwork run cancel RUN".`
	return []Finding{f}, nil
}

func (d *doctor) queues(context.Context) ([]Finding, error) {
	all, err := queueInfos(d.queue.inspect)
	if err != nil {
		return nil, fmt.Errorf("look at the queues: %w", err)
	}
	var paused []string
	for name, info := range all {
		if info.Paused {
			paused = append(paused, name)
		}
	}
	slices.Sort(paused)
	f := found("queue_paused", names(paused), "queue is paused.", "queues are paused.")
	f.Meaning = "Somebody paused them, perhaps on the dashboard. No worker takes tasks from them."
	f.Repair = fmt.Sprintf(`A repair leaves them as they are: resume them on the dashboard, or with asynq's own program: "asynq queue unpause %s".`, strings.Join(paused, " "))
	return []Finding{f}, nil
}

type name string

func (n name) String() string { return string(n) }

func names(all []string) []name {
	out := make([]name, len(all))
	for i, s := range all {
		out[i] = name(s)
	}
	return out
}

// withoutTask is those of the steps that no task in the queues will bring to a worker.
func (d *doctor) withoutTask(ctx context.Context, steps []store.StepClaim) ([]store.StepClaim, error) {
	var alone []store.StepClaim
	for _, found := range steps {
		step, stands, err := d.stands(ctx, found)
		if err != nil {
			return alone, err
		}
		if !stands {
			continue
		}
		attended, err := d.attended(step)
		if err != nil {
			return alone, err
		}
		if attended {
			continue
		}
		// A worker may have taken it while the queues were looked at.
		if _, stands, err = d.stands(ctx, found); err != nil {
			return alone, err
		}
		if stands {
			alone = append(alone, found)
		}
	}
	return alone, nil
}

// stands tells whether a step is as it was found. Otherwise somebody looks after it.
func (d *doctor) stands(ctx context.Context, found store.StepClaim) (store.Step, bool, error) {
	step, err := d.rows.Step(ctx, found.ID)
	if errors.Is(err, store.ErrNotFound) {
		return store.Step{}, false, nil
	}
	return step, err == nil && step.Status == found.Status && step.Claim == found.Claim, err
}

// attended tells whether a queue holds a task that will be delivered and brings the step to a worker.
func (d *doctor) attended(step store.Step) (bool, error) {
	ids := taskIDs(step)
	for queue := range queues {
		for _, id := range ids {
			task, err := d.queue.live(queue, id)
			if err != nil {
				return false, err
			}
			// A running step's other task is the one that the dead worker had: if asynq still calls it active, it is nobody's.
			if task != nil && (id == ids[0] || step.Status == "pending" || task.State != asynq.TaskStateActive) {
				return true, nil
			}
		}
	}
	return false, nil
}

// wake gives tasks to the steps, if it is to repair, and tells how many are looked after now.
func (d *doctor) wake(ctx context.Context, steps []store.StepClaim) (int, error) {
	if !d.repair {
		return 0, nil
	}
	for n, found := range steps {
		step, stands, err := d.stands(ctx, found)
		if err == nil && stands {
			_, err = d.queue.wake(step)
		}
		if err != nil {
			return n, err
		}
	}
	return len(steps), nil
}

// redisAdvice tells of settings that lose tasks. A Redis that does not tell its settings, as those of many clouds, is let be.
func redisAdvice(ctx context.Context, client redis.UniversalClient) []string {
	setting := func(name string) (string, bool) {
		values, err := client.ConfigGet(ctx, name).Result()
		value, ok := values[name]
		return value, err == nil && ok
	}
	var advice []string
	if policy, ok := setting("maxmemory-policy"); ok && policy != "noeviction" {
		advice = append(advice, fmt.Sprintf(
			"Redis may drop tasks when its memory is full, and no worker starts on it (maxmemory-policy is %s): set maxmemory-policy to noeviction.", policy))
	}
	appendOnly, ok := setting("appendonly")
	save, okSave := setting("save")
	if ok && okSave && appendOnly == "no" && save == "" {
		advice = append(advice,
			"Redis keeps nothing on disk, so tasks that wait are lost when it restarts; only those whose rows stand in Postgres come back (appendonly is no, and save is empty): set appendonly to yes.")
	}
	return advice
}
