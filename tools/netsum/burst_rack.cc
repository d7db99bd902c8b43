// The frames on the links of a virtual rack, for netsum bursts.
#include <chrono>
#include <map>

#include "src/base/clock.h"
#include "src/base/text.h"
#include "tools/netsum/burst_log.h"
#include "tools/netsum/rack_loss.h"
#include "tools/netsum/rack_note.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {

Result<BurstLog> capture_rack(const std::string& name, const std::function<bool()>& goes_on) {
  const std::string rack = "rack '" + printable(name) + "'";
  const std::optional<RackNote> note = read_note(name);
  if (!note)
    throw UsageError("--rack: there is no " + rack + "; `netsum rack status` lists those that are up");
  if (!note->options.loss)
    throw UsageError(
        "--rack: " + rack +
        " was made without --loss, so nothing sees the frames of its links: `netsum rack up --loss 0` "
        "makes links that do");
  std::map<std::string, std::vector<std::string>> ports;
  for (const RackLink& link : RackPlan(note->options).links())
    ports[link.upper_namespace].push_back(link.port);
  BurstLogBuilder log(rack);
  const auto take = [&](const LinkFrame& frame) {
    log.add("capture", frame.port, frame.up ? "in" : "out", frame.at_ns, frame.bytes);
  };
  using std::chrono::system_clock;
  const auto wall =
      std::chrono::duration_cast<std::chrono::nanoseconds>(system_clock::now().time_since_epoch());
  log.set_wall_offset(wall.count() - monotonic_us() * 1000);
  const Result<uint64_t> left_out = capture_frames(ports, goes_on, take);
  if (!left_out.ok()) return left_out.status();
  if (*left_out > 0)
    log.warn(std::to_string(*left_out) +
             " frames are left out, because they came faster than they were taken");
  return log.finish();
}

}  // namespace netsum::tool
