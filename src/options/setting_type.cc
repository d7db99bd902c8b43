#include "src/options/setting_type.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <fstream>
#include <system_error>

#include "src/base/spin_setting.h"

namespace netsum::options {
namespace {

constexpr double kLongestS = 86400;
constexpr auto kLongestPollingUs = static_cast<double>(kLongestSpin.count());

template <typename Number>
bool parse(std::string_view text, Number* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

// Whether `text` is "host:port", with brackets around an IPv6 address.
bool is_address(const std::string& text, int least_port) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return false;
  const std::string host = text.substr(0, colon);
  if (host.find(':') != std::string::npos && !(host.front() == '[' && host.back() == ']')) return false;
  int port = 0;
  return parse(std::string_view(text).substr(colon + 1), &port) && port >= least_port && port < 65536;
}

struct Unit {
  std::string_view name;
  double factor;
};

// A number and the name of its unit, in units of factor 1; NaN if it is none.
double number_with(std::initializer_list<Unit> units, std::string_view text) {
  double number = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  if (error != std::errc()) return NAN;
  const std::string_view name(end, static_cast<size_t>(last - end));
  const auto* const unit =
      std::find_if(units.begin(), units.end(), [&](const Unit& one) { return one.name == name; });
  return unit == units.end() ? NAN : number * unit->factor;
}

std::string number_text(double number) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), number);
  return error == std::errc() ? std::string(text, end) : "?";
}

template <typename Number>
SettingType whole_number(Place<Number> place, int64_t least, int64_t most, std::string values,
                         std::function<bool(int64_t)> allowed) {
  return {std::move(values),
          [=](const std::string& given, SettingValues& into) {
            int64_t number = 0;
            if (!parse(given, &number) || number < least || number > most || !allowed(number)) return false;
            place(into) = static_cast<Number>(number);
            return true;
          },
          [=](SettingValues& from) { return std::to_string(place(from)); }};
}

std::string from_to(int64_t least, int64_t most) {
  return " from " + std::to_string(least) + " to " + std::to_string(most);
}

bool any_number(int64_t) {
  return true;
}

}  // namespace

SettingType whole(Place<int> place, int64_t least, int64_t most) {
  return whole_number(place, least, most, "a whole number" + from_to(least, most), any_number);
}

SettingType whole(Place<uint64_t> place, int64_t least, int64_t most) {
  return whole_number(place, least, most, "a whole number" + from_to(least, most), any_number);
}

SettingType power_of_two(Place<int> place, int most) {
  return whole_number(place, 1, most, "a power of two" + from_to(1, most) + ", such as 256",
                      [](int64_t number) { return (number & (number - 1)) == 0; });
}

SettingType one_of(Place<int> place, std::initializer_list<int> numbers, const std::string& values) {
  const std::vector<int> list(numbers);
  return whole_number(place, 0, *std::max_element(list.begin(), list.end()), values, [list](int64_t number) {
    return std::find(list.begin(), list.end(), number) != list.end();
  });
}

SettingType on_or_off(Place<bool> place) {
  return {"1 or 0",
          [=](const std::string& given, SettingValues& into) {
            place(into) = given == "1" || given == "true";
            return place(into) || given == "0" || given == "false";
          },
          [=](SettingValues& from) { return std::string(place(from) ? "1" : "0"); }};
}

SettingType seconds(Place<std::chrono::milliseconds> place, bool or_zero) {
  return {std::string("a time above 0 and at most 86400 s, such as 30 (seconds), 500ms or 2m") +
              (or_zero ? "; or 0 for never" : ""),
          [=](const std::string& given, SettingValues& into) {
            const double number = number_with({{"", 1}, {"s", 1}, {"ms", 1e-3}, {"m", 60}}, given);
            if (!(number > 0 || (or_zero && number == 0)) || number > kLongestS) return false;
            const auto ms = std::chrono::milliseconds(std::llround(number * 1e3));
            place(into) = number > 0 ? std::max(ms, std::chrono::milliseconds(1)) : ms;
            return true;
          },
          [=](SettingValues& from) { return number_text(static_cast<double>(place(from).count()) / 1e3); }};
}

SettingType polling_time(Place<std::chrono::microseconds> place) {
  return {"0, 1, or a time from 1us to 60s, such as 10ms",
          [=](const std::string& given, SettingValues& into) {
            if (given == "1" || given == "true") {
              place(into) = CommunicatorOptions().spin;
              return true;
            }
            const double us = number_with({{"us", 1}, {"ms", 1e3}, {"s", 1e6}}, given);
            const bool off = given == "0" || given == "false" || us == 0;
            if (!off && !(us >= 1 && us <= kLongestPollingUs)) return false;
            place(into) = std::chrono::microseconds(off ? 0 : std::llround(us));
            return true;
          },
          [=](SettingValues& from) {
            const auto us = place(from);
            if (us == CommunicatorOptions().spin) return std::string("1");
            return us.count() == 0 ? "0" : std::to_string(us.count()) + "us";
          }};
}

SettingType phase(Place<std::chrono::microseconds> period, Place<std::chrono::microseconds> offset) {
  return {"a period from 1ms to 60s and a shorter offset, such as 100ms,40ms",
          [=](const std::string& given, SettingValues& into) {
            const std::vector<std::string> parts = split(given, ',');
            if (parts.size() != 2) return false;
            const auto read = [](const std::string& part) {
              return number_with({{"", part == "0" ? 1 : NAN}, {"us", 1}, {"ms", 1e3}, {"s", 1e6}},
                                 trimmed(part));
            };
            const double period_us = read(parts[0]), offset_us = read(parts[1]);
            if (!(period_us >= 1e3 && period_us <= kLongestPollingUs && offset_us >= 0 &&
                  std::llround(offset_us) < std::llround(period_us)))
              return false;
            period(into) = std::chrono::microseconds(std::llround(period_us));
            offset(into) = std::chrono::microseconds(std::llround(offset_us));
            return true;
          },
          [=](SettingValues& from) {
            if (period(from).count() == 0 && offset(from).count() == 0) return std::string();
            return std::to_string(period(from).count()) + "us," + std::to_string(offset(from).count()) + "us";
          }};
}

SettingType rate(Place<double> place) {
  return {"a rate from 1kbit to 100tbit, such as 100mbit or 25gbit",
          [=](const std::string& given, SettingValues& into) {
            double number = 0;
            const char* const last = given.data() + given.size();
            const auto [end, error] = std::from_chars(given.data(), last, number);
            std::string unit = trimmed(std::string(end, last));
            for (char& c : unit) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
            const size_t power = unit.empty() ? std::string::npos : std::string("kmgt").find(unit[0]);
            const std::string suffix = unit.empty() ? "" : unit.substr(1);
            const bool known = suffix.empty() || suffix == "bit" || suffix == "bit/s" || suffix == "bps";
            if (error != std::errc() || power == std::string::npos || !known) return false;
            const double bits = number * std::pow(1000.0, static_cast<double>(power + 1));
            if (!(bits >= 1e3 && bits <= 1e14)) return false;
            place(into) = bits;
            return true;
          },
          [=](SettingValues& from) {
            return place(from) == 0 ? std::string() : number_text(place(from) / 1e3) + "kbit";
          }};
}

SettingType probability(Place<double> place) {
  return {"a probability from 0 to 1, such as 0.01 or 1%",
          [=](const std::string& given, SettingValues& into) {
            const bool percent = given.ends_with('%');
            double number = -1;
            if (!parse(std::string_view(given).substr(0, given.size() - (percent ? 1 : 0)), &number))
              return false;
            if (percent) number /= 100;
            if (!(number >= 0 && number <= 1)) return false;
            place(into) = number;
            return true;
          },
          [=](SettingValues& from) { return number_text(place(from)); }};
}

SettingType text(Place<std::string> place) {
  return {"text",
          [=](const std::string& given, SettingValues& into) {
            place(into) = given;
            return true;
          },
          [=](SettingValues& from) { return place(from); }};
}

SettingType contents_of_file(Place<std::string> place) {
  return {"a file that can be read",
          [=](const std::string& given, SettingValues& into) {
            std::ifstream stream(given, std::ios::binary);
            if (!stream) return false;
            std::string& content = place(into);
            content.clear();
            char part[4096];
            while (stream.read(part, sizeof(part)) || stream.gcount() > 0)
              content.append(part, static_cast<size_t>(stream.gcount()));
            return !stream.bad();
          },
          [](SettingValues&) { return std::string(); }};
}

SettingType address(Place<std::string> place) {
  return {"\"host:port\", such as 127.0.0.1:9470",
          [=](const std::string& given, SettingValues& into) {
            place(into) = given;
            return is_address(given, 0);
          },
          [=](SettingValues& from) { return place(from); }};
}

SettingType addresses(Place<std::vector<std::string>> place, const std::string& also) {
  // "plan:FILE" stands for any file.
  const std::string before_file = also.ends_with(":FILE") ? also.substr(0, also.size() - 4) : "";
  return {"\"host:port[,host:port...]\" (IPv6: \"[::1]:5151\")" +
              (also.empty() ? "" : ", or " + also + (before_file.empty() ? " among them" : "")),
          [=](const std::string& given, SettingValues& into) {
            std::vector<std::string>& list = place(into);
            list.clear();
            for (const std::string& part : split(given, ',')) {
              const std::string address = trimmed(part);
              if (address.empty()) continue;
              const bool is_file = !before_file.empty() && address.starts_with(before_file);
              if (!is_address(address, 1) && !is_file && (also.empty() || address != also)) return false;
              list.push_back(address);
            }
            return true;
          },
          [=](SettingValues& from) { return joined(place(from)); }};
}

std::string trimmed(std::string text) {
  const auto is_space = [](unsigned char c) { return std::isspace(c) != 0; };
  text.erase(text.begin(), std::find_if_not(text.begin(), text.end(), is_space));
  text.erase(std::find_if_not(text.rbegin(), text.rend(), is_space).base(), text.end());
  return text;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string list;
  for (const std::string& part : parts) list += (list.empty() ? "" : ",") + part;
  return list;
}

}  // namespace netsum::options
