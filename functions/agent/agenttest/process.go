package agenttest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lowtide/functions/agent"
	"lowtide/shared/parcel"
)

// process is the workload on a machine. Its work is done when the machine advances.
type process struct {
	cmd    agent.Command
	job    Job
	life   *Life
	alive  bool
	code   int
	at     time.Time // until when it has worked
	first  time.Time // its first step begins; from then on it listens
	savedT time.Time
	ask    bool
	newest *agent.Local
	result string
	tail   string
}

type runner struct{ m *Machine }

func (r runner) Prepare(_ context.Context, epoch uint64) (string, error) {
	if p := r.m.proc; p != nil && p.cmd.Epoch == epoch {
		return "", fmt.Errorf("epoch %d was started", epoch)
	}
	dir := fmt.Sprintf("runs/%d/", epoch)
	r.m.clear(dir)
	return dir + "restored", nil
}

// Place keeps no code: what a job does is a Job.
func (r runner) Place(ctx context.Context, sum string, fetch func(context.Context) ([]byte, error)) (string, error) {
	if b, err := fetch(ctx); err != nil || parcel.Sum(b) != sum {
		return "", errors.Join(agent.ErrDamaged, err)
	}
	return "code/" + sum, nil
}

// Check passes.
func (r runner) Check(context.Context, agent.Command) (agent.Setup, error) {
	return agent.Setup{Over: true}, nil
}

// SetUp is over at once: what a setup takes is Options.Setup.
func (r runner) SetUp(context.Context, agent.Command) (agent.Setup, error) {
	return agent.Setup{Over: true}, nil
}

func (r runner) Start(_ context.Context, c agent.Command) error {
	m := r.m
	if p := m.proc; p != nil && p.cmd.Epoch == c.Epoch {
		return nil
	}
	if m.Alive() != 0 {
		return fmt.Errorf("epoch %d still runs", m.Alive())
	}
	m.fault("start")
	job := m.o.Job(c.Workload, c.Env)
	p := &process{cmd: c, job: job, alive: true, at: m.now.Add(m.o.Setup)}
	p.first, p.savedT = p.at, p.at
	p.life = m.o.Log.begin(Life{Workload: c.Workload, Epoch: c.Epoch, Machine: m.o.Config.Machine, Began: m.now})
	m.proc = p
	if c.Restored != "" {
		if err := job.Load(m.files[c.Restored]); err != nil {
			p.tail = err.Error()
			p.exit(m, 1)
		}
	}
	p.life.From = job.Step()
	m.fault("started")
	return nil
}

func (r runner) Status(context.Context) (agent.Status, error) {
	p := r.m.proc
	if p == nil {
		return agent.Status{}, nil
	}
	return agent.Status{
		Epoch: p.cmd.Epoch, Alive: p.alive, Code: p.code, Listening: p.alive && !r.m.now.Before(p.first),
		Step: p.job.Step(), Of: p.job.Of(), Newest: p.newest, Result: p.result, Tail: p.tail,
	}, nil
}

func (r runner) Save(context.Context, time.Time) error {
	r.m.fault("ask")
	if p := r.m.proc; p != nil && p.alive {
		p.ask = true
		if r.m.asked.IsZero() {
			r.m.asked = r.m.now
		}
	}
	r.m.fault("asked")
	return nil
}

func (r runner) Stop(context.Context, bool) error {
	r.m.fault("stop")
	if p := r.m.proc; p != nil && p.alive {
		p.exit(r.m, 143)
	}
	r.m.fault("stopped")
	return nil
}

// advance works until the machine's now: a step, and at its boundary what is due.
func (p *process) advance(m *Machine) {
	each := time.Duration(float64(time.Second) / m.o.Rate)
	for p.alive && !p.at.Add(each).After(m.now) {
		p.at = p.at.Add(each)
		if p.job.Of() == 0 || p.job.Step() < p.job.Of() {
			p.job.Run()
			m.o.Log.step(Step{p.cmd.Workload, p.cmd.Epoch, m.o.Config.Machine, p.job.Step(), p.at})
		}
		done := p.job.Of() > 0 && p.job.Step() >= p.job.Of()
		if done || p.ask || p.cmd.SaveEvery > 0 && p.at.Sub(p.savedT) >= p.cmd.SaveEvery {
			p.save(m)
		}
		if done {
			p.result = p.job.Result()
		}
		if done || p.ask {
			p.exit(m, 0)
		}
	}
}

// save writes a checkpoint on the machine's disk.
func (p *process) save(m *Machine) {
	p.savedT = p.at
	val := p.job.Save()
	l := agent.Local{Path: fmt.Sprintf("runs/%d/step-%d", p.cmd.Epoch, p.job.Step()), Step: p.job.Step(), Bytes: int64(len(val))}
	m.files[l.Path] = val
	p.newest = &l
}

func (p *process) exit(m *Machine, code int) {
	p.alive, p.code = false, code
	p.life.Ended, p.life.To = m.now, p.job.Step()
}

// Fail makes the workload end of itself with a status and a log.
func (m *Machine) Fail(code int, log string) {
	if m.proc != nil && m.proc.alive {
		m.proc.tail = log
		m.proc.exit(m, code)
	}
}

// SaveNow makes the workload write a checkpoint of its own.
func (m *Machine) SaveNow() {
	if m.proc != nil && m.proc.alive {
		m.proc.save(m)
	}
}
