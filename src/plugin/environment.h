// The options of a communicator from environment variables, for plug-ins that run inside other programs (Open MPI,
// NCCL). The variables and their meanings are those of docs/pytorch.md#settings.
#ifndef NETSUM_SRC_PLUGIN_ENVIRONMENT_H_
#define NETSUM_SRC_PLUGIN_ENVIRONMENT_H_

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "netsum/netsum.h"

namespace netsum {

// Returns the value of a variable, "" if it is not set.
using Lookup = std::function<std::string(const std::string& name)>;
std::string process_environment(const std::string& name);

class Environment {
 public:
  // Reads all variables. Returns "", or a message that names the variable whose value is invalid, its value and what is
  // allowed. `local_rank`: this process's number among those of its host, which is added to the port of
  // NETSUM_METRICS.
  std::string read(const Lookup& lookup, int local_rank);

  // The options that the variables set; all others are zero. They point into this object.
  netsum_comm_options options() const;

  // Names and values of the settings that must be equal on all ranks.
  const std::vector<std::pair<std::string, std::string>>& shared() const { return shared_; }
  // Whether ranks need the address at which rank 0 listens: they may sum with embedded shards alone.
  bool needs_root() const;
  // The prefix of job names; "" if NETSUM_JOB is not set.
  const std::string& job_prefix() const { return job_; }
  const std::string& bind_address() const { return bind_address_; }
  // The most ranks that a job may have.
  int most_ranks() const { return hierarchy_ ? 512 : 64; }

 private:
  class Reader;

  std::string aggregators_, fallback_aggregators_, aggregator_token_, job_, host_, bind_address_, metrics_,
      trace_;
  std::string tls_ca_, tls_cert_, tls_key_;
  bool hierarchy_ = false;
  netsum_comm_options numbers_ = {};  // everything but strings
  std::vector<std::pair<std::string, std::string>> shared_;
};

// A text of this form lists the settings for a comparison between ranks: "NAME=value\n" for each.
std::string to_text(const std::vector<std::pair<std::string, std::string>>& settings);
// Returns "", or a message that names the first setting in which `mine` differs from `first`, that of rank 0.
std::string first_difference(std::string_view mine, std::string_view first);

}  // namespace netsum

#endif  // NETSUM_SRC_PLUGIN_ENVIRONMENT_H_
