#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "server/door/follower.h"
#include "server/gangs/ingest.h"
#include "sft/v1/job_service.pb.h"

namespace sft::server {

// One ReadLog call: sends what is there from an offset on, then, if it follows, what comes. Bytes
// that the limits removed before they were read are a gap in an answer.
class LogStream final : public Follower {
 public:
  // Borrows `ingest`.
  LogStream(Ingest& ingest, v1::ReadLogRequest request)
      : ingest_(ingest), request_(std::move(request)) {}

  absl::StatusOr<Next> Look(Exchange& exchange) override;
  std::vector<std::string> keys() const override { return keys_; }

 private:
  Next LookAtEnd(const Ingest::LogPlace& place, Exchange& exchange);
  absl::StatusOr<LogStore::Chunk> ReadChunk(const Ingest::LogPlace& place);

  Ingest& ingest_;
  v1::ReadLogRequest request_;  // attempt and offset move on
  std::vector<std::string> keys_;
};

}  // namespace sft::server
