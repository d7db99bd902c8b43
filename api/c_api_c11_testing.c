#include "api/c_api_c11_testing.h"

#include <netsum/netsum.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static char problem[512];

#define REQUIRE(condition)                                                                             \
  do {                                                                                                 \
    if (!(condition)) {                                                                                \
      snprintf(problem, sizeof problem, "line %d: %s; %s", __LINE__, #condition, netsum_last_error()); \
      return problem;                                                                                  \
    }                                                                                                  \
  } while (0)

struct ended {
  atomic_int calls;
  int code;
  int rank;
  char message[256];
};

static void note_end(void* user_data, int code, const char* message, int rank) {
  struct ended* ended = user_data;
  ended->code = code;
  ended->rank = rank;
  snprintf(ended->message, sizeof ended->message, "%s", message);
  atomic_fetch_add(&ended->calls, 1);
}

static void note_address(void* user_data, const char* address) {
  snprintf(user_data, 64, "%s", address);
}

static const char* sum_several(netsum_comm* comm) {
  float first[3] = {1, 2, 3}, second[2] = {4, 5}, sum[2] = {0, 0};
  netsum_tensor tensors[2];
  memset(tensors, 0, sizeof tensors);
  tensors[0].input = tensors[0].output = first;
  tensors[0].count = 3;
  tensors[0].id = 17;
  tensors[1].input = second;
  tensors[1].output = sum;
  tensors[1].count = 2;
  netsum_work* work = NULL;
  REQUIRE(netsum_all_reduce_tensors(comm, tensors, 2, NULL, &work) == NETSUM_OK);
  struct ended ended = {.code = -1};
  REQUIRE(netsum_work_on_done(work, note_end, &ended) == NETSUM_OK);
  REQUIRE(netsum_work_on_done(work, note_end, &ended) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(netsum_work_wait(work, -1) == NETSUM_OK);
  while (atomic_load(&ended.calls) == 0) continue; /* the callback comes before or after wait() returns */
  REQUIRE(ended.code == NETSUM_OK && ended.rank == -1 && ended.message[0] == '\0');
  REQUIRE(first[2] == 3 && sum[0] == 4 && sum[1] == 5);
  netsum_work_free(work);

  tensors[1].reserved[1] = 1;
  REQUIRE(netsum_all_reduce_tensors(comm, tensors, 2, NULL, &work) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(strstr(netsum_last_error(), "reserved fields of tensor 1") != NULL);
  REQUIRE(netsum_all_reduce_tensors(comm, NULL, 1, NULL, &work) == NETSUM_INVALID_ARGUMENT);
  return NULL;
}

static void in_place_int64(int64_t* numbers, size_t count, netsum_tensor* tensor,
                           netsum_all_reduce_options* options) {
  memset(tensor, 0, sizeof *tensor);
  tensor->input = tensor->output = numbers;
  tensor->count = count;
  memset(options, 0, sizeof *options);
  options->struct_size = sizeof *options;
  options->type = NETSUM_INT64;
}

static const char* sum_with_options(netsum_comm* comm) {
  int64_t numbers[2] = {-7, 1LL << 40};
  netsum_tensor tensor;
  netsum_all_reduce_options options;
  in_place_int64(numbers, 2, &tensor, &options);
  options.timeout_ms = 20000;
  options.priority = -3;
  netsum_work* work = NULL;
  options.reserved = 1;
  REQUIRE(netsum_all_reduce_tensors(comm, &tensor, 1, &options, &work) == NETSUM_INVALID_ARGUMENT);
  options.reserved = 0;
  REQUIRE(netsum_all_reduce_tensors(comm, &tensor, 1, &options, &work) == NETSUM_OK);
  const int early = netsum_work_wait_us(work, 1);
  REQUIRE(early == NETSUM_OK || early == NETSUM_TIMEOUT);
  REQUIRE(netsum_work_wait_us(work, 20000000) == NETSUM_OK && netsum_work_done(work) == 1);
  REQUIRE(numbers[0] == -7 && numbers[1] == 1LL << 40);
  netsum_work_free(work);
  options.op = NETSUM_AVG; /* not of integers: the work reports it */
  REQUIRE(netsum_all_reduce_tensors(comm, &tensor, 1, &options, &work) == NETSUM_OK);
  struct ended ended = {.code = -1};
  REQUIRE(netsum_work_on_done(work, note_end, &ended) == NETSUM_OK); /* has ended: called at once */
  REQUIRE(atomic_load(&ended.calls) == 1 && ended.code == NETSUM_UNSUPPORTED && ended.message[0] != '\0');
  netsum_work_free(work);
  return NULL;
}

static const char* move_bytes(netsum_comm* comm) {
  char from[6] = "bytes", to[6] = "";
  netsum_buffer part;
  memset(&part, 0, sizeof part);
  part.input = from;
  part.output = to;
  part.bytes = sizeof from;
  for (int collective = 0; collective < 4; ++collective) {
    memset(to, 0, sizeof to);
    netsum_work* work = NULL;
    if (collective == 0) REQUIRE(netsum_broadcast(comm, &part, 1, 0, 20000, &work) == NETSUM_OK);
    if (collective == 1) REQUIRE(netsum_all_gather(comm, &part, 1, 20000, &work) == NETSUM_OK);
    if (collective == 2) REQUIRE(netsum_gather(comm, &part, 1, 0, 20000, &work) == NETSUM_OK);
    if (collective == 3) REQUIRE(netsum_scatter(comm, &part, 1, 0, 20000, &work) == NETSUM_OK);
    REQUIRE(netsum_work_wait(work, -1) == NETSUM_OK && strcmp(to, "bytes") == 0);
    netsum_work_free(work);
  }
  netsum_work* work = NULL;
  REQUIRE(netsum_broadcast(comm, &part, 1, 1, 0, &work) == NETSUM_OK); /* no such root: the work reports it */
  REQUIRE(netsum_work_wait(work, -1) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(strstr(netsum_last_error(), "broadcast: the root is rank 1") != NULL);
  netsum_work_free(work);
  REQUIRE(netsum_all_gather(comm, NULL, 1, 0, &work) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(strstr(netsum_last_error(), "netsum_all_gather: parts is NULL") != NULL);
  REQUIRE(netsum_gather(comm, &part, 1, 0, 0, NULL) == NETSUM_INVALID_ARGUMENT);
  part.reserved[0] = 1;
  REQUIRE(netsum_scatter(comm, &part, 1, 0, 0, &work) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(strstr(netsum_last_error(), "netsum_scatter: reserved fields of part 0") != NULL);
  return NULL;
}

static const char* reduce_parts(netsum_comm* comm) {
  int64_t numbers[2] = {3, -4}, sums[2] = {0, 0};
  netsum_tensor tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.input = numbers;
  tensor.output = sums;
  tensor.count = 2;
  netsum_all_reduce_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.type = NETSUM_INT64;
  netsum_work* work = NULL;
  REQUIRE(netsum_reduce(comm, &tensor, 1, 0, &options, &work) == NETSUM_OK);
  REQUIRE(netsum_work_wait(work, -1) == NETSUM_OK && sums[0] == 3 && sums[1] == -4);
  netsum_work_free(work);
  sums[0] = 0;
  REQUIRE(netsum_reduce_scatter(comm, &tensor, 1, &options, &work) == NETSUM_OK);
  REQUIRE(netsum_work_wait(work, -1) == NETSUM_OK && sums[0] == 3);
  netsum_work_free(work);
  options.struct_size = 1;
  REQUIRE(netsum_reduce_scatter(comm, &tensor, 1, &options, &work) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(strstr(netsum_last_error(), "netsum_reduce_scatter: struct_size") != NULL);
  return NULL;
}

static void note_delivered(void* user_data, size_t delivered) {
  *(size_t*)user_data = delivered;
}

static const char* sum_piecewise(netsum_comm* comm) {
  int64_t numbers[2] = {3, 0};
  netsum_tensor tensor;
  netsum_all_reduce_options options;
  in_place_int64(numbers, 2, &tensor, &options);
  size_t delivered = 0;
  REQUIRE(netsum_watermarks_make(0, note_delivered, &delivered, &options.watermarks) == NETSUM_OK);
  netsum_work* work = NULL;
  REQUIRE(netsum_all_reduce_tensors(comm, &tensor, 1, &options, &work) == NETSUM_OK);
  REQUIRE(netsum_watermarks_make_available(options.watermarks, 8) == NETSUM_OK);
  REQUIRE(netsum_work_wait(work, 1) == NETSUM_TIMEOUT);
  numbers[1] = -4;
  REQUIRE(netsum_watermarks_make_available(options.watermarks, 16) == NETSUM_OK);
  REQUIRE(netsum_work_wait(work, -1) == NETSUM_OK && numbers[0] == 3 && numbers[1] == -4);
  REQUIRE(delivered == 16 && netsum_watermarks_delivered(options.watermarks) == 16);
  netsum_work_free(work);
  REQUIRE(netsum_watermarks_fail(options.watermarks, NETSUM_OK, NULL) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(netsum_watermarks_fail(options.watermarks, NETSUM_INTERNAL, NULL) == NETSUM_OK); /* too late */
  REQUIRE(netsum_comm_status(comm) == NETSUM_OK);
  netsum_watermarks_free(options.watermarks);
  netsum_watermarks_free(NULL);

  netsum_move_options move;
  memset(&move, 0, sizeof move);
  move.struct_size = sizeof move;
  char from[6] = "?????", to[6] = "";
  netsum_buffer part;
  memset(&part, 0, sizeof part);
  part.input = from;
  part.output = to;
  part.bytes = sizeof from;
  const netsum_move_kind kinds[] = {NETSUM_BROADCAST, NETSUM_ALL_GATHER, NETSUM_GATHER, NETSUM_SCATTER};
  for (int i = 0; i < 4; ++i) {
    memset(from, '?', sizeof from);
    REQUIRE(netsum_watermarks_make(0, NULL, NULL, &move.watermarks) == NETSUM_OK);
    REQUIRE(netsum_move(comm, kinds[i], &part, 1, 0, &move, &work) == NETSUM_OK);
    strcpy(from, "bytes");
    REQUIRE(netsum_watermarks_make_available(move.watermarks, sizeof from) == NETSUM_OK);
    REQUIRE(netsum_work_wait(work, -1) == NETSUM_OK && strcmp(to, "bytes") == 0);
    netsum_work_free(work);
    netsum_watermarks_free(move.watermarks);
  }
  REQUIRE(netsum_move(comm, (netsum_move_kind)5, &part, 1, 0, NULL, &work) == NETSUM_OK);
  REQUIRE(netsum_work_wait(work, -1) == NETSUM_UNSUPPORTED);
  netsum_work_free(work);
  move.struct_size = 0;
  REQUIRE(netsum_move(comm, NETSUM_BROADCAST, &part, 1, 0, &move, &work) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(netsum_watermarks_make(0, NULL, NULL, NULL) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(netsum_watermarks_make_available(NULL, 1) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(netsum_watermarks_fail(NULL, NETSUM_INTERNAL, NULL) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(netsum_watermarks_delivered(NULL) == 0);
  return NULL;
}

static const char* look(netsum_comm* comm) {
  netsum_stats stats;
  memset(&stats, 0xFF, sizeof stats); /* only the size need be set */
  stats.struct_size = sizeof stats;
  REQUIRE(netsum_comm_stats(comm, &stats) == NETSUM_OK);
  REQUIRE(stats.operations == 9 && stats.operations_failed == 0 && stats.struct_size == sizeof stats);
  REQUIRE(stats.packets_sent > 0 && stats.stripes == 1 &&
          stats.gradient_bytes == 20 + 16 + 4 + 4 * 6 + 2 * 16);
  netsum_wrong_sums wrong;
  REQUIRE(netsum_comm_wrong_sums(comm, &wrong, 1) == 0 && netsum_comm_wrong_sums(comm, NULL, 0) == 0);
  REQUIRE(netsum_comm_wrong_sums(NULL, &wrong, 1) == 0);
  REQUIRE(strstr(netsum_last_error(), "netsum_comm_wrong_sums: comm is NULL") != NULL);
  REQUIRE(strstr(netsum_comm_describe(comm), "embedded shards") != NULL);
  REQUIRE(netsum_comm_rank(comm) == 0 && netsum_comm_world_size(comm) == 1);
  REQUIRE(netsum_comm_status(comm) == NETSUM_OK);
  return NULL;
}

static void give_rows(void* user_data, size_t count, int64_t** indices, void** values) {
  static int64_t index[2];
  *(size_t*)user_data = count;
  if (count > 2) return;
  *indices = index;
  *values = (float*)((char*)user_data + sizeof(size_t));
}

static const char* sum_sparse(netsum_comm* comm) {
  float values[5] = {0, 3, 0, 0, 4};
  netsum_tensor tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.input = tensor.output = values;
  tensor.count = 5;
  netsum_sparse_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.mode = NETSUM_SPARSE_ON;
  netsum_work* work = NULL;
  REQUIRE(netsum_sparse_all_reduce(comm, &tensor, &options, &work) == NETSUM_OK);
  REQUIRE(netsum_work_wait(work, -1) == NETSUM_OK && values[1] == 3 && values[4] == 4);
  netsum_work_free(work);
  options.mode = (netsum_sparse_mode)3;
  REQUIRE(netsum_sparse_all_reduce(comm, &tensor, &options, &work) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(strstr(netsum_last_error(), "netsum_sparse_mode") != NULL);

  const int64_t indices[3] = {7, 2, 7};
  netsum_coo coo;
  memset(&coo, 0, sizeof coo);
  coo.indices = indices;
  coo.values = values + 1; /* 3, 0, 0 */
  coo.count = 3;
  coo.rows = 10;
  coo.row_elements = 1;
  struct {
    size_t count;
    float values[2];
  } result = {0, {-1, -1}};
  REQUIRE(netsum_sparse_all_reduce_coo(comm, &coo, give_rows, &result, NULL, &work) == NETSUM_OK);
  REQUIRE(netsum_work_wait(work, -1) == NETSUM_OK);
  REQUIRE(result.count == 2 && result.values[0] == 0 && result.values[1] == 3);
  netsum_work_free(work);
  coo.reserved[0] = 1;
  REQUIRE(netsum_sparse_all_reduce_coo(comm, &coo, give_rows, &result, NULL, &work) ==
          NETSUM_INVALID_ARGUMENT);
  netsum_stats stats;
  stats.struct_size = sizeof stats;
  REQUIRE(netsum_comm_stats(comm, &stats) == NETSUM_OK && stats.sparse_operations == 2);
  return NULL;
}

static const char* refuse_compression(netsum_comm* comm) {
  netsum_compression_options options;
  memset(&options, 0, sizeof options);
  netsum_compression* compression = NULL;
  REQUIRE(netsum_compression_make(NULL, &compression) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(netsum_compression_make(&options, &compression) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(strstr(netsum_last_error(), "netsum_compression_make: struct_size is 0") != NULL);
  options.struct_size = sizeof options;
  REQUIRE(netsum_compression_make(&options, NULL) == NETSUM_INVALID_ARGUMENT);
  options.method = "topp";
  REQUIRE(netsum_compression_make(&options, &compression) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(strstr(netsum_last_error(), "'topp'") != NULL);
  options.method = "topk";
  options.path = "dense";
  REQUIRE(netsum_compression_make(&options, &compression) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(strstr(netsum_last_error(), "use path 'union'") != NULL);
  options.path = NULL;
  options.levels = 3;
  REQUIRE(netsum_compression_make(&options, &compression) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(strstr(netsum_last_error(), "levels is 3") != NULL && compression == NULL);
  options.levels = 0;
  options.count_senders = 1;
  REQUIRE(netsum_compression_make(&options, &compression) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(strstr(netsum_last_error(), "count_senders is true") != NULL && compression == NULL);
  options.struct_size = offsetof(netsum_compression_options, count_senders); /* the first version */
  REQUIRE(netsum_compression_make(&options, &compression) == NETSUM_OK);
  netsum_compressed_tensor* tensor = NULL;
  REQUIRE(netsum_compressed_tensor_make(compression, comm, 1, 4, 3, &tensor) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(strstr(netsum_last_error(), "rows is 3") != NULL && tensor == NULL);
  REQUIRE(netsum_compressed_tensor_make(compression, NULL, 1, 4, 0, &tensor) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(netsum_compressed_tensor_make(compression, comm, 1, 4, 0, &tensor) == NETSUM_OK);
  float values[4] = {0};
  REQUIRE(netsum_compressed_all_reduce(comm, tensor, NULL, values, 0) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(netsum_compressed_all_reduce(comm, NULL, values, values, 0) == NETSUM_INVALID_ARGUMENT);
  netsum_compression_state foreign = {"velocity", values, 4};
  REQUIRE(netsum_compressed_tensor_restore(tensor, 1, &foreign, 1) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(strstr(netsum_last_error(), "velocity") != NULL);
  REQUIRE(netsum_compressed_tensor_restore(tensor, 1, NULL, 1) == NETSUM_INVALID_ARGUMENT);
  foreign.name = NULL;
  REQUIRE(netsum_compressed_tensor_restore(tensor, 1, &foreign, 1) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(netsum_compressed_tensor_scale_memory(NULL, 1) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(netsum_compressed_tensor_set_ranks(tensor, NULL) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(netsum_compressed_tensor_give_up(NULL) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(netsum_agree_on_steps(NULL, &tensor, 1, 0) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(netsum_agree_on_steps(comm, NULL, 1, 0) == NETSUM_INVALID_ARGUMENT);
  netsum_compressed_tensor* none = NULL;
  REQUIRE(netsum_agree_on_steps(comm, &none, 1, 0) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(strstr(netsum_last_error(), "tensor 0 is NULL") != NULL);
  REQUIRE(netsum_check_same_on_all_ranks(comm, NULL, 0) == NETSUM_INVALID_ARGUMENT);
  netsum_compressed_tensor_free(tensor);
  netsum_compression_free(compression);
  netsum_compressed_tensor_free(NULL);
  netsum_compression_free(NULL);
  return NULL;
}

/* The largest of three elements is sent in each step, and the others remain. */
static const char* sum_compressed(netsum_comm* comm) {
  REQUIRE(strstr(netsum_compression_methods(), "topk, u8bit") != NULL);
  netsum_compression_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.method = "topk";
  options.k = 1;
  netsum_compression* compression = NULL;
  REQUIRE(netsum_compression_make(&options, &compression) == NETSUM_OK);
  REQUIRE(strstr(netsum_compression_describe(compression), "topk ratio=0.01 k=1") != NULL);
  REQUIRE(netsum_check_same_on_all_ranks(comm, netsum_compression_describe(compression), 0) == NETSUM_OK);
  netsum_compressed_tensor *tensor = NULL, *restored = NULL;
  REQUIRE(netsum_compressed_tensor_make(compression, comm, 7, 3, 0, &tensor) == NETSUM_OK);
  REQUIRE(netsum_compressed_tensor_make(compression, comm, 7, 3, 1, &restored) == NETSUM_OK);
  netsum_compression_free(compression); /* the tensors keep it */
  const float gradient[3] = {1, -5, 2}, zeros[3] = {0, 0, 0};
  float sent[3] = {9, 9, 9};
  REQUIRE(netsum_compressed_all_reduce(comm, tensor, gradient, sent, 20000) == NETSUM_OK);
  REQUIRE(sent[0] == 0 && sent[1] == -5 && sent[2] == 0);
  REQUIRE(netsum_compressed_tensor_step(tensor) == 1);
  netsum_compression_state part;
  REQUIRE(netsum_compressed_tensor_state(tensor, NULL, 0) == 1);
  REQUIRE(netsum_compressed_tensor_state(tensor, &part, 1) == 1);
  REQUIRE(strcmp(part.name, "residual") == 0 && part.count == 3);
  REQUIRE(part.values[0] == 1 && part.values[1] == 0 && part.values[2] == 2);
  REQUIRE(netsum_compressed_tensor_restore(restored, 1, &part, 1) == NETSUM_OK);
  netsum_compressed_tensor_free(tensor);
  REQUIRE(netsum_compressed_tensor_step(restored) == 1);
  REQUIRE(netsum_compressed_tensor_scale_memory(restored, 2) == NETSUM_OK);
  REQUIRE(netsum_compressed_tensor_set_ranks(restored, comm) == NETSUM_OK);
  REQUIRE(netsum_compressed_all_reduce(comm, restored, zeros, sent, 0) == NETSUM_OK);
  REQUIRE(sent[0] == 0 && sent[1] == 0 && sent[2] == 4);
  REQUIRE(netsum_compressed_tensor_give_up(restored) == NETSUM_OK);
  REQUIRE(netsum_compressed_tensor_step(restored) == 1);
  REQUIRE(netsum_agree_on_steps(comm, &restored, 1, 20000) == NETSUM_OK);
  REQUIRE(netsum_compressed_all_reduce(comm, restored, zeros, sent, 0) == NETSUM_OK);
  REQUIRE(sent[0] == 0 && sent[1] == 0 && sent[2] == 4 && netsum_compressed_tensor_step(restored) == 2);
  netsum_compressed_tensor_free(restored);
  return NULL;
}

/* A number that is none of an enumeration, of which the lowest 8 bits are one. */
static const char* refuse_numbers(netsum_comm* comm) {
  const netsum_dtype type = (netsum_dtype)(256 + NETSUM_FLOAT32);
  const netsum_redop op = (netsum_redop)(256 + NETSUM_SUM);
  float number = 2;
  netsum_work* works[6] = {NULL};
  REQUIRE(netsum_all_reduce(comm, &number, &number, 1, type, NETSUM_SUM, 0, &works[0]) == NETSUM_OK);
  REQUIRE(netsum_all_reduce(comm, &number, &number, 1, NETSUM_FLOAT32, op, 0, &works[1]) == NETSUM_OK);
  netsum_tensor tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.input = tensor.output = &number;
  tensor.count = 1;
  netsum_all_reduce_options options = {.struct_size = sizeof options, .type = type};
  netsum_sparse_options sparse = {.struct_size = sizeof sparse, .type = type};
  REQUIRE(netsum_all_reduce_tensors(comm, &tensor, 1, &options, &works[2]) == NETSUM_OK);
  REQUIRE(netsum_sparse_all_reduce(comm, &tensor, &sparse, &works[3]) == NETSUM_OK);
  options.type = sparse.type = NETSUM_FLOAT32;
  options.op = sparse.op = op;
  REQUIRE(netsum_all_reduce_tensors(comm, &tensor, 1, &options, &works[4]) == NETSUM_OK);
  REQUIRE(netsum_sparse_all_reduce(comm, &tensor, &sparse, &works[5]) == NETSUM_OK);
  for (size_t i = 0; i < 6; ++i) {
    REQUIRE(netsum_work_wait(works[i], -1) == NETSUM_UNSUPPORTED);
    REQUIRE(strstr(netsum_last_error(), "257 is none of netsum_") != NULL);
    netsum_work_free(works[i]);
  }
  REQUIRE(number == 2 && netsum_comm_status(comm) == NETSUM_OK);
  return NULL;
}

static const char* refuse_null(netsum_comm* comm) {
  REQUIRE(netsum_comm_status(NULL) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(netsum_barrier(NULL, 0) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(netsum_work_wait(NULL, 0) == NETSUM_INVALID_ARGUMENT && netsum_work_done(NULL) == 1);
  REQUIRE(netsum_work_wait_us(NULL, 0) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(netsum_comm_rank(NULL) == -1 && netsum_comm_world_size(NULL) == 0);
  REQUIRE(netsum_compression_describe(NULL)[0] == '\0');
  REQUIRE(netsum_compressed_tensor_step(NULL) == 0);
  netsum_compression_state state;
  REQUIRE(netsum_compressed_tensor_state(NULL, &state, 1) == 0);
  netsum_comm_abort(NULL, NULL);
  netsum_comm_close(NULL);
  /* What returns no code leaves the last error of what does. */
  REQUIRE(netsum_work_wait(NULL, 0) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(netsum_comm_describe(comm)[0] != '\0' && netsum_comm_wrong_sums(comm, NULL, 0) == 0);
  REQUIRE(strstr(netsum_last_error(), "netsum_work_wait: work is NULL") != NULL);
  return NULL;
}

static const char* break_and_mend(netsum_comm* comm) {
  netsum_comm_abort(comm, "enough");
  REQUIRE(netsum_comm_status(comm) == NETSUM_ABORTED);
  REQUIRE(strstr(netsum_last_error(), "enough") != NULL && netsum_last_error_rank() == 0);
  netsum_regroup_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.min_members = 1;
  options.gather_ms = 10;
  int former_ranks[1] = {-1};
  REQUIRE(netsum_comm_regroup(comm, &options, former_ranks) == NETSUM_OK && former_ranks[0] == 0);
  REQUIRE(netsum_barrier(comm, 20000) == NETSUM_OK);
  return NULL;
}

const char* netsum_c11_program(void) {
  REQUIRE(strcmp(netsum_version(), NETSUM_VERSION_STRING) == 0);
  REQUIRE(strcmp(netsum_code_name(NETSUM_TIMEOUT), "timeout") == 0);
  char address[64] = "";
  netsum_comm_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.world_size = 1;
  options.job = "c11";
  options.root = "127.0.0.1:0";
  options.bind_address = "127.0.0.1";
  options.on_root_bound = note_address;
  options.on_root_bound_data = address;
  options.no_shared_memory = 1;
  options.slots = 64;
  options.packet_io = NETSUM_IO_UDP;
  options.timeout_ms = 20000;
  netsum_comm* comm = NULL;
  options.shares = (netsum_shares)7;
  REQUIRE(netsum_comm_connect(&options, &comm) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(strstr(netsum_last_error(), "shares is none of netsum_shares") != NULL);
  options.shares = NETSUM_SHARES_AUTO;
  options.link_rate_bps = 1;
  REQUIRE(netsum_comm_connect(&options, &comm) == NETSUM_INVALID_ARGUMENT);
  REQUIRE(strstr(netsum_last_error(), "link_rate_bps is 1 bit/s") != NULL);
  options.link_rate_bps = 1e9;
  REQUIRE(netsum_comm_connect(&options, &comm) == NETSUM_OK);
  REQUIRE(strncmp(address, "127.0.0.1:", 10) == 0);
  float number = 2;
  netsum_work* work = NULL;
  REQUIRE(netsum_all_reduce(comm, &number, &number, 1, NETSUM_FLOAT32, NETSUM_SUM, 0, &work) == NETSUM_OK);
  REQUIRE(netsum_work_wait(work, -1) == NETSUM_OK && number == 2);
  netsum_work_free(work);
  const char* (*const parts[])(netsum_comm*) = {
      sum_several, sum_with_options,   move_bytes,     reduce_parts,   look,        sum_piecewise,
      sum_sparse,  refuse_compression, sum_compressed, refuse_numbers, refuse_null, break_and_mend};
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; ++i) {
    const char* failed = parts[i](comm);
    if (failed != NULL) return failed;
  }
  netsum_comm_close(comm);
  return NULL;
}
