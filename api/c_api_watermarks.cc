// The watermarks of the C ABI.
#include "netsum/watermarks.h"

#include <utility>

#include "api/c_api_support.h"
#include "netsum/netsum.h"

using netsum::ErrorCode;
using netsum::Status;
using netsum::Watermarks;
using netsum::c_api::guarded;
using netsum::c_api::invalid;

extern "C" {

int netsum_watermarks_make(size_t step, netsum_on_delivered on_delivered, void* user_data,
                           netsum_watermarks** watermarks) {
  return guarded([&]() -> Status {
    if (watermarks == nullptr) return invalid("netsum_watermarks_make", "watermarks is NULL");
    Watermarks::OnDelivered listener;
    if (on_delivered != nullptr)
      listener = [on_delivered, user_data](size_t delivered) { on_delivered(user_data, delivered); };
    *watermarks = new netsum_watermarks{std::make_shared<Watermarks>(step, std::move(listener))};
    return {};
  });
}

int netsum_watermarks_make_available(netsum_watermarks* watermarks, size_t bytes) {
  return guarded([&]() -> Status {
    if (watermarks == nullptr) return invalid("netsum_watermarks_make_available", "watermarks is NULL");
    watermarks->watermarks->make_available(bytes);
    return {};
  });
}

int netsum_watermarks_fail(netsum_watermarks* watermarks, int code, const char* message) {
  return guarded([&]() -> Status {
    if (watermarks == nullptr) return invalid("netsum_watermarks_fail", "watermarks is NULL");
    if (code <= NETSUM_OK || code > NETSUM_WRONG_SUM)
      return invalid("netsum_watermarks_fail", std::to_string(code) + " is no error of netsum_code");
    watermarks->watermarks->fail({static_cast<ErrorCode>(code), message != nullptr ? message : ""});
    return {};
  });
}

size_t netsum_watermarks_delivered(const netsum_watermarks* watermarks) {
  return watermarks != nullptr ? watermarks->watermarks->delivered() : 0;
}

void netsum_watermarks_free(netsum_watermarks* watermarks) {
  delete watermarks;
}

}  // extern "C"
