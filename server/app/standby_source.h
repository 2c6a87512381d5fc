#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "common/base/mutex.h"
#include "common/rpc/channel.h"
#include "server/stored/standby_copy.h"

namespace sft::server {

// The server that a standby copies, over gRPC. One caller at a time, but for Cancel.
class RemoteSource final : public StandbySource {
 public:
  explicit RemoteSource(std::shared_ptr<grpc::Channel> channel) : channel_(std::move(channel)) {}

  absl::Status Fetch(const std::string& folder) override;
  absl::Status ReadFile(const std::string& path, int64_t offset, const std::string& sha256_before,
                        const Sink& sink) override;
  // Tells it that a server of this generation, at `address`, has its place.
  absl::Status Retire(int64_t generation, const std::string& address);

  // From any thread: ends the call under way, and every later one at once.
  void Cancel();

 private:
  // The call that Cancel ends.
  class Call;

  const std::shared_ptr<grpc::Channel> channel_;
  Mutex mutex_;
  bool cancelled_ SFT_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* context_ SFT_GUARDED_BY(mutex_) = nullptr;
};

// How to call the server of a fleet as an admin: by the authority in the data folder's tls/ and the
// token in the file. Both may be missing for a server on loopback.
absl::StatusOr<rpc::Security> SecurityOfStandby(const std::string& of, const std::string& data_dir,
                                                const std::string& token_file);

}  // namespace sft::server
