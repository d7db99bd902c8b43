/* Types and operators of MPI that netsum computes exactly as MPI defines them. */
#include <stdlib.h>
#include <string.h>

#include "mpi/coll_netsum.h"

#include <ompi/datatype/ompi_datatype_internal.h>

typedef enum number_kind { kOther, kFloat, kSigned, kUnsigned } number_kind;

/* Types of the same representation are one type here: MPI_LONG is MPI_INT64_T, MPI_INTEGER is MPI_INT32_T. */
static number_kind map_type(const ompi_datatype_t* type, netsum_dtype* out) {
  const bool is_8 = type->super.size == 8;
  if (!is_8 && type->super.size != 4) return kOther;
  switch (type->id) {
    case OMPI_DATATYPE_MPI_FLOAT:
    case OMPI_DATATYPE_MPI_REAL:
      *out = NETSUM_FLOAT32;
      return is_8 ? kOther : kFloat;
    case OMPI_DATATYPE_MPI_INT32_T:
    case OMPI_DATATYPE_MPI_INT64_T:
    case OMPI_DATATYPE_MPI_LONG:
    case OMPI_DATATYPE_MPI_INTEGER:
    case OMPI_DATATYPE_MPI_AINT:
    case OMPI_DATATYPE_MPI_OFFSET:
    case OMPI_DATATYPE_MPI_COUNT:
      *out = is_8 ? NETSUM_INT64 : NETSUM_INT32;
      return kSigned;
    case OMPI_DATATYPE_MPI_UINT32_T:
    case OMPI_DATATYPE_MPI_UINT64_T:
    case OMPI_DATATYPE_MPI_UNSIGNED_LONG:
      *out = is_8 ? NETSUM_INT64 : NETSUM_INT32;
      return kUnsigned;
    default:
      return kOther;
  }
}

static const struct {
  struct ompi_op_t* op;
  netsum_redop redop;
  bool bits; /* signed and unsigned integers, not floating-point numbers */
  bool logical;
} kOperators[] = {
    {MPI_SUM, NETSUM_SUM, false, false},    {MPI_MIN, NETSUM_MIN, false, false},
    {MPI_MAX, NETSUM_MAX, false, false},    {MPI_BAND, NETSUM_BIT_AND, true, false},
    {MPI_BOR, NETSUM_BIT_OR, true, false},  {MPI_BXOR, NETSUM_BIT_XOR, true, false},
    {MPI_LAND, NETSUM_BIT_AND, true, true}, {MPI_LOR, NETSUM_BIT_OR, true, true},
    {MPI_LXOR, NETSUM_BIT_XOR, true, true},
};

const char* netsum_map_reduction(ompi_datatype_t* type, MPI_Op op, netsum_reduction* reduction) {
  memset(reduction, 0, sizeof(*reduction));
  reduction->options.struct_size = sizeof(reduction->options);
  if (!ompi_datatype_is_predefined(type)) return "the data type is derived";
  const number_kind kind = map_type(type, &reduction->options.type);
  if (kind == kOther)
    return "the network reduces float32, int32 and int64 (MPI_FLOAT, MPI_INT, MPI_LONG and their "
           "equivalents)";
  size_t i = 0;
  const size_t operators = sizeof(kOperators) / sizeof(kOperators[0]);
  while (i < operators && kOperators[i].op != op) ++i;
  if (i == operators) return "the network does not compute the operator";
  if (kOperators[i].bits && kind == kFloat) return "the operator is none of floating-point numbers";
  if (!kOperators[i].bits && kind == kUnsigned)
    return "unsigned integers wrap around in sums, and the network compares signed ones";
  reduction->options.op = kOperators[i].redop;
  reduction->logical = kOperators[i].logical;
  return NULL;
}

const void* netsum_input_of(const netsum_reduction* reduction, const void* data, size_t count,
                            netsum_operation* operation) {
  if (!reduction->logical || count == 0) return data;
  const bool is_8 = reduction->options.type == NETSUM_INT64;
  operation->memory = malloc(count * (is_8 ? sizeof(int64_t) : sizeof(int32_t)));
  if (operation->memory == NULL) return NULL;
  for (size_t i = 0; i < count; ++i) {
    if (is_8)
      ((int64_t*)operation->memory)[i] = ((const int64_t*)data)[i] != 0;
    else
      ((int32_t*)operation->memory)[i] = ((const int32_t*)data)[i] != 0;
  }
  return operation->memory;
}
