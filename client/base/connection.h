#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/base/exit_codes.h"
#include "client/base/server_choice.h"
#include "client/output/console.h"
#include "common/base/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"

namespace sft::client {

inline constexpr char kDefaultServer[] = "127.0.0.1:7070";

// Address of the server, and where it came from.
struct ServerAddress {
  std::string address;  // "host:port", or several, with commas
  std::string origin;   // "--server", "SFT_SERVER", a file, or "the default"
};

// Chooses the server: `flag` if not empty, else SFT_SERVER, else `server` of
// ~/.config/sft/config.toml, else the server of the last login, else kDefaultServer.
// INVALID_ARGUMENT for a broken file or address.
absl::StatusOr<ServerAddress> ResolveServer(const std::string& flag);

// A connection to one server; dials at the first call. Owned by a command for its whole run.
class Connection {
 public:
  // If `security` is an error, Check returns it; commands that do not connect are not affected.
  Connection(std::string server, absl::StatusOr<rpc::Security> security, Console console,
             Clock& clock);
  // For tests: uses an in-process channel.
  Connection(std::shared_ptr<grpc::Channel> channel, std::string server, Console console,
             Clock& clock);

  // Where the fleet's server may be, this connection's among them: the one that serves is looked
  // for by Check, and whenever it is lost.
  void SetCandidates(std::vector<ServerCandidate> candidates) {
    candidates_ = std::move(candidates);
  }
  // Looks for it; without effect where there is one address. For who reopens a stream.
  void Choose();

  // Asks the server for its version and refuses one that is not compatible; every command's first
  // call.
  absl::Status Check();

  const std::string& server() const { return server_; }
  // Where the address came from.
  const std::string& origin() const { return origin_; }
  // Why there are no credentials for the server; OK where there are, or none are needed.
  const absl::Status& usable() const { return usable_; }
  bool secured() const { return !authority_pem_.empty(); }
  // Names where the address came from, for the error about an unreachable server; by default
  // "--server".
  void NameOrigin(std::string origin) { origin_ = std::move(origin); }
  Console& console() { return console_; }
  Clock& clock() { return clock_; }

  // Makes one unary call with the usual deadline, as in Call(&v1::JobService::Stub::GetJob,
  // request). UNAVAILABLE is retried for a few seconds: requests are safe to repeat. Bad keys of a
  // job file are put into `violations` if it is not null, else printed.
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Response*),
                                const Request& request,
                                std::vector<rpc::FieldViolation>* violations = nullptr) {
    Response response;
    const grpc::Status status = Retry([&](grpc::ClientContext& context) {
      Stub stub(channel_);
      return (stub.*method)(&context, request, &response);
    });
    if (!status.ok()) return Describe(status, violations);
    return response;
  }

  // The stub for streaming calls, as in To<v1::JobService>().WatchJob(&context, request).
  template <typename Service>
  typename Service::Stub To() {
    return typename Service::Stub(channel_);
  }

  // Converts a status for people: an unreachable server is named, with advice. Bad keys of a job
  // file are put into `violations`; if that is null they are printed, one per line, to the
  // console's err.
  absl::Status Describe(const grpc::Status& status,
                        std::vector<rpc::FieldViolation>* violations = nullptr);

 private:
  // Explains a TLS error of the server, if that is why it cannot be reached.
  absl::Status ExplainTls();
  grpc::Status Retry(const std::function<grpc::Status(grpc::ClientContext&)>& call);

  std::string server_;
  std::string origin_ = "--server";
  Console console_;
  Clock& clock_;
  std::shared_ptr<grpc::Channel> channel_;
  absl::Status usable_;
  std::string authority_pem_;
  std::vector<ServerCandidate> candidates_;  // none: only this server
};

}  // namespace sft::client
