package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	embedded "lowtide/functions/lowtide/nats"
)

// door is where a lasting lowtide listens. It stays the same over restarts: machines that live on know no other.
type door struct {
	Port  int    `json:"port"`
	Token string `json:"token"`
}

func doorFile(dir string) string { return filepath.Join(dir, "nats.json") }

// readDoor reads the door of the last run; the zero door if there was none.
func readDoor(dir string) (d door, err error) {
	b, err := os.ReadFile(doorFile(dir))
	if errors.Is(err, os.ErrNotExist) {
		return d, nil
	}
	if err != nil {
		return d, err
	}
	err = json.Unmarshal(b, &d)
	if err == nil && (d.Port < 1 || d.Port > 65535 || d.Token == "") {
		err = errors.New("it holds no port and token")
	}
	if err != nil {
		return d, usage(fmt.Errorf("read %s: %w; restore it, or remove it: machines that live then find nobody, save and end themselves when their lease is over", doorFile(dir), err))
	}
	return d, nil
}

// keepDoor writes the door for the owner alone, whole or not at all.
func keepDoor(dir string, s *embedded.Server) error {
	u, err := url.Parse(s.URL())
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		return err
	}
	b, err := json.Marshal(door{port, s.Token()})
	if err != nil {
		return err
	}
	return keep(doorFile(dir), b)
}
