// What ranks contribute to recorded operations (src/program/values.h), and ghosts contribute again.
#ifndef NETSUM_TORCH_SRC_RECORDED_VALUES_H_
#define NETSUM_TORCH_SRC_RECORDED_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace netsum::torch_backend {

// Recordings that start from now on have values, while these are not more than `most_bytes` in all. 0: none.
void record_values(size_t most_bytes);

// The next operation that this thread submits to the recording is one to which this rank contributes `bytes`, which `copy` returns.
// That counts as computing.
void add_recorded_values(size_t bytes, const std::function<std::vector<uint8_t>()>& copy);

// Of `netsum emulate`, in all groups of this process: ghosts send what was recorded, so that results are what comes.
void set_ghosts_have_values(bool have);

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_RECORDED_VALUES_H_
