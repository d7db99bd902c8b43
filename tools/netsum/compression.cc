// netsum compression: replays the decisions of a controller of compression.
#include <cstdio>
#include <fstream>
#include <map>
#include <string>

#include "src/compress/control_trace.h"
#include "tools/netsum/exit_codes.h"
#include "tools/netsum/flags.h"
#include "tools/netsum/subcommand.h"

namespace netsum::tool {
namespace {

class CompressionCommand : public Subcommand {
 public:
  explicit CompressionCommand(CLI::App& root) {
    app_ =
        root.add_subcommand("compression", "Look at how a job has chosen the compression of its gradients");
    app_->require_subcommand(1);
    replay_ = app_->add_subcommand("replay", "Decide again from a trace, and compare");
    replay_->add_option("trace", path_, "Trace of netsum.torch.compress(model, \"auto\", trace=PATH)")
        ->required();
    replay_->add_flag("--steps", steps_, "Print every step, not only those in which levels change");
    replay_->footer(
        "Examples:\n  netsum compression replay trace.jsonl\n  netsum compression replay trace.jsonl "
        "--steps\n\n"
        "Exit status: 0 all decisions are those of the trace; 1 one differs; 2 the trace cannot be read.");
  }

  bool chosen() const override { return app_->parsed(); }

  int run() override {
    std::ifstream file(path_);
    if (!file) throw UsageError("cannot read the trace '" + path_ + "'");
    compress::ControlReplay replay;
    std::string line;
    for (uint64_t number = 1; std::getline(file, line); ++number) {
      const Status status = replay.take(line);
      if (!status.ok()) {
        std::fprintf(stderr, "netsum compression replay: %s, line %llu: %s\n", path_.c_str(),
                     static_cast<unsigned long long>(number), status.message().c_str());
        return status.code() == ErrorCode::kMismatch ? kExitWrong : kExitUsage;
      }
      if (replay.took_step()) print(replay);
    }
    if (replay.steps() == 0) throw UsageError("the trace '" + path_ + "' has no steps");
    std::printf("%llu steps, %llu changes: all decisions are those of the trace\n",
                static_cast<unsigned long long>(replay.steps()),
                static_cast<unsigned long long>(replay.control()->changes()));
    return kExitOk;
  }

 private:
  void print(const compress::ControlReplay& replay) const {
    const CompressionControl& control = *replay.control();
    if (steps_) {
      std::map<uint8_t, int> buckets;
      for (const uint8_t level : control.decision().levels) ++buckets[level];
      std::printf("step %llu:", static_cast<unsigned long long>(control.step()));
      for (const auto& [level, count] : buckets)
        std::printf(" %d x %s", count, replay.options().levels[level].name.c_str());
      std::printf(", predicted %.2f ms, uncompressed %.2f ms, network %.1f Mbit/s\n",
                  static_cast<double>(control.predicted_step_ns()) / 1e6,
                  static_cast<double>(control.uncompressed_step_ns()) / 1e6, control.bits_per_second() / 1e6);
    }
    if (!control.change().empty()) std::printf("%s\n", std::string(control.change()).c_str());
  }

  CLI::App* app_;
  CLI::App* replay_;
  std::string path_;
  bool steps_ = false;
};

}  // namespace

std::unique_ptr<Subcommand> make_compression_command(CLI::App& root) {
  return std::make_unique<CompressionCommand>(root);
}

}  // namespace netsum::tool
