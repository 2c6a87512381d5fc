#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>

namespace sft::rpc {

// Chunk size of files and logs on the wire.
inline constexpr int64_t kChunkBytes = 1 << 20;
// Largest message either side takes: a Register with many models' config.json stays far below.
inline constexpr int kMaxMessageBytes = 16 << 20;
// Of a stream's window, which is fixed: what would probe for a better one is a message of its own
// beside each small one.
inline constexpr int kWindowBytes = 4 << 20;

// What a channel is secured with. All empty: no TLS, for loopback.
struct Security {
  std::string authority_pem;             // the certificate that must have signed the server's
  std::string token;                     // of a user or to join; goes with each call, over TLS only
  std::string key_pem, certificate_pem;  // of a node
};

// Options of every channel of ours: keepalive, windows, message limits.
grpc::ChannelArguments ChannelOptions();
// A channel to "host:port", with keepalive: a pulled cable is noticed within 20 s also when no call
// is under way. Connects at the first call.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target,
                                           const Security& security = {});

// Gives the call a deadline `timeout` from now, by the monotonic clock.
void SetDeadline(grpc::ClientContext& context, std::chrono::nanoseconds timeout);

// Metadata of a worker's call: which life of it calls.
inline constexpr char kIncarnationKey[] = "sft-incarnation";

// Deadline of unary calls unless a caller has a reason for another.
inline constexpr std::chrono::seconds kUnaryDeadline{20};

}  // namespace sft::rpc
