// The fixture of tests that run the XDP program by BPF_PROG_TEST_RUN: skips where it may not be loaded.
#ifndef NETSUM_TESTS_CONFORMANCE_XDP_FIXTURE_H_
#define NETSUM_TESTS_CONFORMANCE_XDP_FIXTURE_H_

#include <gtest/gtest.h>

#include <string>

#include "tests/conformance/xdp_run.h"

namespace netsum::conformance {

class XdpFixture : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    program_ = XdpRun::program(&why);
    if (program_ == nullptr && why.find("permission") != std::string::npos) GTEST_SKIP() << why;
    ASSERT_NE(program_, nullptr) << why;
  }
  XdpProgram* program_ = nullptr;
};

}  // namespace netsum::conformance

#endif  // NETSUM_TESTS_CONFORMANCE_XDP_FIXTURE_H_
