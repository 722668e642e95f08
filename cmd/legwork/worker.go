package main

import (
	"context"
	"net/http"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"legwork/config"
	"legwork/mcp"
	"legwork/store"
	"legwork/worker"
)

func newWorkerCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "worker",
		Short: "take jobs from Redis and carry them out until SIGTERM or SIGINT",
		Long: "Takes jobs from Redis and carries them out. On SIGTERM or SIGINT it takes no more, waits for what runs, settles it " +
			"and exits with 0; a second signal ends it at once.\n\nIts settings are environment variables: see \"legwork help settings\".",
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.work(cmd.Context()) },
	}
}

func (a *app) work(ctx context.Context) error {
	cfg, err := config.Load(a.lookupEnv)
	if err != nil {
		return err
	}
	logger := a.logger(cfg)
	for _, warning := range cfg.Warnings {
		logger.Warn(warning)
	}
	client, err := newClient(cfg)
	if err != nil {
		return err
	}
	defer client.Close()
	rows, err := store.Open(ctx, cfg.DatabaseURL, worker.StoreOptions())
	if err != nil {
		return err
	}
	defer rows.Close()
	var metrics *worker.Metrics
	if cfg.HTTPAddress != "" {
		v, _ := version()
		metrics = worker.NewMetrics(v)
	}
	w := worker.New(rows, client, worker.Options{
		Redis:           cfg.Redis,
		Concurrency:     cfg.Concurrency,
		Budget:          cfg.OperationTimeout,
		ShutdownTimeout: cfg.ShutdownTimeout,
		RetentionDays:   cfg.RetentionDays,
		Logger:          logger,
		Metrics:         metrics,
	})
	if cfg.HTTPAddress != "" {
		l, err := listen(ctx, cfg.HTTPAddress, w.Health(), metrics, logger)
		if err != nil {
			return err
		}
		defer l.stop()
	}
	return w.Run(ctx)
}

func (a *app) logger(cfg config.Config) *logrus.Logger {
	logger := logrus.New()
	logger.SetOutput(a.stderr)
	logger.SetLevel(cfg.LogLevel)
	if cfg.LogFormat == config.FormatJSON {
		logger.SetFormatter(&logrus.JSONFormatter{})
	} else {
		logger.SetFormatter(&logrus.TextFormatter{FullTimestamp: true})
	}
	return logger
}

// newClient builds the one client of this process, behind the host gate. Layers stand between it and the wire.
func newClient(cfg config.Config, layers ...func(http.RoundTripper) http.RoundTripper) (*mcp.Client, error) {
	gate, err := mcp.NewGate(mcp.GateOptions{AllowPrivateNetworks: cfg.AllowPrivateNetworks, AllowedHosts: cfg.AllowedHosts, Proxy: cfg.Proxy})
	if err != nil {
		return nil, err
	}
	var wire http.RoundTripper = mcp.NewConnections(mcp.NewHTTPTransport(gate))
	for _, layer := range layers {
		wire = layer(wire)
	}
	clock := mcp.MonotonicClock()
	v, _ := version()
	return mcp.NewClient(mcp.NewTransport(wire, clock), clock, v), nil
}
