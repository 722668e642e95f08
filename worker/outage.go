package worker

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// calmTime is for how long nothing may fail before an outage is over: while some tries fail and others do not, it goes on.
const calmTime = 10 * time.Second

// outage says once that something cannot be done, and once that it can again, however often it is tried meanwhile. Safe for
// concurrent use.
type outage struct {
	cannot, canAgain string // sentences without their ends

	mu     sync.Mutex
	since  time.Time // zero while all is well
	failed time.Time // last
	back   time.Time // when it first succeeded after that; zero: it has not
}

// note hears how a try ended.
func (o *outage) note(log logrus.FieldLogger, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if err == nil {
		if o.back.IsZero() {
			o.back = now
		}
		o.tell(log, now)
		return
	}
	o.failed, o.back = now, time.Time{}
	if o.since.IsZero() {
		o.since = now
		log.WithError(err).Error(o.cannot + "; it is tried again, and the end of it is told")
	}
}

// look tells that it is over where there are no more tries to hear of.
func (o *outage) look(log logrus.FieldLogger) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tell(log, time.Now())
}

// tell needs the lock.
func (o *outage) tell(log logrus.FieldLogger, now time.Time) {
	if o.since.IsZero() || o.back.IsZero() || now.Sub(o.failed) < calmTime {
		return
	}
	log.Infof("%s, after %s", o.canAgain, o.back.Sub(o.since).Round(time.Second))
	o.since = time.Time{}
}

// pause is for how long to let it be: the longer, the longer it lasts, and not the same for all who ask.
func (o *outage) pause() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	pause := 2 * time.Second
	if !o.since.IsZero() {
		pause = min(max(time.Since(o.since)/4, pause), 10*time.Second)
	}
	return pause + rand.N(pause)
}
