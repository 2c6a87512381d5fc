#include "common/tls/openssl.h"

#include <fmt/format.h>

#include <ctime>

#include "common/io/sha256.h"

namespace sft::tls {

absl::Status LibraryError(std::string_view what) {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  char text[256] = "no reason given";
  if (code != 0) ERR_error_string_n(code, text, sizeof(text));
  return Internal(fmt::format("{}: {}", what, text));
}

Bio MemoryOf(std::string_view text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

std::string TextOf(BIO* bio) {
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(bio, &bytes);
  return size > 0 ? std::string(bytes, static_cast<size_t>(size)) : std::string();
}

absl::StatusOr<X509Ptr> ParseCertificate(std::string_view pem) {
  const Bio bio = MemoryOf(pem);
  X509Ptr certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr) {
    ERR_clear_error();
    return InvalidArgument("this is no certificate: it must begin with BEGIN CERTIFICATE (PEM)");
  }
  return certificate;
}

absl::StatusOr<std::string> ToPem(X509* certificate) {
  const Bio bio(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509(bio.get(), certificate) != 1) {
    return LibraryError("cannot write a certificate");
  }
  return TextOf(bio.get());
}

std::string FingerprintOf(X509* certificate) {
  unsigned char* bytes = nullptr;
  const int size = i2d_X509(certificate, &bytes);
  if (size <= 0) return "";
  const std::unique_ptr<unsigned char, Free<[](unsigned char* p) { OPENSSL_free(p); }>> owner(
      bytes);
  return io::Sha256Hex({reinterpret_cast<const char*>(bytes), static_cast<size_t>(size)});
}

Validity ValidityOf(X509* certificate) {
  const auto time_of = [](const ASN1_TIME* text) {
    std::tm parts{};
    if (ASN1_TIME_to_tm(text, &parts) != 1) return WallTime();
    return WallTime(std::chrono::seconds(timegm(&parts)));
  };
  return {time_of(X509_get0_notBefore(certificate)), time_of(X509_get0_notAfter(certificate))};
}

}  // namespace sft::tls
