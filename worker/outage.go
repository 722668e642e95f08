package worker

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// outage says once that something cannot be done, and once that it can again, however often it is tried meanwhile. Safe for
// concurrent use.
type outage struct {
	cannot, canAgain string // sentences without their ends

	mu    sync.Mutex
	since time.Time // zero while all is well
}

// note hears how a try ended.
func (o *outage) note(log logrus.FieldLogger, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case err != nil && o.since.IsZero():
		o.since = time.Now()
		log.WithError(err).Error(o.cannot + "; it is tried again, and the end of it is told")
	case err == nil && !o.since.IsZero():
		log.Infof("%s, after %s", o.canAgain, time.Since(o.since).Round(time.Second))
		o.since = time.Time{}
	}
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
