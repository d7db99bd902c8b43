// Random traffic for two dataplanes that must behave alike: mostly what members send, with everything that
// goes wrong.
#ifndef NETSUM_TESTS_CONFORMANCE_RANDOM_PACKETS_H_
#define NETSUM_TESTS_CONFORMANCE_RANDOM_PACKETS_H_

#include <string>
#include <vector>

#include "tests/conformance/dataplane_vectors.h"

namespace netsum::conformance {

// Installs the same jobs in both (which must be fresh), feeds both the same `packets` packets, and compares
// all replies and refusals. Empty, or the packet on which they differ and how. The jobs are of what `dataplane` can do, with
// `payload_bytes` or 32 less.
std::string first_difference(uint64_t seed, int packets, DataplaneUnderTest& reference,
                             DataplaneUnderTest& dataplane, uint32_t payload_bytes = 96);

// The same traffic as a vector, with what `dataplane` (which must be fresh) replies. Without packets whose tag is wrong, so that
// it also applies to dataplanes that do not verify tags.
Vector record(uint64_t seed, int packets, DataplaneUnderTest& dataplane, uint32_t payload_bytes);

// 1 to `count`, or the one in the environment's NETSUM_SEED, to repeat a run.
std::vector<uint64_t> seeds(int count);

}  // namespace netsum::conformance

#endif  // NETSUM_TESTS_CONFORMANCE_RANDOM_PACKETS_H_
