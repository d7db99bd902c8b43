#include "mpi/job.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

#include "src/rendezvous/join.h"

namespace {

class MpiRendezvous final : public netsum::Rendezvous {
 public:
  explicit MpiRendezvous(const netsum_mpi_rendezvous& below) : below_(below) {}
  int rank() const override { return below_.rank; }
  int size() const override { return below_.size; }
  bool broadcast(void* data, size_t bytes) override {
    return below_.broadcast(below_.context, data, bytes) == 0;
  }
  bool gather(const void* mine, void* all, size_t bytes) override {
    return below_.gather(below_.context, mine, all, bytes) == 0;
  }

 private:
  const netsum_mpi_rendezvous& below_;
};

void write_text(const std::string& text, char* out, size_t bytes) {
  const size_t length = std::min(text.size(), bytes - 1);
  std::memcpy(out, text.data(), length);
  out[length] = '\0';
}

}  // namespace

netsum_comm* netsum_mpi_join(const netsum_mpi_rendezvous* rendezvous, const char* settings,
                             int64_t timeout_ms, char* text, size_t text_bytes) {
  // Open MPI is C: no exception may reach it.
  try {
    MpiRendezvous place(*rendezvous);
    netsum::JoinOptions options;
    const char* const local_rank = std::getenv("OMPI_COMM_WORLD_LOCAL_RANK");
    options.local_rank = local_rank != nullptr ? std::atoi(local_rank) : 0;
    options.default_prefix = "mpi";
    options.plugin_settings = settings;
    options.timeout_ms = timeout_ms;
    options.on_warning = [warn = rendezvous->warn](const std::string& warning) { warn(warning.c_str()); };
    const netsum::Joined joined = netsum::join(place, options);
    write_text(joined.text, text, text_bytes);
    return joined.comm;
  } catch (const std::exception& error) {
    write_text(error.what(), text, text_bytes);
    return nullptr;
  }
}
