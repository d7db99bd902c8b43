// netsum_p4_random_vectors FOLDER COUNT [tofino]: random traffic and the replies of the P4 pipeline's model, as vectors for the
// P4 programs (p4_program_test.py; with `tofino`, p4_tna_test.py). Half of them have packets of several passes.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>

#include "tests/conformance/p4_run.h"
#include "tests/conformance/random_packets.h"

int main(int argc, char** argv) {
  using namespace netsum::conformance;
  const bool tofino = argc == 4 && std::strcmp(argv[3], "tofino") == 0;
  if (argc != 3 && !tofino) {
    std::cerr << "usage: " << argv[0] << " FOLDER COUNT [tofino]\n";
    return 2;
  }
  for (const uint64_t seed : seeds(std::atoi(argv[2]))) {
    P4Run dataplane(tofino ? P4Chip::kTofino : P4Chip::kBmv2);
    const Vector vector = record(seed, 500, dataplane, seed % 2 == 0 ? 96 : 1024);
    const std::string path = std::string(argv[1]) + "/" + vector.name + ".json";
    std::ofstream file(path);
    file << to_json(vector);
    if (!file.flush()) {
      std::cerr << "cannot write " << path << "\n";
      return 1;
    }
  }
  return 0;
}
