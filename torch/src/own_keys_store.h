// A prefix of a store that records which keys this process has written, so that it can delete them.
#ifndef NETSUM_TORCH_SRC_OWN_KEYS_STORE_H_
#define NETSUM_TORCH_SRC_OWN_KEYS_STORE_H_

#include <mutex>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

namespace netsum::torch_backend {

// For the keys that a group needs only while it is created, including Gloo's. Without this, a job that keeps creating
// groups would fill the store.
class OwnKeysStore final : public c10d::PrefixStore {
 public:
  using PrefixStore::PrefixStore;

  using Store::compareSet;
  using Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  void append(const std::string& key, const std::vector<uint8_t>& value) override;
  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<uint8_t>>& values) override;

  // Deletes the keys that were written through this object, and records no further ones. Call it when every rank has read
  // the keys that it needs.
  void deleteOwnKeys();

 private:
  void note(const std::string& key);

  std::mutex mutex_;
  std::set<std::string> keys_;
  bool deleted_ = false;
};

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_OWN_KEYS_STORE_H_
