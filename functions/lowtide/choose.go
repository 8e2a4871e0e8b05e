package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lowtide/functions/lowtide/choose"
	"lowtide/shared/fleet"
	clouds "lowtide/shared/provider/all"
)

// chosen is what lowtide choose prints.
type chosen struct {
	Example bool            `json:"example,omitempty"` // made up: nothing is sold
	For     choose.For      `json:"for"`
	Choices []choose.Choice `json:"choices"`
	Notes   []string        `json:"notes"`
	Skipped []skippedCloud  `json:"skipped,omitempty"`
}

func chooseCommand() *cobra.Command {
	var o common
	var f offersFlags
	var purpose string
	var memory, nvlink, mtbf, latency, qps float64
	var cards int
	var certified []string
	cmd := &cobra.Command{
		Use: "choose", Short: "Which machines suit a purpose, by the rules of selection guides, with reasons", Args: cobra.NoArgs,
		Long: "Asks what the machines are for, where --for does not say, and ranks the offers: those that meet every rule of the\n" +
			"purpose, then those that leave something unproven, then the others, each with what it lacks. Figures that are given\n" +
			"replace the guides'. Offers come from the lowtide of --state, or from every configured cloud.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if purpose == "" {
				var err error
				if purpose, err = ask(cmd.InOrStdin(), cmd.ErrOrStderr()); err != nil {
					return usage(err)
				}
			}
			n, err := choose.Usual(choose.For(purpose))
			if err != nil {
				return usage(fmt.Errorf("--for %w", err))
			}
			given := cmd.Flags().Changed
			for name, x := range map[string]struct{ to, is *float64 }{
				"memory": {&n.Memory, &memory}, "nvlink": {&n.NVLink, &nvlink}, "mtbf": {&n.MTBF, &mtbf}, "latency": {&n.Latency, &latency}, "qps": {&n.QPS, &qps},
			} {
				if given(name) {
					*x.to = *x.is
				}
			}
			if given("cards") {
				n.Cards = cards
			}
			if given("certified") {
				n.Certified = certified
			}
			book, err := clouds.Book(os.Getenv)
			if err != nil {
				return usage(err)
			}
			s, know := &shop{}, known{now: time.Now(), why: map[string]string{}}
			offers, err := s.gather(cmd.Context(), f, o.state, book, &know)
			if err != nil {
				return err
			}
			c := chosen{Example: s.Example, For: n.For, Choices: choose.Rank(n, offers, boardOf, know.pools), Notes: choose.Notes(n.For), Skipped: s.Skipped}
			return o.print(cmd.OutOrStdout(), c, func(w io.Writer) { c.print(w, f.most) })
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&purpose, "for", "", "training, inference, science or experiment; empty: it is asked")
	fl.Float64Var(&memory, "memory", 0, "GB of one GPU")
	fl.Float64Var(&nvlink, "nvlink", 0, "GB/s of one GPU")
	fl.IntVar(&cards, "cards", 0, "cards to be had at once")
	fl.Float64Var(&latency, "latency", 0, "ms to an answer")
	fl.Float64Var(&qps, "qps", 0, "answers a second")
	fl.Float64Var(&mtbf, "mtbf", 0, "hours between failures")
	fl.StringSliceVar(&certified, "certified", nil, "what the cloud must be certified for, as in the price book: iso27001, soc2, mlps3")
	fl.StringSliceVar(&f.clouds, "cloud", nil, "these clouds only")
	fl.BoolVar(&f.public, "public", false, "also ask clouds that show their offers to anybody")
	fl.IntVar(&f.most, "limit", 12, "rows to print; 0 prints all")
	return o.on(cmd, true)
}

// ask asks for the purpose.
func ask(in io.Reader, out io.Writer) (string, error) {
	fmt.Fprint(out, "What are the machines for?\n"+
		"  training    of large models: memory, NVLink, many cards\n"+
		"  inference   people wait for answers: latency, throughput, price\n"+
		"  science     runs for months: time between failures, certificates\n"+
		"  experiment  one to four weeks, may be interrupted: price\n> ")
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && strings.TrimSpace(line) == "" {
		return "", errors.New("nobody answers; give --for training, inference, science or experiment")
	}
	return strings.ToLower(strings.TrimSpace(line)), nil
}

// boardOf is what the rated table tells of an offer's GPU.
func boardOf(o fleet.Offer) choose.Board {
	r := board(o)
	if r == nil {
		return choose.Board{}
	}
	return choose.Board{Known: r.HasNVLink, TFLOPS: r.Datasheet, NVLink: r.NVLink}
}

func (c chosen) print(w io.Writer, most int) {
	if c.Example {
		fmt.Fprintln(w, "no cloud is configured: this is an example in Vast.ai's format, at made-up prices; nothing here is sold")
	}
	for _, n := range c.Notes {
		fmt.Fprintln(w, n)
	}
	fmt.Fprintln(w, "\n\tOFFER\tGPU\tUSD/GPU-H\tVERDICT\tWHY")
	for i, x := range c.Choices {
		if most > 0 && i == most {
			fmt.Fprintf(w, "\t%d more\t\t\t\t\n", len(c.Choices)-most)
			break
		}
		verdict, why := "meets all", []string{}
		switch {
		case x.No > 0:
			verdict = "does not suit"
		case x.Unproven > 0:
			verdict = "unproven"
		}
		for _, v := range x.Verdicts {
			if v.Met != "yes" {
				why = append(why, v.Rule+" "+v.Met+" ("+v.Why+")")
			}
		}
		fmt.Fprintf(w, "%d\t%s\t%d × %s\t%.4f\t%s\t%s\n", i+1, x.Offer, x.Offer.GPUs, x.Offer.GPU, x.GPUHour, verdict, strings.Join(why, "; "))
	}
	if len(c.Choices) == 0 {
		fmt.Fprintln(w, "\tnothing is on offer for it\t\t\t\t")
	}
}
