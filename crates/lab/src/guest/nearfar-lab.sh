#!/run/nearfar/bin/busybox sh
# Inside a guest: asks the host for a device and waits until the kernel has it.
#   nearfar-lab plug nvme|virtio-blk|virtio-net|bridge [node=N]
PATH=/run/nearfar/bin
usage() {
	echo "usage: nearfar-lab plug nvme|virtio-blk|virtio-net|bridge [node=N]" >&2
	exit 2
}
[ "$1" = plug ] || usage
usage
