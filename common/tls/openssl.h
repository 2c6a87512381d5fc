#pragma once

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/tls/certificate.h"

// OpenSSL objects with owners, for the sources of this folder.

namespace sft::tls {

// A deleter that calls the library's free function of the type.
template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Bio = std::unique_ptr<BIO, Free<BIO_free_all>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using X509Ptr = std::unique_ptr<X509, Free<X509_free>>;
using Request = std::unique_ptr<X509_REQ, Free<X509_REQ_free>>;
using Digest = std::unique_ptr<EVP_MD_CTX, Free<EVP_MD_CTX_free>>;
using StorePtr = std::unique_ptr<X509_STORE, Free<X509_STORE_free>>;
using StoreContext = std::unique_ptr<X509_STORE_CTX, Free<X509_STORE_CTX_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Free<X509_EXTENSION_free>>;
using BigNumber = std::unique_ptr<BIGNUM, Free<BN_free>>;
using SslContext = std::unique_ptr<SSL_CTX, Free<SSL_CTX_free>>;
using Ssl = std::unique_ptr<SSL, Free<SSL_free>>;

// INTERNAL with the library's error messages; empties its error queue.
absl::Status LibraryError(std::string_view what);

Bio MemoryOf(std::string_view text);
std::string TextOf(BIO* bio);
absl::StatusOr<X509Ptr> ParseCertificate(std::string_view pem);
absl::StatusOr<std::string> ToPem(X509* certificate);
std::string FingerprintOf(X509* certificate);
Validity ValidityOf(X509* certificate);

}  // namespace sft::tls
