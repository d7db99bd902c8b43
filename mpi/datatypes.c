/* Types and operators of MPI that netsum sums exactly as MPI defines them. */
#include "mpi/coll_netsum.h"

#include <ompi/datatype/ompi_datatype_internal.h>

/* Types of the same representation are one type here: MPI_LONG is MPI_INT64_T, MPI_INTEGER is MPI_INT32_T. */
static bool map_type(const ompi_datatype_t* type, netsum_dtype* out) {
  switch (type->id) {
    case OMPI_DATATYPE_MPI_FLOAT:
    case OMPI_DATATYPE_MPI_REAL:
      *out = NETSUM_FLOAT32;
      return type->super.size == 4;
    case OMPI_DATATYPE_MPI_INT32_T:
    case OMPI_DATATYPE_MPI_INT64_T:
    case OMPI_DATATYPE_MPI_LONG:
    case OMPI_DATATYPE_MPI_INTEGER:
    case OMPI_DATATYPE_MPI_AINT:
    case OMPI_DATATYPE_MPI_OFFSET:
    case OMPI_DATATYPE_MPI_COUNT:
      *out = type->super.size == 8 ? NETSUM_INT64 : NETSUM_INT32;
      return type->super.size == 8 || type->super.size == 4;
    default:
      return false;
  }
}

const char* netsum_map_reduction(ompi_datatype_t* type, MPI_Op op, netsum_dtype* dtype, netsum_redop* redop) {
  if (!ompi_datatype_is_predefined(type)) return "the data type is derived";
  if (!map_type(type, dtype))
    return "the network sums float32, int32 and int64 (MPI_FLOAT, MPI_INT, MPI_LONG and their equivalents)";
  if (op != MPI_SUM) return "the network computes MPI_SUM only";
  *redop = NETSUM_SUM;
  return NULL;
}
