package relay

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"lowtide/shared/fn"
)

// Meter counts what a relay does. NewMeter makes it.
type Meter struct {
	registry    *prometheus.Registry
	invocations *prometheus.CounterVec
	messages    *prometheus.CounterVec
	dropped     *prometheus.CounterVec
	took        *prometheus.HistogramVec
}

// NewMeter makes a meter.
func NewMeter() *Meter {
	m := &Meter{
		registry: prometheus.NewRegistry(),
		invocations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lowtide_relay_invocations_total", Help: "Invocations, by function and whether an answer came.",
		}, []string{"function", "outcome"}),
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lowtide_relay_messages_total", Help: "Messages handed on, repeats too.",
		}, []string{"function"}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lowtide_relay_late_total", Help: "Messages that were too late to be handed on.",
		}, []string{"function"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lowtide_relay_invocation_seconds", Help: "How long an invocation took.",
			Buckets: []float64{.002, .005, .01, .02, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"function"}),
	}
	m.registry.MustRegister(m.invocations, m.messages, m.dropped, m.took)
	return m
}

// Handler serves the metrics in Prometheus' text form.
func (m *Meter) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

func (m *Meter) invoked(function string, messages int, took time.Duration, err error) {
	outcome := "answered"
	if err != nil {
		outcome = "failed"
	}
	m.invocations.WithLabelValues(function, outcome).Inc()
	m.messages.WithLabelValues(function).Add(float64(messages))
	m.took.WithLabelValues(function).Observe(took.Seconds())
}

func (m *Meter) late(function string) { m.dropped.WithLabelValues(function).Inc() }

// watch adds what the host of a function counts.
func (m *Meter) watch(function, key string, counts func() fn.Counts) {
	for _, c := range []struct {
		name, help string
		of         func(fn.Counts) uint64
	}{
		{"lowtide_relay_handled_total", "Messages whose function answered that they are handled.", func(c fn.Counts) uint64 { return c.Handled }},
		{"lowtide_relay_dead_total", "Messages that went to the dead letters.", func(c fn.Counts) uint64 { return c.Dead }},
		{"lowtide_relay_redelivered_total", "Deliveries that were not the first of their message.", func(c fn.Counts) uint64 { return c.Redelivered }},
	} {
		m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: c.name, Help: c.help, ConstLabels: prometheus.Labels{"function": function, "key": key},
		}, func() float64 { return float64(c.of(counts())) }))
	}
}
