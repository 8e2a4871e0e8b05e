package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lowtide/events"
	"lowtide/functions/intake"
	"lowtide/functions/lowtide/story"
	"lowtide/shared/fleet"
)

// reserveCommand tells lowtide of capacity that is paid for.
func reserveCommand() *cobra.Command {
	var o common
	var giveUp, book string
	cmd := &cobra.Command{
		Use:   "reserve [FILE]",
		Short: "Tell lowtide of capacity that is paid for: it is filled before anything is bought",
		Long: "Tells lowtide of capacity that is paid for, used or not: reserved instances with capacity, capacity blocks, prepaid terms.\n" +
			"It buys no reservation. The workloads whose alternative is dearest run there, and leave before it ends.\n" +
			"FILE again with other figures replaces it; --give-up ID: whoever runs there moves on.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 1) == (giveUp != "") {
				return usage(errors.New("want a reservation file, or --give-up ID"))
			}
			if giveUp != "" {
				return o.talk(cmd, func(c *client) error { return c.giveUp(cmd, &o, giveUp) })
			}
			if _, err := readReservation(args[0], time.Now()); err != nil { // before anybody is asked
				return usage(err)
			}
			return o.talk(cmd, func(c *client) error {
				r, err := readReservation(args[0], c.clock.Now())
				if err != nil {
					return usage(err)
				}
				if book != "" {
					cloud, err := dialCloud(cmd.Context(), book)
					if err == nil {
						err = cloud.Book(cmd.Context(), r)
					}
					if err != nil {
						return err
					}
				}
				return c.reserve(cmd, &o, r)
			})
		},
	}
	cmd.Flags().StringVar(&giveUp, "give-up", "", "id of a reservation that is ours no more")
	cmd.Flags().StringVar(&book, "book", "", "URL of a fake cloud (lowtide fakecloud) at which it is paid for at the same time")
	return o.on(cmd, true)
}

func readReservation(name string, now time.Time) (fleet.Reservation, error) {
	b, err := readBounded(name)
	if err != nil {
		return fleet.Reservation{}, err
	}
	return intake.Reservation(name, b, now)
}

// reserve says it and waits until the decider has taken it over.
func (c *client) reserve(cmd *cobra.Command, o *common, r fleet.Reservation) error {
	err := c.held(cmd.Context(), r, func(is *fleet.Reservation) bool {
		return is != nil && is.Count == r.Count && is.Until.Sub(r.Until).Abs() < time.Millisecond && is.Hourly.Amount.Equal(r.Hourly.Amount)
	})
	if err != nil {
		return err
	}
	return o.print(cmd.OutOrStdout(), r, func(w io.Writer) {
		ends := "without an end"
		if !r.Until.IsZero() {
			ends = "until " + r.Until.Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s is taken over: %d × %s, %s/h used or not, %s; it is filled before anything is bought, see lowtide status\n",
			r.ID, r.Count, r.Type, r.Hourly.Times(float64(r.Count)), ends)
	})
}

func (c *client) giveUp(cmd *cobra.Command, o *common, id string) error {
	f, err := c.fleet(cmd.Context())
	if err != nil {
		return err
	}
	r := f.Reserved[id]
	if r == nil {
		return usage(fmt.Errorf("--give-up %s: there is no such reservation; lowtide status shows those there are", id))
	}
	gone := *r
	gone.Count = 0
	if err := c.held(cmd.Context(), gone, func(is *fleet.Reservation) bool { return is == nil }); err != nil {
		return err
	}
	return o.print(cmd.OutOrStdout(), gone, func(w io.Writer) {
		fmt.Fprintf(w, "%s is given up; who runs there moves on\n", id)
	})
}

// held says a reservation and waits until the decider has it so.
func (c *client) held(ctx context.Context, r fleet.Reservation, so func(*fleet.Reservation) bool) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return c.await(ctx, r.ID, c.event(events.ReservationSet{Reservation: r, By: user()}), reply{
		so: func(f *fleet.Fleet) (bool, error) { return so(f.Reserved[r.ID]), nil },
	})
}

// printReserved shows what is paid for, what of it is used, and what lies idle.
func printReserved(w io.Writer, f *fleet.Fleet, now time.Time) {
	if len(f.Reserved) == 0 {
		return
	}
	fmt.Fprintln(w, "\nRESERVATION\tTYPE\tWHERE\tUSED\tUSD/H, USED OR NOT\tIDLE USD/H\tENDS IN\tFOR")
	for _, id := range fleet.Sorted(f.Reserved) {
		r := f.Reserved[id]
		ends, where := "-", r.Zone
		if !r.Until.IsZero() {
			ends = story.Short(r.Until.Sub(now))
		}
		if where == "" {
			where = r.Region
		}
		used, idle := f.Used(id), 0
		if r.Open(now) {
			idle = max(r.Count-used, 0)
		}
		var by []string
		for _, name := range fleet.Sorted(f.Workloads) {
			if x := f.Workloads[name]; x.Slot == id && !x.Phase.Final() {
				by = append(by, name)
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s/%s\t%d of %d\t%s\t%s\t%s\t%s\n", id, r.Type, r.Cloud, where, used, r.Count,
			r.Hourly.Times(float64(r.Count)), r.Hourly.Times(float64(idle)), ends, few(by))
	}
}

// few lists a few.
func few(all []string) string {
	if len(all) == 0 {
		return "-"
	}
	if n := len(all) - 3; n > 0 {
		all = append(all[:3:3], fmt.Sprintf("%d more", n))
	}
	return strings.Join(all, ", ")
}
