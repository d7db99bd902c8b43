/* What the XDP program and its loader share: the layout of the maps. C for BPF, C++ for the loader. */
#ifndef NETSUM_AGGREGATOR_XDP_MAPS_H_
#define NETSUM_AGGREGATOR_XDP_MAPS_H_

#include "aggregator/dataplane/counters.h"
#include "aggregator/slot/slot.h"

/* A packet is broadcast from one page: 4096 - 256 (XDP headroom) - 320 (struct skb_shared_info) - 14 - 20 - 8
 * - 32, rounded down to 32. So MTU 3484 is the largest for this dataplane. */
#define NETSUM_XDP_MAX_PAYLOAD 3424
#define NETSUM_XDP_MAX_MTU 3484

/* A job's key on this stripe, and what is made of it: the cookie of packets, or 0 if they have tags, and NH's key table. The
 * loader sets the map's value size to what the largest payload needs: the table has payload_limit / 4 words. */
struct netsum_xdp_key {
  struct netsum_key key;
  uint64_t cookie;
  uint32_t table[NETSUM_XDP_MAX_PAYLOAD / 4];
};
/* Index in the map `keys`: that of a job with its members, and with its parent. */
NETSUM_INLINE uint32_t netsum_xdp_key_of(uint32_t job) {
  return 2 * job;
}
NETSUM_INLINE uint32_t netsum_xdp_parent_key_of(uint32_t job) {
  return 2 * job + 1;
}

/* Interfaces that the program can be attached to. */
#define NETSUM_XDP_MAX_PORTS 1024

/* Ethernet, IPv4 without options, UDP. */
#define NETSUM_XDP_HEADERS_BYTES (14 + 20 + 8)

/* An IPv4 endpoint as one number, so that it can be compared and exchanged at once: never 0. Network order as
 * it lies in the packet, host order of the number. */
NETSUM_INLINE uint64_t netsum_xdp_peer(uint32_t ip, uint16_t port) {
  return (uint64_t)ip << 16 | port;
}

/* Where a member or a parent is. A member: written by the program at the first HELLO. A parent: `peer` by the
 * loader, the rest by the program at the first WELCOME. Nothing of it changes afterwards, until the loader
 * erases it with the job. */
struct netsum_xdp_member {
  uint64_t peer;    /* netsum_xdp_peer(); 0: no HELLO yet */
  uint32_t noted;   /* 1: one CPU has begun to write what follows */
  uint32_t ifindex; /* written last; 0: not known yet */
  uint8_t mac[6];
  uint8_t our_mac[6]; /* by which the member reached us */
  uint32_t reserved;
};

/* A job, the only element of its map in `jobs`. The loader writes it before it puts that map in, and neither
 * it nor anything else of the job (keys, members, ports, device map, slots) before it has taken that map out
 * and all programs that may have found it have ended. So what a program finds here stays as it is. */
struct netsum_xdp_job {
  struct netsum_job_rules rules;
  uint32_t first_slot;
  uint32_t reserved;
  uint64_t parent_peer; /* if rules.has_parent, as is the rest */
  struct netsum_parent_job parent;
};

/* A job as its parent names it; key of the map `parent_jobs`. */
struct netsum_xdp_parent_key {
  uint64_t peer;
  uint32_t job;
  uint32_t reserved;
};

/* The members of a job behind one port; key of the map `ports`. A broadcast makes `count` copies for the
 * port, one after another on one CPU, and the n-th copy of the port goes to member n modulo count. */
struct netsum_xdp_port_key {
  uint32_t job;
  uint32_t ifindex;
};
struct netsum_xdp_port {
  uint32_t count;
  uint32_t cursor; /* each CPU counts its own copies */
  /* The job's multicast group as it is reached by this port; peer 0: none. There is one copy for the port. */
  struct netsum_xdp_member multicast_group;
  uint16_t members[NETSUM_MAX_MEMBERS];
};

/* Counters: first the refusals by NETSUM_DROP_*, then those of every dataplane (the loader counts HELLOs that it
 * answers), then those that only this one has. */
enum netsum_xdp_counter {
  NETSUM_XDP_LAST_DROP = NETSUM_DROP_COUNT - 1,
#define NETSUM_XDP_COUNTER(NAME, name) NETSUM_XDP_##NAME,
  NETSUM_DATAPLANE_COUNTERS(NETSUM_XDP_COUNTER)
#undef NETSUM_XDP_COUNTER
      NETSUM_XDP_PASSED, /* other traffic, left to the host */
  /* Frames to the aggregator's address and port that are not a plain IPv4 datagram. */
  NETSUM_XDP_VLAN_TAG,
  NETSUM_XDP_IP_OPTIONS,
  NETSUM_XDP_IP_FRAGMENT,
  NETSUM_XDP_IP_LENGTH,   /* IP or UDP length and frame disagree */
  NETSUM_XDP_IP_CHECKSUM, /* of the IP header */
  NETSUM_XDP_INJECTED,    /* dropped on purpose: the loader asked for losses */
  NETSUM_XDP_NO_PORT,     /* a copy for a port that no member of the job is behind */
  NETSUM_XDP_SLOT_HELD,   /* another CPU held the slot for too long */
  NETSUM_XDP_COUNTERS
};
struct netsum_xdp_counters { /* of one CPU */
  uint64_t values[NETSUM_XDP_COUNTERS];
};

#endif /* NETSUM_AGGREGATOR_XDP_MAPS_H_ */
