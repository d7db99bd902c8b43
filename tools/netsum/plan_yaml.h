// Values of a topology file, with the file and the line in every error.
#ifndef NETSUM_TOOLS_NETSUM_PLAN_YAML_H_
#define NETSUM_TOOLS_NETSUM_PLAN_YAML_H_

#include <yaml-cpp/yaml.h>

#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "src/plan/topology.h"

namespace netsum::tool {

// All functions throw UsageError (flags.h), whose message starts with "file:line: ", for a value that is wrong.
class PlanYaml {
 public:
  explicit PlanYaml(std::string file) : file_(std::move(file)) {}

 protected:
  [[noreturn]] void fail_at(int line, const std::string& message) const;
  [[noreturn]] void fail(const YAML::Node& node, const std::string& message) const;

  std::string scalar(const YAML::Node& node, const std::string& what) const;
  void check_keys(const YAML::Node& node, const std::string& what,
                  std::initializer_list<const char*> known) const;
  // The entries of a list that may be missing.
  std::vector<YAML::Node> list(const YAML::Node& parent, const std::string& key) const;
  double positive(const YAML::Node& node, const std::string& what) const;
  size_t whole(const YAML::Node& node, const std::string& what, size_t most) const;
  bool yes_or_no(const YAML::Node& node, const std::string& what) const;
  double rate(const YAML::Node& node, const std::string& what) const;
  // "25G" for both directions, or {in: 25G, out: 10G}.
  plan::Link link(const YAML::Node& node, const std::string& what) const;
  plan::SumLimits limits(const YAML::Node& node) const;

  std::string name(const YAML::Node& node) const;
  // The names of an entry: one, or with `count` as many as that, numbered from 0. Each may be claimed once in the file.
  std::vector<std::string> names(const YAML::Node& node, size_t most);
  void claim(const YAML::Node& node, const std::string& each);

  const std::string file_;

 private:
  std::map<std::string, int> lines_;  // of names
};

// Throws UsageError (flags.h) for an error of the parser, with file and line.
[[noreturn]] void yaml_failed(const std::string& file, const YAML::Exception& error);

// read(node) of the file's document. The reader may use nodes as if all were there.
template <typename Read>
auto with_yaml(const std::string& text, const std::string& file, Read read) {
  try {
    return read(YAML::Load(text));
  } catch (const YAML::Exception& error) {
    yaml_failed(file, error);
  }
}

// read(nodes) of all documents of the file.
template <typename Read>
auto with_yaml_documents(const std::string& text, const std::string& file, Read read) {
  try {
    return read(YAML::LoadAll(text));
  } catch (const YAML::Exception& error) {
    yaml_failed(file, error);
  }
}

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_PLAN_YAML_H_
