#include "common/tls/peer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "common/io/file.h"
#include "common/tls/openssl.h"

namespace sft::tls {
namespace {

constexpr int kPatienceMs = 5000;

// Connects; reads and writes time out after kPatienceMs.
absl::StatusOr<io::UniqueFd> Dial(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) {
    return Unavailable(fmt::format("host \"{}\" is not known: {}", host, gai_strerror(code)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  absl::Status last = Unavailable(fmt::format("host \"{}\" has no address", host));
  const timeval patience{kPatienceMs / 1000, 0};
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    io::UniqueFd fd(::socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    // SO_SNDTIMEO also bounds connect().
    if (fd.valid() &&
        ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)) == 0 &&
        ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) == 0 &&
        ::connect(fd.get(), each->ai_addr, each->ai_addrlen) == 0) {
      return fd;
    }
    last = Unavailable(fmt::format("{}:{} does not answer: {}", host, port, strerror(errno)));
  }
  return last;
}

bool SignsItself(const std::string& pem) {
  const absl::StatusOr<X509Ptr> parsed = ParseCertificate(pem);
  return parsed.ok() && X509_self_signed(parsed->get(), /*verify_signature=*/1) == 1;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> FetchChain(const std::string& host, int port) {
  SFT_ASSIGN_OR_RETURN(const io::UniqueFd fd, Dial(host, port));
  const SslContext context(SSL_CTX_new(TLS_client_method()));
  if (context == nullptr) return LibraryError("cannot begin TLS");
  // Nothing is sent over this connection: only its certificates are wanted.
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
  const Ssl ssl(SSL_new(context.get()));
  constexpr unsigned char kHttp2[] = {2, 'h', '2'};
  if (ssl == nullptr || SSL_set_fd(ssl.get(), fd.get()) != 1 ||
      SSL_set_alpn_protos(ssl.get(), kHttp2, sizeof(kHttp2)) != 0) {
    return LibraryError("cannot begin TLS");
  }
  if (SSL_connect(ssl.get()) != 1) {
    ERR_clear_error();
    return FailedPrecondition(
        fmt::format("{}:{} answers, but not with TLS: it is no sft-server that was initialised "
                    "(`sft-server init`)",
                    host, port));
  }
  std::vector<std::string> chain;
  const STACK_OF(X509)* shown = SSL_get_peer_cert_chain(ssl.get());
  for (int i = 0; shown != nullptr && i < sk_X509_num(shown); ++i) {
    SFT_ASSIGN_OR_RETURN(std::string pem, ToPem(sk_X509_value(shown, i)));
    chain.push_back(std::move(pem));
  }
  return chain;
}

absl::StatusOr<std::string> FetchAuthority(const std::string& host, int port,
                                           const std::string& fingerprint) {
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> chain, FetchChain(host, port));
  if (chain.empty() || !SignsItself(chain.back())) {
    return FailedPrecondition(
        fmt::format("{}:{} does not show the certificate of its authority: give it with --ca FILE",
                    host, port));
  }
  SFT_ASSIGN_OR_RETURN(const Certificate authority, ReadCertificate(chain.back()));
  if (!fingerprint.empty() && authority.fingerprint != fingerprint) {
    return PermissionDenied(fmt::format(
        "{}:{} belongs to the authority with the fingerprint {}, not to {}: it is another server, "
        "or somebody between here and there",
        host, port, authority.fingerprint, fingerprint));
  }
  return chain.back();
}

absl::Status Explain(const std::string& host, int port, const std::string& authority_pem,
                     WallTime now) {
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> chain, FetchChain(host, port));
  if (chain.empty()) return FailedPrecondition("the server shows no certificate");
  const absl::Status good = Verify(chain.front(), authority_pem, Purpose::kServer, now);
  if (!good.ok()) {
    return Annotate(good,
                    fmt::format("the server at {}:{} cannot be trusted (if its certificate is "
                                "too old: `sft-server renew`; if a clock is wrong: set it)",
                                host, port));
  }
  SFT_ASSIGN_OR_RETURN(const Certificate certificate, ReadCertificate(chain.front()));
  if (!IsForHost(chain.front(), host)) {
    return absl::UnauthenticatedError(fmt::format(
        "the server's certificate is for {}, not for {}: use one of these names, or add this one "
        "on the server (`sft-server renew --name {}`)",
        fmt::join(certificate.names, ", "), host, host));
  }
  return absl::OkStatus();
}

}  // namespace sft::tls
