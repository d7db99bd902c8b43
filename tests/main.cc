// main() of the tests. Arguments other than GoogleTest's flags are paths of sources below the repository's root, such as
// src/net/address_test.cc: only their tests run. So ctest runs each test of a folder's binary in a process of its own.
// A test of a suite "Places/..." then runs in two of its places, which its name determines; in all of them if NETSUM_SOAK is set.
// Tests read files of the repository by their paths below its root, too: it is the working directory.
#include <gmock/gmock.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "src/base/soak.h"

bool enter_source_folder();  // false if there is none

namespace {

bool is_of_its_places(const testing::TestSuite& suite, int test) {
  const auto without_place = [&suite](int i) {
    const std::string name = suite.GetTestInfo(i)->name();
    return name.substr(0, name.find('/'));
  };
  const std::string name = without_place(test);
  size_t places = 0;
  size_t place = 0;
  for (int i = 0; i < suite.total_test_count(); ++i) {
    if (without_place(i) != name) continue;
    if (i < test) ++place;
    ++places;
  }
  return (std::hash<std::string>()(name) + place) % ((places + 1) / 2) == 0;
}

// The names of the tests of a source, as --gtest_filter takes them; empty if it has none.
std::string tests_of(const std::string& source) {
  std::string names;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    const bool everywhere = netsum::soak() || !std::string(suite.name()).starts_with("Places/");
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      if (("/" + std::string(test.file())).ends_with("/" + source) &&
          (everywhere || is_of_its_places(suite, j)))
        names += std::string(suite.name()) + "." + test.name() + ":";
    }
  }
  return names;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  if (!enter_source_folder()) std::perror("the source folder, which some tests read");
  std::string filter;
  for (int i = 1; i < argc; ++i) {
    const std::string tests = tests_of(argv[i]);
    if (tests.empty()) {
      std::fprintf(stderr, "%s: no test is of the source '%s'; give paths such as src/net/address_test.cc\n",
                   argv[0], argv[i]);
      return EXIT_FAILURE;
    }
    filter += tests;
  }
  if (!filter.empty()) GTEST_FLAG_SET(filter, filter);
  return RUN_ALL_TESTS();
}
