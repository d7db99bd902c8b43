/* SipHash-2-4 (Aumasson, Bernstein 2012): a pseudo-random function of short inputs under a 128-bit key. It
 * needs additions, rotations and exclusive ors alone, so BPF can compute it. C11, C++20 and BPF C. */
#ifndef NETSUM_WIRE_SIPHASH_H_
#define NETSUM_WIRE_SIPHASH_H_

#ifdef __cplusplus
#include <compare>
#include <cstdint>
#else
#include <stdint.h>
#endif

/* BPF has no calls that pass structs, so there everything is inlined. */
#ifdef __bpf__
#define NETSUM_INLINE static inline __attribute__((always_inline))
#else
#define NETSUM_INLINE static inline
#endif

/* The first and the second 8 bytes of the key, little-endian. */
struct netsum_key {
  uint64_t k0, k1;
#ifdef __cplusplus
  auto operator<=>(const netsum_key&) const = default;
#endif
};

/* A hash under way. A message is taken as little-endian words: begin, word by word, end. */
struct netsum_sip {
  uint64_t v0, v1, v2, v3;
};

NETSUM_INLINE uint64_t netsum_sip_rotate(uint64_t x, int bits) {
  return x << bits | x >> (64 - bits);
}
NETSUM_INLINE void netsum_sip_round(struct netsum_sip* s) {
  s->v0 += s->v1;
  s->v2 += s->v3;
  s->v1 = netsum_sip_rotate(s->v1, 13) ^ s->v0;
  s->v3 = netsum_sip_rotate(s->v3, 16) ^ s->v2;
  s->v0 = netsum_sip_rotate(s->v0, 32);
  s->v2 += s->v1;
  s->v0 += s->v3;
  s->v1 = netsum_sip_rotate(s->v1, 17) ^ s->v2;
  s->v3 = netsum_sip_rotate(s->v3, 21) ^ s->v0;
  s->v2 = netsum_sip_rotate(s->v2, 32);
}

NETSUM_INLINE struct netsum_sip netsum_sip_begin(const struct netsum_key* key) {
  struct netsum_sip s;
  s.v0 = key->k0 ^ 0x736F6D6570736575ull; /* "somepseudorandomlygeneratedbytes" */
  s.v1 = key->k1 ^ 0x646F72616E646F6Dull;
  s.v2 = key->k0 ^ 0x6C7967656E657261ull;
  s.v3 = key->k1 ^ 0x7465646279746573ull;
  return s;
}
NETSUM_INLINE void netsum_sip_word(struct netsum_sip* s, uint64_t word) {
  s->v3 ^= word;
  netsum_sip_round(s);
  netsum_sip_round(s);
  s->v0 ^= word;
}
/* `rest`: the last 0 to 7 bytes; `bytes`: the length of the whole message. */
NETSUM_INLINE uint64_t netsum_sip_end(struct netsum_sip* s, uint64_t rest, uint32_t bytes) {
  netsum_sip_word(s, rest | (uint64_t)bytes << 56);
  s->v2 ^= 0xFF;
  netsum_sip_round(s);
  netsum_sip_round(s);
  netsum_sip_round(s);
  netsum_sip_round(s);
  return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}

#endif /* NETSUM_WIRE_SIPHASH_H_ */
