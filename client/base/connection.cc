#include "client/base/connection.h"

#include <fmt/format.h>

#include "client/base/interrupt.h"
#include "client/base/login.h"
#include "client/output/text.h"
#include "common/base/env.h"
#include "common/base/toml_limits.h"
#include "common/base/toml_plus_plus.h"
#include "common/base/version.h"
#include "common/io/file.h"
#include "common/rpc/endpoint.h"
#include "common/rpc/version.h"
#include "common/tls/peer.h"
#include "sft/v1/cluster_service.grpc.pb.h"

namespace sft::client {
namespace {

constexpr int kAttempts = 4;

absl::StatusOr<std::string> ServerOfConfigFile() {
  const std::optional<std::string> config_home = GetEnv("XDG_CONFIG_HOME");
  const std::optional<std::string> home = GetEnv("HOME");
  if (!config_home && !home) return std::string();
  const std::string path = (config_home ? *config_home : *home + "/.config") + "/sft/config.toml";
  if (!io::Exists(path)) return std::string();
  SFT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(path, 1 << 20));
  if (const auto excess = FindTomlExcess(text)) {
    return InvalidArgument(fmt::format("{}:{}: {}", path, excess->line, excess->message));
  }
  const toml::parse_result parsed = toml::parse(text, path);
  if (!parsed) {
    return InvalidArgument(fmt::format("{}:{}: {}", path, parsed.error().source().begin.line,
                                       parsed.error().description()));
  }
  for (const auto& [key, value] : parsed.table()) {
    if (key.str() != "server") {
      return InvalidArgument(
          fmt::format("{}:{}: unknown key '{}'; the one key is server = \"host:port\"", path,
                      value.source().begin.line, key.str()));
    }
  }
  const toml::node_view server = parsed.table()["server"];
  if (!server) return std::string();
  if (!server.is_string()) {
    return InvalidArgument(fmt::format("{}:{}: server must be a string, \"host:port\"", path,
                                       server.node()->source().begin.line));
  }
  return server.value_or(std::string());
}

}  // namespace

absl::StatusOr<ServerAddress> ResolveServer(const std::string& flag) {
  ServerAddress server{flag, "--server"};
  if (server.address.empty()) server = {GetEnv("SFT_SERVER").value_or(""), "SFT_SERVER"};
  if (server.address.empty()) {
    server.origin = "config.toml";
    SFT_ASSIGN_OR_RETURN(server.address, ServerOfConfigFile());
  }
  if (server.address.empty()) {
    server.origin = "the last login";
    SFT_ASSIGN_OR_RETURN(server.address, LastServer());
  }
  if (server.address.empty()) server = {kDefaultServer, "the default"};
  SFT_RETURN_IF_ERROR(Annotate(rpc::ParseEndpoints(server.address).status(), server.origin));
  return server;
}

Connection::Connection(std::string server, absl::StatusOr<rpc::Security> security, Console console,
                       Clock& clock)
    : Connection(rpc::MakeChannel(server, security.value_or(rpc::Security())), server, console,
                 clock) {
  usable_ = security.status();
  if (security.ok()) authority_pem_ = security->authority_pem;
}

Connection::Connection(std::shared_ptr<grpc::Channel> channel, std::string server, Console console,
                       Clock& clock)
    : server_(std::move(server)), console_(console), clock_(clock), channel_(std::move(channel)) {}

void Connection::Choose() {
  if (candidates_.size() < 2) return;
  const ServerCandidate& chosen = candidates_[ChooseServer(candidates_)];
  if (chosen.address == server_) return;
  server_ = chosen.address;
  usable_ = chosen.security.status();
  if (!usable_.ok()) return;
  authority_pem_ = chosen.security->authority_pem;
  channel_ = rpc::MakeChannel(server_, *chosen.security);
}

absl::Status Connection::Check() {
  Choose();
  SFT_RETURN_IF_ERROR(usable_);
  v1::GetServerInfoRequest request;
  request.set_client_version(kVersion);
  request.set_client_protocol(kProtocol);
  SFT_ASSIGN_OR_RETURN(const v1::ServerInfo info,
                       Call(&v1::ClusterService::Stub::GetServerInfo, request));
  return rpc::CheckServerProtocol(info.protocol(), info.min_protocol(), info.version());
}

grpc::Status Connection::Retry(const std::function<grpc::Status(grpc::ClientContext&)>& call) {
  grpc::Status status;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (attempt > 0) {
      clock_.Sleep(std::chrono::milliseconds(250) * (1 << attempt));
      Choose();
    }
    grpc::ClientContext context;
    rpc::SetDeadline(context, rpc::kUnaryDeadline);
    const Interrupt interrupt(context);
    status = call(context);
    if (status.ok()) break;
    if (Interrupt::Raised()) {
      return {grpc::StatusCode::CANCELLED,
              "interrupted; what was asked for may have been done all the same"};
    }
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE) break;
  }
  return status;
}

absl::Status Connection::ExplainTls() {
  const absl::StatusOr<rpc::Endpoint> endpoint = rpc::ParseEndpoint(server_);
  if (!endpoint.ok()) return absl::OkStatus();
  absl::Status why;
  if (!authority_pem_.empty()) {
    why = tls::Explain(endpoint->host, endpoint->port, authority_pem_, clock_.Wall());
  } else if (tls::FetchChain(endpoint->host, endpoint->port).ok()) {
    why = FailedPrecondition(
        fmt::format("the server at {} asks for TLS and a token: log in first (`sftctl login {}`)",
                    server_, server_));
  }
  // An unreachable server is explained better below.
  return absl::IsUnavailable(why) ? absl::OkStatus() : why;
}

absl::Status Connection::Describe(const grpc::Status& status,
                                  std::vector<rpc::FieldViolation>* violations) {
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    SFT_RETURN_IF_ERROR(ExplainTls());
    // The advice to start a server is only for addresses of this machine.
    const absl::StatusOr<rpc::Endpoint> endpoint = rpc::ParseEndpoint(server_);
    const bool here = endpoint.ok() && rpc::IsLoopback(endpoint->host);
    return Unavailable(fmt::format(
        "cannot reach sft-server at {} (address from {}): {}; {}, or name another with --server "
        "HOST:PORT or SFT_SERVER",
        server_, origin_, status.error_message(),
        here ? "start it with `sft-server --dev`"
             : "see that it runs and that nothing is between"));
  }
  for (const rpc::FieldViolation& violation : rpc::ViolationsOf(status)) {
    if (violations != nullptr) {
      violations->push_back(violation);
      continue;
    }
    console_.err << Lines(fmt::format("  {}: {}\n", violation.field, violation.description));
  }
  if (status.error_message().empty()) {
    return rpc::FromGrpc(
        {status.error_code(), fmt::format("the call failed without a reason (gRPC status {})",
                                          static_cast<int>(status.error_code()))});
  }
  return rpc::FromGrpc(status);
}

ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kSucceeded;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kOutOfRange:
      return kUsage;
    case absl::StatusCode::kNotFound:
      return kNotFound;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return kUnreachable;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kFailedPrecondition:
      return kRefused;
    case absl::StatusCode::kCancelled:
      return kInterrupted;
    default:
      return kInternal;
  }
}

ExitCode ExitCodeOf(const v1::Job& job) {
  switch (job.state()) {
    case v1::Job::SUCCEEDED:
      return kSucceeded;
    case v1::Job::CANCELLED:
      return kJobCancelled;
    case v1::Job::FAILED:
      return job.verdict().domain() == v1::Verdict::USER ? kJobFailedUser : kJobFailedInfra;
    default:
      return kInternal;
  }
}

}  // namespace sft::client
