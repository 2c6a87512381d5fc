#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>

namespace sft::rpc {

// Chunk size of files and logs on the wire.
inline constexpr int64_t kChunkBytes = 1 << 20;
// The largest message that either side accepts: a Register with many models' config.json stays far
// below.
inline constexpr int kMaxMessageBytes = 16 << 20;
// Size of a stream's flow-control window. It is fixed: gRPC's probing for a better size sends an
// extra message with each small one.
inline constexpr int kWindowBytes = 4 << 20;

// Credentials of a channel. All empty means no TLS, for loopback.
struct Security {
  std::string authority_pem;  // the certificate that must have signed the server's
  std::string token;          // a user's token or a join token; sent with each call, over TLS only
  std::string key_pem, certificate_pem;  // a node's key and certificate
};

// Options of all our channels: keepalive, windows, message limits.
grpc::ChannelArguments ChannelOptions();
// A channel to "host:port", with keepalive: a pulled cable is noticed within 20 s even when no call
// is under way. Connects at the first call.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target,
                                           const Security& security = {});

// Sets the call's deadline to `timeout` from now, by the monotonic clock.
void SetDeadline(grpc::ClientContext& context, std::chrono::nanoseconds timeout);

// Metadata key of a worker's call that names the incarnation calling.
inline constexpr char kIncarnationKey[] = "sft-incarnation";

// Deadline of unary calls, unless a caller has a reason for another.
inline constexpr std::chrono::seconds kUnaryDeadline{20};

}  // namespace sft::rpc
