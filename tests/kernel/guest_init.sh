#!/bin/busybox sh
# The first process of the virtual machine: mounts, modules, then the checks of /checks one after another. A line of
# /checks is "NAME SECONDS COMMAND...". run.py finds a check's output between the two lines that start with @@.
/bin/busybox --install -s /bin
ln -sf /usr/bin/dash /bin/sh  # busybox's shell would run its own `ip` in the place of iproute2's
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/ TERM=dumb
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs run /run
mount -t tmpfs tmp /tmp
ip link set lo up

# What is built into the kernel, or unknown to it, shows in the checks.
for module in veth bridge ifb tun sch_tbf sch_ingress cls_u32 act_mirred; do modprobe -q $module; done

while read -r name seconds command; do
  echo "@@ begin $name"
  timeout -s KILL "$seconds" sh -c "$command" < /dev/null 2>&1
  echo "@@ end $name $?"
done < /checks
echo "@@ done"
poweroff -f
