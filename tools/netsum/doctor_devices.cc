// netsum doctor --devices: accelerators, as PyTorch sees them.
#include <unistd.h>

#include <filesystem>

#include "src/base/text.h"
#include "tools/netsum/doctor_checks.h"
#include "tools/netsum/log.h"
#include "tools/netsum/process.h"

namespace netsum::tool {
namespace {

constexpr std::chrono::seconds kLimit{60};  // PyTorch takes seconds to load, from a cold disk many

// The interpreter beside this binary, as in a virtual environment, or the one that PATH has.
std::string python_of_this_command() {
  std::error_code error;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path beside = own.parent_path() / "python3";
  return !error && access(beside.c_str(), X_OK) == 0 ? beside.string() : "python3";
}

Finding finding_of(const Json& one) {
  const std::string grade = one.at("grade");
  return {grade == "ok"     ? Grade::kOk
          : grade == "warn" ? Grade::kWarn
                            : Grade::kFail,
          printable(one.at("subject").get<std::string>()), printable(one.at("found").get<std::string>()),
          printable(one.at("advice").get<std::string>())};
}

Finding python_failed(const std::string& python, const std::string& why) {
  return {Grade::kFail, "devices", python + " -m netsum._doctor: " + printable(why),
          "pass the interpreter of the environment with netsum's Python package: --python .venv/bin/python"};
}

}  // namespace

std::vector<Finding> check_devices(const std::string& chosen) {
  const std::string python = chosen.empty() ? python_of_this_command() : chosen;
  const Result<FinishedProcess> ran = run_process({python, "-m", "netsum._doctor"}, "", kLimit);
  if (!ran.ok()) return {python_failed(python, ran.status().message())};
  if (ran->ending != "exit status 0") {
    // The last line of a traceback says what went wrong.
    std::string err = ran->err;
    while (!err.empty() && err.back() == '\n') err.pop_back();
    return {python_failed(python, ran->ending + ": " + err.substr(err.rfind('\n') + 1))};
  }
  try {
    std::vector<Finding> findings;
    for (const Json& one : Json::parse(ran->out)) findings.push_back(finding_of(one));
    return findings;
  } catch (const nlohmann::json::exception& error) {
    return {python_failed(python, error.what())};
  }
}

}  // namespace netsum::tool
