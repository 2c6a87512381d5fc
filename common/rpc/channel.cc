#include "common/rpc/channel.h"

#include <grpc/support/time.h>

namespace sft::rpc {
namespace {

std::shared_ptr<grpc::ChannelCredentials> CredentialsOf(const Security& security) {
  if (security.authority_pem.empty()) return grpc::InsecureChannelCredentials();
  auto channel =
      grpc::SslCredentials({security.authority_pem, security.key_pem, security.certificate_pem});
  if (security.token.empty()) return channel;
  return grpc::CompositeChannelCredentials(channel, grpc::AccessTokenCredentials(security.token));
}

}  // namespace

grpc::ChannelArguments ChannelOptions() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
  // server_options.cc allows pings every 5 s; with gRPC's default the server would close the
  // connection for them.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // So that a restarted server is found within seconds.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 5'000);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  return arguments;
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target, const Security& security) {
  return grpc::CreateCustomChannel(target, CredentialsOf(security), ChannelOptions());
}

void SetDeadline(grpc::ClientContext& context, std::chrono::nanoseconds timeout) {
  // gRPC counts a time span from now on its monotonic clock.
  context.set_deadline(gpr_time_from_nanos(timeout.count(), GPR_TIMESPAN));
}

}  // namespace sft::rpc
