// The formats of lanes.
#ifndef NETSUM_AGGREGATOR_P4_V1MODEL_FORMAT_P4_
#define NETSUM_AGGREGATOR_P4_V1MODEL_FORMAT_P4_

#include "aggregator/p4/v1model/headers.p4"

#define TOP_BITS_8 0x8080808080808080
#define TOP_BITS_16 0x8000800080008000
#define TOP_BITS_32 0x8000000080000000
#define TOP_BITS_64 0x8000000000000000

// What the format is, and how its lanes are added. Values are known, and refused after the job's other rules.
control Format(inout headers_t h, inout metadata_t m) {
  action lanes(bit<8> combine, bit<64> top_bits, bit<8> top_shift) {
    m.format_known = 1;
    m.combine = combine;
    m.top_bits = top_bits;
    m.top_shift = top_shift;
  }
  action element_values() {
    m.format_known = 1;
    m.values = 1;
  }
  table formats {
    key = { h.netsum.format: ternary; }
    actions = { lanes; element_values; NoAction; }
    default_action = NoAction();
    const entries = {
      NETSUM_FORMAT_SUM_I8: lanes(NETSUM_P4_COMBINE_SUM, TOP_BITS_8, 7);
      NETSUM_FORMAT_SUM_I16: lanes(NETSUM_P4_COMBINE_SUM, TOP_BITS_16, 15);
      NETSUM_FORMAT_SUM_I32: lanes(NETSUM_P4_COMBINE_SUM, TOP_BITS_32, 31);
      NETSUM_FORMAT_SUM_I64: lanes(NETSUM_P4_COMBINE_SUM, TOP_BITS_64, 63);
      NETSUM_FORMAT_MAX_U8: lanes(NETSUM_P4_COMBINE_MAX, TOP_BITS_8, 7);
      NETSUM_FORMAT_MAX_U16: lanes(NETSUM_P4_COMBINE_MAX, TOP_BITS_16, 15);
      NETSUM_FORMAT_MAX_U32: lanes(NETSUM_P4_COMBINE_MAX, TOP_BITS_32, 31);
      NETSUM_FORMAT_MAX_U64: lanes(NETSUM_P4_COMBINE_MAX, TOP_BITS_64, 63);
      NETSUM_FORMAT_OR_U64: lanes(NETSUM_P4_COMBINE_OR, 0, 0);
      NETSUM_FORMAT_XOR_U64: lanes(NETSUM_P4_COMBINE_XOR, 0, 0);
      // SUM of values has the types 6 and 7, SUM and AVG of floats 1 to 3.
      0x36 &&& 0xFE: element_values();
      0x70: NoAction();
      0x70 &&& 0xFC: element_values();
      0x80: NoAction();
      0x80 &&& 0xFC: element_values();
    }
  }
  apply { formats.apply(); }
}

#endif
