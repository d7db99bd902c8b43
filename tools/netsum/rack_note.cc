#include "tools/netsum/rack_note.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>

#include "tools/netsum/usage.h"

namespace netsum::tool {
namespace {

namespace fs = std::filesystem;

Status cannot_write(const std::string& path, const std::string& why) {
  return Status(ErrorCode::kInternal,
                "cannot write " + path + ": " + why + "; choose a writable folder with NETSUM_RACK_DIR");
}

ProcessMark process_from(const nlohmann::ordered_json& json) {
  return {json.at("pid").get<pid_t>(), json.at("start_ticks").get<uint64_t>()};
}

std::string base_folder() {
  const std::string chosen = environment("NETSUM_RACK_DIR");
  return chosen.empty() ? "/run/netsum/rack" : chosen;
}

}  // namespace

std::string rack_folder(const std::string& name) {
  return base_folder() + "/" + name;
}

std::string relays_file(const std::string& name) {
  return rack_folder(name) + "/relays";
}

std::string aggregator_setting(const RackPlan& plan, const std::string& name, const RackNode& node) {
  const bool sums = node.kind == RackNode::Kind::kWorker && !plan.relays().empty();
  return sums ? "plan:" + relays_file(name) : plan.aggregators_for(node);
}

std::vector<std::string> noted_racks() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(base_folder(), error)) {
    if (entry.is_directory()) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<RackNote> read_note(const std::string& name) {
  std::ifstream file(rack_folder(name) + "/rack.json");
  try {
    const auto json = nlohmann::ordered_json::parse(file);
    RackNote note{.options = rack_options_from_json(json.at("options")),
                  .complete = json.at("complete"),
                  .aggregators = {},
                  .bmv2 = process_from(json.at("bmv2")),
                  .links = {}};
    for (const auto& one : json.at("aggregators")) {
      note.aggregators.push_back({one.at("id"), process_from(one)});
    }
    for (const auto& [id, link] : json.at("links").items()) {
      note.links[id] = {.rate_bits = link.at("rate_bits"), .loss = link.at("loss"), .up = link.at("up")};
    }
    return note;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

Status write_note(const RackNote& note) {
  nlohmann::ordered_json json = {{"options", to_json(note.options)},
                                 {"complete", note.complete},
                                 {"aggregators", nlohmann::ordered_json::array()},
                                 {"bmv2", {{"pid", note.bmv2.pid}, {"start_ticks", note.bmv2.start_ticks}}},
                                 {"links", nlohmann::ordered_json::object()}};
  for (const RackAggregator& one : note.aggregators) {
    json["aggregators"].push_back(
        {{"id", one.id}, {"pid", one.process.pid}, {"start_ticks", one.process.start_ticks}});
  }
  for (const auto& [id, link] : note.links) {
    json["links"][id] = {{"rate_bits", link.rate_bits}, {"loss", link.loss}, {"up", link.up}};
  }
  const std::string folder = rack_folder(note.options.name), path = folder + "/rack.json";
  std::error_code error;
  fs::create_directories(folder, error);
  // Renamed into place, so that nobody reads a part of it.
  std::ofstream file(path + ".new");
  file << json.dump(1) << "\n";
  file.close();
  if (!file) return cannot_write(path, std::strerror(errno));
  fs::rename(path + ".new", path, error);
  return error ? cannot_write(path, error.message()) : Status();
}

void delete_folder(const std::string& name) {
  std::error_code error;
  fs::remove_all(rack_folder(name), error);
  fs::remove(base_folder(), error);  // if it was the last
}

Result<FileDescriptor> lock_rack(const std::string& name) {
  const std::string path = rack_folder(name) + "/lock";
  while (true) {
    std::error_code error;
    fs::create_directories(rack_folder(name), error);
    FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (!file.valid()) return cannot_write(path, std::strerror(errno));
    if (flock(file.get(), LOCK_EX | LOCK_NB) != 0)
      return Status(ErrorCode::kAddressInUse,
                    "another `netsum rack` is changing '" + name + "': wait until it has ended");
    // The run that held the lock before may have deleted the file, which then keeps nobody out.
    struct stat opened {
    }, named{};
    if (fstat(file.get(), &opened) == 0 && stat(path.c_str(), &named) == 0 && opened.st_ino == named.st_ino)
      return file;
  }
}

}  // namespace netsum::tool
