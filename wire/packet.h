/* The header in front of every netsum payload, and its keyed tag. C11, C++20 and BPF C. */
#ifndef NETSUM_WIRE_PACKET_H_
#define NETSUM_WIRE_PACKET_H_

#include "wire/ids.h"
#include "wire/siphash.h"

#ifdef __cplusplus
#include <cstddef>
#include <cstdint>
#define NETSUM_STATIC_ASSERT static_assert
#else
#include <stddef.h>
#include <stdint.h>
#define NETSUM_STATIC_ASSERT _Static_assert
#endif

/* Big-endian fields: bytes, so that no code can forget to convert them, and no access is misaligned. In BPF
 * words beside, because its compiler takes apart what may be misaligned, and its machine does not mind. */
#ifdef __bpf__
#define NETSUM_BIG_ENDIAN_FIELD(name, bytes, word_type) \
  typedef union {                                       \
    uint8_t b[bytes];                                   \
    word_type word;                                     \
  } name
#else
#define NETSUM_BIG_ENDIAN_FIELD(name, bytes, word_type) \
  typedef struct {                                      \
    uint8_t b[bytes];                                   \
  } name
#endif
NETSUM_BIG_ENDIAN_FIELD(netsum_be16, 2, uint16_t);
NETSUM_BIG_ENDIAN_FIELD(netsum_be32, 4, uint32_t);
NETSUM_BIG_ENDIAN_FIELD(netsum_be64, 8, uint64_t);

struct netsum_header {
  uint8_t magic;         /* NETSUM_MAGIC */
  uint8_t version_type;  /* high nibble NETSUM_VERSION, low nibble NETSUM_TYPE_* */
  uint8_t format;        /* NETSUM_FORMAT_*: operation and lane width of the payload */
  uint8_t flags;         /* NETSUM_FLAG_* */
  netsum_be16 job;       /* index granted by the control plane */
  netsum_be16 epoch;     /* incarnation of that index */
  netsum_be16 slot;      /* index below the job's slots */
  netsum_be16 member;    /* sender's index in the job; NETSUM_MEMBER_ALL where it is for everybody */
  netsum_be32 round;     /* how often the slot has been used; identifies stale packets */
  netsum_be32 chunk;     /* position within the tensor (RESULT repeats it) */
  netsum_be32 signature; /* hash of the operation: sequence number, type, operation, sizes */
  netsum_be64 check;     /* over header and payload, see netsum_check(), or netsum_cookie() */
};

NETSUM_STATIC_ASSERT(sizeof(struct netsum_header) == NETSUM_HEADER_BYTES, "header is 32 bytes");
NETSUM_STATIC_ASSERT(offsetof(struct netsum_header, job) == 4, "job at 4");
NETSUM_STATIC_ASSERT(offsetof(struct netsum_header, slot) == 8, "slot at 8");
NETSUM_STATIC_ASSERT(offsetof(struct netsum_header, round) == 12, "round at 12");
NETSUM_STATIC_ASSERT(offsetof(struct netsum_header, chunk) == 16, "chunk at 16");
NETSUM_STATIC_ASSERT(offsetof(struct netsum_header, signature) == 20, "signature at 20");
NETSUM_STATIC_ASSERT(offsetof(struct netsum_header, check) == 24, "check at 24");
/* 1440 of 1514 bytes (Ethernet header included) at MTU 1500 over IPv4 are gradient: 95.1 %. */
NETSUM_STATIC_ASSERT(1440 * 100 >= 95 * (14 + 20 + 8 + NETSUM_HEADER_BYTES + 1440), "95 % efficiency");

#ifdef __bpf__
NETSUM_INLINE uint16_t netsum_get16(netsum_be16 v) {
  return __builtin_bswap16(v.word);
}
NETSUM_INLINE uint32_t netsum_get32(netsum_be32 v) {
  return __builtin_bswap32(v.word);
}
NETSUM_INLINE uint64_t netsum_get64(netsum_be64 v) {
  return __builtin_bswap64(v.word);
}
NETSUM_INLINE netsum_be16 netsum_put16(uint16_t x) {
  netsum_be16 v = {.word = __builtin_bswap16(x)};
  return v;
}
NETSUM_INLINE netsum_be32 netsum_put32(uint32_t x) {
  netsum_be32 v = {.word = __builtin_bswap32(x)};
  return v;
}
NETSUM_INLINE netsum_be64 netsum_put64(uint64_t x) {
  netsum_be64 v = {.word = __builtin_bswap64(x)};
  return v;
}
#else
NETSUM_INLINE uint16_t netsum_get16(netsum_be16 v) {
  return (uint16_t)(v.b[0] << 8 | v.b[1]);
}
NETSUM_INLINE uint32_t netsum_get32(netsum_be32 v) {
  return (uint32_t)v.b[0] << 24 | (uint32_t)v.b[1] << 16 | (uint32_t)v.b[2] << 8 | v.b[3];
}
NETSUM_INLINE uint64_t netsum_get64(netsum_be64 v) {
  uint64_t x = 0;
  for (int i = 0; i < 8; ++i) x = x << 8 | v.b[i];
  return x;
}
NETSUM_INLINE netsum_be16 netsum_put16(uint16_t x) {
  netsum_be16 v = {{(uint8_t)(x >> 8), (uint8_t)x}};
  return v;
}
NETSUM_INLINE netsum_be32 netsum_put32(uint32_t x) {
  netsum_be32 v = {{(uint8_t)(x >> 24), (uint8_t)(x >> 16), (uint8_t)(x >> 8), (uint8_t)x}};
  return v;
}
NETSUM_INLINE netsum_be64 netsum_put64(uint64_t x) {
  netsum_be64 v;
  for (int i = 0; i < 8; ++i) v.b[i] = (uint8_t)(x >> (56 - 8 * i));
  return v;
}
#endif

/* Little-endian words of memory, at any alignment. All supported machines are little-endian. */
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "netsum lanes are little-endian; this machine would need byte swaps in wire/ and src/kernels"
#endif
#ifdef __bpf__
/* BPF's compiler would take a copy apart into bytes; the machines above load a whole word at any address. */
NETSUM_INLINE uint32_t netsum_load32(const void* p) {
  return *(const uint32_t*)p;
}
NETSUM_INLINE uint64_t netsum_load64(const void* p) {
  return *(const uint64_t*)p;
}
NETSUM_INLINE void netsum_store32(void* p, uint32_t x) {
  *(uint32_t*)p = x;
}
NETSUM_INLINE void netsum_store64(void* p, uint64_t x) {
  *(uint64_t*)p = x;
}
#else
NETSUM_INLINE uint32_t netsum_load32(const void* p) {
  uint32_t x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
NETSUM_INLINE uint64_t netsum_load64(const void* p) {
  uint64_t x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
NETSUM_INLINE void netsum_store32(void* p, uint32_t x) {
  __builtin_memcpy(p, &x, sizeof x);
}
NETSUM_INLINE void netsum_store64(void* p, uint64_t x) {
  __builtin_memcpy(p, &x, sizeof x);
}
#endif

/* Bytes per lane of `format`; 0: it has no lanes. */
NETSUM_INLINE uint32_t netsum_lane_bytes(uint8_t format) {
  switch (format & 15) {
    case NETSUM_LANE_U8:
    case NETSUM_LANE_I8:
      return 1;
    case NETSUM_LANE_I16:
    case NETSUM_LANE_U16:
      return 2;
    case NETSUM_LANE_I32:
    case NETSUM_LANE_U32:
      return 4;
    case NETSUM_LANE_I64:
    case NETSUM_LANE_U64:
      return 8;
    default:
      return 0;
  }
}

/* Finaliser of MurmurHash3 (public domain, A. Appleby): every input bit flips each output bit with p = 1/2.
 * For names and test data; no protection against anybody. */
NETSUM_INLINE uint64_t netsum_mix64(uint64_t h) {
  h ^= h >> 33;
  h *= 0xFF51AFD7ED558CCDull;
  h ^= h >> 33;
  h *= 0xC4CEB9FE1A85EC53ull;
  return h ^ h >> 33;
}

/* The key of one stripe of a job: SipHash, under the job's secret, of a word and the stripe's number in the
 * job. So a packet of one stripe is a forgery to all others. */
NETSUM_INLINE struct netsum_key netsum_stripe_key(const struct netsum_key* secret, uint32_t stripe) {
  uint64_t halves[2];
  for (uint32_t i = 0; i < 2; ++i) {
    struct netsum_sip s = netsum_sip_begin(secret);
    netsum_sip_word(&s, i == 0 ? 0x304B6D757374656Eull : 0x314B6D757374656Eull); /* "netsumK0", "netsumK1" */
    netsum_sip_word(&s, stripe);
    halves[i] = netsum_sip_end(&s, 0, 16);
  }
  struct netsum_key key = {halves[0], halves[1]};
  return key;
}

/* What packets of jobs without tags carry in the check field, all but HELLO: SipHash(key, "netsumCK"), made odd, so that it is
 * never 0. Its input is 8 bytes long, shorter than any other. */
NETSUM_INLINE uint64_t netsum_cookie(const struct netsum_key* key) {
  struct netsum_sip s = netsum_sip_begin(key);
  netsum_sip_word(&s, 0x4B436D757374656Eull);
  return netsum_sip_end(&s, 0, 8) | 1;
}

/* The key table of NH: pair i are the halves of SipHash(key, "netsumNH" || i), word 2i the lower one. Its
 * input is 16 bytes long and a tag's 36, so the two never meet. `words` is even. */
NETSUM_INLINE void netsum_make_table(const struct netsum_key* key, uint32_t* table, uint32_t words) {
  for (uint32_t i = 0; i < words / 2; ++i) {
    struct netsum_sip s = netsum_sip_begin(key);
    netsum_sip_word(&s, 0x484E6D757374656Eull);
    netsum_sip_word(&s, i);
    const uint64_t pair = netsum_sip_end(&s, 0, 16);
    table[2 * i] = (uint32_t)pair;
    table[2 * i + 1] = (uint32_t)(pair >> 32);
  }
}

/* NH, plainly; src/kernels has the fast one. `bytes` is a multiple of 8; `table` has bytes / 4 words. */
NETSUM_INLINE uint64_t netsum_nh(const void* payload, uint32_t bytes, const uint32_t* table) {
  const uint8_t* p = (const uint8_t*)payload;
  uint64_t sum = 0;
  for (uint32_t i = 0; i < bytes / 8; ++i) {
    sum += (uint64_t)(uint32_t)(netsum_load32(p + 8 * i) + table[2 * i]) *
           (uint32_t)(netsum_load32(p + 8 * i + 4) + table[2 * i + 1]);
  }
  return sum;
}

/* The check field: SipHash, under the stripe's key, of the 24 bytes of header in front of it, NH of the
 * payload and the payload's length. `header` is the packet's first byte. */
NETSUM_INLINE uint64_t netsum_check(const void* header, uint64_t payload_nh, uint32_t payload_bytes,
                                    const struct netsum_key* key) {
  const uint8_t* p = (const uint8_t*)header;
  struct netsum_sip s = netsum_sip_begin(key);
  netsum_sip_word(&s, netsum_load64(p));
  netsum_sip_word(&s, netsum_load64(p + 8));
  netsum_sip_word(&s, netsum_load64(p + 16));
  netsum_sip_word(&s, payload_nh);
  return netsum_sip_end(&s, payload_bytes, 36);
}

#endif /* NETSUM_WIRE_PACKET_H_ */
