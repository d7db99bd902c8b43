#include "tools/netsum/program_files.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "src/base/text.h"
#include "src/program/json_lines.h"
#include "src/program/packed.h"
#include "tools/netsum/program_trace.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {
namespace {

namespace fs = std::filesystem;

// How a name begins that says so, and the files of it.
struct Form {
  std::string_view begin, suffix, how;  // how to get such files
};
constexpr Form kLines = {"", ".jsonl", "record one by NETSUM_RECORD="};
constexpr Form kTraces = {"chakra:", ".et", "make one by netsum program --export chakra:"};
constexpr Form kPacked = {"packed:", ".packed", "make one by netsum program --export packed:"};

const Form& form_of(std::string_view what) {
  return what.starts_with(kTraces.begin) ? kTraces : what.starts_with(kPacked.begin) ? kPacked : kLines;
}

// The rank in "PREFIX.RANK.SUFFIX"; an empty prefix stands for any.
std::optional<int> rank_of(std::string_view name, std::string_view prefix, std::string_view suffix) {
  if (!name.ends_with(suffix)) return std::nullopt;
  name.remove_suffix(suffix.size());
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || (!prefix.empty() && name.substr(0, dot) != prefix))
    return std::nullopt;
  int rank = 0;
  const auto [end, error] = std::from_chars(name.data() + dot + 1, name.data() + name.size(), rank);
  if (error != std::errc() || end != name.data() + name.size() || rank < 0) return std::nullopt;
  return rank;
}

std::map<int, std::string> files_of(const std::string& what, const Form& form) {
  std::error_code error;
  if (fs::is_regular_file(what, error)) return {{0, what}};
  const bool is_folder = fs::is_directory(what, error);
  const fs::path folder = is_folder ? fs::path(what) : fs::path(what).parent_path();
  const std::string prefix = is_folder ? "" : fs::path(what).filename().string();
  std::map<int, std::string> files;
  for (fs::directory_iterator it(folder.empty() ? fs::path(".") : folder, error), end; !error && it != end;
       it.increment(error)) {
    const auto rank = rank_of(it->path().filename().string(), prefix, form.suffix);
    if (!rank) continue;
    if (const auto [known, added] = files.emplace(*rank, it->path().string()); !added)
      throw UsageError(fmt::format("{} and {} are both of rank {}: name one prefix", printable(known->second),
                                   printable(it->path().string()), *rank));
  }
  if (error) throw UsageError(fmt::format("{}: {}", printable(what), error.message()));
  if (files.empty())
    throw UsageError(fmt::format(
        "{0}: there is no such file, and no file {1}.RANK{2}: {3}{0}, or give its prefix or folder",
        printable(what), is_folder ? "PREFIX" : printable(what), form.suffix, form.how));
  return files;
}

program::Program load_program(const std::string& file, const Form& form, int rank, int world_size) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw UsageError(fmt::format("{}: it cannot be read; check its permissions", printable(file)));
  auto program = &form == &kTraces ? trace_program(in, printable(file), rank, world_size)
                                   : program::read_any_program(in, printable(file));
  if (!program.ok()) throw UsageError(program.status().message());
  return std::move(program).value();
}

}  // namespace

std::vector<std::string> value_files(const std::string& what) {
  const Form& form = form_of(what);
  std::vector<std::string> names;
  for (const auto& [rank, file] : files_of(what.substr(form.begin.size()), form))
    names.push_back((file.ends_with(form.suffix) ? file.substr(0, file.size() - form.suffix.size()) : file) +
                    ".values");
  return names;
}

std::vector<program::Program> load_programs(const std::string& what) {
  const Form& form = form_of(what);
  const auto files = files_of(what.substr(form.begin.size()), form);
  std::vector<program::Program> programs;
  for (const auto& [rank, file] : files) {
    programs.push_back(load_program(file, form, rank, std::max(files.rbegin()->first + 1, 1)));
    const program::Header &first = programs.front().header, &header = programs.back().header;
    if (files.size() > 1 && header.rank != rank)
      throw UsageError(
          fmt::format("{}: it is of rank {}, but its name says {}", printable(file), header.rank, rank));
    if (header.world_size != first.world_size || header.model != first.model)
      throw UsageError(
          fmt::format("{}: it is of a job of {} ranks with model '{}', but {} of {} ranks with model '{}'",
                      printable(file), header.world_size, printable(header.model),
                      printable(files.begin()->second), first.world_size, printable(first.model)));
  }
  return programs;
}

void export_programs(const std::vector<program::Program>& programs, const std::string& to) {
  const Form& form = form_of(to);
  const std::string prefix = to.substr(form.begin.size());
  if (prefix.empty()) throw UsageError("--export: give a prefix of files, such as chakra:job");
  for (const program::Program& program : programs) {
    const std::string file = fmt::format("{}.{}{}", prefix, program.header.rank, form.suffix);
    std::ofstream out(file, std::ios::binary);
    Status status;
    if (&form == &kTraces)
      out << program_trace(program);
    else
      status = &form == &kPacked ? program::write_packed(out, program) : program::write_program(out, program);
    out.close();
    if (!status.ok() || !out)
      throw UsageError(printable(file) + ": cannot be written; check the folder and its permissions");
  }
}

}  // namespace netsum::tool
