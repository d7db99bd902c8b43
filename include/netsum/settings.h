// Options of a communicator as text: one table, of which the environment variables, the comparison between ranks and
// docs/options.md are made. Programs and plug-ins that take their options from the environment read them here.
#ifndef NETSUM_SETTINGS_H_
#define NETSUM_SETTINGS_H_

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "netsum/export.h"
#include "netsum/options.h"
#include "netsum/status.h"

struct netsum_comm_options;

namespace netsum {

// A row of the table.
struct SettingInfo {
  std::string name;      // of the field of CommunicatorOptions, if there is one of this name
  std::string variable;  // of the environment
  std::string values;    // what is allowed: "a whole number from 144 to 9000"
  std::string usual;     // what holds if the variable is not set; "" if nothing does
  bool same_on_all_ranks = false;
  std::string help;
};
NETSUM_EXPORT std::vector<SettingInfo> setting_table();

// Names and values of the options that the members of a job compare when they join, apart from those of which JobSpec has a field.
NETSUM_EXPORT std::vector<std::pair<std::string, std::string>> joined_options(
    const CommunicatorOptions& options);

// What the variables set.
struct SettingValues {
  CommunicatorOptions options;
  bool hierarchy = false;  // the ranks name different aggregators, which are below one parent
  std::string job_prefix;  // of job names; "" if NETSUM_JOB is not set
};

// Sets the value of the row of this name from text, as its variable does. kInvalidArgument: the message says what is allowed, or
// that there is no such row.
NETSUM_EXPORT Status set_value(std::string_view name, const std::string& text, SettingValues* values);
// kInvalidArgument: the value of the row of this name is not one that the row allows; the message says what is.
NETSUM_EXPORT Status check_value(std::string_view name, const CommunicatorOptions& options);

// The settings of one rank. Thread-safe as const.
class NETSUM_EXPORT Settings {
 public:
  // Returns the value of a variable, "" if it is not set.
  using Lookup = std::function<std::string(const std::string& variable)>;

  // Reads all variables. Fails with kInvalidArgument and a message that names the variable, its value and what is allowed.
  // `local_rank`: this process's number among those of its host, which is added to the port of NETSUM_METRICS.
  static Result<Settings> read(const Lookup& lookup, int local_rank = 0);

  // rank, world_size, job, token, root and timeout are left to the caller.
  const CommunicatorOptions& options() const { return values_.options; }
  // The same for the C ABI. Only fields that a variable sets are written. Strings live as long as this object.
  void write(netsum_comm_options* options) const;

  bool hierarchy() const { return values_.hierarchy; }
  // The most ranks that a job may have.
  int most_ranks() const;
  const std::string& job_prefix() const { return values_.job_prefix; }
  // Whether ranks need the address at which rank 0 listens: they may sum with embedded shards alone.
  bool needs_root() const;

  // Those that must be equal on all ranks, for a comparison: "NAME=value\n" for each.
  std::string shared() const;
  // Returns "", or a message that names the first setting in which `theirs` differs from `first`, that of rank 0.
  // `where`: whose settings the former are, such as "on rank 3" or "here".
  static std::string difference(std::string_view theirs, std::string_view first, std::string_view where);

 private:
  SettingValues values_;
  std::string aggregators_, fallback_aggregators_;  // as the C ABI has them
};

}  // namespace netsum

#endif  // NETSUM_SETTINGS_H_
