#!/bin/busybox sh
# guest_rack_sum.sh WORKERS "RACK FLAGS" ["BENCH FLAGS"]: makes a rack, sums in it over its aggregators, takes it down.
# Prints rank 0's report; the other ranks' words and the aggregators' logs only where something fails.
workers=$1 rack_flags=$2 bench_flags=$3
name=kerneltest
sum() {
  netsum rack exec --name $name "$1" -- netsum bench allreduce --rank "$1" --world-size "$workers" --bytes 1Mi --warmup 1 \
    --iterations 5 --timeout 60s --connect-timeout 60s $bench_flags
}

netsum rack up --name $name --workers "$workers" $rack_flags || exit 1
pids=""
for rank in $(seq 1 $((workers - 1))); do
  sum "$rank" > "/tmp/rank$rank" 2>&1 &
  pids="$pids $!"
done
status=0
sum 0 || status=1
for pid in $pids; do wait "$pid" || status=1; done
[ $status = 0 ] || tail -n 20 /tmp/rank* "${NETSUM_RACK_DIR:-/run/netsum/rack}"/$name/*.log
netsum rack down --name $name || status=1
exit $status
