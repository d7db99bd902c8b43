/* The arguments of the examples, in C and C++: RANK WORLD_SIZE root|aggregator HOST:PORT. */
#ifndef NETSUM_EXAMPLES_ARGUMENTS_H
#define NETSUM_EXAMPLES_ARGUMENTS_H

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether the text is a number from `least` to `most`, which is then in *number; otherwise says so. */
static inline int read_number(const char* text, const char* name, int least, int most, int* number) {
  char* end = NULL;
  const long value = strtol(text, &end, 10);
  if (*text == '\0' || *end != '\0' || value < least || value > most) {
    fprintf(stderr, "%s must be a number from %d to %d, not '%s'\n", name, least, most, text);
    return 0;
  }
  *number = (int)value;
  return 1;
}

/* Whether the first four arguments are right; *by_root: whether HOST:PORT, which is argv[4], is that of rank 0. */
static inline int read_arguments(char** argv, int most_ranks, int* rank, int* world_size, int* by_root) {
  *by_root = strcmp(argv[3], "root") == 0;
  if (!*by_root && strcmp(argv[3], "aggregator") != 0) {
    fprintf(stderr, "the third argument must be root or aggregator, not '%s'\n", argv[3]);
    return 0;
  }
  return read_number(argv[2], "WORLD_SIZE", 1, most_ranks, world_size) &&
         read_number(argv[1], "RANK", 0, *world_size - 1, rank);
}

#endif
