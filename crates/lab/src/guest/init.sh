#!/bin/busybox sh
# First process of a guest: from the archive that QEMU loads to the host's files, then over to agent.sh.
#
#   port           what goes through it
#   nearfar.link   to the host: "booted", "ticks CPUS", "clock", and what agent.sh sends
#   nearfar.run    from the host: "check", "settings" followed by lines up to ".", the answer to "clock"
#
# guest.conf (in the archive) holds for all guests of a design. A guest is saved while this script waits for a line of the host:
# nothing of the host is mounted then, and nothing of one guest is known. What comes after that each start pays for, and each new process
# is code that QEMU translates again, so everything that can be done before is done before.
export PATH=/bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
# shellcheck source=/dev/null
. /guest.conf

# Kept where the host sees it: the console is what an error message of the host quotes.
complain() { echo "nearfar: $*" > /dev/console; }

load() {
	for module; do
		insmod "/modules/$module.ko" || complain "module $module was refused"
	done
}

# Drivers get their devices by address, so that nvme0 is the same controller in every guest: the kernel's own probes run side by side.
load_for_devices() { # MODULE...
	echo 0 > /sys/bus/pci/drivers_autoprobe
	load "$@"
	for device in /sys/bus/pci/devices/*; do
		[ -e "$device/driver" ] && continue
		echo "${device##*/}" > /sys/bus/pci/drivers_probe
		# Up to Linux 6.1 a controller makes its queues, and its subsystem, later and side by side with the next one's.
		for controller in "$device"/nvme/nvme*; do
			tries=1000
			while [ "$tries" -gt 0 ] && read -r state < "$controller/state" && [ "$state" != live ]; do
				usleep 5000
				tries=$((tries - 1))
			done
		done
	done
	echo 1 > /sys/bus/pci/drivers_autoprobe
}

start_cpus() { # CPU...: folders of CPUs
	for cpu; do
		echo 1 > "$cpu/online" || complain "${cpu##*/} does not go online"
	done
}
# Before drivers, which make a queue for each.
[ -z "$LATE_CPUS" ] || start_cpus /sys/devices/system/cpu/cpu[1-9]*

# shellcheck disable=SC2086 # words of a list
load $BOOT_MODULES

# Drivers that are built into the kernel have had their devices in the order in which these answered, and get them again by address.
release_cards_and_disks() {
	for device in /sys/bus/pci/devices/*; do
		# Only a driver that is a module has this file.
		if [ ! -e "$device/driver" ] || [ -e "$device/driver/module/initstate" ]; then continue; fi
		read -r class < "$device/class"
		case $class in
		0x02* | 0x0108*) echo "${device##*/}" > "$device/driver/unbind" && released=yes ;;
		esac
	done
}

early_devices() { # those that are there when the kernel boots
	released=
	release_cards_and_disks
	# shellcheck disable=SC2086
	[ -z "$DEVICE_MODULES$released" ] || load_for_devices $DEVICE_MODULES 2> /dev/null
	for interface in /sys/class/net/*; do
		ip link set "${interface##*/}" up 2> /dev/null
	done
}

# On Power, QEMU's software emulation loads no CPU that the firmware has started, so a guest is saved with its first CPU alone. Drivers
# are loaded when all CPUs are there: they make a queue for each.
park_cpus() { # takes the other CPUs offline that are online
	for cpu in /sys/devices/system/cpu/cpu[1-9]*; do
		read -r online < "$cpu/online" || continue
		[ "$online" = 1 ] || continue
		if echo 0 > "$cpu/online"; then parked="$parked $cpu"; else complain "${cpu##*/} does not go offline"; fi
	done
}
[ -n "$PARK_CPUS" ] || early_devices

home=/stage/run/nearfar-lab
mkdir -p /host /new /scratch /stage/run /dev/pts /dev/shm
mount -t tmpfs -o mode=0755 run /stage/run
mount -t tmpfs scratch /scratch
mkdir -p "$home/bin" "$home/pipe" "$home/modules" "$home/results" /scratch/upper /scratch/work
# One process for all of them; what a kernel does not have is not mounted.
mount -a -T /guest.fstab 2> /dev/null
cp -a /links/. /dev/
cp /bin/busybox "$home/bin/busybox"
"$home/bin/busybox" --install -s "$home/bin" 2> /dev/null
cp /agent.sh /guest.conf "$home/"
cp /nearfar-lab "$home/bin/"
cp /later/* "$home/modules/" 2> /dev/null
echo nearfar-guest > /proc/sys/kernel/hostname
if [ -n "$FOREIGN" ]; then
	mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
	# With flag F the kernel opens the emulator now, from this archive, and keeps it open: later it need not be found.
	cat /foreign.binfmt > /proc/sys/fs/binfmt_misc/register || complain "programs of the host's kind will not run"
fi

port() { # NAME: its device, once it is there
	while :; do
		for folder in /sys/class/virtio-ports/*; do
			if [ -r "$folder/name" ] && read -r name < "$folder/name" && [ "$name" = "$1" ] && [ -c "/dev/${folder##*/}" ]; then
				found=/dev/${folder##*/}
				return
			fi
		done
		usleep 5000
	done
}

# A port can be open only once at a time, so commands get pipes (they may open /dev/stdout again) and a process each copies. The pipes
# are opened for both directions: one of which all writers are gone would end the copying processes.
cd "$home" && mkfifo pipe/in pipe/out pipe/err pipe/link pipe/go pipe/fed
exec 4<> pipe/out 5<> pipe/err 6<> pipe/link 9<> pipe/fed
port nearfar.out && cat pipe/out > "$found" &
port nearfar.err && cat pipe/err > "$found" &
port nearfar.in && echo "INPUT=$found" >> guest.conf
port nearfar.link && exec 7<> "$found"
cat pipe/link >&7 &
port nearfar.run && exec 3<> "$found"
cd /

ticks() { # the timer interrupts of each CPU, a line a CPU: the first row LOC (x86, Power) or arch_timer (arm64)
	awk 'NR == 1 { cpus = NF; for (column = 1; column <= cpus; column++) name[column] = substr($column, 4) }
		$1 == "LOC:" || $NF == "arch_timer" { for (column = 1; column <= cpus; column++) print name[column], $(column + 1); exit }' \
		/proc/interrupts
}

without_tick() { # the CPUs whose timer does not interrupt while a process sleeps on each
	# A CPU of nohz_full leaves its timers to others.
	grep -q '[0-9]' /sys/devices/system/cpu/nohz_full 2> /dev/null && return
	ticks > /ticks
	sleepers=
	for cpu in /sys/devices/system/cpu/cpu[0-9]*; do
		taskset -c "${cpu##*cpu}" usleep 20000 &
		sleepers="$sleepers $!"
	done
	# shellcheck disable=SC2086 # words of a list
	wait $sleepers
	ticks | paste -d ' ' /ticks - | awk '$2 == $4 { print $1 }' | tr '\n' ','
}

echo booted >&7
parked=
while read -r word <&3; do
	case $word in
	check)
		missing=$(without_tick)
		[ -z "$PARK_CPUS" ] || park_cpus
		echo "ticks $missing" >&7
		;;
	settings) break ;;
	esac
done
while read -r line <&3 && [ "$line" != . ]; do
	echo "$line"
done > "$home/settings"
# shellcheck source=/dev/null
. "$home/settings"
renew <&3 >&7 2> /dev/urandom || { complain "the clock and the random pool cannot be set"; exit 1; }

# shellcheck disable=SC2086 # words of a list
start_cpus $parked
late_devices() {
	read -r start _ < /proc/uptime
	for address in $LATE_DEVICES; do
		while [ ! -e "/sys/bus/pci/devices/$address" ]; do
			usleep 5000
			read -r now _ < /proc/uptime
			if [ "$((${now%%.*} - ${start%%.*}))" -gt 20 ]; then
				complain "there is no device $address"
				return 1
			fi
		done
	done
	# shellcheck disable=SC2086 # words of a list
	load_for_devices $LATE_MODULES 2> /dev/null
}
[ -z "$PARK_CPUS" ] || early_devices
plugged=
if [ -n "$LATE_MODULES" ] || [ -n "$LATE_DEVICES" ]; then
	late_devices &
	plugged=$!
fi

nine=trans=virtio,version=9p2000.L,msize=512000
{
	echo "nearfar.root /host 9p $nine,ro,cache=loose 0 0"
	case $ROOT in
	overlay) echo "overlay /new overlay lowerdir=/host,upperdir=/scratch/upper,workdir=/scratch/work 0 0" ;;
	*) echo "/host /new none bind 0 0" ;;
	esac
} > /root.fstab
mount -a -T /root.fstab || { complain "the host's files cannot be mounted"; exit 1; }

# Programs that read the kernel's command line find the description there, though a saved guest was started without it.
read -r words < /proc/cmdline
printf 'nearfar.lab=%s %s\n' "$EMULATION" "$words" > "$home/cmdline"
{
	echo "$home/cmdline /proc/cmdline none bind 0 0"
	# A guest is a machine of its own.
	if [ -f /new/etc/machine-id ]; then
		echo "$MACHINE_ID" > "$home/machine-id"
		echo "$home/machine-id /new/etc/machine-id none bind 0 0"
	fi
	modules=/new/lib/modules/$RELEASE
	case $ROOT in
	overlay) mkdir -p /new/results "$modules" ;;
	*) [ -d "$modules" ] || echo "modules /new/lib/modules tmpfs defaults 0 0" ;;
	esac
	for folder in dev proc sys; do
		echo "/$folder /new/$folder none move 0 0"
	done
	echo "/stage/run /new/run none move 0 0"
	[ -z "$RESULTS" ] || echo "nearfar.results /new$RESULTS 9p $nine,rw,cache=mmap 0 0"
} > /rest.fstab
[ -z "$plugged" ] || wait "$plugged" || exit 1
mount -a -T /rest.fstab || complain "not all of the guest's folders are mounted"

if [ -n "$SHARE_MODULES" ]; then
	[ -d "$modules" ] || mkdir "$modules"
	mount -t 9p -o "$nine,ro,cache=loose" nearfar.modules "$modules"
fi
cd /new || exit 1
exec switch_root /new /run/nearfar-lab/bin/busybox sh /run/nearfar-lab/agent.sh
