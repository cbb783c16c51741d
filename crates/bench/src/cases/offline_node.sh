# Of paths at equal distances the kernel takes the one that it found first (__nvme_find_path in drivers/nvme/host/multipath.c). Which
# controller that is differs from boot to boot; in the published case it was the far one.
set -e
driver=/sys/bus/pci/drivers/nvme
functions=$(cd $driver && echo 0000:*)
near='' far=''
for function in $functions; do
	case $(cat $driver/"$function"/numa_node) in
	-1) far="$far $function" ;;
	*) near="$near $function" ;;
	esac
	echo "$function" > $driver/unbind
done
for function in $far $near; do
	echo "$function" > $driver/bind
	tries=300
	until ls -d $driver/"$function"/nvme/nvme*/nvme*c*n* > /dev/null 2>&1; do
		[ $((tries -= 1)) -gt 0 ] || { echo "no path through $function within 30 s" >&2; exit 1; }
		sleep 0.1
	done
done
exec "$@"
