#include "src/plan/relay_plan.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <sstream>

#include "netsum/options.h"
#include "src/base/fnv.h"
#include "src/base/text.h"
#include "src/plan/job_plan.h"
#include "src/plan/topology.h"

namespace netsum::plan {
namespace {

constexpr size_t kNobody = SIZE_MAX;
constexpr size_t kMostNameBytes = 128;

template <typename Number>
bool read_number(const std::string& text, Number* number) {
  const char* const end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, *number);
  return error == std::errc() && last == end;
}

bool is_address(const std::string& text) {
  const size_t colon = text.rfind(':');
  uint16_t port = 0;
  return colon != std::string::npos && colon > 0 && read_number(text.substr(colon + 1), &port) && port > 0;
}

size_t find(const RelayTree& tree, const std::string& address) {
  for (size_t i = 0; i < tree.aggregators.size(); ++i)
    if (tree.aggregators[i].address == address) return i;
  return kNobody;
}

class Reader {
 public:
  // What is wrong with the line, or "".
  std::string take(const std::vector<std::string>& words) {
    const std::string& key = words.front();
    if (key == "network" || key == "job") return take_name(words, key == "job" ? &plan_.job : &plan_.network);
    if (key == "ranks") return take_ranks(words);
    if (key == "tree") return take_tree(words);
    if (key != "sum" && key != "join") return "'" + printable(key, kMostNameBytes) + "' is unknown";
    if (plan_.trees.empty()) return "'" + key + "' belongs to a tree, and none has begun";
    return key == "sum" ? take_sum(words) : take_join(words);
  }

  // What is wrong with the tree that ends here, or with the whole plan.
  std::string end_tree() const {
    if (plan_.trees.empty()) return "";
    const RelayTree& tree = plan_.trees.back();
    const auto nowhere = std::find(tree.joins.begin(), tree.joins.end(), kNobody);
    if (nowhere == tree.joins.end()) return "";
    return "rank " + std::to_string(nowhere - tree.joins.begin()) +
           " joins nowhere in the tree that ends here";
  }
  std::string end() const {
    if (plan_.network.empty()) return "there is no 'network'";
    return plan_.trees.empty() ? "there is no 'tree'" : end_tree();
  }

  RelayPlan take_plan() { return std::move(plan_); }

 private:
  static std::string take_name(const std::vector<std::string>& words, std::string* name) {
    if (words.size() != 2) return "'" + words.front() + "' has one name, without spaces";
    if (!name->empty()) return "'" + words.front() + "' is given twice";
    if (words[1].size() > kMostNameBytes || !is_printable(words[1]))
      return "'" + words.front() + "' has at most 128 printable characters";
    *name = words[1];
    return "";
  }

  std::string take_ranks(const std::vector<std::string>& words) {
    if (plan_.ranks != 0) return "'ranks' is given twice";
    if (words.size() == 2 && read_number(words[1], &plan_.ranks) && plan_.ranks >= 1 &&
        static_cast<size_t>(plan_.ranks) <= kMaxRanks)
      return "";
    return "'ranks' is a number from 1 to " + std::to_string(kMaxRanks);
  }

  std::string take_tree(const std::vector<std::string>& words) {
    if (plan_.ranks == 0) return "'ranks' must come before the first 'tree'";
    if (std::string wrong = end_tree(); !wrong.empty()) return wrong;
    if (plan_.trees.size() == kMaxPlaces)
      return "there are more than " + std::to_string(kMaxPlaces) + " trees";
    RelayTree tree;
    if (words.size() != 2 || !read_number(words[1], &tree.rate_bps) ||
        !check_declared_rate(static_cast<double>(tree.rate_bps), "").ok() || tree.rate_bps == 0)
      return "'tree' has a rate in bit/s, from 1000 to 100000000000000";
    tree.joins.assign(static_cast<size_t>(plan_.ranks), kNobody);
    plan_.trees.push_back(std::move(tree));
    return "";
  }

  std::string take_sum(const std::vector<std::string>& words) {
    RelayTree& tree = plan_.trees.back();
    RelayTree::Aggregator one;
    if (words.size() < 2 || !is_address(words[1])) return "'sum' has an address, host:port";
    one.address = words[1];
    for (const RelayTree& each : plan_.trees)
      if (find(each, one.address) != kNobody) return one.address + " has a 'sum' already";
    for (size_t i = 2; i < words.size(); i += 2) {
      const bool is_pair = i + 1 < words.size();
      if (is_pair && words[i] == "rank" && one.rank < 0) {
        if (!read_number(words[i + 1], &one.rank) || one.rank < 0 || one.rank >= plan_.ranks)
          return "there is no rank '" + printable(words[i + 1], kMostNameBytes) + "'";
      } else if (is_pair && words[i] == "below" && !one.above) {
        one.above = find(tree, words[i + 1]);
        if (*one.above == kNobody)
          return "'" + printable(words[i + 1], kMostNameBytes) + "' is not in this tree, or comes later";
      } else {
        return "after its address, 'sum' has 'rank NUMBER' and 'below ADDRESS'";
      }
    }
    if (one.above.has_value() == tree.aggregators.empty())
      return tree.aggregators.empty() ? "the first 'sum' of a tree is its top, and below none"
                                      : "'below' is missing: the tree has a top already";
    tree.aggregators.push_back(std::move(one));
    return "";
  }

  std::string take_join(const std::vector<std::string>& words) {
    RelayTree& tree = plan_.trees.back();
    if (words.size() < 3) return "'join' has an address, and ranks";
    const size_t at = find(tree, words[1]);
    if (at == kNobody) return "'" + printable(words[1], kMostNameBytes) + "' does not sum in this tree";
    for (size_t i = 2; i < words.size(); ++i) {
      size_t rank = 0;
      if (!read_number(words[i], &rank) || rank >= tree.joins.size())
        return "there is no rank '" + printable(words[i], kMostNameBytes) + "'";
      if (tree.joins[rank] != kNobody) return "rank " + words[i] + " joins this tree twice";
      tree.joins[rank] = at;
    }
    return "";
  }

  RelayPlan plan_;
};

}  // namespace

std::string RelayPlan::name() const {
  uint64_t hash = kFnvBasis;
  for (const char c : to_text(*this)) hash = fnv1a(hash, static_cast<unsigned char>(c));
  char number[17];
  std::snprintf(number, sizeof number, "%016llx", static_cast<unsigned long long>(hash));
  return network + " " + number;
}

Result<RelayPlan> parse_relay_plan(const std::string& text, const std::string& file) {
  size_t number = 0;
  const auto refuse = [&](const std::string& why) {
    return Status(ErrorCode::kInvalidArgument,
                  printable(file) + ":" + std::to_string(std::max<size_t>(1, number)) + ": " + why);
  };
  if (text.size() > kMostRelayPlanBytes)
    return refuse("a plan has at most " + std::to_string(kMostRelayPlanBytes) + " bytes");
  Reader reader;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream parts(line.substr(0, line.find('#')));
    std::vector<std::string> words;
    for (std::string word; parts >> word;) words.push_back(word);
    if (words.empty()) continue;
    if (const std::string wrong = reader.take(words); !wrong.empty()) return refuse(wrong);
  }
  if (const std::string wrong = reader.end(); !wrong.empty()) return refuse(wrong);
  return reader.take_plan();
}

std::string to_text(const RelayPlan& plan) {
  std::string network = plan.network;
  std::replace_if(
      network.begin(), network.end(), [](char c) { return c == '#' || c == ' '; }, '_');
  std::string text = "network " + network + "\n";
  if (!plan.job.empty()) text += "job " + plan.job + "\n";
  text += "ranks " + std::to_string(plan.ranks) + "\n";
  for (const RelayTree& tree : plan.trees) {
    text += "tree " + std::to_string(tree.rate_bps) + "\n";
    for (const RelayTree::Aggregator& one : tree.aggregators) {
      text += "sum " + one.address;
      if (one.rank >= 0) text += " rank " + std::to_string(one.rank);
      if (one.above) text += " below " + tree.aggregators[*one.above].address;
      text += "\n";
    }
    for (size_t at = 0; at < tree.aggregators.size(); ++at) {
      std::string ranks;
      for (size_t rank = 0; rank < tree.joins.size(); ++rank)
        if (tree.joins[rank] == at) ranks += " " + std::to_string(rank);
      if (!ranks.empty()) text += "join " + tree.aggregators[at].address + ranks + "\n";
    }
  }
  return text;
}

}  // namespace netsum::plan
