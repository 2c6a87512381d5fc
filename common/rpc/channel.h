#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <grpcpp/grpcpp.h>

namespace sft::rpc {

// Chunk size of files and logs on the wire.
inline constexpr int64_t kChunkBytes = 1 << 20;
// Largest message either side takes: a Register with many models' config.json stays far below.
inline constexpr int kMaxMessageBytes = 16 << 20;

// A channel to "host:port" without TLS (loopback until TLS and tokens exist), with keepalive: a
// pulled cable is noticed within 20 s also when no call is under way. Connects at the first call.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target);

// Gives the call a deadline `timeout` from now, by the monotonic clock.
void SetDeadline(grpc::ClientContext& context, std::chrono::nanoseconds timeout);

// Deadline of unary calls unless a caller has a reason for another.
inline constexpr std::chrono::seconds kUnaryDeadline{20};

}  // namespace sft::rpc
