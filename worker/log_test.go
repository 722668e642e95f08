package worker

import (
	"testing"

	"github.com/hibiken/asynq"
	"github.com/sirupsen/logrus"
)

// asynq has a debug line for every look into an empty queue, 50 a second.
func TestAsynqIsQuietBelowTrace(t *testing.T) {
	t.Parallel()
	for level, want := range map[logrus.Level]asynq.LogLevel{
		logrus.ErrorLevel: asynq.ErrorLevel,
		logrus.InfoLevel:  asynq.ErrorLevel,
		logrus.DebugLevel: asynq.ErrorLevel,
		logrus.TraceLevel: asynq.DebugLevel,
	} {
		if got := asynqLevel(level); got != want {
			t.Errorf("at %s asynq logs at %d, want %d", level, got, want)
		}
	}
}
