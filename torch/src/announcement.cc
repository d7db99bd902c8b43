#include "torch/src/announcement.h"

#include <cstdint>
#include <memory>
#include <utility>

namespace netsum::torch_backend {
namespace {

// FNV-1a: the same on all hosts. Tags of reductions in the network are small numbers.
uint32_t tag_of(const std::string& call) {
  uint32_t hash = 2166136261u;
  for (const char letter : call) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619u;
  return hash | 0x80000000u;
}

}  // namespace

void announce(Communicator& communicator, const std::string& call, std::chrono::milliseconds timeout,
              std::function<void(const Status&)> on_failure) {
  const auto element = std::make_shared<int32_t>(0);
  const TensorView view{.input = element.get(), .output = element.get(), .count = 1};
  const ReduceOptions options{.type = DataType::kInt32, .timeout = timeout, .tag = tag_of(call)};
  communicator.all_reduce(view, options)
      .on_done([element, on_failure = std::move(on_failure)](const Status& status) {
        if (!status.ok()) on_failure(status);
      });
}

}  // namespace netsum::torch_backend
