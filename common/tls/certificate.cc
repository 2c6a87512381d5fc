#include "common/tls/certificate.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/io/sha256.h"
#include "common/tls/openssl.h"

namespace sft::tls {
namespace {

constexpr int kSerialBits = 159;  // RFC 5280: at most 20 octets, positive

absl::StatusOr<Key> ParseKey(std::string_view pem) {
  const Bio bio = MemoryOf(pem);
  Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
  if (key != nullptr) return key;
  ERR_clear_error();
  return InvalidArgument("this is no private key: it must begin with BEGIN PRIVATE KEY (PEM)");
}

absl::StatusOr<Request> ParseRequest(std::string_view pem) {
  const Bio bio = MemoryOf(pem);
  Request request(PEM_read_bio_X509_REQ(bio.get(), nullptr, nullptr, nullptr));
  EVP_PKEY* const key = request == nullptr ? nullptr : X509_REQ_get0_pubkey(request.get());
  // The signature proves that the requester has the key.
  if (key == nullptr || X509_REQ_verify(request.get(), key) != 1) {
    ERR_clear_error();
    return InvalidArgument("this is no certificate request that is signed by its own key");
  }
  if (EVP_PKEY_get_id(key) != EVP_PKEY_EC) return InvalidArgument("a node's key is EC P-256");
  return request;
}

std::string HashOf(EVP_PKEY* key) {
  unsigned char* bytes = nullptr;
  const int size = i2d_PUBKEY(key, &bytes);
  if (size <= 0) return "";
  const std::unique_ptr<unsigned char, Free<[](unsigned char* p) { OPENSSL_free(p); }>> owner(
      bytes);
  return io::Sha256Hex({reinterpret_cast<const char*>(bytes), static_cast<size_t>(size)});
}

bool SetName(X509_NAME* name, std::string_view common_name) {
  return X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8,
                                    reinterpret_cast<const unsigned char*>(common_name.data()),
                                    static_cast<int>(common_name.size()), -1, 0) == 1;
}

bool AddExtension(X509* certificate, X509* issuer, int id, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, id, value.c_str()));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

bool SetSerial(X509* certificate) {
  const BigNumber number(BN_new());
  return number != nullptr &&
         BN_rand(number.get(), kSerialBits, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1 &&
         BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

bool SetTimes(X509* certificate, const Validity& validity) {
  const auto seconds = [](WallTime time) {
    return std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch()).count();
  };
  return ASN1_TIME_set(X509_getm_notBefore(certificate), seconds(validity.from)) != nullptr &&
         ASN1_TIME_set(X509_getm_notAfter(certificate), seconds(validity.to)) != nullptr;
}

// Contents of a new certificate beside its name, key and validity.
struct Content {
  std::vector<std::pair<int, std::string>> extensions;
};

// A null `issuer` makes it self-signed.
absl::StatusOr<std::string> Sign(std::string_view common_name, EVP_PKEY* key, X509* issuer,
                                 EVP_PKEY* issuer_key, const Validity& validity,
                                 const Content& content) {
  const X509Ptr made(X509_new());
  X509* const certificate = made.get();
  bool ok = certificate != nullptr && X509_set_version(certificate, X509_VERSION_3) == 1 &&
            SetSerial(certificate) && SetTimes(certificate, validity) &&
            SetName(X509_get_subject_name(certificate), common_name) &&
            X509_set_pubkey(certificate, key) == 1;
  X509* const signer = issuer == nullptr ? certificate : issuer;
  ok = ok && X509_set_issuer_name(certificate, X509_get_subject_name(signer)) == 1;
  for (const auto& [id, value] : content.extensions) {
    ok = ok && AddExtension(certificate, signer, id, value);
  }
  if (!ok || X509_sign(certificate, issuer_key, EVP_sha256()) == 0) {
    return LibraryError(fmt::format("cannot make the certificate of {}", common_name));
  }
  return ToPem(certificate);
}

bool IsAddress(const std::string& name) {
  in6_addr v6{};
  in_addr v4{};
  return inet_pton(AF_INET6, name.c_str(), &v6) == 1 || inet_pton(AF_INET, name.c_str(), &v4) == 1;
}

// In the extension's syntax a name with a comma could add other names.
absl::Status CheckHost(const std::string& name) {
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_*";
  if (IsAddress(name)) return absl::OkStatus();
  if (!name.empty() && name.size() <= 253 && name.find_first_not_of(kAllowed) == name.npos) {
    return absl::OkStatus();
  }
  return InvalidArgument(fmt::format("\"{}\" is neither a host's name nor an address", name));
}

std::string AddressText(const ASN1_OCTET_STRING* bytes) {
  char text[INET6_ADDRSTRLEN] = {};
  const int family = ASN1_STRING_length(bytes) == 4 ? AF_INET : AF_INET6;
  if (inet_ntop(family, ASN1_STRING_get0_data(bytes), text, sizeof(text)) == nullptr) return "";
  return text;
}

std::vector<std::string> NamesOf(X509* certificate) {
  std::vector<std::string> names;
  const std::unique_ptr<GENERAL_NAMES, Free<GENERAL_NAMES_free>> list(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; list != nullptr && i < sk_GENERAL_NAME_num(list.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(list.get(), i);
    if (name->type == GEN_DNS) {
      names.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.dNSName)),
                         static_cast<size_t>(ASN1_STRING_length(name->d.dNSName)));
    } else if (name->type == GEN_IPADD) {
      names.push_back(AddressText(name->d.iPAddress));
    }
  }
  return names;
}

}  // namespace

absl::StatusOr<std::string> MakeKey() {
  const Key key(EVP_EC_gen("P-256"));
  const Bio bio(BIO_new(BIO_s_mem()));
  if (key == nullptr || PEM_write_bio_PKCS8PrivateKey(bio.get(), key.get(), nullptr, nullptr, 0,
                                                      nullptr, nullptr) != 1) {
    return LibraryError("cannot make a key");
  }
  return TextOf(bio.get());
}

absl::StatusOr<Identity> MakeAuthority(std::string_view common_name, const Validity& validity) {
  Identity authority;
  SFT_ASSIGN_OR_RETURN(authority.key_pem, MakeKey());
  SFT_ASSIGN_OR_RETURN(const Key key, ParseKey(authority.key_pem));
  SFT_ASSIGN_OR_RETURN(authority.certificate_pem,
                       Sign(common_name, key.get(), nullptr, key.get(), validity,
                            {{{NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
                              {NID_key_usage, "critical,keyCertSign,cRLSign"},
                              {NID_subject_key_identifier, "hash"}}}));
  return authority;
}

absl::StatusOr<std::string> SignServer(const Identity& authority, std::string_view key_pem,
                                       const std::vector<std::string>& names,
                                       const Validity& validity) {
  if (names.empty()) return InvalidArgument("a server's certificate needs a name");
  std::vector<std::string> alternatives;
  for (const std::string& name : names) {
    SFT_RETURN_IF_ERROR(CheckHost(name));
    alternatives.push_back((IsAddress(name) ? "IP:" : "DNS:") + name);
  }
  SFT_ASSIGN_OR_RETURN(const X509Ptr issuer, ParseCertificate(authority.certificate_pem));
  SFT_ASSIGN_OR_RETURN(const Key issuer_key, ParseKey(authority.key_pem));
  SFT_ASSIGN_OR_RETURN(const Key key, ParseKey(key_pem));
  return Sign("sft-server", key.get(), issuer.get(), issuer_key.get(), validity,
              {{{NID_basic_constraints, "critical,CA:FALSE"},
                {NID_key_usage, "critical,digitalSignature"},
                {NID_ext_key_usage, "serverAuth"},
                {NID_authority_key_identifier, "keyid"},
                {NID_subject_alt_name, fmt::format("{}", fmt::join(alternatives, ","))}}});
}

absl::StatusOr<std::string> MakeRequest(std::string_view key_pem, std::string_view common_name) {
  SFT_ASSIGN_OR_RETURN(const Key key, ParseKey(key_pem));
  const Request request(X509_REQ_new());
  const Bio bio(BIO_new(BIO_s_mem()));
  const bool ok = request != nullptr &&
                  SetName(X509_REQ_get_subject_name(request.get()), common_name) &&
                  X509_REQ_set_pubkey(request.get(), key.get()) == 1 &&
                  X509_REQ_sign(request.get(), key.get(), EVP_sha256()) != 0 &&
                  PEM_write_bio_X509_REQ(bio.get(), request.get()) == 1;
  if (!ok) return LibraryError("cannot make a certificate request");
  return TextOf(bio.get());
}

absl::StatusOr<std::string> SignNode(const Identity& authority, std::string_view request_pem,
                                     std::string_view node, const Validity& validity) {
  SFT_ASSIGN_OR_RETURN(const Request request, ParseRequest(request_pem));
  SFT_ASSIGN_OR_RETURN(const X509Ptr issuer, ParseCertificate(authority.certificate_pem));
  SFT_ASSIGN_OR_RETURN(const Key issuer_key, ParseKey(authority.key_pem));
  return Sign(node, X509_REQ_get0_pubkey(request.get()), issuer.get(), issuer_key.get(), validity,
              {{{NID_basic_constraints, "critical,CA:FALSE"},
                {NID_key_usage, "critical,digitalSignature"},
                {NID_ext_key_usage, "clientAuth"},
                {NID_authority_key_identifier, "keyid"}}});
}

absl::StatusOr<Certificate> ReadCertificate(std::string_view pem) {
  SFT_ASSIGN_OR_RETURN(const X509Ptr parsed, ParseCertificate(pem));
  Certificate certificate;
  char name[256] = {};
  X509_NAME_get_text_by_NID(X509_get_subject_name(parsed.get()), NID_commonName, name,
                            sizeof(name));
  certificate.common_name = name;
  certificate.names = NamesOf(parsed.get());
  certificate.key_sha256 = HashOf(X509_get0_pubkey(parsed.get()));
  certificate.fingerprint = FingerprintOf(parsed.get());
  certificate.validity = ValidityOf(parsed.get());
  return certificate;
}

absl::StatusOr<std::string> KeyOfRequest(std::string_view request_pem) {
  SFT_ASSIGN_OR_RETURN(const Request request, ParseRequest(request_pem));
  return HashOf(X509_REQ_get0_pubkey(request.get()));
}

absl::StatusOr<std::string> KeyOfPrivate(std::string_view key_pem) {
  SFT_ASSIGN_OR_RETURN(const Key key, ParseKey(key_pem));
  return HashOf(key.get());
}

bool IsForHost(std::string_view pem, const std::string& host) {
  const absl::StatusOr<X509Ptr> certificate = ParseCertificate(pem);
  if (!certificate.ok()) return false;
  if (IsAddress(host)) return X509_check_ip_asc(certificate->get(), host.c_str(), 0) == 1;
  return X509_check_host(certificate->get(), host.data(), host.size(), 0, nullptr) == 1;
}

absl::StatusOr<std::string> SignText(std::string_view key_pem, std::string_view text) {
  SFT_ASSIGN_OR_RETURN(const Key key, ParseKey(key_pem));
  const Digest digest(EVP_MD_CTX_new());
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  size_t size = 0;
  std::string signature;
  bool ok = digest != nullptr &&
            EVP_DigestSignInit(digest.get(), nullptr, EVP_sha256(), nullptr, key.get()) == 1 &&
            EVP_DigestSign(digest.get(), nullptr, &size, bytes, text.size()) == 1;
  if (ok) {
    signature.resize(size);
    ok = EVP_DigestSign(digest.get(), reinterpret_cast<unsigned char*>(signature.data()), &size,
                        bytes, text.size()) == 1;
  }
  if (!ok) return LibraryError("cannot sign");
  signature.resize(size);
  return signature;
}

bool IsSignedBy(std::string_view pem, std::string_view text, std::string_view signature) {
  const absl::StatusOr<X509Ptr> certificate = ParseCertificate(pem);
  if (!certificate.ok()) return false;
  const Digest digest(EVP_MD_CTX_new());
  const bool ok =
      digest != nullptr &&
      EVP_DigestVerifyInit(digest.get(), nullptr, EVP_sha256(), nullptr,
                           X509_get0_pubkey(certificate->get())) == 1 &&
      EVP_DigestVerify(digest.get(), reinterpret_cast<const unsigned char*>(signature.data()),
                       signature.size(), reinterpret_cast<const unsigned char*>(text.data()),
                       text.size()) == 1;
  ERR_clear_error();
  return ok;
}

absl::Status Verify(std::string_view pem, std::string_view authority_pem, Purpose purpose,
                    WallTime now) {
  SFT_ASSIGN_OR_RETURN(const X509Ptr certificate, ParseCertificate(pem));
  SFT_ASSIGN_OR_RETURN(const X509Ptr authority, ParseCertificate(authority_pem));
  const StorePtr trusted(X509_STORE_new());
  const StoreContext context(X509_STORE_CTX_new());
  if (trusted == nullptr || context == nullptr ||
      X509_STORE_add_cert(trusted.get(), authority.get()) != 1 ||
      X509_STORE_CTX_init(context.get(), trusted.get(), certificate.get(), nullptr) != 1) {
    return LibraryError("cannot verify a certificate");
  }
  X509_VERIFY_PARAM* const how = X509_STORE_CTX_get0_param(context.get());
  X509_VERIFY_PARAM_set_purpose(
      how, purpose == Purpose::kServer ? X509_PURPOSE_SSL_SERVER : X509_PURPOSE_SSL_CLIENT);
  X509_VERIFY_PARAM_set_time(
      how, std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch()).count());
  if (X509_verify_cert(context.get()) == 1) return absl::OkStatus();
  const int code = X509_STORE_CTX_get_error(context.get());
  ERR_clear_error();
  const Validity validity = ValidityOf(certificate.get());
  if (code == X509_V_ERR_CERT_HAS_EXPIRED || code == X509_V_ERR_CERT_NOT_YET_VALID) {
    return absl::UnauthenticatedError(
        fmt::format("the certificate {} {}, and it is {} by this clock",
                    code == X509_V_ERR_CERT_HAS_EXPIRED ? "expired at" : "is good only from",
                    FormatUtc(code == X509_V_ERR_CERT_HAS_EXPIRED ? validity.to : validity.from),
                    FormatUtc(now)));
  }
  return absl::UnauthenticatedError(fmt::format("the certificate is not of this fleet ({})",
                                                X509_verify_cert_error_string(code)));
}

}  // namespace sft::tls
