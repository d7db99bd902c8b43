// main() of the tests. Arguments other than GoogleTest's flags are paths of sources below the repository's root, such as
// src/net/address_test.cc: only their tests run. So ctest runs each test of a folder's binary in a process of its own.
// Tests read files of the repository by their paths below its root, too: it is the working directory.
#include <gmock/gmock.h>

#include <cstdio>
#include <cstdlib>
#include <string>

bool enter_source_folder();  // false if there is none

namespace {

// The names of the tests of a source, as --gtest_filter takes them; empty if it has none.
std::string tests_of(const std::string& source) {
  std::string names;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      if (("/" + std::string(test.file())).ends_with("/" + source))
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
