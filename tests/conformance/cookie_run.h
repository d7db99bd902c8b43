// A dataplane whose jobs have cookies in place of tags, and to which slots are empty only in a new epoch, under the tests of all
// others: packets get the cookie where their tag is right, replies the tag where their cookie is, and each run has epochs of its
// own. The same for packets to and from a job's parent.
#ifndef NETSUM_TESTS_CONFORMANCE_COOKIE_RUN_H_
#define NETSUM_TESTS_CONFORMANCE_COOKIE_RUN_H_

#include <map>
#include <string>
#include <vector>

#include "tests/conformance/dataplane_vectors.h"

namespace netsum::conformance {

class CookieRun : public DataplaneUnderTest {
 public:
  explicit CookieRun(DataplaneUnderTest* inner) : inner_(inner) {}

  void install(const VectorJob& job) override {
    VectorJob moved = job;
    moved.epoch ^= epochs_;
    moved.tag = NETSUM_TAG_COOKIE;
    keys_[job.job] = {job.packet_key(), moved.packet_key()};
    if (job.parent) {
      moved.parent->epoch ^= epochs_;
      parents_[job.parent->peer] = {job.parents_packet_key(), moved.parents_packet_key()};
    }
    inner_->install(moved);
  }
  bool start_at(const VectorStart& start) override { return inner_->start_at(start); }
  std::vector<Reply> feed(Peer from, const Bytes& datagram) override {
    Bytes moved = datagram;
    if (moved.size() >= 8) {
      moved[6] ^= static_cast<uint8_t>(epochs_ >> 8);
      moved[7] ^= static_cast<uint8_t>(epochs_);
    }
    netsum_fields f;
    const Keys* keys = parse(datagram, &f) ? keys_with(from, f) : nullptr;
    if (keys != nullptr && is_right(datagram, f, keys->outside)) {
      f.epoch ^= epochs_;
      wire::write_header(f, keys->inside, moved.data());
    }
    std::vector<Reply> replies = inner_->feed(from, moved);
    for (Reply& reply : replies) {  // one that is wrong shows in the comparison
      keys = parse(reply.datagram, &f) ? keys_with(reply.to, f) : nullptr;
      if (keys == nullptr || !is_right(reply.datagram, f, keys->inside)) continue;
      f.epoch ^= epochs_;
      wire::write_header(f, keys->outside, reply.datagram.data());
    }
    return replies;
  }
  size_t largest_datagram() const override { return inner_->largest_datagram(); }
  bool lengthens() const override { return false; }
  // Packets and results without lanes are not for it.
  bool takes(const netsum_fields& packet) const override {
    return (packet.flags & (NETSUM_FLAG_EMPTY | NETSUM_FLAG_NO_RESULT)) == 0;
  }
  std::map<std::string, uint64_t> drops() override { return inner_->drops(); }

 private:
  struct Keys {
    wire::PacketKey outside, inside;
  };
  // Of packets from and to this peer; null: none.
  const Keys* keys_with(Peer peer, const netsum_fields& f) const {
    if (const auto parent = parents_.find(peer); parent != parents_.end()) return &parent->second;
    const auto own = keys_.find(f.job);
    return own == keys_.end() ? nullptr : &own->second;
  }
  static bool parse(const Bytes& datagram, netsum_fields* fields) {
    return netsum_parse(datagram.data(), static_cast<uint32_t>(datagram.size()), fields) == NETSUM_DROP_NONE;
  }
  static bool is_right(const Bytes& datagram, const netsum_fields& f, const wire::PacketKey& key) {
    const uint64_t nh = netsum_nh(&datagram[NETSUM_HEADER_BYTES], f.payload_bytes, key.table());
    return wire::check_is_right(datagram.data(), f, key, nh);
  }
  static uint16_t next_epochs() {
    static uint16_t epochs = 0x100;
    return ++epochs;
  }

  DataplaneUnderTest* const inner_;
  const uint16_t epochs_ = next_epochs();
  std::map<uint16_t, Keys> keys_;  // by job
  std::map<Peer, Keys> parents_;
};

}  // namespace netsum::conformance

#endif  // NETSUM_TESTS_CONFORMANCE_COOKIE_RUN_H_
