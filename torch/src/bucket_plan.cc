#include "torch/src/bucket_plan.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <ctime>
#include <set>
#include <utility>

#include "torch/src/device_bucket.h"
#include "torch/src/python_compressor.h"

namespace netsum::torch_backend {
namespace {

at::Tensor zeros(size_t count, at::ScalarType type = at::kFloat) {
  return at::zeros({static_cast<int64_t>(count)}, type);
}

c10d::AllreduceCoalescedOptions options_of(c10d::ReduceOp::RedOpType op) {
  c10d::AllreduceCoalescedOptions options;
  options.reduceOp = op;
  return options;
}

}  // namespace

double Timed::now() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void wait_for_agreement(ProcessGroupNetsum& group, std::vector<at::Tensor> maxima,
                        std::vector<at::Tensor> means, uint32_t tag) {
  BucketPlan::Works works;
  if (!maxima.empty())
    works.push_back(group.allreduce_identified(maxima, {}, options_of(c10d::ReduceOp::MAX), tag));
  if (!means.empty())
    works.push_back(group.allreduce_identified(means, {}, options_of(c10d::ReduceOp::AVG), tag));
  for (const auto& work : works) work->wait();
}

uint32_t joined_tag(uint32_t tag, uint32_t of_one) {
  constexpr uint32_t kOdd = 0x9E3779B1;
  return tag * kOdd + of_one;
}

BucketPlan::BucketPlan(std::vector<Item> items, at::ScalarType type, int ranks)
    : items_(std::move(items)), type_(type), ranks_(ranks) {
  for (size_t i = 0; i < items_.size(); ++i) {
    Tensor* const tensor = items_[i].tensor.get();
    if (tensor == nullptr) {
      dense_bytes_ += items_[i].count * c10::elementSize(type);
      continue;
    }
    Part part{.item = i, .tensor = tensor, .shape = tensor->get().shape()};
    part.side = zeros(part.shape.side_values);
    part.agreed = zeros(tensor->agreed_values());
    if (type != at::kFloat) part.values = zeros(items_[i].count);
    const CompressionPath path = tensor->compression().path();
    if (path == CompressionPath::kDense)
      dense_bytes_ += part.shape.count * c10::elementSize(scalar_type(part.shape.type));
    if (path != CompressionPath::kGather) dense_bytes_ += part.shape.side_values * sizeof(float);
    parts_.push_back(std::move(part));
  }
  lay_out();
}

uint64_t BucketPlan::link_bytes() const {
  return dense_bytes_ + *union_bytes_ + (gathered_ ? gathered_->link_bytes() : 0);
}

// Gives each part its memory.
void BucketPlan::lay_out() {
  std::vector<GatheredPayloads::Part> gathered;
  std::vector<Part*> united;
  size_t union_elements = 0;
  for (size_t p = 0; p < parts_.size(); ++p) {
    Part& part = parts_[p];
    const CompressionPath path = part.tensor->compression().path();
    if (path != CompressionPath::kGather) {
      for (size_t i = 0; i < part.shape.side_values; ++i)
        sides_.push_back(part.side.narrow(0, static_cast<int64_t>(i), 1));
    }
    if (path == CompressionPath::kUnion) {
      united.push_back(&part);
      union_elements += part.shape.count;
      continue;
    }
    part.payload = zeros(part.shape.count, scalar_type(part.shape.type));
    if (path == CompressionPath::kDense) {
      dense_[scalar_type(part.shape.type)].push_back(p);
    } else {
      gathered.push_back({.item = part.item,
                          .tensor = part.tensor,
                          .name = items_[part.item].name,
                          .payload = part.payload,
                          .side = part.side,
                          .received = {}});
    }
  }
  if (!gathered.empty()) gathered_.emplace(std::move(gathered), ranks_);
  if (united.empty()) return;
  union_ = zeros(union_elements);
  union_id_ = items_[united.front()->item].id;
  int64_t at = 0;
  for (Part* const part : united) {
    const auto count = static_cast<int64_t>(part->shape.count);
    part->payload = union_.narrow(0, at, count);
    at += count;
  }
}

BucketPlan::Works BucketPlan::start(ProcessGroupNetsum& group, const Tensors& gradients, TrainingPass& pass,
                                    BucketStats& stats, DeviceBucket* device) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK_VALUE(gradients.size() == items_.size(), "a bucket of ", items_.size(), " tensors has ",
                    gradients.size(), " gradients");
  ++stats.buckets;
  tag_ = 0;
  for (const Item& item : items_) {
    if (item.tensor) pass.add(item.tensor);
    tag_ = joined_tag(tag_, item.tensor ? item.tensor->get().tag() : static_cast<uint32_t>(item.id));
  }
  try {
    compress(group, gradients, stats, device);
    return start_operations(group, gradients);
  } catch (...) {
    pass.fail();
    throw;
  }
}

void BucketPlan::compress(ProcessGroupNetsum& group, const Tensors& gradients, BucketStats& stats,
                          DeviceBucket* device) {
  {
    const Timed timed(stats.encode_s);
    for (Part& part : parts_) {
      part.gradient = gradients[part.item];
      if (!part.gradient.defined()) {
        if (device->take_payload(part.item, part.payload)) continue;
        part.gradient = device->gradient(part.item);
      }
      if (part.values.defined()) part.gradient = part.values.copy_(part.gradient);
      if (part.agreed.numel() > 0) part.tensor->agree(part.gradient, part.agreed);
    }
  }
  agree(group);
  const Timed timed(stats.encode_s);
  for (Part& part : parts_) {
    if (!part.gradient.defined()) continue;
    part.tensor->compress(part.gradient, part.agreed, part.payload, part.side);
    part.gradient.reset();
  }
}

void BucketPlan::agree(ProcessGroupNetsum& group) {
  Tensors maxima, means;
  for (const Part& part : parts_)
    if (part.agreed.numel() > 0) (part.tensor->agrees_on_means() ? means : maxima).push_back(part.agreed);
  wait_for_agreement(group, std::move(maxima), std::move(means), tag_);
}

BucketPlan::Works BucketPlan::start_operations(ProcessGroupNetsum& group, const Tensors& gradients) {
  Works works;
  std::set<at::ScalarType> types = {type_, at::kFloat};
  for (const auto& [type, parts] : dense_) types.insert(type);
  for (const at::ScalarType type : types) {
    Tensors tensors;
    std::vector<uint64_t> ids;
    for (size_t i = 0; i < items_.size() && type == type_; ++i) {
      if (items_[i].tensor) continue;
      tensors.push_back(gradients[i]);
      ids.push_back(items_[i].id);
    }
    if (const auto found = dense_.find(type); found != dense_.end()) {
      for (const size_t p : found->second) {
        tensors.push_back(parts_[p].payload);
        ids.push_back(items_[parts_[p].item].id);
      }
    }
    if (type == at::kFloat) tensors.insert(tensors.end(), sides_.begin(), sides_.end());
    ids.resize(tensors.size());
    if (tensors.empty()) continue;
    const auto op = at::isFloatingType(type) ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM;
    works.push_back(group.allreduce_identified(tensors, ids, options_of(op), tag_));
  }
  if (union_.defined()) {
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::AVG;
    *union_bytes_ = union_.nbytes();  // unless the operation says otherwise
    const auto on_sent = [bytes = union_bytes_](const SparseStats& stats) {
      *bytes = stats.sent_elements * sizeof(float) + stats.index_bytes;
    };
    works.push_back(group.sparse_all_reduce(union_, SparseMode::kOn, 1, union_id_, options, on_sent, tag_));
  }
  if (gathered_) works.push_back(gathered_->start(group, tag_));
  return works;
}

void BucketPlan::finish(const Tensors& gradients, BucketStats& stats, DeviceBucket* device) {
  const at::NoGradGuard no_grad;
  const Timed timed(stats.decode_s);
  if (gathered_) gathered_->arrived();
  for (const Part& part : parts_) {
    if (const at::Tensor& gradient = gradients[part.item]; gradient.defined())
      decompress(part, gradient);
    else
      device->give_mean(part.item, part.payload);
  }
}

void BucketPlan::decompress(const Part& part, const at::Tensor& gradient) {
  const at::Tensor& out = part.values.defined() ? part.values : gradient;
  if (part.tensor->compression().path() == CompressionPath::kGather) {
    gathered_->average(part.item, out);
  } else {
    const int contributions = is_floating(part.shape.type) ? 1 : ranks_;
    part.tensor->decompress(part.payload, part.side, contributions, out);
  }
  if (part.values.defined()) gradient.copy_(out);
}

}  // namespace netsum::torch_backend
