#include "server/services/log_stream.h"

#include "common/rpc/channel.h"

namespace sft::server {
namespace {

// How long a stream sleeps before it looks whether its client is still there.
constexpr std::chrono::seconds kLogLook{1};

}  // namespace

absl::StatusOr<LogStore::Chunk> LogStream::ReadChunk(const Ingest::LogPlace& place) {
  if (request_.has_tail_lines()) {
    SFT_ASSIGN_OR_RETURN(const int64_t start,
                         ingest_.logs().TailOffset(place.stream, request_.tail_lines()));
    request_.set_offset(start);
    request_.clear_tail_lines();
  }
  auto chunk = ingest_.logs().Read(place.stream, request_.offset(), rpc::kChunkBytes);
  // A server that lost power may have fewer bytes than it has sent: the worker sends them again.
  if (absl::IsOutOfRange(chunk.status()) && request_.follow() && !place.ended) {
    return LogStore::Chunk{request_.offset(), ""};
  }
  return chunk;
}

absl::StatusOr<LogStream::Next> LogStream::AtEnd(const Ingest::LogPlace& place, const Send& send) {
  const bool all_attempts = request_.follow() && request_.next_attempts();
  v1::ReadLogResponse response;
  if (place.ended && all_attempts && place.newest_attempt > place.attempt) {
    request_.set_attempt(place.attempt + 1);
    request_.set_offset(0);
    response.set_attempt(request_.attempt());
    return send(response) ? Next::kLookAgain : Next::kGone;
  }
  if (place.ended && (!all_attempts || place.job_ended)) {
    response.set_attempt(place.attempt);
    response.set_offset(request_.offset());
    response.set_end_of_file(true);
    return send(response) ? Next::kEnd : Next::kGone;
  }
  return request_.follow() ? Next::kWait : Next::kEnd;
}

absl::StatusOr<LogStream::Next> LogStream::Look(const Send& send) {
  SFT_ASSIGN_OR_RETURN(const Ingest::LogPlace place, ingest_.FindLog(request_));
  if (request_.follow() && place.hub_key != key_) {
    SFT_ASSIGN_OR_RETURN(subscription_, hub_.Subscribe(place.hub_key));
    key_ = place.hub_key;
    return Next::kLookAgain;
  }
  // "The last attempt" is the one that was so when the reading began.
  request_.set_attempt(place.attempt);
  LogStore::Chunk chunk{request_.offset(), ""};
  if (!place.stream.empty()) {
    SFT_ASSIGN_OR_RETURN(chunk, ReadChunk(place));
  }
  if (chunk.bytes.empty() && chunk.offset == request_.offset()) return AtEnd(place, send);
  v1::ReadLogResponse response;
  response.set_attempt(place.attempt);
  response.set_offset(chunk.offset);
  if (chunk.offset > request_.offset()) {
    response.mutable_gap()->set_begin(request_.offset());
    response.mutable_gap()->set_end(chunk.offset);
  }
  request_.set_offset(chunk.offset + static_cast<int64_t>(chunk.bytes.size()));
  response.set_data(std::move(chunk.bytes));
  return send(response) ? Next::kLookAgain : Next::kGone;
}

absl::Status LogStream::Run(const Send& send, const Gone& gone) {
  while (!gone()) {
    SFT_ASSIGN_OR_RETURN(const Next next, Look(send));
    if (next == Next::kEnd) return absl::OkStatus();
    if (next == Next::kGone) break;
    if (next == Next::kWait && !subscription_->Wait(kLogLook)) {
      return Unavailable("the server is stopping: ask again from where you are");
    }
  }
  return absl::CancelledError("the reader is gone");
}

}  // namespace sft::server
