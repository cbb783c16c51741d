# Run in a guest of the machine queues-on-node-2 as `sh -c SCRIPT NEARFAR`: what the kernel's files say of the network card's queues and of the
# disks' interrupts before, after `apply` and after `rollback`; lines "STATE irq|xps|other WHAT VALUE", with nearfar's words between.
set -e
irqs() { ls "/sys/bus/pci/devices/$1/msi_irqs"; }
name() { sed -n "s/^ *$1:.* \([^ ]*\)\$/\1/p" /proc/interrupts; }
files() {
	for irq in $(irqs 0000:21:00.0); do
		echo "$1 irq $(name "$irq") $(cat "/proc/irq/$irq/smp_affinity_list")"
	done
	for queue in /sys/class/net/eth0/queues/tx-*; do
		echo "$1 xps ${queue##*/} $(cat "$queue/xps_cpus")"
	done
	for disk in 0000:22:00.0 0000:23:00.0; do
		for irq in $(irqs "$disk"); do
			echo "$1 other $(name "$irq") $(cat "/proc/irq/$irq/smp_affinity_list")"
		done
	done
}
# Waits until the interrupt has moved: without interrupt remapping it does so when it next arrives; the driver
# raises each one every two seconds.
misplace() {
	irq=$(sed -n "s/^ *\([0-9]*\):.* $1\$/\1/p" /proc/interrupts)
	echo "$2" > "/proc/irq/$irq/smp_affinity_list"
	left=600
	until [ "$(cat "/proc/irq/$irq/effective_affinity_list")" = "$2" ]; do
		left=$((left - 1))
		[ "$left" -gt 0 ] || { echo "$1 does not move" >&2; exit 1; }
		sleep 0.1
	done
}
misplace eth0-TxRx-1 0
misplace eth0-TxRx-2 3
files before
echo "# nearfar audit"
"$0" audit
echo "# nearfar plan"
"$0" plan
echo "# nearfar apply --yes"
"$0" apply --yes
files after
echo "# nearfar audit --format json"
"$0" audit --format json | tr -d '\n'
echo
echo "# nearfar rollback"
"$0" rollback
files rollback
