/* Buffers of MPI as bytes. A type may have gaps between its elements: such bytes are packed into memory without gaps before
 * they are sent, and unpacked after they have been received. */
#include <limits.h>
#include <stdlib.h>

#include "mpi/coll_netsum.h"

size_t netsum_view_bytes(netsum_view view) {
  return (size_t)view.count * view.type->super.size;
}

const char* netsum_reason_of_size(size_t largest) {
  return largest > INT_MAX ? "the data of a rank has more than 2 GiB" : NULL; /* Open MPI packs with int */
}

netsum_view netsum_view_part(netsum_view whole, ptrdiff_t first, int count) {
  ptrdiff_t lower, extent;
  ompi_datatype_get_extent(whole.type, &lower, &extent);
  return (netsum_view){(char*)whole.address + first * extent, count, whole.type};
}

char* netsum_view_direct(netsum_view view) {
  ptrdiff_t lower, extent;
  ompi_datatype_get_true_extent(view.type, &lower, &extent);
  return ompi_datatype_is_contiguous_memory_layout(view.type, view.count) ? (char*)view.address + lower
                                                                          : NULL;
}

int netsum_view_pack(netsum_view view, char* to) {
  return ompi_datatype_sndrcv(view.address, view.count, view.type, to, (int)netsum_view_bytes(view),
                              MPI_PACKED);
}

/* Sets bytes[i] to where the bytes of views[i] are, or to their place in new memory of the operation, in the order of the
 * views, for those with gaps. Views without bytes have no place. */
static int find_places(const netsum_view* views, int count, netsum_operation* operation, char** bytes) {
  size_t packed_bytes = 0;
  for (int i = 0; i < count; ++i) {
    bytes[i] = netsum_view_direct(views[i]);
    if (bytes[i] == NULL) packed_bytes += netsum_view_bytes(views[i]);
  }
  if (packed_bytes == 0) return OMPI_SUCCESS;
  char* next = operation->memory = malloc(packed_bytes);
  if (next == NULL) return OMPI_ERR_OUT_OF_RESOURCE;
  for (int i = 0; i < count; ++i) {
    if (bytes[i] != NULL || netsum_view_bytes(views[i]) == 0) continue;
    bytes[i] = next;
    next += netsum_view_bytes(views[i]);
  }
  return OMPI_SUCCESS;
}

static bool is_packed(netsum_view view) {
  return netsum_view_direct(view) == NULL && netsum_view_bytes(view) > 0;
}

int netsum_make_readable(const netsum_view* views, int count, netsum_operation* operation, char** bytes) {
  int code = find_places(views, count, operation, bytes);
  for (int i = 0; i < count && code == OMPI_SUCCESS; ++i) {
    if (is_packed(views[i])) code = netsum_view_pack(views[i], bytes[i]);
  }
  return code;
}

int netsum_make_writable(const netsum_view* views, int count, netsum_operation* operation, char** bytes) {
  const int code = find_places(views, count, operation, bytes);
  if (code != OMPI_SUCCESS || operation->memory == NULL) return code;
  operation->unpacked = malloc((size_t)count * sizeof(*views));
  if (operation->unpacked == NULL) return OMPI_ERR_OUT_OF_RESOURCE;
  for (int i = 0; i < count; ++i) {
    if (is_packed(views[i])) operation->unpacked[operation->unpacked_count++] = views[i];
  }
  operation->packed = operation->memory;
  return OMPI_SUCCESS;
}

int netsum_operation_unpack(const netsum_operation* operation) {
  const char* next = operation->packed;
  int code = OMPI_SUCCESS;
  for (int i = 0; i < operation->unpacked_count && code == OMPI_SUCCESS; ++i) {
    const netsum_view to = operation->unpacked[i];
    code = ompi_datatype_sndrcv(next, (int)netsum_view_bytes(to), MPI_PACKED, to.address, to.count, to.type);
    next += netsum_view_bytes(to);
  }
  return code;
}

void netsum_operation_release(netsum_operation* operation) {
  free(operation->unpacked);
  free(operation->memory);
}
