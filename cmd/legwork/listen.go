package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	stdlog "log"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"legwork/worker"
)

const (
	// headerTime, requestTime and answerTime bound what a probe's connection may cost. An answer waits for Postgres and
	// Redis a little longer than they are given.
	headerTime  = 5 * time.Second
	requestTime = 10 * time.Second
	answerTime  = 15 * time.Second
	keepTime    = time.Minute

	maxProbeHeader = 16 << 10

	// farewellTime is what probes that are being answered get when the worker has ended.
	farewellTime = 2 * time.Second
)

// listener answers probes and scrapes.
type listener struct {
	server http.Server
	ended  chan struct{}
}

// listen begins to answer /healthz, /readyz and /metrics at an address, and nothing else there. The caller stops it.
func listen(ctx context.Context, address string, health *worker.Health, metrics *worker.Metrics, log logrus.FieldLogger) (*listener, error) {
	socket, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("LEGWORK_HTTP_ADDR is %q, where this worker cannot listen (%w): choose another address, or end what listens there", address, reason(err))
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { tell(w, health.Live()) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { tell(w, health.Ready()) })
	mux.Handle("GET /metrics", metrics.Handler())
	l := &listener{ended: make(chan struct{}), server: http.Server{
		Handler:           mux,
		ReadHeaderTimeout: headerTime,
		ReadTimeout:       requestTime,
		WriteTimeout:      answerTime,
		IdleTimeout:       keepTime,
		MaxHeaderBytes:    maxProbeHeader,
		ErrorLog:          stdlog.New(debugLines{log}, "", 0),
	}}
	go func() {
		defer close(l.ended)
		if err := l.server.Serve(socket); !errors.Is(err, http.ErrServerClosed) {
			log.WithError(err).Error("probes and scrapes are not answered any more; the worker goes on")
		}
	}()
	log.WithField("address", socket.Addr().String()).Info("/healthz, /readyz and /metrics are answered")
	return l, nil
}

// stop ends it, after what is being answered.
func (l *listener) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), farewellTime)
	defer cancel()
	if l.server.Shutdown(ctx) != nil {
		l.server.Close()
	}
	<-l.ended
}

func tell(w http.ResponseWriter, report worker.HealthReport) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !report.OK {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(report) // the probe has gone
}

// reason is the innermost cause that says something to an operator.
func reason(err error) error {
	var call *os.SyscallError
	if errors.As(err, &call) {
		return call.Err
	}
	var operation *net.OpError
	if errors.As(err, &operation) {
		return operation.Err
	}
	return err
}

// debugLines takes what net/http has to say about connections that break, which concerns whoever probes.
type debugLines struct{ log logrus.FieldLogger }

func (d debugLines) Write(line []byte) (int, error) {
	d.log.Debug(strings.TrimSpace(string(line)))
	return len(line), nil
}
