/* The collectives of MPI that move bytes: roots, counts, types with and without gaps, in place or not, blocking or not. The
 * program does not know of netsum. */
#include <stdint.h>
#include <string.h>

#include "tests/mpi/checks.h"

static double element(int of_rank, size_t i) {
  return of_rank * 1e6 + (double)i + 0.125;
}

static void finish_request(MPI_Request* request) {
  CHECK(MPI_Wait(request, MPI_STATUS_IGNORE) == MPI_SUCCESS);
}

static void broadcasts(MPI_Comm comm) {
  const int counts[] = {0, 1, 3, 1000, 100003};
  for (size_t c = 0; c < sizeof counts / sizeof *counts; ++c) {
    for (int root = 0; root < size; root += size - 1) {
      for (int blocking = 0; blocking < 2; ++blocking) {
        double* data = malloc(((size_t)counts[c] + 1) * sizeof *data);
        for (int i = 0; i < counts[c]; ++i) data[i] = rank == root ? element(root, (size_t)i) : -1;
        if (blocking) {
          CHECK(MPI_Bcast(data, counts[c], MPI_DOUBLE, root, comm) == MPI_SUCCESS);
        } else {
          MPI_Request request;
          CHECK(MPI_Ibcast(data, counts[c], MPI_DOUBLE, root, comm, &request) == MPI_SUCCESS);
          finish_request(&request);
        }
        int bad = 0;
        for (int i = 0; i < counts[c]; ++i) bad += data[i] != element(root, (size_t)i);
        CHECK(bad == 0);
        free(data);
      }
    }
  }
}

/* Only the root has gaps in its data, or only the others have. */
static void broadcasts_of_vectors(MPI_Comm comm) {
  enum { kBlocks = 500 };
  MPI_Datatype vector;
  MPI_Type_vector(kBlocks, 2, 5, MPI_INT, &vector);
  MPI_Type_commit(&vector);
  for (int root_has_gaps = 0; root_has_gaps < 2; ++root_has_gaps) {
    for (int blocking = 0; blocking < 2; ++blocking) {
      int data[kBlocks * 5];
      const int gaps = (rank == 0) == root_has_gaps;
      for (int i = 0; i < kBlocks * 5; ++i) data[i] = -7;
      if (rank == 0) {
        for (int i = 0; i < 2 * kBlocks; ++i) data[gaps ? i / 2 * 5 + i % 2 : i] = i * 3;
      }
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_Datatype type = gaps ? vector : MPI_INT;
      const int count = gaps ? 1 : 2 * kBlocks;
      if (blocking)
        CHECK(MPI_Bcast(data, count, type, 0, comm) == MPI_SUCCESS);
      else
        CHECK(MPI_Ibcast(data, count, type, 0, comm, &request) == MPI_SUCCESS);
      finish_request(&request);
      int bad = 0;
      for (int i = 0; i < 2 * kBlocks; ++i) bad += data[gaps ? i / 2 * 5 + i % 2 : i] != i * 3;
      if (gaps) {
        for (int i = 2; i < kBlocks * 5; i += 5) bad += data[i] != -7 || data[i + 1] != -7;
      }
      CHECK(bad == 0);
    }
  }
  MPI_Type_free(&vector);
}

static void all_gathers(MPI_Comm comm, int count, int in_place, int blocking) {
  double* mine = malloc(((size_t)count + 1) * sizeof *mine);
  double* all = malloc(((size_t)count * (size_t)size + 1) * sizeof *all);
  for (int i = 0; i < count * size; ++i) all[i] = -1;
  for (int i = 0; i < count; ++i) {
    mine[i] = element(rank, (size_t)i);
    if (in_place) all[rank * count + i] = mine[i];
  }
  const void* from = in_place ? MPI_IN_PLACE : (void*)mine;
  if (blocking) {
    CHECK(MPI_Allgather(from, count, MPI_DOUBLE, all, count, MPI_DOUBLE, comm) == MPI_SUCCESS);
  } else {
    MPI_Request request;
    CHECK(MPI_Iallgather(from, count, MPI_DOUBLE, all, count, MPI_DOUBLE, comm, &request) == MPI_SUCCESS);
    finish_request(&request);
  }
  int bad = 0;
  for (int r = 0; r < size; ++r) {
    for (int i = 0; i < count; ++i) bad += all[r * count + i] != element(r, (size_t)i);
  }
  CHECK(bad == 0);
  free(mine);
  free(all);
}

/* Rows of one process become the columns of all: the receiving type has gaps and overlaps those of other ranks. */
static void all_gather_into_columns(MPI_Comm comm, int in_place) {
  enum { kRows = 200 };
  int mine[kRows], *all = malloc(sizeof(int) * kRows * (size_t)size);
  MPI_Datatype strided, column;
  MPI_Type_vector(kRows, 1, size, MPI_INT, &strided);
  MPI_Type_create_resized(strided, 0, sizeof(int), &column);
  MPI_Type_commit(&column);
  for (int i = 0; i < kRows; ++i) {
    mine[i] = rank * 1000 + i;
    for (int r = 0; r < size; ++r) all[i * size + r] = in_place && r == rank ? mine[i] : -1;
  }
  CHECK(MPI_Allgather(in_place ? MPI_IN_PLACE : (void*)mine, kRows, MPI_INT, all, 1, column, comm) ==
        MPI_SUCCESS);
  int bad = 0;
  for (int i = 0; i < kRows; ++i) {
    for (int r = 0; r < size; ++r) bad += all[i * size + r] != r * 1000 + i;
  }
  CHECK(bad == 0);
  MPI_Type_free(&column);
  MPI_Type_free(&strided);
  free(all);
}

static void gathers_and_scatters(MPI_Comm comm, int count, int root, int in_place, int blocking) {
  const size_t whole = (size_t)count * (size_t)size;
  short* mine = malloc(((size_t)count + 1) * sizeof *mine);
  short* all = malloc((whole + 1) * sizeof *all);
  MPI_Request request = MPI_REQUEST_NULL;
  for (size_t i = 0; i < whole; ++i) all[i] = -1;
  for (int i = 0; i < count; ++i) {
    mine[i] = (short)(rank * 100 + i);
    if (in_place) all[rank * count + i] = mine[i];
  }
  const int place = in_place && rank == root;
  if (blocking)
    CHECK(MPI_Gather(place ? MPI_IN_PLACE : (void*)mine, count, MPI_SHORT, all, count, MPI_SHORT, root,
                     comm) == MPI_SUCCESS);
  else
    CHECK(MPI_Igather(place ? MPI_IN_PLACE : (void*)mine, count, MPI_SHORT, all, count, MPI_SHORT, root, comm,
                      &request) == MPI_SUCCESS);
  finish_request(&request);
  int bad = 0;
  for (int r = 0; rank == root && r < size; ++r) {
    for (int i = 0; i < count; ++i) bad += all[r * count + i] != (short)(r * 100 + i);
  }
  CHECK(bad == 0);
  for (int i = 0; i < count; ++i) mine[i] = -5;
  for (size_t i = 0; i < whole; ++i) all[i] = rank == root ? (short)(i * 3) : -1;
  if (blocking)
    CHECK(MPI_Scatter(all, count, MPI_SHORT, place ? MPI_IN_PLACE : (void*)mine, count, MPI_SHORT, root,
                      comm) == MPI_SUCCESS);
  else
    CHECK(MPI_Iscatter(all, count, MPI_SHORT, place ? MPI_IN_PLACE : (void*)mine, count, MPI_SHORT, root,
                       comm, &request) == MPI_SUCCESS);
  finish_request(&request);
  bad = 0;
  for (int i = 0; i < count; ++i) bad += mine[i] != (place ? -5 : (short)((rank * count + i) * 3));
  CHECK(bad == 0);
  free(mine);
  free(all);
}

/* Parts of different sizes, some of them empty, in the reverse order and with gaps between them. The type has gaps, too, if
 * asked for: it is released before the end. */
static void all_gathers_of_sizes(MPI_Comm comm, int has_gaps, int in_place, int blocking) {
  int counts[64], places[64], whole = 0;
  for (int r = size - 1; r >= 0; --r) {
    counts[r] = r == 1 ? 0 : 5 + 211 * r;
    places[r] = whole;
    whole += counts[r] + 2;
  }
  MPI_Datatype strided, type = MPI_INT;
  const int step = has_gaps ? 3 : 1;
  if (has_gaps) {
    MPI_Type_create_resized(MPI_INT, 0, 3 * (MPI_Aint)sizeof(int), &strided);
    MPI_Type_commit(&strided);
    type = strided;
  }
  const int own = counts[rank];
  int* mine = malloc(((size_t)own + 1) * sizeof *mine);
  int* all = malloc((size_t)(whole * step) * sizeof *all);
  for (int i = 0; i < whole * step; ++i) all[i] = -1;
  for (int i = 0; i < own; ++i) {
    mine[i] = rank * 1000 + i;
    if (in_place) all[(places[rank] + i) * step] = mine[i];
  }
  const void* from = in_place ? MPI_IN_PLACE : (void*)mine;
  MPI_Request request = MPI_REQUEST_NULL;
  if (blocking)
    CHECK(MPI_Allgatherv(from, own, MPI_INT, all, counts, places, type, comm) == MPI_SUCCESS);
  else
    CHECK(MPI_Iallgatherv(from, own, MPI_INT, all, counts, places, type, comm, &request) == MPI_SUCCESS);
  if (has_gaps) MPI_Type_free(&strided);
  finish_request(&request);
  int bad = 0;
  for (int r = 0; r < size; ++r) {
    for (int i = 0; i < counts[r]; ++i) {
      int* const element = &all[(places[r] + i) * step];
      bad += *element != r * 1000 + i;
      *element = -1;
    }
  }
  for (int i = 0; i < whole * step; ++i) bad += all[i] != -1; /* the gaps */
  CHECK(bad == 0);
  free(mine);
  free(all);
}

/* Each rank's part of the root has gaps. */
static void scatters_of_vectors(MPI_Comm comm, int root) {
  enum { kCount = 700 };
  MPI_Datatype pair, spaced;
  MPI_Type_vector(2, 1, 2, MPI_FLOAT, &pair); /* one number, a gap, one number */
  MPI_Type_create_resized(pair, 0, 4 * (MPI_Aint)sizeof(float), &spaced);
  MPI_Type_commit(&spaced);
  float* all = malloc((size_t)(size * kCount * 4) * sizeof *all);
  float mine[2 * kCount];
  for (int i = 0; i < size * kCount * 4; ++i) all[i] = i % 2 == 0 ? (float)(i / 2) : -3;
  CHECK(MPI_Scatter(all, kCount, spaced, mine, 2 * kCount, MPI_FLOAT, root, comm) == MPI_SUCCESS);
  int bad = 0;
  for (int i = 0; i < 2 * kCount; ++i) bad += mine[i] != (float)(rank * 2 * kCount + i);
  CHECK(bad == 0);
  for (int i = 0; i < size * kCount * 4; ++i) all[i] = -4;
  CHECK(MPI_Gather(mine, 2 * kCount, MPI_FLOAT, all, kCount, spaced, root, comm) == MPI_SUCCESS);
  bad = 0;
  for (int i = 0; rank == root && i < size * kCount * 4; ++i)
    bad += all[i] != (i % 2 == 0 ? (float)(i / 2) : -4);
  CHECK(bad == 0);
  free(all);
  MPI_Type_free(&spaced);
  MPI_Type_free(&pair);
}

static void* move_in_thread(void* of) {
  const MPI_Comm comm = *(MPI_Comm*)of;
  for (int round = 0; round < 20; ++round) {
    int numbers[300], all[64];
    for (int i = 0; i < 300; ++i) numbers[i] = rank == round % size ? round * 300 + i : -1;
    if (MPI_Bcast(numbers, 300, MPI_INT, round % size, comm) != MPI_SUCCESS) return "failed";
    if (numbers[299] != round * 300 + 299) return "wrong";
    if (MPI_Allgather(&rank, 1, MPI_INT, all, 1, MPI_INT, comm) != MPI_SUCCESS) return "failed";
    if (all[size - 1] != size - 1) return "wrong";
  }
  return NULL;
}

int main(int argc, char** argv) {
  const int threaded = begin(&argc, &argv, MPI_THREAD_MULTIPLE);
  const MPI_Comm comm = MPI_COMM_WORLD;
  /* The first collective, in which the communicator joins. */
  all_gathers(comm, 3, 0, 1);
  broadcasts(comm);
  broadcasts_of_vectors(comm);
  for (int way = 0; way < 4; ++way) {
    const int in_place = way & 1, blocking = way >> 1;
    const int counts[] = {0, 1, 333, 20000};
    for (int c = 0; c < 4; ++c) {
      all_gathers(comm, counts[c], in_place, blocking);
      gathers_and_scatters(comm, counts[c], way % size, in_place, blocking);
    }
    all_gathers_of_sizes(comm, 0, in_place, blocking);
    all_gathers_of_sizes(comm, 1, in_place, blocking);
    all_gather_into_columns(comm, in_place);
  }
  for (int root = 0; root < size; ++root) scatters_of_vectors(comm, root);
  if (argc == 1 || strcmp(argv[1], "short") != 0) {
    if (threaded) in_threads(move_in_thread);
  }
  return finish();
}
