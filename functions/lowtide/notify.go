package main

import (
	"errors"
	"os"
	"path/filepath"

	"lowtide/functions/notify/settings"
)

// told reads whom to tell what. Without a file nobody is told.
func (f runFlags) told() (settings.Settings, error) {
	file := f.notify
	if file == "" && f.state != "" {
		file = filepath.Join(f.state, "notify.yaml")
		if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
			return settings.Settings{}, nil
		}
	}
	if file == "" {
		return settings.Settings{}, nil
	}
	s, err := settings.Read(file, settings.Options{Env: os.LookupEnv})
	if err != nil {
		return s, usage(err)
	}
	return s, nil
}
