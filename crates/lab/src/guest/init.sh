#!/bin/busybox sh
# First process of a guest: from the archive that QEMU loads to the host's files, then over to agent.sh.
#
#   port           what goes through it
#   nearfar.link   to the host: "booted", "ticks CPUS", "clock", and what agent.sh sends
#   nearfar.run    from the host: "check", "settings BYTES" followed by so many bytes, the answer to "clock"
#
# guest.conf (in the archive) holds for all guests of a design. A guest is saved while this script waits for its first line: nothing of
# the host is mounted then, and nothing of one guest is known. The rest comes as settings.
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
# shellcheck disable=SC2086 # words of a list
load $BOOT_MODULES

# What needs nothing of the host is made before a guest can be saved.
home=/stage/run/nearfar-lab
mkdir -p /host /new /scratch /stage/run
mount -t tmpfs -o mode=0755 run /stage/run
mkdir -p "$home/bin" "$home/pipe" "$home/modules" "$home/results" /dev/pts /dev/shm
# One process for all of them; what a kernel does not have is not mounted.
mount -a -T /guest.fstab 2> /dev/null
cp -a /links/. /dev/
cp /bin/busybox "$home/bin/busybox"
"$home/bin/busybox" --install -s "$home/bin" 2> /dev/null
cp /agent.sh /guest.conf "$home/"
cp /nearfar-lab "$home/bin/"
cp /later/* "$home/modules/" 2> /dev/null
(cd "$home" && mkfifo pipe/in pipe/out pipe/err pipe/link pipe/go pipe/fed)
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

ticks() { # the timer interrupts of each CPU, a line a CPU: the first row LOC (x86, Power) or arch_timer (arm64)
	awk 'NR == 1 { cpus = NF }
		$1 == "LOC:" || $NF == "arch_timer" { for (column = 2; column <= cpus + 1; column++) print $column; exit }' /proc/interrupts
}

without_tick() { # the CPUs whose timer does not interrupt while a process sleeps on each
	# A CPU of nohz_full leaves its timers to others.
	grep -q '[0-9]' /sys/devices/system/cpu/nohz_full 2> /dev/null && return
	ticks > /ticks
	for cpu in /sys/devices/system/cpu/cpu[0-9]*; do
		taskset -c "${cpu##*cpu}" usleep 20000 &
	done
	wait
	ticks | paste -d ' ' /ticks - | awk '$1 == $2 { print NR - 1 }' | tr '\n' ','
}

port nearfar.link
exec 7<> "$found"
port nearfar.run
exec 3<> "$found"
echo booted >&7
while read -r word bytes <&3; do
	case $word in
	check) echo "ticks $(without_tick)" >&7 ;;
	settings)
		dd bs="$bytes" count=1 iflag=fullblock <&3 > /settings 2> /dev/null
		break
		;;
	esac
done
# shellcheck source=/dev/null
. /settings
renew <&3 >&7 2> /dev/urandom || { complain "the clock and the random pool cannot be set"; exit 1; }
exec 3>&- 7>&-

# Drivers get their devices by address, so that nvme0 is the same controller in every guest: probes of the kernel's own run side by side.
devices() {
	for address in $LATE_DEVICES; do
		patience=6000
		while [ ! -e "/sys/bus/pci/devices/$address" ]; do
			usleep 5000
			patience=$((patience - 1))
			[ "$patience" -gt 0 ] || { complain "there is no device $address"; return; }
		done
	done
	[ -n "$DEVICE_MODULES" ] || return 0
	echo 0 > /sys/bus/pci/drivers_autoprobe
	# shellcheck disable=SC2086 # words of a list
	load $DEVICE_MODULES
	for device in /sys/bus/pci/devices/*; do
		[ -e "$device/driver" ] || echo "${device##*/}" > /sys/bus/pci/drivers_probe
	done
	echo 1 > /sys/bus/pci/drivers_autoprobe
}
devices 2> /dev/null &

share() { # TAG FOLDER OPTIONS
	mount -t 9p -o "trans=virtio,version=9p2000.L,msize=512000,$3" "$1" "$2"
}

share nearfar.root /host ro,cache=loose || { complain "the host's files cannot be mounted"; exit 1; }
if [ "$ROOT" = overlay ]; then
	mount -t tmpfs scratch /scratch
	mkdir /scratch/upper /scratch/work
	mount -t overlay -o lowerdir=/host,upperdir=/scratch/upper,workdir=/scratch/work overlay /new ||
		{ complain "no overlay over the host's files"; exit 1; }
	mkdir -p /new/results /new/lib/modules
else
	mount --bind /host /new
fi

results=
if [ -n "$RESULTS" ]; then
	results=/results folder=/new/results
	[ "$ROOT" = overlay ] || results=/run/nearfar-lab/results folder=$home/results
	share nearfar.results "$folder" rw,cache=mmap || complain "the results folder cannot be mounted"
fi
if [ -n "$SHARE_MODULES" ] && mount -t tmpfs modules /new/lib/modules; then
	mkdir "/new/lib/modules/$RELEASE"
	share nearfar.modules "/new/lib/modules/$RELEASE" ro,cache=loose
fi

# What reads the kernel's command line finds the label there, though a saved guest was started before it was known.
read -r words < /proc/cmdline
printf 'nearfar.lab="%s" %s\n' "$LABEL" "$words" > "$home/cmdline"
mount --bind "$home/cmdline" /proc/cmdline
# A guest is a machine of its own.
if [ -f /new/etc/machine-id ]; then
	echo "$MACHINE_ID" > "$home/machine-id"
	mount --bind "$home/machine-id" /new/etc/machine-id
fi
{
	cat /settings
	echo "results=$results"
} >> "$home/guest.conf"
wait
for folder in dev proc sys; do
	mount --move "/$folder" "/new/$folder"
done
mount --move /stage/run /new/run
cd /new || exit 1
exec switch_root /new /run/nearfar-lab/bin/busybox sh /run/nearfar-lab/agent.sh
