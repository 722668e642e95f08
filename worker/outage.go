package worker

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

const (
	// patience is for how long nothing must have succeeded before what fails is an outage: while some tries fail and others do
	// not, it is none. It is longer than the time between two sweeps.
	patience = 7 * time.Second

	// untriedTime is for how long nothing must have been tried before an outage is over because something else succeeds.
	untriedTime = 30 * time.Second
)

// outage says once that something cannot be done, and once that it can again, however often it is tried meanwhile. Safe for
// concurrent use.
type outage struct {
	cannot, canAgain string // sentences without their ends

	mu        sync.Mutex
	said      bool
	since     time.Time // the first failure after the last success; zero: there is none
	failed    time.Time // last
	succeeded time.Time // last
	others    time.Time // when something else first succeeded after the last failure that needs the same; zero: it has not
}

// note hears how a try ended.
func (o *outage) note(log logrus.FieldLogger, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if err == nil {
		o.succeeded = now
		o.over(log, now)
		return
	}
	o.failed, o.others = now, time.Time{}
	if o.since.IsZero() {
		o.since = now
	}
	good := o.succeeded
	if good.IsZero() { // it has not been tried before
		good = o.since
	}
	if !o.said && now.Sub(good) >= patience {
		o.said = true
		log.WithError(err).Error(o.cannot + "; it is tried again, and the end of it is told")
	}
}

// also hears that something else succeeded that needs the same, which counts where there are no more tries.
func (o *outage) also(log logrus.FieldLogger) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if o.others.IsZero() {
		o.others = now
	}
	if now.Sub(o.failed) >= untriedTime {
		o.over(log, o.others)
	}
}

// over needs the lock.
func (o *outage) over(log logrus.FieldLogger, at time.Time) {
	if o.said {
		log.Infof("%s, after %s", o.canAgain, at.Sub(o.since).Round(time.Second))
	}
	o.said, o.since = false, time.Time{}
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

// seldomTime is between two that are said of something that may happen many times a second.
const seldomTime = 10 * time.Second

// seldom tells when something may be said again. Safe for concurrent use.
type seldom struct {
	mu   sync.Mutex
	last time.Time
}

func (s *seldom) now() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.last) < seldomTime {
		return false
	}
	s.last = time.Now()
	return true
}
