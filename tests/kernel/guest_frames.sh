#!/bin/sh
# guest_frames.sh BYTES...: runs frames_probe over links of MTU 9000.
for link in in m0 m1 m2; do
  ip link add "$link-a" mtu 9000 type veth peer name "$link-b" mtu 9000
  ip link set "$link-a" up
  ip link set "$link-b" up
done
frames_probe "$@"
