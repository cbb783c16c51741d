#!/run/nearfar-lab/bin/busybox sh
# Inside a guest: asks the host for a device and waits until the kernel has it.
#   nearfar-lab plug nvme|virtio-blk|virtio-net|bridge|host-bridge [node=N]
PATH=/run/nearfar-lab/bin
patience=30

fail() {
	echo "nearfar-lab: $*" >&2
	exit 1
}

if [ "$1" != plug ] || [ -z "$2" ]; then
	echo "usage: nearfar-lab plug nvme|virtio-blk|virtio-net|bridge|host-bridge [node=N]" >&2
	exit 2
fi
shift
cd /run/nearfar-lab || fail "this is not a guest of nearfar"
# shellcheck source=/dev/null
. ./guest.conf # PLUG_...: modules in the order in which they are to be loaded
# shellcheck source=/dev/null
. ./settings # DRMGR: the folder of drmgr, or nothing

case $1 in
nvme | bridge) modules=${PLUG_nvme-} driver=nvme ;;
host-bridge)
	modules="${PLUG_nvme-} ${PLUG_rpadlpar_io-}" driver=nvme
	[ -n "$DRMGR" ] || [ -z "${PLUG_rpadlpar_io-}" ] ||
		fail "drmgr of powerpc-utils is not in the host's cache: run there: nearfar lab kernels get --all"
	;;
virtio-blk) modules=${PLUG_virtio_blk-} driver=virtio_blk ;;
virtio-net) modules=${PLUG_virtio_net-} driver=virtio_net ;;
*) driver= ;; # the host says what there is
esac
for module in $modules; do
	# What is loaded already is refused, which does no harm.
	insmod "modules/$module.ko" 2> /dev/null
done

bound() { # the devices that the driver has: an NVMe controller counts once its namespace is a disk
	for device in /sys/bus/*/drivers/"$driver"/*; do
		if [ ! -L "$device" ] || [ "${device##*/}" = module ]; then continue; fi
		if [ "$driver" = nvme ]; then
			for disk in "$device"/nvme/nvme*/nvme*n[0-9]*; do
				[ -d "$disk" ] && echo "$device" && break
			done
		else
			echo "$device"
		fi
	done
}

before=$(bound)
answer=pipe/answer.$$
mkfifo "$answer" || fail "no pipe for the answer"
trap 'rm -f "/run/nearfar-lab/$answer"' EXIT
echo "ask $$ plug $*" > pipe/link
read -r said < "$answer"
case $said in
ok | "ok "*) ;;
*) fail "$said" ;;
esac
# However this ends: the host may slow far memory down again.
trap 'echo "ask $$ plugged" > pipe/link; read -r said < "$answer"; rm -f "/run/nearfar-lab/$answer"' EXIT

if [ "$said" != ok ]; then
	# The firmware gives the guest a host bridge only on request; drmgr adds it to the device tree and to PCI.
	mkdir -p /run/lock # for its lock, in /var/lock
	"$DRMGR/ld64.so.2" --library-path "$DRMGR" "$DRMGR/drmgr" -c phb -a -s "${said#ok }" > /dev/null ||
		fail "drmgr did not add ${said#ok }"
fi

read -r start _ < /proc/uptime
while [ "$(bound)" = "$before" ]; do
	usleep 50000
	read -r now _ < /proc/uptime
	[ "$((${now%%.*} - ${start%%.*}))" -lt "$patience" ] ||
		fail "the kernel has no new device with the driver $driver after $patience s"
done
