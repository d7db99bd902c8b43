// netsum version: what this binary is made of.
#include "netsum/version.h"

#include <grpcpp/grpcpp.h>

#include <cstdio>

#include "tools/measure/machine.h"
#include "tools/netsum/exit_codes.h"
#include "tools/netsum/log.h"
#include "tools/netsum/subcommand.h"
#include "wire/ids.h"

namespace netsum::tool {
namespace {

class VersionCommand : public Subcommand {
 public:
  explicit VersionCommand(CLI::App& root) {
    app_ = root.add_subcommand("version", "Print the versions of netsum and its libraries");
    app_->add_flag("--json", json_, "Print one JSON object");
    app_->footer("Examples:\n  netsum version\n  netsum version --json");
  }

  bool chosen() const override { return app_->parsed(); }

  int run() override {
    const Json facts = {{"version", NETSUM_VERSION_STRING},
                        {"protocol_version", NETSUM_VERSION},
                        {"build_type", NETSUM_BUILD_TYPE},
                        {"compiler", NETSUM_COMPILER},
                        {"simd", cpu_simd()},
                        {"grpc", grpc::Version()}};
    if (json_) {
      std::printf("%s\n", facts.dump(2).c_str());
      return kExitOk;
    }
    std::printf("netsum %s (protocol %d)\n", NETSUM_VERSION_STRING, NETSUM_VERSION);
    std::printf("build     %s, %s\n", NETSUM_BUILD_TYPE, NETSUM_COMPILER);
    std::printf("simd      %s on this CPU\n", cpu_simd().c_str());
    std::printf("grpc      %s\n", grpc::Version().c_str());
    return kExitOk;
  }

 private:
  CLI::App* app_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Subcommand> make_version_command(CLI::App& root) {
  return std::make_unique<VersionCommand>(root);
}

}  // namespace netsum::tool
