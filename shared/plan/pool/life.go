package pool

import "math"

// Recall is a memory that was kept elsewhere: whether the zone is up and for how many seconds, and of the seen hours,
// forgotten over a day, the good ones in which it was (Kept).
func Recall(up bool, age, good, seen float64) Memory {
	return Memory{Up: up, Age: age, good: good, all: math.Max(good, seen)}
}

// Kept is what Recall needs beside Up and Age.
func (m Memory) Kept() (good, seen float64) { return m.good, m.all }

// Ends is the chance that the run, or the outage, ends within so many seconds.
func (m Memory) Ends(within float64) float64 {
	alive := 1.0
	m.live(within, func(_, _, end float64) { alive *= 1 - end })
	return 1 - alive
}

// live walks ahead in spans over which the hazard moves little, and tells for each its length, its chance to be
// reached, and the chance that it ends the run.
func (m Memory) live(limit float64, span func(seconds, reached, end float64)) {
	prior, level := downOdds, downLevel
	if m.Up {
		prior, level = upOdds, upLevel
	}
	tilted := level * tilt(m.Level())
	alive := 1.0
	for at := 0.0; at < limit && alive > 1e-3; {
		age := m.Age + at
		s := math.Min(math.Max(natural, age/8), limit-at)
		end := -math.Expm1(-s / natural * math.Log1p(math.Exp(odds(prior, age/natural)+tilted))) // 1 - (1-chance)^steps
		span(s, alive, end)
		alive *= 1 - end
		at += s
	}
}

// Life is the expected rest of the zone's run, in seconds, at most limit.
func (z Zone) Life(limit float64) float64 {
	sum := 0.0
	z.live(limit, func(s, reached, end float64) { sum += reached * (1 - end/2) * s })
	return sum
}

// Useful is the price of a useful hour of so much work: the zone is ridden for its expected life, of which each start
// burns delay; both in seconds. +Inf where no start would come to work.
func (z Zone) Useful(work, delay float64) float64 {
	life := z.Life(work + delay)
	if life <= delay {
		return math.Inf(1)
	}
	return z.Price * life / (life - delay)
}

// Among is the memory of a zone as its neighbours correct it: what was not seen of its own level is taken to be at
// theirs instead of what is ordinary, and its runs end so many times as often as ordinary ones of their age and level.
func (m Memory) Among(level, often float64) Memory {
	m.good += (level - unknown) * belief
	if often <= 0 || often == 1 {
		return m
	}
	e := math.Exp(tilt(m.Level()) + math.Log(often)/upLevel)
	shifted := math.Min(math.Max((1.02*e-0.02)/(1+e), 0), 1) // the inverse of tilt
	m.good = shifted*(m.all+belief) - unknown*belief
	return m
}
