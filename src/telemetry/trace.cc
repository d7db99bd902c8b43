#include "src/telemetry/trace.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/base/assert.h"
#include "src/base/clock.h"
#include "src/base/wall_clock.h"

namespace netsum {
namespace {

using Json = nlohmann::ordered_json;

void replace_all(std::string* text, const std::string& what, const std::string& with) {
  for (size_t at = text->find(what); at != std::string::npos; at = text->find(what, at + with.size())) {
    text->replace(at, what.size(), with);
  }
}

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

Result<std::unique_ptr<TraceLog>> TraceLog::open(const std::string& path, const std::string& job, int rank,
                                                 size_t max_records) {
  NETSUM_ASSERT(max_records > 0);
  std::string name = path;
  std::string safe_job = job;
  std::replace(safe_job.begin(), safe_job.end(), '/', '_');
  replace_all(&name, "{job}", safe_job);
  replace_all(&name, "{rank}", std::to_string(rank));
  std::ofstream file(name, std::ios::binary | std::ios::trunc);
  if (!file) {
    return Status(ErrorCode::kInvalidArgument, "trace: cannot create '" + name +
                                                   "': " + std::strerror(errno) +
                                                   "; give a path in a folder that exists and is writable");
  }
  return std::unique_ptr<TraceLog>(new TraceLog(std::move(name), std::move(file), job, rank, max_records));
}

TraceLog::TraceLog(std::string path, std::ofstream file, std::string job, int rank, size_t max_records)
    : path_(std::move(path)),
      file_(std::move(file)),
      job_(std::move(job)),
      rank_(rank),
      max_records_(max_records),
      wall_offset_us_(wall_us() - monotonic_us()) {
  records_.reserve(max_records_);  // so that nothing is allocated while operations run
}

void TraceLog::add(const TraceRecord& record) {
  if (records_.size() < max_records_) {
    records_.push_back(record);
  } else {
    records_[added_ % max_records_] = record;
  }
  ++added_;
}

void TraceLog::write_event(const std::string& event) {
  file_ << (std::exchange(first_event_, false) ? "" : ",\n") << event;
}

void TraceLog::write_record(const TraceRecord& record) {
  char name[96];
  std::snprintf(name, sizeof name, "%s #%" PRIu64 " %s[%" PRIu64 "]", record.collective, record.number,
                std::string(data_type_name(record.type)).c_str(), record.elements);
  // Asynchronous events: several operations are in flight, and each gets a track with its phases inside.
  // Formatted by hand: there may be half a million, and nothing in them needs escaping.
  const auto event = [&](char phase, const char* what, int64_t at_us, const std::string& arguments) {
    char text[256];
    std::snprintf(text, sizeof text,
                  R"({"name":"%s","cat":"netsum","ph":"%c","ts":%)" PRId64
                  R"(,"pid":%d,"tid":1,"id2":{"local":"%)" PRIu64 R"("})",
                  what, phase, at_us + wall_offset_us_, rank_, record.number);
    write_event(text + arguments + "}");
  };
  const auto span = [&](const char* what, int64_t from_us, int64_t to_us) {
    if (from_us == 0 || to_us < from_us) return;  // the operation ended before
    event('b', what, from_us, "");
    event('e', what, to_us, "");
  };
  event('b', name, record.submitted_us,
        ",\"args\":{\"bytes\":" + std::to_string(record.elements * size_of(record.type)) +
            ",\"packets\":" + std::to_string(record.packets) +
            ",\"retransmissions\":" + std::to_string(record.retransmissions) +
            (record.tensor_id != 0 ? ",\"tensor\":" + std::to_string(record.tensor_id) : "") +
            ",\"ok\":" + (record.ok ? "true" : "false") + "}");
  span("scales", record.first_scale_us,
       record.scales_agreed_us == 0 ? record.done_us : record.scales_agreed_us);
  span("data", record.first_data_us, record.done_us);
  event('e', name, record.done_us, "");
  retransmissions_ += record.retransmissions;
  write_event("{\"name\":\"retransmissions\",\"ph\":\"C\",\"ts\":" +
              std::to_string(record.done_us + wall_offset_us_) + ",\"pid\":" + std::to_string(rank_) +
              ",\"args\":{\"packets\":" + std::to_string(retransmissions_) + "}}");
}

TraceLog::~TraceLog() {
  file_ << "{\"traceEvents\":[\n";
  write_event(text_of({{"name", "process_name"},
                       {"ph", "M"},
                       {"pid", rank_},
                       {"args", {{"name", "rank " + std::to_string(rank_) + " of " + job_}}}}));
  write_event(text_of(
      {{"name", "process_sort_index"}, {"ph", "M"}, {"pid", rank_}, {"args", {{"sort_index", rank_}}}}));
  const size_t oldest = added_ > records_.size() ? added_ % max_records_ : 0;
  for (size_t i = 0; i < records_.size(); ++i) write_record(records_[(oldest + i) % records_.size()]);
  const Json other = {
      {"job", job_}, {"operations", added_}, {"operations_left_out", added_ - records_.size()}};
  file_ << "\n],\"displayTimeUnit\":\"ms\",\"otherData\":" << text_of(other) << "}\n";
  file_.close();
  if (file_.fail()) std::remove(path_.c_str());
}

}  // namespace netsum
