#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/base/exit_codes.h"
#include "client/output/console.h"
#include "common/base/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"

namespace sft::client {

inline constexpr char kDefaultServer[] = "127.0.0.1:7070";

// Where the server is, and who says so.
struct ServerAddress {
  std::string address;  // "host:port"
  std::string origin;   // who says so: "--server", "SFT_SERVER", a file; "the default"
};

// The address to talk to: `flag` if not empty, else SFT_SERVER, else `server` of
// ~/.config/sft/config.toml, else the server logged in to last, else kDefaultServer.
// INVALID_ARGUMENT for a broken file or address.
absl::StatusOr<ServerAddress> ResolveServer(const std::string& flag);

// Calls to one server; connects at the first. Owned by a command for its whole run.
class Connection {
 public:
  // A security that is an error is what Check says: commands that do not connect go on.
  Connection(std::string server, absl::StatusOr<rpc::Security> security, Console console,
             Clock& clock);
  // For tests: an in-process channel.
  Connection(std::shared_ptr<grpc::Channel> channel, std::string server, Console console,
             Clock& clock);

  // Asks the server for its version and refuses one that does not fit; every command's first call.
  absl::Status Check();

  const std::string& server() const { return server_; }
  // Told to who cannot reach the server; by default "--server".
  void NameOrigin(std::string origin) { origin_ = std::move(origin); }
  Console& console() { return console_; }
  Clock& clock() { return clock_; }

  // One unary call with the usual deadline, as in Call(&v1::JobService::Stub::GetJob, request).
  // UNAVAILABLE is tried again for a few seconds: what is sent is safe to repeat. Bad keys of a job
  // file are put into `violations` where it is not null, else printed.
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Response*),
                                const Request& request,
                                std::vector<rpc::FieldViolation>* violations = nullptr) {
    Stub stub(channel_);
    Response response;
    const grpc::Status status = Retry(
        [&](grpc::ClientContext& context) { return (stub.*method)(&context, request, &response); });
    if (!status.ok()) return Describe(status, violations);
    return response;
  }

  // For calls that stream, as in To<v1::JobService>().WatchJob(&context, request).
  template <typename Service>
  typename Service::Stub To() {
    return typename Service::Stub(channel_);
  }

  // The status as a person reads it: an unreachable server is named with what to do. Bad keys of a
  // job file are put into `violations`; where that is null they are printed, one a line, to the
  // console's err.
  absl::Status Describe(const grpc::Status& status,
                        std::vector<rpc::FieldViolation>* violations = nullptr);

 private:
  // What is wrong with the server's TLS, if that is why it cannot be reached.
  absl::Status ExplainTls();
  grpc::Status Retry(const std::function<grpc::Status(grpc::ClientContext&)>& call);

  std::string server_;
  std::string origin_ = "--server";
  Console console_;
  Clock& clock_;
  std::shared_ptr<grpc::Channel> channel_;
  absl::Status usable_;
  std::string authority_pem_;
};

}  // namespace sft::client
