#!/bin/busybox sh
# First process of a guest once it has the host's files: runs the commands that the host sends, one after another.
#
#   port           what goes through it
#   nearfar.run    from the host: "run ID INPUT TERMINAL SCRIPT", one line a command
#   nearfar.link   from the host: "kill SIGNAL GROUP", "size ROWS COLUMNS", "answer ID TEXT", "ping NUMBER [timers|tasks]"
#                  to the host: "ready", "started ID GROUP", "exit ID CODE", "ask ID WORDS", "pong NUMBER"
#   nearfar.in     from the host: "open", "data BYTES" followed by so many bytes, "end"
#   nearfar.out, nearfar.err     to the host: the command's bytes, between two marks
#
# Descriptors that init.sh left open: 3 the port nearfar.run, 4 and 5 the pipes of output and errors, 6 that of the link, 7 the port
# nearfar.link, 9 the pipe that says that input was sent. Processes that copy between pipes and ports run already.
export PATH=/run/nearfar-lab/bin
cd /run/nearfar-lab || exit 1
# shellcheck source=/dev/null
. ./guest.conf && . ./settings
: "${TOKEN:?}" "${TERMINAL:?}" "${INPUT:?}"

feed() {
	while read -r word bytes; do
		case $word in
		# Not before the last command's reader is out of the way: the host may be ahead of us.
		open) read -r word < pipe/go && exec 8> pipe/in ;;
		# A whole block is read before the first byte is written, so a reader that is gone does not shift the next line.
		data) dd bs="$bytes" count=1 iflag=fullblock >&8 2> /dev/null ;;
		end) exec 8>&- && echo fed > pipe/fed ;;
		esac
	done
}
feed < "$INPUT" &

pong() {
	case $2 in
	timers) # once a process has slept on each CPU
		for cpu in /sys/devices/system/cpu/cpu[0-9]*; do
			taskset -c "${cpu##*cpu}" usleep 1000 2> /dev/null
		done
		;;
	tasks) # once the console says what each process waits for; kernel threads have no command line
		for process in /proc/[0-9]*; do
			words='' stat='' waits=''
			read -r words 2> /dev/null < "$process/cmdline"
			[ -n "$words" ] || continue
			read -r stat 2> /dev/null < "$process/stat"
			read -r waits 2> /dev/null < "$process/wchan"
			[ -z "$stat" ] || echo "process ${stat%% [0-9-]*} waits in $waits" > /dev/console
		done
		;;
	esac
	echo "pong $1" > pipe/link
}

listen() {
	while read -r word first second; do
		case $word in
		kill) kill -s "$first" -- "-$second" 2> /dev/null ;;
		size) stty -F "$TERMINAL" rows "$first" cols "$second" 2> /dev/null ;;
		ping)
			if [ -z "$second" ]; then pong "$first"; else pong "$first" "$second" & fi
			;;
		# In the background: an asker that was killed never opens its end.
		answer) [ -p "pipe/answer.$first" ] && echo "$second" > "pipe/answer.$first" & ;;
		esac
	done
}
listen <&7 &
exec 7>&-
echo ready > pipe/link
# Commands run in the foreground: a shell lets what it runs in the background ignore SIGINT, for good.
while read -r word id input terminal script <&3; do
	[ "$word" = run ] || continue
	if [ "$terminal" = yes ]; then
		stty -F "$TERMINAL" sane 2> /dev/null
		# shellcheck disable=SC2094
		(exec setsid -c sh -c "$script" < "$TERMINAL" > "$TERMINAL" 2>&1 3>&- 4>&- 5>&- 6>&- 9>&-)
		code=$?
		stty -F "$TERMINAL" sane 2> /dev/null
		printf '%s' "$TOKEN.end.$id." > "$TERMINAL"
	else
		printf '%s' "$TOKEN.begin.$id." | tee pipe/err > pipe/out
		source=/dev/null
		[ "$input" = yes ] && source=pipe/in && echo go > pipe/go
		# In a subshell, so that this shell's own "Killed" goes to the console and not among the command's errors.
		(exec setsid sh -c "$script" < "$source" > pipe/out 2> pipe/err 3>&- 4>&- 5>&- 6>&- 9>&-)
		code=$?
		printf '%s' "$TOKEN.end.$id." | tee pipe/err > pipe/out
	fi
	echo "exit $id $code" > pipe/link
	if [ "$input" = yes ]; then
		# What this command left of its input must not become the next one's.
		cat <> pipe/in > /dev/null &
		read -r word <&9
		kill $! && wait $!
	fi
done
