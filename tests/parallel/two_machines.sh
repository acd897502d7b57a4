# Two machines made of namespaces of this one: each has a name, a network, shared memory, a mask of /etc/hosts, and a
# directory FOLDER/local of its own; m2 also has its own numbers of processes. Everything else is shared.
#
#   unshare --user --map-root-user --mount --net --uts --ipc sh two_machines.sh FOLDER COMMAND...
#       runs a command on m1, and ends m2 afterward
#   sh two_machines.sh m2 COMMAND...
#       in place of ssh, for the mpirun of that command: a login to m2, with none of its environment
#
# NAME_OF_M2 is another host name of m2; with BRIDGE, both have a bridge of one address, as Docker makes it.
set -eu
PATH=$PATH:/usr/sbin:/sbin
if [ "$1" = m2 ]; then
  shift
  exec nsenter --target "$M2" --mount --net --uts --ipc --pid="/proc/$M2/ns/pid_for_children" \
    env -i HOME="$HOME" TMPDIR="$TMPDIR" DDRL_TEST_MARK="$DDRL_TEST_MARK" PATH=/usr/bin:/bin sh -c "$*"
fi
folder=$1
shift
machine='hostname "$3"; mount --bind "$2/hosts" /etc/hosts; mount -t tmpfs tmpfs /dev/shm
  mount --bind "$2/$1" "$2/local"; ip link set lo up
  [ -z "${BRIDGE:-}" ] || { ip link add docker0 type bridge; ip address add 172.17.0.1/16 dev docker0; }
  [ -z "${BRIDGE:-}" ] || ip link set docker0 up'
mkdir -p "$folder/m1" "$folder/m2" "$folder/local"
printf '127.0.0.1 localhost\n10.77.0.1 m1\n10.77.0.2 m2\n' >"$folder/hosts"
unshare --mount --net --uts --ipc --pid --fork --kill-child --mount-proc \
  sh -euc "$machine; touch \"\$2/up\"; exec sleep 600" sh m2 "$folder" "${NAME_OF_M2:-m2}" &
export M2=$! TMPDIR="$folder/local"
sh -euc "$machine" sh m1 "$folder" m1
while [ ! -e "$folder/up" ]; do
  kill -0 "$M2"
  sleep 0.05
done
ip link add link0 type veth peer name link0 netns "$M2"
address='ip address add "$1" dev link0; ip link set link0 up'
carrier='timeout 10 sh -c "until ip link show link0 | grep -q \"state UP\"; do sleep 0.05; done"'
nsenter --target "$M2" --net sh -euc "$address" sh 10.77.0.2/24
sh -euc "$address; $carrier" sh 10.77.0.1/24
nsenter --target "$M2" --net sh -euc "$carrier"
status=0
"$@" || status=$?
kill -KILL "$M2" 2>/dev/null || true
exit "$status"
