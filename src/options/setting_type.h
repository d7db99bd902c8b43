// The types of settings: how text becomes a value of CommunicatorOptions, and back.
#ifndef NETSUM_SRC_OPTIONS_SETTING_TYPE_H_
#define NETSUM_SRC_OPTIONS_SETTING_TYPE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "netsum/settings.h"

namespace netsum::options {

// Where the value of a setting is. `option<&CommunicatorOptions::mtu>` is the place of an option.
template <typename T>
using Place = T& (*)(SettingValues&);

template <auto kMember>
constexpr auto option = +[](SettingValues& values) -> auto& {
  return values.options.*kMember;
};

struct SettingType {
  std::string values;  // what is allowed, as in "must be ..."
  // Sets the value from a text without white space at its ends, which is not empty. Returns false if it is not allowed.
  std::function<bool(const std::string& text, SettingValues&)> read;
  std::function<std::string(SettingValues&)> write;
};

SettingType whole(Place<int> place, int64_t least, int64_t most);
SettingType whole(Place<uint64_t> place, int64_t least, int64_t most);
SettingType power_of_two(Place<int> place, int most);
SettingType one_of(Place<int> place, std::initializer_list<int> numbers, const std::string& values);
SettingType on_or_off(Place<bool> place);  // 1 or 0
SettingType seconds(Place<std::chrono::milliseconds> place, bool or_zero = false);
SettingType polling_time(Place<std::chrono::microseconds> place);
// "PERIOD,OFFSET".
SettingType phase(Place<std::chrono::microseconds> period, Place<std::chrono::microseconds> offset);
SettingType rate(Place<double> place);
SettingType probability(Place<double> place);
SettingType text(Place<std::string> place);
SettingType contents_of_file(Place<std::string> place);
// Of one address, such as that of metrics: a port of 0 is allowed.
SettingType address(Place<std::string> place);
// Comma-separated; the word `also` may stand among them.
SettingType addresses(Place<std::vector<std::string>> place, const std::string& also = "");

// Names of the values of an enum; the first is the default.
template <typename Enum>
SettingType choice(Place<Enum> place, std::initializer_list<std::pair<const char*, Enum>> names) {
  const std::vector<std::pair<const char*, Enum>> list(names);
  std::string values;
  for (const auto& [name, value] : list) values += (values.empty() ? "" : " or ") + std::string(name);
  return {values,
          [=](const std::string& given, SettingValues& into) {
            for (const auto& [name, value] : list) {
              if (given != name) continue;
              place(into) = value;
              return true;
            }
            return false;
          },
          [=](SettingValues& from) {
            for (const auto& [name, value] : list) {
              if (place(from) == value) return std::string(name);
            }
            return std::string();
          }};
}

std::string trimmed(std::string text);
std::vector<std::string> split(std::string_view text, char separator);
std::string joined(const std::vector<std::string>& parts);  // with commas

}  // namespace netsum::options

#endif  // NETSUM_SRC_OPTIONS_SETTING_TYPE_H_
