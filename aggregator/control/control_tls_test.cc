// The control connection over TLS, with and without client certificates, and every way to get it wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "aggregator/control/control_service.h"
#include "aggregator/control/test_certificates.h"
#include "aggregator/dataplane/fake_dataplane.h"
#include "src/control/client.h"

namespace netsum::control_tls_test {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr milliseconds kPatience{20'000};

class ControlTlsTest : public ::testing::Test {
 protected:
  void start(const TlsOptions& tls) {
    ControlServiceOptions options;
    options.tls = tls;
    auto service = ControlService::start(options, &dataplane_);
    ASSERT_TRUE(service.ok()) << service.status().to_string();
    service_ = std::move(service).value();
  }

  TlsOptions server_tls(bool require_client_cert) const {
    TlsOptions tls;
    tls.cert = server_.cert;
    tls.private_key = server_.private_key;
    if (require_client_cert) tls.ca_cert = authority_.cert();
    tls.require_client_cert = require_client_cert;
    return tls;
  }
  TlsOptions client_tls() const {
    TlsOptions tls;
    tls.ca_cert = authority_.cert();
    return tls;
  }
  TlsOptions client_tls(const TestCertificate& own) const {
    TlsOptions tls = client_tls();
    tls.cert = own.cert;
    tls.private_key = own.private_key;
    return tls;
  }

  Status join(const TlsOptions& tls) {
    JoinParameters how;
    how.address = service_->address();
    how.job.set_name("train");
    how.tls = tls;
    how.timeout = kPatience;
    return ControlClient::join(how, [](const Status&) {}).status();
  }

  const TestAuthority authority_;
  const TestAuthority stranger_;
  const TestCertificate server_ = authority_.sign("IP:127.0.0.1");
  FakeDataplane dataplane_;
  std::unique_ptr<ControlService> service_;
};

TEST_F(ControlTlsTest, JoinsOverTls) {
  start(server_tls(false));
  const Status status = join(client_tls());
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_TRUE(query_status(service_->address(), "", client_tls(), kPatience).ok());
}

TEST_F(ControlTlsTest, JoinsWithAClientCertificate) {
  start(server_tls(true));
  const Status status = join(client_tls(authority_.sign("DNS:worker")));
  EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST_F(ControlTlsTest, AClientWithoutTheCertificateAskedForIsRefused) {
  start(server_tls(true));
  const Status status = join(client_tls());
  EXPECT_EQ(status.code(), ErrorCode::kPermissionDenied) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("client certificate"));
}

TEST_F(ControlTlsTest, AClientCertificateOfAStrangerIsRefused) {
  start(server_tls(true));
  const Status status = join(client_tls(stranger_.sign("DNS:worker")));
  EXPECT_EQ(status.code(), ErrorCode::kPermissionDenied) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("does not trust the client certificate"));
}

TEST_F(ControlTlsTest, AnAggregatorCertifiedByAStrangerIsNotTrusted) {
  start(server_tls(false));
  TlsOptions tls;
  tls.ca_cert = stranger_.cert();
  const Status status = join(tls);
  EXPECT_EQ(status.code(), ErrorCode::kPermissionDenied) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("not signed by the CA"));
  EXPECT_EQ(query_status(service_->address(), "", tls, kPatience).status().code(),
            ErrorCode::kPermissionDenied);
}

TEST_F(ControlTlsTest, ACertificateForAnotherHostIsNotTrusted) {
  const TestCertificate other = authority_.sign("DNS:elsewhere");
  TlsOptions tls;
  tls.cert = other.cert;
  tls.private_key = other.private_key;
  start(tls);
  const Status status = join(client_tls());
  EXPECT_EQ(status.code(), ErrorCode::kPermissionDenied) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("another host name"));
}

TEST_F(ControlTlsTest, APlainClientIsToldOfTls) {
  start(server_tls(false));
  const Status status = join({});
  EXPECT_EQ(status.code(), ErrorCode::kUnreachable) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("without TLS"));
}

TEST_F(ControlTlsTest, ATlsClientIsToldOfAPlainAggregator) {
  start({});
  const Status status = join(client_tls());
  EXPECT_EQ(status.code(), ErrorCode::kUnreachable) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("does not speak TLS"));
}

TEST_F(ControlTlsTest, UnusableOptionsAreRefused) {
  const auto refused = [&](const TlsOptions& tls) {
    ControlServiceOptions options;
    options.tls = tls;
    const auto service = ControlService::start(options, &dataplane_);
    EXPECT_FALSE(service.ok());
    EXPECT_EQ(service.status().code(), ErrorCode::kInvalidArgument);
    return service.status().message();
  };
  TlsOptions tls = server_tls(false);
  tls.private_key = "garbage";
  EXPECT_THAT(refused(tls), HasSubstr("not valid PEM"));
  tls = server_tls(false);
  tls.require_client_cert = true;
  EXPECT_THAT(refused(tls), HasSubstr("needs the CA certificate"));
  tls = {};
  tls.ca_cert = authority_.cert();
  EXPECT_THAT(refused(tls), HasSubstr("needs a certificate"));

  start({});
  tls = {};
  tls.ca_cert = "garbage";
  Status status = join(tls);
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("not valid PEM"));
  tls = client_tls();
  tls.cert = server_.cert;
  status = join(tls);
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("together"));
}

}  // namespace
}  // namespace netsum::control_tls_test
