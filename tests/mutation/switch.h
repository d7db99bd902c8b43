// Included before a source file that has all its mutants in it (operators.py): which of them is on.
#ifndef NETSUM_MUTANT
#include <fcntl.h>
#include <sys/mman.h>

#include <cstdlib>

namespace netsum_mutation {

inline const int chosen =
    std::getenv("NETSUM_MUTANT") != nullptr ? std::atoi(std::getenv("NETSUM_MUTANT")) : 0;

// A file with one byte for each mutant, which becomes 1 when the program comes there.
inline unsigned char* map_reached() {
  const char* path = std::getenv("NETSUM_REACHED");
  const int file = path != nullptr ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (file < 0) return nullptr;
  void* mapped = mmap(nullptr, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<unsigned char*>(mapped);
}
inline unsigned char* const reached = map_reached();

inline bool is_on(int mutant) {
  if (reached != nullptr) reached[mutant] = 1;
  return chosen == mutant;
}

}  // namespace netsum_mutation

// Constants that the compiler evaluates stay as they are; such mutants are built one by one.
#define NETSUM_MUTANT(number) (!__builtin_is_constant_evaluated() && netsum_mutation::is_on(number))
#endif
