#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "server/core/change_hub.h"
#include "server/gangs/ingest.h"
#include "sft/v1/job_service.pb.h"

namespace sft::server {

// One ReadLog call: sends what is there from an offset on, then, if it follows, what comes. Bytes
// that the limits removed before they were read are a gap in an answer. One thread.
class LogStream {
 public:
  // False: the reader is gone.
  using Send = std::function<bool(const v1::ReadLogResponse&)>;
  using Gone = std::function<bool()>;

  // All but the request are borrowed.
  LogStream(Ingest& ingest, ChangeHub& hub, v1::ReadLogRequest request)
      : ingest_(ingest), hub_(hub), request_(std::move(request)) {}

  // OK at the end of what was asked for, CANCELLED when the reader is gone, UNAVAILABLE when the
  // server stops.
  absl::Status Run(const Send& send, const Gone& gone);

 private:
  // What one look led to.
  enum class Next { kLookAgain, kWait, kEnd, kGone };
  absl::StatusOr<Next> Look(const Send& send);
  absl::StatusOr<Next> AtEnd(const Ingest::LogPlace& place, const Send& send);
  absl::StatusOr<LogStore::Chunk> ReadChunk(const Ingest::LogPlace& place);

  Ingest& ingest_;
  ChangeHub& hub_;
  v1::ReadLogRequest request_;  // attempt and offset move on
  std::unique_ptr<ChangeHub::Subscription> subscription_;
  std::string key_;
};

}  // namespace sft::server
