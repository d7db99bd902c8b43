#include "aggregator/control/test_certificates.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "src/base/assert.h"

namespace netsum {
namespace {

using Key = std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)>;
using Cert = std::unique_ptr<X509, void (*)(X509*)>;

constexpr long kHourSeconds = 3600;

template <typename Write>
std::string pem(Write write) {
  const std::unique_ptr<BIO, int (*)(BIO*)> memory(BIO_new(BIO_s_mem()), BIO_free);
  NETSUM_ASSERT(write(memory.get()) == 1);
  char* data = nullptr;
  const long size = BIO_get_mem_data(memory.get(), &data);
  return {data, static_cast<size_t>(size)};
}

Key new_key() {
  Key key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  NETSUM_ASSERT(key != nullptr);
  return key;
}

void add_extension(X509* cert, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, cert, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  NETSUM_ASSERT(extension != nullptr && X509_add_ext(cert, extension, -1) == 1);
  X509_EXTENSION_free(extension);
}

Cert new_cert(EVP_PKEY* key, const std::string& common_name, long serial) {
  Cert cert(X509_new(), X509_free);
  X509_set_version(cert.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(cert.get()), serial);
  X509_gmtime_adj(X509_getm_notBefore(cert.get()), -kHourSeconds);
  X509_gmtime_adj(X509_getm_notAfter(cert.get()), kHourSeconds);
  X509_set_pubkey(cert.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(cert.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(common_name.c_str()), -1, -1, 0);
  return cert;
}

std::string cert_pem(X509* cert) {
  return pem([&](BIO* out) { return PEM_write_bio_X509(out, cert); });
}

}  // namespace

TestAuthority::TestAuthority() : key_(new_key()), cert_(new_cert(key_.get(), "netsum test authority", 1)) {
  X509_set_issuer_name(cert_.get(), X509_get_subject_name(cert_.get()));
  add_extension(cert_.get(), cert_.get(), NID_basic_constraints, "critical,CA:TRUE");
  NETSUM_ASSERT(X509_sign(cert_.get(), key_.get(), EVP_sha256()) > 0);
  cert_pem_ = cert_pem(cert_.get());
}

TestCertificate TestAuthority::sign(const std::string& subject_alt_name) const {
  const Key key = new_key();
  const Cert cert = new_cert(key.get(), "netsum test", 2);
  X509_set_issuer_name(cert.get(), X509_get_subject_name(cert_.get()));
  add_extension(cert.get(), cert_.get(), NID_subject_alt_name, subject_alt_name);
  NETSUM_ASSERT(X509_sign(cert.get(), key_.get(), EVP_sha256()) > 0);
  return {cert_pem(cert.get()), pem([&](BIO* out) {
            return PEM_write_bio_PrivateKey(out, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
          })};
}

}  // namespace netsum
