# Adds the numbers up, one a step. What makes it movable is marked with (1) to (5).
set -eu
step=0 sum=0

# (1) Where an earlier machine left off, if there was one.
if [ -n "${LOWTIDE_RESTORED:-}" ]; then
	read -r step sum <"$LOWTIDE_RESTORED/state"
	echo "going on after step $step"
fi

# (2) A complete checkpoint first, then the word that it is there.
save() {
	mkdir -p "$LOWTIDE_CKPT_DIR/step-$step"
	echo "$step $sum" >"$LOWTIDE_CKPT_DIR/step-$step/state"
	printf '{"path": "step-%d", "step": %d}' "$step" "$step" >"$LOWTIDE_CKPT_DIR/READY.new"
	mv "$LOWTIDE_CKPT_DIR/READY.new" "$LOWTIDE_CKPT_DIR/READY"
}

# (3) The signal asks for a checkpoint and the end; LISTENING says that we hear it.
asked=
trap 'asked=1' USR1
printf '{"pid": %d}' $$ >"$LOWTIDE_CKPT_DIR/LISTENING"

while [ "$step" -lt "$STEPS" ]; do
	sleep "$PAUSE" || true # the signal may cut it short
	step=$((step + 1))
	sum=$((sum + $(sed -n "${step}p" numbers)))
	echo "step $step: $sum"

	# (4) How far we are, for people and for the planner.
	printf '{"step": %d, "of": %d}' "$step" "$STEPS" >"$LOWTIDE_CKPT_DIR/PROGRESS.new"
	mv "$LOWTIDE_CKPT_DIR/PROGRESS.new" "$LOWTIDE_CKPT_DIR/PROGRESS"

	if [ -n "$asked" ] || [ -e "$LOWTIDE_DEADLINE" ]; then
		save
		echo "saved at step $step, leaving"
		exit 0
	fi
	if [ $((step % 20)) -eq 0 ]; then save; fi
done
save

# (5) What was made.
echo "$sum" >"$LOWTIDE_CKPT_DIR/RESULT"
