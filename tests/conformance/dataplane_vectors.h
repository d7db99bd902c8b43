// Golden vectors: packets with meaning and the replies that every dataplane must give, and a replayer.
//
// A dataplane joins by implementing DataplaneUnderTest and calling replay() on every vector of
// wire/vectors (see vectors_test.cc). The files' format: wire/PROTOCOL.md, section 11.
#ifndef NETSUM_TESTS_CONFORMANCE_DATAPLANE_VECTORS_H_
#define NETSUM_TESTS_CONFORMANCE_DATAPLANE_VECTORS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "aggregator/dataplane/dataplane.h"
#include "wire/codec.h"

namespace netsum::conformance {

using Bytes = std::vector<uint8_t>;

// An address that packets come from and go to. Which member sits there is for HELLO to say.
using Peer = int;

struct Reply {
  Peer to = 0;
  Bytes datagram;
  bool operator==(const Reply&) const = default;
  auto operator<=>(const Reply&) const = default;
};

// An aggregator further up, of whose job the job is a member.
struct VectorParent {
  Peer peer = 0;
  uint16_t job = 0, epoch = 0;
  netsum_key key{};
  uint16_t member = 0;
};
struct VectorJob {
  uint16_t job = 0, epoch = 0;
  netsum_key key{};
  uint16_t members = 0;
  uint32_t data_slots = 0, scale_slots = 0, payload_bytes = 0;
  bool sums_values = false;  // the scale slots take values
  bool adds_floats = false;  // all slots take floats
  std::optional<VectorParent> parent;
  uint32_t tag = NETSUM_TAG_KEYED;  // of packets, also those to and from the parent

  wire::PacketKey packet_key() const { return {wire::stripe_key(key, 0), NETSUM_MAX_PAYLOAD, tag}; }
  wire::PacketKey parents_packet_key() const {
    return {wire::stripe_key(parent->key, 0), NETSUM_MAX_PAYLOAD, tag};
  }
};

// The job as a dataplane gets it, with the parent at `address_of(peer)`.
DataplaneJob dataplane_job(const VectorJob& job, const std::function<Address(Peer)>& address_of);

// The slot stands as after `round` completed there: the only state that vectors cannot reach by packets.
struct VectorStart {
  uint16_t job = 0, slot = 0;
  uint32_t round = 0;
};

class DataplaneUnderTest {
 public:
  virtual ~DataplaneUnderTest() = default;
  virtual void install(const VectorJob& job) = 0;
  // False if this dataplane cannot be put into that state; the vector then does not apply to it.
  virtual bool start_at(const VectorStart& start) = 0;
  // One datagram in, all replies out, in any order; one Reply per addressee, also where one frame is
  // multicast.
  virtual std::vector<Reply> feed(Peer from, const Bytes& datagram) = 0;
  // Vectors with longer datagrams do not apply.
  virtual size_t largest_datagram() const { return 65507; }
  // Vectors with jobs that need it do not apply to those that cannot.
  virtual bool sums_values() const { return false; }
  virtual bool adds_floats() const { return false; }
  // Whether it answers packets without lanes by results with lanes. Others ask a member for a longer packet first. Vectors in
  // which this makes a difference say to which of both they apply.
  virtual bool lengthens() const { return true; }
  // Vectors with jobs that have a parent do not apply to those that cannot.
  virtual bool has_parents() const { return true; }
  // Whether members of its jobs send packets like this: not if they need a capability that it does not announce. Vectors
  // with others do not apply.
  virtual bool takes(const netsum_fields& /*packet*/) const { return true; }
  // Packets refused so far, by drop_name(); zero counts may be left out.
  virtual std::map<std::string, uint64_t> drops() = 0;
};

struct VectorReply {
  std::vector<Peer> to;
  std::string what;
  Bytes packet;
};
struct VectorStep {
  std::string what;
  Peer from = 0;
  Bytes packet;
  std::vector<VectorReply> replies;
};
struct Vector {
  std::string name, description;
  std::vector<VectorJob> jobs;
  std::vector<VectorStart> start;
  std::vector<VectorStep> steps;
  std::map<std::string, uint64_t> drops;  // after the last step
  std::optional<bool> lengthens;          // applies only to dataplanes of which this is true
};

std::string to_json(const Vector& vector);
Vector from_json(const std::string& text);               // throws std::exception if malformed
inline constexpr const char* kVectors = "wire/vectors";  // below the repository's root, where tests run
// Every *.json below `folder`, by name.
std::vector<Vector> load_vectors(const std::string& folder = kVectors);

enum class Outcome { kPassed, kNotApplicable, kFailed };
struct ReplayResult {
  Outcome outcome = Outcome::kPassed;
  std::string detail;  // kFailed: the step, what was expected and what came
};
// `dataplane` must be fresh.
ReplayResult replay(const Vector& vector, DataplaneUnderTest& dataplane);

// Whether `packet` is one that takes() is false of.
bool is_not_for(const DataplaneUnderTest& dataplane, const Bytes& packet);

// All vectors, written from the rules of PROTOCOL.md and not by running a dataplane.
std::vector<Vector> make_vectors();

}  // namespace netsum::conformance

#endif  // NETSUM_TESTS_CONFORMANCE_DATAPLANE_VECTORS_H_
