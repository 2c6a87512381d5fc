#pragma once

#include <functional>
#include <string>
#include <utility>

#include "server/door/exchange.h"
#include "sft/v1/data_service.pb.h"

namespace sft::server {

// A call of DataService.UploadBlob whose bytes come over HTTP: the first message is there, and each
// piece of the body is one more. Of the one thread that serves the call.
class UploadExchange final : public Exchange {
 public:
  // The next bytes; none: that was all.
  using Next = std::function<absl::StatusOr<std::string>()>;
  UploadExchange(CallOrigin origin, v1::UploadBlobRequest first, Next next,
                 std::function<bool()> gone)
      : origin_(std::move(origin)),
        first_(std::move(first)),
        next_(std::move(next)),
        gone_(std::move(gone)) {}

  const CallOrigin& origin() const override { return origin_; }
  absl::StatusOr<bool> Read(google::protobuf::Message& message) override {
    auto& request = static_cast<v1::UploadBlobRequest&>(message);
    if (!std::exchange(begun_, true)) {
      request = first_;
      return true;
    }
    request.Clear();
    SFT_ASSIGN_OR_RETURN(*request.mutable_data(), next_());
    return !request.data().empty();
  }
  bool Write(const google::protobuf::Message& message) override {
    answer_.CopyFrom(message);
    return true;
  }
  bool Gone() const override { return gone_(); }

  // Of a call that succeeded.
  const v1::UploadBlobResponse& answer() const { return answer_; }

 private:
  const CallOrigin origin_;
  const v1::UploadBlobRequest first_;
  const Next next_;
  const std::function<bool()> gone_;
  v1::UploadBlobResponse answer_;
  bool begun_ = false;
};

}  // namespace sft::server
