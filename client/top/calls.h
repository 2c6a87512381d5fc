#pragma once

#include <chrono>

#include "client/base/connection.h"
#include "common/base/mutex.h"

namespace sft::client::top {

// Calls of one thread that another may end: one try each, so that a page says at once that the
// server is away. Call from one thread; Stop from any.
class Calls {
 public:
  explicit Calls(Connection& connection) : connection_(connection) {}

  // Ends the call under way and all later ones with CANCELLED.
  void Stop() SFT_EXCLUDES(mutex_);

  // As in Call<v1::JobService>(&v1::JobService::Stub::GetJob, request).
  template <typename Service, typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Service::Stub::*method)(grpc::ClientContext*,
                                                                      const Request&, Response*),
                                const Request& request) {
    Response response;
    SFT_RETURN_IF_ERROR(With([&](grpc::ClientContext& context) {
      typename Service::Stub stub = connection_.To<Service>();
      return (stub.*method)(&context, request, &response);
    }));
    return response;
  }

  // Makes a call with a context of its own; for one that streams too.
  absl::Status With(const std::function<grpc::Status(grpc::ClientContext&)>& call)
      SFT_EXCLUDES(mutex_);
  Connection& connection() { return connection_; }

 private:
  static constexpr std::chrono::seconds kPatience{10};

  Connection& connection_;
  Mutex mutex_;
  bool stopped_ SFT_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* current_ SFT_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace sft::client::top
