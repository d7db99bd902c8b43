// Certificates for tests, made afresh: an authority, and what it signs.
#ifndef NETSUM_AGGREGATOR_CONTROL_TEST_CERTIFICATES_H_
#define NETSUM_AGGREGATOR_CONTROL_TEST_CERTIFICATES_H_

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

namespace netsum {

struct TestCertificate {
  std::string cert;  // PEM, as is the key
  std::string private_key;
};

class TestAuthority {
 public:
  TestAuthority();
  const std::string& cert() const { return cert_pem_; }
  // `subject_alt_name` as OpenSSL writes it: "IP:127.0.0.1", "DNS:host".
  TestCertificate sign(const std::string& subject_alt_name) const;

 private:
  std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key_;
  std::unique_ptr<X509, void (*)(X509*)> cert_;
  std::string cert_pem_;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_TEST_CERTIFICATES_H_
