#include "src/compress/methods_page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>

#include "src/compress/memory.h"
#include "src/compress/method.h"

namespace netsum::compress::methods_page_test {
namespace {

constexpr const char* kPage = "docs/compression.md";
constexpr std::string_view kBegin = "<!-- written by netsum compression --markdown -->\n";
constexpr std::string_view kEnd = "<!-- end -->\n";

// NETSUM_WRITE_COMPRESSION_PAGE=1 writes it.
TEST(MethodsPageTest, TheTableIsMadeOfTheMethods) {
  std::ifstream file(kPage);
  std::string page(std::istreambuf_iterator<char>(file), {});
  const size_t at = page.find(kBegin), end = page.find(kEnd);
  ASSERT_TRUE(at != std::string::npos && end != std::string::npos && at < end);
  const size_t begin = at + kBegin.size();
  if (std::getenv("NETSUM_WRITE_COMPRESSION_PAGE") != nullptr) {
    page.replace(begin, end - begin, methods_page());
    std::ofstream(kPage) << page;
    return;
  }
  EXPECT_EQ(page.substr(begin, end - begin), methods_page())
      << "NETSUM_WRITE_COMPRESSION_PAGE=1 build/release/src/compress/compress_tests "
         "--gtest_filter='MethodsPage*' "
         "writes docs/compression.md";
}

TEST(MethodsPageTest, FormulasHaveABound) {
  const std::string details = details_page();
  const std::string formulas = details.substr(details.find("| method | C(x) |"));
  for (const Method* const method : all_methods()) {
    EXPECT_EQ(formulas.find("| `" + std::string(method->name) + "` |") == std::string::npos,
              method->formula.empty());
    EXPECT_EQ(method->bound.empty(), method->formula.empty()) << method->name;
  }
}

TEST(MethodsPageTest, EveryMethodSaysWhatItIs) {
  std::string_view before;
  for (const Method* const method : all_methods()) {
    EXPECT_LT(before, method->name) << "in alphabetical order";
    before = method->name;
    EXPECT_FALSE(method->sends.empty() || method->bytes.empty()) << method->name;
  }
}

// Each option of a method is a field, and each field is an option of some method or memory, or names one.
TEST(MethodsPageTest, OptionsAreFields) {
  std::set<std::string_view> fields, read = {"method", "memory", "path"};
  for (const CompressionField& field : compression_fields()) fields.insert(field.name);
  for (const Method* const method : all_methods())
    for (const Option* const option : method->options)
      if (option != nullptr) {
        EXPECT_EQ(fields.count(option->name), 1u) << option->name;
        read.insert(option->name);
      }
  for (const MemoryForm& memory : memories())
    for (const Option* const option : memory.options)
      if (option != nullptr) read.insert(option->name);
  EXPECT_EQ(fields, read);
}

}  // namespace
}  // namespace netsum::compress::methods_page_test
