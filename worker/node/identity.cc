#include "worker/node/identity.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>

#include "common/io/file.h"
#include "common/rpc/status.h"
#include "common/tls/certificate.h"
#include "common/tls/peer.h"
#include "sft/v1/auth_service.grpc.pb.h"

namespace sft::worker {
namespace {

constexpr std::string_view kJoinPrefix = "sftjoin_";
// Tries to reach a server that is just being started.
constexpr int kJoinTries = 15;
constexpr std::chrono::seconds kJoinPause{2};
constexpr std::chrono::minutes kMaxClockSkew{5};

absl::StatusOr<std::string> ReadToken(const std::string& file) {
  absl::StatusOr<std::string> read = io::ReadFile(file, 4096);
  if (!read.ok()) return Annotate(read.status(), "--join-token-file");
  const size_t end = read->find_last_not_of(" \r\n\t");
  read->resize(end == read->npos ? 0 : end + 1);
  if (read->starts_with(kJoinPrefix) && read->rfind('_') > kJoinPrefix.size()) return read;
  return InvalidArgument(fmt::format(
      "{} holds no join token: one line that begins with sftjoin_, as `sftctl admin token create "
      "--join` prints it",
      file));
}

// "sftjoin_ID_SECRET_FINGERPRINT"
std::string IdOf(const std::string& token) {
  return token.substr(kJoinPrefix.size(), token.find('_', kJoinPrefix.size()) - kJoinPrefix.size());
}
std::string FingerprintOf(const std::string& token) { return token.substr(token.rfind('_') + 1); }

int64_t Micros(const google::protobuf::Timestamp& time) {
  return time.seconds() * 1'000'000 + time.nanos() / 1000;
}

void SetTime(int64_t micros, google::protobuf::Timestamp* time) {
  time->set_seconds(micros / 1'000'000);
  time->set_nanos(static_cast<int32_t>(micros % 1'000'000 * 1000));
}

}  // namespace

absl::StatusOr<std::string> AuthorityOfToken(const std::string& file) {
  SFT_ASSIGN_OR_RETURN(const std::string token, ReadToken(file));
  return FingerprintOf(token);
}

absl::StatusOr<std::unique_ptr<Identity>> Identity::Open(const Options& options, Clock& clock) {
  SFT_ASSIGN_OR_RETURN(const std::vector<rpc::Endpoint> endpoints,
                       rpc::ParseEndpoints(options.server));
  std::unique_ptr<Identity> identity(new Identity(options, endpoints, clock));
  std::string token;
  const bool has_joined = io::Exists(identity->PathOf("node.crt"));
  if (has_joined && !options.join_token_file.empty() && !io::Exists(options.join_token_file)) {
    // The token was a one-time secret: deleting its file is right.
    spdlog::info("--join-token-file {} is not there: this node has joined, its certificate is used",
                 options.join_token_file);
  } else if (!options.join_token_file.empty()) {
    SFT_ASSIGN_OR_RETURN(token, ReadToken(options.join_token_file));
    if (io::ReadFile(identity->PathOf("joined_with"), 256).value_or("") == IdOf(token)) {
      spdlog::info("this worker has joined with token {} already: its certificate is used",
                   IdOf(token));
      token.clear();
    }
  }
  if (!token.empty()) SFT_RETURN_IF_ERROR(identity->Join(token));
  const bool joined = io::Exists(identity->PathOf("node.crt"));
  if (joined) SFT_RETURN_IF_ERROR(identity->Load());
  const bool here = std::all_of(endpoints.begin(), endpoints.end(), [](const auto& endpoint) {
    return rpc::IsLoopback(endpoint.host);
  });
  if (!joined && !here) {
    return FailedPrecondition(fmt::format(
        "--server {}: a server that is not on this machine is called with a certificate; get a "
        "join "
        "token (`sftctl admin token create --join`) and give it with --join-token-file FILE, once",
        options.server));
  }
  const MutexLock lock(identity->mutex_);
  identity->Dial();
  return identity;
}

void Identity::Dial() { channel_ = rpc::MakeChannel(endpoints_[current_].ToString(), security_); }

void Identity::Next() {
  if (endpoints_.size() == 1) return;  // its channel is to keep what it knows of it
  const MutexLock lock(mutex_);
  current_ = (current_ + 1) % endpoints_.size();
  Dial();
}

std::string Identity::Address() const {
  const MutexLock lock(mutex_);
  return endpoints_[current_].ToString();
}

std::shared_ptr<grpc::Channel> Identity::Channel() const {
  const MutexLock lock(mutex_);
  return channel_;
}

absl::Status Identity::Load() {
  rpc::Security security;
  SFT_ASSIGN_OR_RETURN(security.key_pem, io::ReadFile(PathOf("node.key"), 1 << 16));
  SFT_ASSIGN_OR_RETURN(security.certificate_pem, io::ReadFile(PathOf("node.crt"), 1 << 16));
  SFT_ASSIGN_OR_RETURN(security.authority_pem, io::ReadFile(PathOf("ca.crt"), 1 << 16));
  SFT_ASSIGN_OR_RETURN(const tls::Certificate read, tls::ReadCertificate(security.certificate_pem));
  if (read.common_name != options_.node) {
    return FailedPrecondition(fmt::format(
        "{} is the data folder of node {}, not of {}: start this worker with --node {}, or with "
        "another --data-dir and a join token",
        options_.data_dir, read.common_name, options_.node, read.common_name));
  }
  const absl::Status good = tls::Verify(security.certificate_pem, security.authority_pem,
                                        tls::Purpose::kNode, clock_.Wall());
  if (!good.ok()) {
    return FailedPrecondition(
        fmt::format("{}: {}; join again with a new token (`sftctl admin token create --join`, then "
                    "--join-token-file FILE)",
                    PathOf("node.crt"), Message(good)));
  }
  const MutexLock lock(mutex_);
  security_ = std::move(security);
  return absl::OkStatus();
}

// Requests the node's certificate. Its key is on disk before anybody sees it, so a second try, of
// this process or the next, uses the same key.
absl::StatusOr<std::string> Identity::AskToJoin(const rpc::Endpoint& server,
                                                const std::string& token) {
  SFT_ASSIGN_OR_RETURN(const std::string authority,
                       tls::FetchAuthority(server.host, server.port, FingerprintOf(token)));
  SFT_RETURN_IF_ERROR(tls::Explain(server.host, server.port, authority, clock_.Wall()));
  SFT_RETURN_IF_ERROR(io::WriteFileAtomic(PathOf("ca.crt"), authority));
  SFT_ASSIGN_OR_RETURN(const std::string key, io::ReadFile(PathOf("node.key"), 1 << 16));
  const auto stub = v1::AuthService::NewStub(
      rpc::MakeChannel(server.ToString(), {.authority_pem = authority, .token = token}));
  v1::JoinRequest request;
  request.set_node(options_.node);
  SFT_ASSIGN_OR_RETURN(*request.mutable_certificate_request_pem(),
                       tls::MakeRequest(key, options_.node));
  SetTime(UnixMicros(clock_.Wall()), request.mutable_time());
  grpc::ClientContext context;
  rpc::SetDeadline(context, rpc::kUnaryDeadline);
  v1::JoinResponse response;
  SFT_RETURN_IF_ERROR(rpc::FromGrpc(stub->Join(&context, request, &response)));
  const auto apart =
      std::chrono::microseconds(UnixMicros(clock_.Wall()) - Micros(response.server_time()));
  if (std::chrono::abs(apart) > kMaxClockSkew) {
    return FailedPrecondition(fmt::format(
        "this node's clock is {} min {} the server's: set the wrong one",
        std::chrono::duration_cast<std::chrono::minutes>(std::chrono::abs(apart)).count(),
        apart.count() > 0 ? "ahead of" : "behind"));
  }
  return response.certificate_pem();
}

absl::Status Identity::Join(const std::string& token) {
  SFT_RETURN_IF_ERROR(io::MakeDirs(options_.data_dir + "/tls"));
  if (::chmod((options_.data_dir + "/tls").c_str(), 0700) != 0) {
    return ErrnoStatus("cannot close " + options_.data_dir + "/tls", errno);
  }
  if (!io::Exists(PathOf("node.key"))) {
    SFT_ASSIGN_OR_RETURN(const std::string key, tls::MakeKey());
    SFT_RETURN_IF_ERROR(io::WriteFileAtomic(PathOf("node.key"), key, io::kPrivateMode));
  }
  const int count = static_cast<int>(endpoints_.size());
  absl::StatusOr<std::string> certificate = AskToJoin(endpoints_.front(), token);
  for (int i = 1; absl::IsUnavailable(certificate.status()) && i < kJoinTries * count; ++i) {
    if (i == 1) spdlog::warn("waiting for the server: {}", Message(certificate.status()));
    if (i % count == 0) clock_.Sleep(kJoinPause);
    certificate = AskToJoin(endpoints_[static_cast<size_t>(i % count)], token);
  }
  if (!certificate.ok()) {
    return Annotate(certificate.status(),
                    fmt::format("{} cannot join the fleet of {}", options_.node, options_.server));
  }
  SFT_RETURN_IF_ERROR(Keep(*certificate));
  SFT_RETURN_IF_ERROR(io::WriteFileAtomic(PathOf("joined_with"), IdOf(token)));
  spdlog::info("node {} has joined the fleet of {}", options_.node, options_.server);
  return absl::OkStatus();
}

absl::Status Identity::Keep(const std::string& certificate_pem) {
  SFT_RETURN_IF_ERROR(tls::ReadCertificate(certificate_pem).status());
  return io::WriteFileAtomic(PathOf("node.crt"), certificate_pem);
}

absl::StatusOr<bool> Identity::RenewIfDue() {
  rpc::Security security;
  {
    const MutexLock lock(mutex_);
    security = security_;
  }
  if (security.certificate_pem.empty()) return false;
  SFT_ASSIGN_OR_RETURN(const tls::Certificate read, tls::ReadCertificate(security.certificate_pem));
  const Nanos life = read.validity.to - read.validity.from;
  if (clock_.Wall() < read.validity.from + life * 2 / 3) return false;
  v1::RenewCertificateRequest request;
  SFT_ASSIGN_OR_RETURN(*request.mutable_certificate_request_pem(),
                       tls::MakeRequest(security.key_pem, options_.node));
  SetTime(UnixMicros(clock_.Wall()), request.mutable_time());
  grpc::ClientContext context;
  rpc::SetDeadline(context, rpc::kUnaryDeadline);
  v1::JoinResponse response;
  const auto stub = v1::AuthService::NewStub(Channel());
  SFT_RETURN_IF_ERROR(rpc::FromGrpc(stub->RenewCertificate(&context, request, &response)));
  SFT_RETURN_IF_ERROR(Keep(response.certificate_pem()));
  security.certificate_pem = response.certificate_pem();
  spdlog::info("this node's certificate was renewed");
  const MutexLock lock(mutex_);
  security_ = security;
  Dial();
  return true;
}

}  // namespace sft::worker
