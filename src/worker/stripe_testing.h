// Test support: a stripe whose aggregator the test plays.
#ifndef NETSUM_SRC_WORKER_STRIPE_TESTING_H_
#define NETSUM_SRC_WORKER_STRIPE_TESTING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "src/worker/stripe.h"

namespace netsum {

inline constexpr uint32_t kPayload = 64;
inline constexpr int64_t kRoundTripUs = 1'000;

class StripeTest : public testing::Test {
 protected:
  explicit StripeTest(const StripeOptions& options = StripeTest::options()) : stripe_(options) {}

  struct Sent {
    netsum_fields fields{};
    std::vector<uint8_t> payload;
  };

  static StripeOptions options() {
    StripeOptions options;
    options.address.family = 4;
    options.data_slots = 16;
    options.scale_slots = 2;
    options.payload_bytes = kPayload;
    options.rank = 1;
    options.member = 1;
    options.world_size = 3;
    return options;
  }

  // Everything due at `now_`.
  std::vector<Sent> collect() {
    std::vector<Sent> all;
    uint8_t frame[NETSUM_HEADER_BYTES + kPayload];
    if (stripe_.next_tick_us() <= now_) stripe_.on_tick(now_);
    while (const uint32_t size = stripe_.next_packet(now_, frame)) {
      Sent sent;
      EXPECT_EQ(netsum_parse(frame, size, &sent.fields), NETSUM_DROP_NONE);
      sent.payload.assign(frame + NETSUM_HEADER_BYTES, frame + size);
      all.push_back(sent);
    }
    return all;
  }
  Status answer(const Sent& sent, uint8_t type, std::vector<uint8_t> payload, uint8_t flags = 0) {
    netsum_fields fields = sent.fields;
    fields.type = type;
    fields.flags = flags;
    if (type == NETSUM_TYPE_RESULT || type == NETSUM_TYPE_ERROR) fields.member = NETSUM_MEMBER_ALL;
    fields.payload_bytes = static_cast<uint32_t>(payload.size());
    fields.absent_bytes = 0;
    return stripe_.on_packet(now_, fields, payload.data());
  }
  Status result(const Sent& sent) { return answer(sent, NETSUM_TYPE_RESULT, sent.payload); }
  // Of the three members, this one is 1.
  Status status(const Sent& sent, uint8_t seen) {
    const bool again = (seen & 2) == 0 || seen == 7;
    return answer(sent, NETSUM_TYPE_STATUS, {0, 0, 0, 0, 0, 0, 0, seen}, again ? NETSUM_FLAG_AGAIN : 0);
  }

  // HELLO and WELCOME.
  void connect() {
    std::vector<Sent> hello = collect();
    EXPECT_EQ(hello.size(), 1u);
    now_ += kRoundTripUs;
    EXPECT_TRUE(answer(hello[0], NETSUM_TYPE_WELCOME, hello[0].payload).ok());
  }
  std::unique_ptr<Operation> integers(uint64_t number, std::vector<int32_t>* memory) {
    OperationSpec spec;
    spec.type = DataType::kInt32;
    spec.tensors = {{memory->data(), memory->data(), memory->size()}};
    spec.deadline_us = 1'000'000;
    return std::make_unique<Operation>(number, std::move(spec), 3);
  }

  // HELLO, scales of one group, and returns the first window of data.
  std::vector<Sent> start(size_t chunks) {
    memory_.assign(chunks * 16, 5);
    operation_ = integers(0, &memory_);
    stripe_.enqueue(operation_.get());
    connect();
    std::vector<Sent> scales = collect();
    EXPECT_GE(scales.size(), 1u);
    now_ += kRoundTripUs;
    EXPECT_TRUE(result(scales[0]).ok());
    std::vector<Sent> data = collect();
    std::erase_if(data, [](const Sent& sent) { return sent.fields.format != NETSUM_FORMAT_SUM_I32; });
    return data;
  }

  Stripe stripe_;
  int64_t now_ = 1'000'000;
  std::vector<int32_t> memory_;
  std::unique_ptr<Operation> operation_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_STRIPE_TESTING_H_
