package provider

import (
	"errors"
	"fmt"
	"strings"
	"sync"
)

// Across gathers what each region of an account answers, in their order. A region that fails fails all: half a market, or
// half a list, is worse than the last whole one. what names the question in the error.
func Across[T any](cloud, what string, regions []string, one func(region string) ([]T, error)) ([]T, error) {
	var out []T
	for _, region := range regions {
		some, err := one(region)
		if err != nil {
			return nil, fmt.Errorf("%s: %s in %s: %w", cloud, what, region, err)
		}
		out = append(out, some...)
	}
	return out, nil
}

// Homes remembers in which region of an account each machine was seen. The zero Homes has seen none; it may be used by
// several at once.
type Homes struct {
	mu sync.Mutex
	of map[string]string
}

// Seen notes where a machine is.
func (h *Homes) Seen(id, region string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.of == nil {
		h.of = map[string]string{}
	}
	h.of[id] = region
}

// Visit does something about a machine in the region where it was seen, else in each until one has it: one returns
// ErrNotFound where it is not. known says that it was seen there, so that it need not be looked for.
func (h *Homes) Visit(id string, regions []string, one func(region string, known bool) error) error {
	h.mu.Lock()
	home := h.of[id]
	h.mu.Unlock()
	if home != "" {
		regions = []string{home}
	}
	for _, region := range regions {
		if err := one(region, home != ""); !errors.Is(err, ErrNotFound) {
			return err
		}
	}
	return fmt.Errorf("%w in %s", ErrNotFound, strings.Join(regions, ", "))
}
