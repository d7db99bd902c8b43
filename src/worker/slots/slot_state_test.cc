#include "src/worker/slots/slot_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace netsum::slot_state_test {
namespace {

using Table = std::map<std::string, std::array<std::string, 4>>;

constexpr std::array<std::string_view, 4> kStates = {"IDLE", "WAITING", "PROBE_DUE", "RESEND_DUE"};
constexpr std::array<std::string_view, 6> kEvents = {"STARTED", "OVERDUE", "PROBED",
                                                     "AGAIN",   "RESENT",  "FINISHED"};

Table table_of_the_code() {
  Table table;
  for (size_t event = 0; event < kEvents.size(); ++event) {
    for (size_t state = 0; state < kStates.size(); ++state) {
      const auto next = slot_state_after(static_cast<SlotState>(state), static_cast<SlotEvent>(event));
      table[std::string(kEvents[event])][state] = next ? kStates[static_cast<size_t>(*next)] : "-";
    }
  }
  return table;
}

// The rows of the table in `path` that begin with `before` an event's name: the last four columns of each.
Table table_of_the_text(const std::string& path, const std::string& before) {
  std::ifstream file(path);
  EXPECT_TRUE(file.is_open()) << path;
  Table table;
  for (std::string line; std::getline(file, line);) {
    for (const std::string_view event : kEvents) {
      if (!line.starts_with(before + std::string(event) + " ")) continue;
      std::replace(line.begin(), line.end(), '|', ' ');
      std::istringstream text(line);
      std::vector<std::string> words{std::istream_iterator<std::string>(text), {}};
      EXPECT_GE(words.size(), 5u) << line;
      std::copy(words.end() - 4, words.end(), table[std::string(event)].begin());
    }
  }
  return table;
}

TEST(SlotState, TheTablesInTheHeaderAndInTheProtocolAreTheCodes) {
  EXPECT_EQ(table_of_the_text("src/worker/slots/slot_state.h", "//   "), table_of_the_code());
  EXPECT_EQ(table_of_the_text("wire/PROTOCOL.md", "| "), table_of_the_code());
}

// From every state there is a way back to idle, and only FINISHED leads there.
TEST(SlotState, OnlyAResultEndsAStep) {
  for (size_t state = 0; state < kStates.size(); ++state) {
    for (size_t event = 0; event < kEvents.size(); ++event) {
      const auto next = slot_state_after(static_cast<SlotState>(state), static_cast<SlotEvent>(event));
      EXPECT_EQ(next == SlotState::kIdle, next && static_cast<SlotEvent>(event) == SlotEvent::kFinished);
    }
    const bool waits = static_cast<SlotState>(state) != SlotState::kIdle;
    EXPECT_EQ(slot_state_after(static_cast<SlotState>(state), SlotEvent::kFinished).has_value(), waits);
  }
}

}  // namespace
}  // namespace netsum::slot_state_test
