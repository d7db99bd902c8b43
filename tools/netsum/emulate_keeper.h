// What a run of `netsum emulate` leaves on the machine if it is killed: files, processes and a rack. A process of its own, the keeper,
// removes them when the run ends, however it does; the next run removes what is there if the keeper was killed as well.
#ifndef NETSUM_TOOLS_NETSUM_EMULATE_KEEPER_H_
#define NETSUM_TOOLS_NETSUM_EMULATE_KEEPER_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>

#include "netsum/status.h"
#include "src/base/file_descriptor.h"
#include "tools/netsum/rack_plan.h"
#include "tools/netsum/subcommand.h"

namespace netsum::tool {

class EmulationKeeper {
 public:
  // Removes what killed runs have left, makes a folder for the files of this run, and starts the process. `rack`: the name of the rack
  // that this run will make; empty: none.
  static Result<std::unique_ptr<EmulationKeeper>> start(const std::string& rack);
  // Lets the process remove all, and waits for it. Without it, removes all itself.
  ~EmulationKeeper();
  EmulationKeeper(const EmulationKeeper&) = delete;
  EmulationKeeper& operator=(const EmulationKeeper&) = delete;

  const std::string& folder() const { return folder_; }
  // The name of a variable that the scripts of a run have, and a value that begins with its folder: the keeper ends processes that have
  // it, of whatever session they are.
  static constexpr char kMark[] = "NETSUM_TRACE";
  // Makes the rack that start() was told of.
  Status make(const RackOptions& options);

 private:
  explicit EmulationKeeper(std::string rack) : rack_(std::move(rack)) {}

  const std::string rack_;
  std::string folder_;
  FileDescriptor folder_lock_, rack_lock_;  // held as long as this process runs
  FileDescriptor until_;                    // when it closes, the keeper begins
  pid_t pid_ = 0;
};

std::unique_ptr<Subcommand> make_emulate_keeper_command(CLI::App& root);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_EMULATE_KEEPER_H_
