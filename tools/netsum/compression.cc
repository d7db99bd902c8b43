// netsum compression: the methods.
#include <cstdio>
#include <string>

#include "src/compress/method.h"
#include "src/compress/methods_page.h"
#include "tools/netsum/exit_codes.h"
#include "tools/netsum/flags.h"
#include "tools/netsum/subcommand.h"

namespace netsum::tool {
namespace {

class CompressionCommand : public Subcommand {
 public:
  explicit CompressionCommand(CLI::App& root) {
    app_ = root.add_subcommand("compression", "List the methods of compression");
    app_->add_flag(
        "--markdown", markdown_,
        "Print tables: methods, options with ranges and defaults, formulas with bounds and sources");
  }

  bool chosen() const override { return app_->parsed(); }

  int run() override {
    if (markdown_) {
      std::fputs((compress::methods_page() + "\n" + compress::details_page()).c_str(), stdout);
      return kExitOk;
    }
    for (const compress::Method* const method : compress::all_methods())
      std::printf("%-12s %s\n", std::string(method->name).c_str(), std::string(method->sends).c_str());
    return kExitOk;
  }

 private:
  CLI::App* app_;
  bool markdown_ = false;
};

}  // namespace

std::unique_ptr<Subcommand> make_compression_command(CLI::App& root) {
  return std::make_unique<CompressionCommand>(root);
}

}  // namespace netsum::tool
