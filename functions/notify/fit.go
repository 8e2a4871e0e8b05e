package notify

import (
	"fmt"
	"unicode/utf8"
)

// Fit cuts a message's text to a platform's size: it keeps the first lines, which hold job, money and action, and says
// how many were left out. A title takes a third at most. cost measures a line as the platform counts it, escaped, with its line break; a line that is
// too long by itself is cut between two characters before it is escaped.
func Fit(title string, lines []string, limit int, cost func(line string) int, more func(n int) string) (string, []string) {
	title = shorten(title, max(limit/3, min(limit, 300)), cost)
	left := limit - cost(title)
	var out []string
	for n, l := range lines {
		tail := 0
		if rest := len(lines) - n - 1; rest > 0 {
			tail = cost(more(rest))
		}
		if cost(l)+tail <= left {
			left -= cost(l)
			out = append(out, l)
			continue
		}
		if note := more(len(lines) - n); cost(note) <= left {
			out = append(out, note)
		}
		break
	}
	return title, out
}

// shorten cuts one line so that its cost is within limit.
func shorten(s string, limit int, cost func(string) int) string {
	if cost(s) <= limit {
		return s
	}
	low, high := 0, len(s)
	for low < high { // the longest head that fits
		mid := (low + high + 1) / 2
		if cost(Cut(s, mid)) <= limit {
			low = mid
		} else {
			high = mid - 1
		}
	}
	return Cut(s, low)
}

// Cut takes the head of s, at most so many bytes with the mark of the cut, never through a character.
func Cut(s string, limit int) string {
	const mark = "…"
	if len(s) <= limit {
		return s
	}
	n := limit - len(mark)
	if n <= 0 {
		return ""
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + mark
}

// More says in the message's language that lines were left out.
func (m Message) More(n int) string {
	if m.Language == Chinese {
		return fmt.Sprintf("另有 %d 项", n)
	}
	return fmt.Sprintf("+%d more", n)
}
