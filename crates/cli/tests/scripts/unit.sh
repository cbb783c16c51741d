# Run in a guest of the machine two-node (CPUs 0-1 and 2-3) as `sh -c SCRIPT NEARFAR`, with UNIT set to the service's unit: the service under a
# systemd of the guest's own, which knows the units below and no others, in a process namespace of its own.
set -u
here=/unit-test
mkdir -p $here/units/nearfar-prefer.service.d $here/none /etc/nearfar /usr/local/bin
cp /bin/sh $here/burner
cp "$UNIT" $here/units
touch /usr/local/bin/nearfar
mount --bind "$0" /usr/local/bin/nearfar
for target in sysinit basic local-fs shutdown; do
	printf '[Unit]\nDefaultDependencies=no\n' > $here/units/$target.target
done
cat > $here/units/work.service <<- END
	[Service]
	User=daemon
	ExecStart=$here/burner -c "while :; do :; done"
END
# There is no journal. The pause before a restart is for the guard to be seen on a host that has more to do, and so is the time to start.
cat > $here/units/nearfar-prefer.service.d/test.conf <<- END
	[Service]
	StandardError=append:$here/said
	RestartSec=8
	TimeoutStartSec=600
END
# By what a task is known here takes CAP_SYS_PTRACE: it is another user's. To move its memory, too.
rules() {
	cat > /etc/nearfar/prefer.toml <<- END
		[[prefer]]
		name = "work"
		node = $1
		unit = "work.service"
		command = "$here/burner"
		memory = "follow"
		[[prefer]]
		name = "card"
		near = "eth0"
		unit = "none.service"
	END
}

# Only `memory` moves pages.
echo 0 > /proc/sys/kernel/numa_balancing
env -i PATH="$PATH" container=other SYSTEMD_UNIT_PATH=$here/units SYSTEMD_GENERATOR_PATH=$here/none SYSTEMD_ENVIRONMENT_GENERATOR_PATH=$here/none \
	unshare --pid --fork --mount-proc $SYSTEMD --system --unit=basic.target --log-target=kmsg < /dev/null > /dev/null 2>&1 &
outer=$!

# What the service and systemd said.
told() {
	sed 's/^/said: /' $here/said 2> /dev/null
	dmesg | sed -n 's/^.*systemd\[1\]: /systemd: /p'
}
fail() {
	echo "$*"
	told
	exit 1
}
now() { cut -d. -f1 /proc/uptime; }
# Waits until a command prints what is expected, up to a limit.
until_says() {
	what=$1 expected=$2 limit=$(($(now) + 200))
	shift 2
	while said=$("$@" 2> /dev/null); [ "$said" != "$expected" ]; do
		[ "$(now)" -lt $limit ] || fail "$what: $said instead of $expected"
		sleep 0.3
	done
	echo "$what: $expected"
}
there() { timeout 300 nsenter --target "$init" --mount --pid "$@"; }
control() {
	there systemctl --no-pager "$@"
	echo "$1 $2 ended with $?"
}
shows() { there systemctl show --property "$1" --value nearfar-prefer; }
init_process() { tr -d ' ' < "/proc/$outer/task/$outer/children"; }
init_name() { cat "/proc/$(init_process)/comm"; }
# The one process of the unit that it works in; its CPUs, and the nodes that its heap is on.
worker() { cat /sys/fs/cgroup/system.slice/work.service/cgroup.procs; }
cpus() { sed -n 's/^Cpus_allowed_list:\t//p' "/proc/$(worker)/status"; }
heap() { grep -w heap "/proc/$(worker)/numa_maps" | grep -o '\<N[0-9]*='; }

until_says process systemd init_name
init=$(init_process)
until_says system running there systemctl is-system-running
control start work
until_says before 0-3 cpus

rules 1
control start nearfar-prefer
echo "after its start: $(shows ActiveState)"
until_says kept 2-3 cpus
until_says memory N1= heap
there sh -c "grep -E '^(CapBnd|NoNewPrivs|Seccomp):' /proc/$(shows MainPID)/status"
control status nearfar-prefer

rules 0
control reload nearfar-prefer
until_says reloaded 0-1 cpus
until_says memory-reloaded N0= heap

control kill --kill-who=main --signal=KILL nearfar-prefer
until_says killed 0-3 cpus
until_says restarted 0-1 cpus
echo "by then: $(shows NRestarts) restarts, $(shows SubState)"

control stop nearfar-prefer
until_says stopped 0-3 cpus
echo "after its end: $(shows ActiveState), $(shows Result)"

echo "node =" > /etc/nearfar/prefer.toml
control start nearfar-prefer
echo "with a fault: $(shows SubState), status $(shows ExecMainStatus)"

told
kill -KILL "$init"
wait
