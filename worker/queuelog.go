package worker

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

const (
	// redisCheckInterval is how often the queue's Redis is asked whether it is there.
	redisCheckInterval = 2 * time.Second

	// redisQuietTime is for how long nothing has been complained of before the trouble is called over. A Redis that answers
	// and refuses writes is complained of every 5 s at least: so often asynq says that it lives.
	redisQuietTime = 12 * time.Second
)

// queueLog is what asynq logs to. While Redis does not answer asynq has the same to say several times a second, in each of
// its loops; this says it once, and once when it is over.
type queueLog struct {
	log logrus.FieldLogger

	mu     sync.Mutex
	since  time.Time // when the trouble began; zero while there is none
	latest time.Time // when asynq last complained of it
	held   int       // lines that were held back
}

func (q *queueLog) Debug(args ...any) { q.log.Debug(args...) }
func (q *queueLog) Info(args ...any)  { q.log.Info(args...) }
func (q *queueLog) Warn(args ...any)  { q.complain(args...) }
func (q *queueLog) Error(args ...any) { q.complain(args...) }
func (q *queueLog) Fatal(args ...any) { q.log.Fatal(args...) }

// asynqNoLimit is what asynq says of a task whose Timeout is less than a second and which has no Deadline. It is no matter
// of Redis.
const asynqNoLimit = "both timeout and deadline are not set"

func (q *queueLog) complain(args ...any) {
	line := strings.TrimSpace(fmt.Sprint(args...))
	if strings.Contains(line, asynqNoLimit) {
		q.log.Warnf("a job's Timeout is less than a second, which asynq takes for none; give it a whole number of seconds: %s", line)
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.latest = time.Now()
	if !q.since.IsZero() {
		q.held++
		return
	}
	q.since = q.latest
	q.log.Errorf("the queue's Redis does not do what it is asked, so no task is taken; operations under way go on: %s", line)
}

// health hears of every check of Redis. The trouble is over when Redis answers and nothing has been complained of for a while.
func (q *queueLog) health(err error) {
	if err != nil {
		q.complain("ping: ", err)
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.since.IsZero() || time.Since(q.latest) < redisQuietTime {
		return
	}
	q.log.Infof("the queue's Redis does what it is asked again, after %s; %d further lines about that were held back",
		q.latest.Sub(q.since).Round(time.Second), q.held)
	q.since, q.held = time.Time{}, 0
}
