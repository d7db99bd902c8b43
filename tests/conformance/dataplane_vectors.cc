#include "tests/conformance/dataplane_vectors.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

namespace netsum::conformance {
namespace {

using Json = nlohmann::ordered_json;

std::string hex(const Bytes& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Bytes unhex(const std::string& text) {
  if (text.size() % 2 != 0) throw std::invalid_argument("odd number of hex digits: " + text);
  Bytes bytes;
  for (size_t i = 0; i < text.size(); i += 2) {
    size_t used = 0;
    bytes.push_back(static_cast<uint8_t>(std::stoul(text.substr(i, 2), &used, 16)));
    if (used != 2) throw std::invalid_argument("not hex: " + text);
  }
  return bytes;
}

// Its 16 bytes, in their order.
std::string hex(const netsum_key& key) {
  Bytes bytes(16);
  netsum_store64(bytes.data(), key.k0);
  netsum_store64(&bytes[8], key.k1);
  return hex(bytes);
}

netsum_key unhex_key(const std::string& text) {
  const Bytes bytes = unhex(text);
  if (bytes.size() != 16) throw std::invalid_argument("a key has 32 hex digits: " + text);
  return {netsum_load64(bytes.data()), netsum_load64(&bytes[8])};
}

// As it stands in packets.
std::string cookie_of(const wire::PacketKey& key) {
  const netsum_be64 cookie = netsum_put64(key.cookie());
  return hex(Bytes(cookie.b, cookie.b + sizeof cookie));
}

std::string show(const Reply& reply) {
  netsum_fields f;
  const int reason = netsum_parse(reply.datagram.data(), static_cast<uint32_t>(reply.datagram.size()), &f);
  const std::string meaning =
      reason == NETSUM_DROP_NONE ? wire::describe(f) : "malformed: " + std::string(wire::drop_name(reason));
  return "  to peer " + std::to_string(reply.to) + ": " + meaning + "\n    " + hex(reply.datagram) + "\n";
}

std::string show(const std::vector<Reply>& replies) {
  std::string text;
  for (const Reply& reply : replies) text += show(reply);
  return text.empty() ? "  nothing\n" : text;
}

std::string show(const std::map<std::string, uint64_t>& drops) {
  std::string text;
  for (const auto& [name, count] : drops) text += " " + name + "=" + std::to_string(count);
  return text.empty() ? " none" : text;
}

}  // namespace

DataplaneJob dataplane_job(const VectorJob& spec, const std::function<Address(Peer)>& address_of) {
  DataplaneJob job;
  job.job = spec.job;
  job.epoch = spec.epoch;
  job.key = spec.key;
  job.tag = spec.tag;
  job.members = spec.members;
  job.data_slots = spec.data_slots;
  job.scale_slots = spec.scale_slots;
  job.payload_bytes = spec.payload_bytes;
  job.sums_values = spec.sums_values;
  job.adds_floats = spec.adds_floats;
  if (!spec.parent) return job;
  job.parent = DataplaneParent{.stripes = {address_of(spec.parent->peer)},
                               .job = spec.parent->job,
                               .epoch = spec.parent->epoch,
                               .key = spec.parent->key,
                               .member = spec.parent->member};
  return job;
}

std::string to_json(const Vector& vector) {
  Json json;
  json["name"] = vector.name;
  json["description"] = vector.description;
  json["jobs"] = Json::array();
  for (const VectorJob& job : vector.jobs) {
    json["jobs"].push_back({{"job", job.job},
                            {"epoch", job.epoch},
                            {"key", hex(job.key)},
                            {"members", job.members},
                            {"data_slots", job.data_slots},
                            {"scale_slots", job.scale_slots},
                            {"payload_bytes", job.payload_bytes}});
    if (job.sums_values) json["jobs"].back()["sums_values"] = true;
    if (job.adds_floats) json["jobs"].back()["adds_floats"] = true;
    if (job.tag == NETSUM_TAG_COOKIE) json["jobs"].back()["cookie"] = cookie_of(job.packet_key());
    if (!job.parent) continue;
    json["jobs"].back()["parent"] = {{"at", job.parent->peer},
                                     {"job", job.parent->job},
                                     {"epoch", job.parent->epoch},
                                     {"key", hex(job.parent->key)},
                                     {"member", job.parent->member}};
    if (job.tag == NETSUM_TAG_COOKIE)
      json["jobs"].back()["parent"]["cookie"] = cookie_of(job.parents_packet_key());
  }
  if (vector.lengthens) json["lengthens"] = *vector.lengthens;
  json["start"] = Json::array();
  for (const VectorStart& start : vector.start) {
    json["start"].push_back({{"job", start.job}, {"slot", start.slot}, {"round", start.round}});
  }
  json["steps"] = Json::array();
  for (const VectorStep& step : vector.steps) {
    Json replies = Json::array();
    for (const VectorReply& reply : step.replies) {
      replies.push_back({{"what", reply.what}, {"to", reply.to}, {"packet", hex(reply.packet)}});
    }
    json["steps"].push_back(
        {{"what", step.what}, {"from", step.from}, {"packet", hex(step.packet)}, {"replies", replies}});
  }
  json["drops"] = Json::object();
  for (const auto& [name, count] : vector.drops) json["drops"][name] = count;
  return json.dump(1) + "\n";
}

Vector from_json(const std::string& text) {
  const Json json = Json::parse(text);
  Vector vector;
  vector.name = json.at("name");
  vector.description = json.at("description");
  for (const Json& job : json.at("jobs")) {
    vector.jobs.push_back({.job = job.at("job"),
                           .epoch = job.at("epoch"),
                           .key = unhex_key(job.at("key")),
                           .members = job.at("members"),
                           .data_slots = job.at("data_slots"),
                           .scale_slots = job.at("scale_slots"),
                           .payload_bytes = job.at("payload_bytes"),
                           .sums_values = job.value("sums_values", false),
                           .adds_floats = job.value("adds_floats", false),
                           .parent = {},
                           .tag = job.contains("cookie") ? uint32_t{NETSUM_TAG_COOKIE} : NETSUM_TAG_KEYED});
    if (job.contains("cookie") && job.at("cookie") != cookie_of(vector.jobs.back().packet_key()))
      throw std::invalid_argument("the cookie is not that of the key");
    if (!job.contains("parent")) continue;
    const Json& parent = job.at("parent");
    vector.jobs.back().parent = VectorParent{.peer = parent.at("at"),
                                             .job = parent.at("job"),
                                             .epoch = parent.at("epoch"),
                                             .key = unhex_key(parent.at("key")),
                                             .member = parent.at("member")};
    if (parent.contains("cookie") &&
        parent.at("cookie") != cookie_of(vector.jobs.back().parents_packet_key()))
      throw std::invalid_argument("the parent's cookie is not that of its key");
  }
  if (json.contains("lengthens")) vector.lengthens = json.at("lengthens").get<bool>();
  for (const Json& start : json.at("start")) {
    vector.start.push_back({.job = start.at("job"), .slot = start.at("slot"), .round = start.at("round")});
  }
  for (const Json& step : json.at("steps")) {
    VectorStep read{.what = step.at("what"), .from = step.at("from"), .packet = unhex(step.at("packet"))};
    for (const Json& reply : step.at("replies")) {
      read.replies.push_back({.to = reply.at("to").get<std::vector<Peer>>(),
                              .what = reply.at("what"),
                              .packet = unhex(reply.at("packet"))});
    }
    vector.steps.push_back(std::move(read));
  }
  for (const auto& [name, count] : json.at("drops").items()) vector.drops[name] = count;
  return vector;
}

std::vector<Vector> load_vectors(const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Vector> vectors;
  for (const auto& path : paths) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    try {
      vectors.push_back(from_json(text.str()));
    } catch (const std::exception& error) {
      throw std::runtime_error(path.string() + ": " + error.what());
    }
  }
  return vectors;
}

bool is_not_for(const DataplaneUnderTest& dataplane, const Bytes& packet) {
  netsum_fields f{};
  const int reason = netsum_parse(packet.data(), static_cast<uint32_t>(packet.size()), &f);
  // The parser has read the flags of packets that break these two rules, too.
  const bool read =
      reason == NETSUM_DROP_NONE || reason == NETSUM_DROP_BAD_LENGTH || reason == NETSUM_DROP_BAD_FORMAT;
  return read && !dataplane.takes(f);
}

ReplayResult replay(const Vector& vector, DataplaneUnderTest& dataplane) {
  for (const VectorStep& step : vector.steps) {
    if (step.packet.size() > dataplane.largest_datagram())
      return {Outcome::kNotApplicable, "too long for it"};
    if (is_not_for(dataplane, step.packet))
      return {Outcome::kNotApplicable, "needs what it does not announce"};
  }
  if (vector.lengthens && *vector.lengthens != dataplane.lengthens())
    return {Outcome::kNotApplicable, "does otherwise with packets without lanes"};
  for (const VectorJob& job : vector.jobs) {
    if (job.sums_values && !dataplane.sums_values()) return {Outcome::kNotApplicable, "cannot sum values"};
    if (job.adds_floats && !dataplane.adds_floats()) return {Outcome::kNotApplicable, "cannot add floats"};
    if (job.parent && !dataplane.has_parents()) return {Outcome::kNotApplicable, "has no parents"};
    dataplane.install(job);
  }
  for (const VectorStart& start : vector.start) {
    if (!dataplane.start_at(start)) return {Outcome::kNotApplicable, "the start cannot be set"};
  }
  for (size_t i = 0; i < vector.steps.size(); ++i) {
    const VectorStep& step = vector.steps[i];
    std::vector<Reply> expected;
    for (const VectorReply& reply : step.replies) {
      for (Peer to : reply.to) expected.push_back({to, reply.packet});
    }
    std::vector<Reply> got = dataplane.feed(step.from, step.packet);
    std::sort(expected.begin(), expected.end());
    std::sort(got.begin(), got.end());
    if (got != expected) {
      return {Outcome::kFailed, vector.name + ", step " + std::to_string(i) + " (" + step.what +
                                    ")\nexpected\n" + show(expected) + "got\n" + show(got)};
    }
  }
  std::map<std::string, uint64_t> drops = dataplane.drops();
  std::erase_if(drops, [](const auto& entry) { return entry.second == 0; });
  if (drops != vector.drops) {
    return {Outcome::kFailed, vector.name + ": drops expected" + show(vector.drops) + ", got" + show(drops)};
  }
  return {};
}

}  // namespace netsum::conformance
