package worker

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
)

// What asynq says of a task is not said of Redis.
func TestATimeoutBelowASecondIsNoTroubleOfRedis(t *testing.T) {
	t.Parallel()
	logger, lines := logtest.NewNullLogger()
	logger.SetOutput(io.Discard)
	(&queueLog{log: logger}).Error("asynq: internal error: both timeout and deadline are not set for the task message: 42")
	if e := lines.LastEntry(); e.Level != logrus.WarnLevel || !strings.HasPrefix(e.Message, "a job's Timeout is less than a second") || !strings.HasSuffix(e.Message, ": 42") {
		t.Errorf("the log says at level %s: %s", e.Level, e.Message)
	}
}

// A Redis that answers and refuses what it is asked to write is not called well in between.
func TestRedisIsCalledWellOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		logger, lines := logtest.NewNullLogger()
		logger.SetOutput(io.Discard)
		log := &queueLog{log: logger}
		said := func() (levels []logrus.Level) {
			for _, e := range lines.AllEntries() {
				levels = append(levels, e.Level)
			}
			return levels
		}
		for second := range 60 {
			if second%5 == 0 { // as often as asynq says that it lives
				log.Error("OOM command not allowed")
			}
			if second%2 == 0 {
				log.health(nil)
			}
			time.Sleep(time.Second)
		}
		if got := said(); !slices.Equal(got, []logrus.Level{logrus.ErrorLevel}) {
			t.Errorf("while it refuses, lines of these levels: %v", got)
		}
		log.health(errors.New("refused"))
		for range 20 {
			time.Sleep(redisCheckInterval)
			log.health(nil)
		}
		if got := said(); !slices.Equal(got, []logrus.Level{logrus.ErrorLevel, logrus.InfoLevel}) {
			t.Errorf("afterwards, lines of these levels: %v", got)
		}
		const end = "the queue's Redis does what it is asked again, after 1m0s; 12 further lines about that were held back"
		if got := lines.LastEntry().Message; got != end {
			t.Errorf("the end is told as %q, want %q", got, end)
		}
	})
}
