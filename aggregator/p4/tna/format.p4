// The formats of lanes. Those that a stateful ALU cannot combine are unknown here: SUM of 64 bits, whose carries pass from one
// half of a register to the other; MAX of 64 bits; OR and XOR, which would be a fifth action of the lanes' registers.
#ifndef NETSUM_AGGREGATOR_P4_TNA_FORMAT_P4_
#define NETSUM_AGGREGATOR_P4_TNA_FORMAT_P4_

#include "aggregator/p4/tna/headers.p4"

// How many passes a group of words takes. Values are known, and refused after the job's other rules.
control Format(inout headers_t h, inout metadata_t m) {
  action lanes(bit<8> last_part_in, bit<8> last_part_out) {
    m.format_known = 1;
    m.last_part_in = last_part_in;
    m.last_part_out = last_part_out;
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
      NETSUM_FORMAT_SUM_I8: lanes(0, 1);
      NETSUM_FORMAT_SUM_I16: lanes(0, 1);
      NETSUM_FORMAT_SUM_I32: lanes(0, 0);
      NETSUM_FORMAT_MAX_U8: lanes(1, 3);
      NETSUM_FORMAT_MAX_U16: lanes(0, 1);
      NETSUM_FORMAT_MAX_U32: lanes(0, 0);
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
