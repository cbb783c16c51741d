# Run in a guest of two nodes (CPUs 0-1 and 2-3) with an igb and a virtio card on node 1 as `sh -c SCRIPT NEARFAR`, with UDEVADM set: the
# rules of a plan under a real systemd-udevd. Lines "STATE irq|xps NAME VALUE".
set -e
ln -s "$UDEVADM" /run/systemd-udevd
rules=/etc/udev/rules.d/99-nearfar.rules
mkdir -p /etc/udev/rules.d
# The host's files are the guest's: where systemd is installed, its rules rename interfaces.
ln -sf /dev/null /etc/udev/rules.d/80-net-setup-link.rules
cards() { sed -n 's/^ *\([0-9]*\):.* \(eth[01]-[A-Za-z]*-[0-9]*\|virtio[0-9]*-input\.0\)$/\1 \2/p' /proc/interrupts; }
files() {
	cards | while read -r irq name; do echo "$1 irq $name $(cat "/proc/irq/$irq/smp_affinity_list")"; done
	for queue in /sys/class/net/eth*/queues/tx-*; do
		echo "$1 xps ${queue#/sys/class/net/} $(cat "$queue/xps_cpus" 2> /dev/null)"
	done
}
misplace() {
	cards | while read -r irq name; do echo 0 > "/proc/irq/$irq/smp_affinity_list"; done
	for queue in /sys/class/net/eth*/queues/tx-*; do echo 0 > "$queue/xps_cpus" 2> /dev/null || true; done
}
# igb asks for its interrupts when its interface comes up.
for card in /sys/class/net/eth*; do ip link set "${card##*/}" up; done
misplace
files before
"$0" plan --format udev > $rules
sed 's/^/rule: /' $rules
/run/systemd-udevd --daemon
for action in change add; do
	misplace
	"$UDEVADM" trigger --action=$action -s net
	"$UDEVADM" settle
	files $action
done
"$UDEVADM" control --exit
