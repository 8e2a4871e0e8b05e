package static

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// looking prints a machine's mark, if somebody holds it.
const looking = `cat "$HOME/.lowtide/mark" 2>/dev/null || true
`

// place is where the agent lives on such a machine, and how it gives it back.
const place = `export LOWTIDE_DIR="$HOME/.lowtide/run"
export LOWTIDE_POWEROFF="[\"sh\",\"$HOME/.lowtide/release\"]"
export LOWTIDE_BENCH="[\"$HOME/.lowtide/run/lowtide\",\"benchrunner\",\"run\"]"
`

// taking claims the machine and starts the agent. The mark is linked into its place, which fails where there is one: two that
// come at once cannot both have it.
const taking = `set -u
umask 077
d="$HOME/.lowtide"
mkdir -p "$d" || exit 1
printf %s @MARK@ | base64 -d >"$d/mark.$$" || exit 1
if ! ln "$d/mark.$$" "$d/mark" 2>/dev/null; then
	rm -f "$d/mark.$$"
	echo held
	cat "$d/mark"
	exit 0
fi
rm -f "$d/mark.$$"
printf %s @RELEASE@ | base64 -d >"$d/release"
printf %s @BOOT@ | base64 -d >"$d/boot"
if sh "$d/boot" >"$d/boot.log" 2>&1 </dev/null; then
	echo taken
else
	echo failed
	tail -n 3 "$d/boot.log"
	rm -rf "$d/run" "$d/mark"
fi
`

// releasing ends what lowtide started and takes the mark off, last: until then the machine is held. Where there is a /proc, a
// process must carry the directory in its environment.
const releasing = `d="$HOME/.lowtide"
[ -e "$d/mark" ] || exit 0
ours() {
	[ -d /proc/self ] || return 0
	tr '\0' '\n' <"/proc/$1/environ" 2>/dev/null | grep -qF "=$d/run"
}
pid() { sed -n 's/.*"pid": *\([0-9][0-9]*\).*/\1/p' "$1" 2>/dev/null; }
for what in run setup; do
	w=$(pid "$d/run/work/$what/workload.json"); h=$(pid "$d/run/work/$what/holder.json")
	if [ -n "$w" ] && ours "$w"; then kill -KILL "-$w" 2>/dev/null; fi
	if [ -n "$h" ] && ours "$h"; then kill -KILL "$h" 2>/dev/null; fi
done
if [ -r "$d/run/work/engine" ]; then
	engine=$(cat "$d/run/work/engine")
	boxes=$(cat "$d/run/work/boxes" 2>/dev/null) # others on this host have their own
	if [ -n "$boxes" ]; then
		for what in setup run check; do "$engine" rm -f "$boxes$what" >/dev/null 2>&1; done
	fi
fi
a=$(cat "$d/run/agent.pid" 2>/dev/null)
if [ -n "$a" ] && ours "$a"; then kill -KILL "$a" 2>/dev/null; fi
rm -rf "$d/run"
rm -f "$d/boot" "$d/boot.log" "$d/mark"
`

// ending goes before releasing where a machine is ended from outside: another may hold it by now.
const ending = `if ! grep -q "@TOKEN@" "$HOME/.lowtide/mark" 2>/dev/null; then exit 0; fi
`

// SSH is a Shell over a program such as ssh with its options. Its exit status 255 is the connection's.
func SSH(command ...string) Shell {
	return func(ctx context.Context, target, script string) (string, error) {
		cmd := exec.CommandContext(ctx, command[0], append(append([]string{}, command[1:]...), "--", target, "sh", "-s")...)
		cmd.Stdin = strings.NewReader(script)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			said := strings.Join(strings.Fields(errs.String()), " ")
			return "", fmt.Errorf("%w: %s", err, said[:min(len(said), 200)])
		}
		return out.String(), nil
	}
}
