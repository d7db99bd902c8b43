/* What the program on a rack's lossy links and the command share. C for BPF, C++ for the command. */
#ifndef NETSUM_TOOLS_NETSUM_RACK_LOSS_MAPS_H_
#define NETSUM_TOOLS_NETSUM_RACK_LOSS_MAPS_H_

#include <stdint.h>

/* By the interface at which a frame comes in. */
struct netsum_stretch {
  uint32_t to; /* interface by which it goes on */
  /* It is lost if a random number of 32 bits is below: 2^32 loses all, 0 none. */
  uint64_t threshold;
};

/* Of one CPU, by the same interface. */
struct netsum_stretch_counts {
  uint64_t passed;
  uint64_t lost;
};

/* A frame that has come in, also one that is lost then: in the ring, while it is wanted. */
struct netsum_frame {
  uint64_t at_ns; /* of the monotonic clock */
  uint32_t from;
  uint32_t bytes;
};

struct netsum_capture {
  uint32_t on;
  uint64_t left_out; /* frames for which the ring had no room */
};

#endif /* NETSUM_TOOLS_NETSUM_RACK_LOSS_MAPS_H_ */
