#!/bin/busybox sh
# First process of a guest: from the archive that QEMU loads to the host's files, then over to agent.sh.
# guest.conf (written by the host for this one guest) says which modules to load, in order, and what is shared.
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
# Meanwhile the devices' own.
# shellcheck disable=SC2086
load $DEVICE_MODULES &

share() { # TAG FOLDER OPTIONS
	mount -t 9p -o "trans=virtio,version=9p2000.L,msize=512000,$3" "$1" "$2"
}

mkdir -p /host /new /scratch
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

for folder in dev proc sys; do
	mount --move "/$folder" "/new/$folder"
done
mkdir -p /new/dev/pts /new/dev/shm
# One process for all of them; what a kernel does not have is not mounted.
mount -a -T /guest.fstab 2> /dev/null
home=/new/run/nearfar-lab
mkdir -p "$home/bin" "$home/pipe" "$home/modules" "$home/results"
cp -a /links/. /new/dev/

results=
if [ -n "$RESULTS" ]; then
	results=/results
	[ "$ROOT" = overlay ] || results=/run/nearfar-lab/results
	share nearfar.results "/new$results" rw,cache=mmap || complain "the results folder cannot be mounted"
fi
if [ -n "$SHARE_MODULES" ] && mount -t tmpfs modules /new/lib/modules; then
	mkdir "/new/lib/modules/$RELEASE"
	share nearfar.modules "/new/lib/modules/$RELEASE" ro,cache=loose
fi
if [ -n "$FOREIGN" ]; then
	mount -t binfmt_misc binfmt_misc /new/proc/sys/fs/binfmt_misc
	# With flag F the kernel opens the emulator now, from this archive, and keeps it open: later it need not be found.
	cat /foreign.binfmt > /new/proc/sys/fs/binfmt_misc/register || complain "programs of the host's kind will not run"
fi

cp /bin/busybox "$home/bin/busybox"
"$home/bin/busybox" --install -s /new/run/nearfar-lab/bin 2> /dev/null
cp /agent.sh /guest.conf "$home/"
cp /nearfar-lab "$home/bin/"
cp /later/* "$home/modules/" 2> /dev/null
echo "results=$results" >> "$home/guest.conf"
echo nearfar-guest > /new/proc/sys/kernel/hostname
cd /new || exit 1
wait
exec switch_root /new /run/nearfar-lab/bin/busybox sh /run/nearfar-lab/agent.sh
