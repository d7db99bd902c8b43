// Writes wire/vectors/*.json. Run by hand after a change of make_vectors.cc: netsum_make_vectors wire/vectors
#include <cstdio>
#include <fstream>

#include "tests/conformance/dataplane_vectors.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: netsum_make_vectors <folder>\n");
    return 2;
  }
  for (const auto& vector : netsum::conformance::make_vectors()) {
    const std::string path = std::string(argv[1]) + "/" + vector.name + ".json";
    std::ofstream file(path);
    file << to_json(vector);
    if (!file.flush()) {
      std::fprintf(stderr, "netsum_make_vectors: cannot write %s\n", path.c_str());
      return 1;
    }
  }
  return 0;
}
