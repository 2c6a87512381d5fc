#include "client/base/ask.h"

#include "client/base/interrupt.h"
#include "client/base/job_follow.h"
#include "sft/v1/job_service.grpc.pb.h"

namespace sft::client {
namespace {

// `heard`: some of the answer has come.
grpc::Status AskOnce(Connection& connection, const v1::GenerateRequest& request,
                     const Asking& asking, v1::GenerateResponse& last, bool& heard) {
  grpc::ClientContext context;
  const Interrupt interrupt(context);
  const auto reader = connection.To<v1::JobService>().Generate(&context, request);
  while (reader->Read(&last)) {
    heard = heard || !last.text().empty();
    asking.on_text(last.text());
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok() || last.finish_reason() != "error") return status;
  return {grpc::StatusCode::FAILED_PRECONDITION, last.error()};
}

}  // namespace

absl::StatusOr<v1::GenerateResponse> AskServing(Connection& connection,
                                                const v1::GenerateRequest& request,
                                                const Asking& asking) {
  const MonoTime end = connection.clock().Mono() + kOutageLimit;
  for (;;) {
    v1::GenerateResponse last;
    bool heard = false;
    const grpc::Status status = AskOnce(connection, request, asking, last, heard);
    if (Interrupt::Raised()) return absl::CancelledError("interrupted");
    if (status.ok()) return last;
    const bool passing = !heard && (status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                                    status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
    if (!passing || connection.clock().Mono() > end) return connection.Describe(status);
    asking.on_wait(status.error_message());
    connection.clock().Sleep(std::chrono::milliseconds(500));
  }
}

}  // namespace sft::client
