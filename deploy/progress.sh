# Sourced: runs a long step with its output in a log, and shows meanwhile how far it is.
#
#   with_progress LOG WHAT COMMAND...
#
# On a terminal one line that is written again each second, elsewhere a line each SFT_PROGRESS_SECONDS (30).
# Where the log's newest lines are ninja's ("[12/340] ..."), it says how many steps are done and about how
# long the others take, if they take as long as those. The command's exit status is with_progress's.

progress_line() {  # LOG WHAT SECONDS
  local log=$1 line done_steps=0 all=0 left
  line=$(printf '%s: %d:%02d' "$2" $(($3 / 60)) $(($3 % 60)))
  read -r done_steps all < <(tail -c 20000 "$log" | sed -n 's/^\[\([0-9]*\)\/\([0-9]*\)\] .*/\1 \2/p' | tail -n 1) || true
  if [ "${all:-0}" -gt 0 ]; then
    line+=", $done_steps of $all steps"
    # The first steps say little about the others.
    if [ "$3" -ge 15 ] && [ "$done_steps" -ge 10 ] && [ "$done_steps" -lt "$all" ]; then
      left=$(($3 * (all - done_steps) / done_steps))
      if [ "$left" -lt 60 ]; then line+=", less than a minute left"; else line+=", about $(((left + 30) / 60)) min left"; fi
    fi
  fi
  printf '%s' "$line"
}

show_progress() {  # LOG WHAT: until it is killed, or the script that started it has ended
  local start=$SECONDS last=0 now
  while kill -0 $$ 2> /dev/null; do
    sleep 1 > /dev/null 2>&1
    now=$((SECONDS - start))
    if [ -t 1 ]; then
      printf '\r%s\033[K' "$(progress_line "$1" "$2" "$now")"
    elif [ $((now - last)) -ge "${SFT_PROGRESS_SECONDS:-30}" ]; then
      last=$now
      printf '%s\n' "$(progress_line "$1" "$2" "$now")"
    fi
  done
}

with_progress() {
  local log=$1 what=$2 watcher status=0
  shift 2
  show_progress "$log" "$what" &
  watcher=$!
  # The command is in the foreground, so that Ctrl-C reaches it.
  NINJA_STATUS='[%f/%t] ' "$@" >> "$log" 2>&1 || status=$?
  kill "$watcher" 2> /dev/null || true
  wait "$watcher" 2> /dev/null || true
  [ ! -t 1 ] || printf '\r\033[K'
  return $status
}
