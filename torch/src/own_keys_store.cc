#include "torch/src/own_keys_store.h"

#include <utility>

namespace netsum::torch_backend {

void OwnKeysStore::note(const std::string& key) {
  const std::lock_guard lock(mutex_);
  if (!deleted_) keys_.insert(key);
}

void OwnKeysStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  note(key);
  PrefixStore::set(key, value);
}

std::vector<uint8_t> OwnKeysStore::compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                              const std::vector<uint8_t>& desired) {
  note(key);
  return PrefixStore::compareSet(key, expected, desired);
}

int64_t OwnKeysStore::add(const std::string& key, int64_t value) {
  note(key);
  return PrefixStore::add(key, value);
}

bool OwnKeysStore::deleteKey(const std::string& key) {
  {
    const std::lock_guard lock(mutex_);
    keys_.erase(key);
  }
  return PrefixStore::deleteKey(key);
}

void OwnKeysStore::append(const std::string& key, const std::vector<uint8_t>& value) {
  note(key);
  PrefixStore::append(key, value);
}

void OwnKeysStore::multiSet(const std::vector<std::string>& keys,
                            const std::vector<std::vector<uint8_t>>& values) {
  for (const std::string& key : keys) note(key);
  PrefixStore::multiSet(keys, values);
}

void OwnKeysStore::deleteOwnKeys() {
  std::set<std::string> keys;
  {
    const std::lock_guard lock(mutex_);
    keys.swap(keys_);
    deleted_ = true;
  }
  for (const std::string& key : keys) PrefixStore::deleteKey(key);
}

}  // namespace netsum::torch_backend
