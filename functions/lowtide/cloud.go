package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lowtide/shared/fn"
	"lowtide/shared/provider/fake"
)

// outside is the cloud in another process that a state directory buys at. It stays the same for the state's life:
// machines at another one would be forgotten, and bill on.
type outside struct {
	URL string `json:"url"`
	ID  string `json:"id"` // fake.About
}

// readOutside reads which cloud a state belongs to; the zero outside: the one inside the daemon, or none yet.
func readOutside(dir string) (o outside, err error) {
	file := filepath.Join(dir, "cloud.json")
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return o, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &o)
	}
	if err == nil && (o.URL == "" || o.ID == "") {
		err = errors.New("it names no cloud")
	}
	if err != nil {
		return o, usage(fmt.Errorf("read %s: %w; it must hold {\"url\":…,\"id\":…} of the cloud that this state bought at", file, err))
	}
	return o, nil
}

// dialOutside reaches the cloud of a state: the one that is asked for, which must be the one of last time if there was one,
// and no other than the state began with.
func dialOutside(ctx context.Context, dir, address string) (*fake.Client, fake.About, error) {
	kept, err := readOutside(dir)
	if err != nil {
		return nil, fake.About{}, err
	}
	_, inside := os.Stat(filepath.Join(dir, "cloud"))
	switch {
	case address == "" && kept.URL == "":
		return nil, fake.About{}, nil
	case address == "":
		address = kept.URL
	case kept.URL == "" && inside == nil:
		return nil, fake.About{}, usage(fmt.Errorf("--cloud: %s began with a cloud inside the daemon; take another --state, or leave --cloud out", dir))
	}
	c, err := dialCloud(ctx, address)
	if err != nil {
		return nil, fake.About{}, err
	}
	about, err := c.About(ctx)
	if err != nil {
		return nil, fake.About{}, nobody(fmt.Errorf("cloud %s: %w", address, err))
	}
	if kept.ID != "" && kept.ID != about.ID {
		return nil, fake.About{}, usage(fmt.Errorf("--cloud: %s bought at cloud %s, and at %s is another one (%s)", dir, kept.ID, address, about.ID))
	}
	b, err := json.Marshal(outside{address, about.ID})
	if err != nil {
		return nil, fake.About{}, err
	}
	return c, about, keep(filepath.Join(dir, "cloud.json"), b)
}

// dialCloud reaches a fake cloud.
func dialCloud(ctx context.Context, address string) (*fake.Client, error) {
	if u, err := url.Parse(address); err != nil || u.Scheme != "http" || u.Host == "" {
		return nil, usage(fmt.Errorf("--cloud %q: want the URL that lowtide fakecloud prints, such as http://127.0.0.1:4711", address))
	}
	c, err := fake.Dial(ctx, address)
	if err != nil {
		return nil, nobody(fmt.Errorf("cloud %s does not answer: %w", address, err))
	}
	return c, nil
}

// keptClock is the clock of a directory from its first use on: the market goes on where it would be, whatever the speed
// that is asked for now.
func keptClock(dir string, speed float64) (fn.Clock, error) {
	file := filepath.Join(dir, "clock")
	b, err := os.ReadFile(file)
	if err == nil {
		text := strings.TrimSpace(string(b))
		c, err := fn.ParseClock(text)
		if text == "" || err != nil && text != wallClock {
			return c, usage(fmt.Errorf("%s: %q is no clock: want origin,start,speed, or %q; all times of this state are told by it", file, text, wallClock))
		}
		return c, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return fn.Clock{}, err
	}
	if speed == 1 {
		return fn.Clock{}, keep(file, []byte(wallClock))
	}
	c := fn.Clock{Origin: origin, Start: time.Now(), Speed: speed}
	return c, keep(file, []byte(c.String()))
}

const wallClock = "wall"

// cloudCommand is the fake cloud as a process of its own.
func cloudCommand() *cobra.Command {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	cmd := fake.Command(func(s string) (func() time.Time, func(time.Duration) time.Duration, error) {
		c, err := fn.ParseClock(s)
		return c.Now, c.Real, err
	}, []string{self, "agent"})
	speed := cmd.Flags().Float64("speed", 1, "market seconds in a second, from the first start in --dir on; --clock wins")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		dir := cmd.Flag("dir").Value.String()
		if cmd.Flags().Changed("clock") || dir == "" && *speed == 1 {
			return nil
		}
		if err := checkSpeed(*speed); err != nil {
			return err
		}
		if dir == "" {
			return usage(errors.New("--speed needs --dir: a market that began anew at each start would be another one"))
		}
		c, err := keptClock(dir, *speed)
		if err != nil {
			return err
		}
		return cmd.Flags().Set("clock", c.String())
	}
	return cmd
}

func checkSpeed(speed float64) error {
	if !(speed >= 1 && speed <= 1000) {
		return usage(fmt.Errorf("--speed %g: want 1 to 1000 market seconds in a second", speed))
	}
	return nil
}
