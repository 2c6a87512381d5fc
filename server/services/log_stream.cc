#include "server/services/log_stream.h"

namespace sft::server {
namespace {

// Of an answer: of one look at several logs as much is sent of all together.
constexpr int64_t kMostBytes = 256 << 10;

}  // namespace
absl::StatusOr<LogStore::Chunk> LogStream::ReadChunk(const Ingest::LogPlace& place) {
  if (request_.has_tail_lines()) {
    SFT_ASSIGN_OR_RETURN(const int64_t start,
                         ingest_.logs().TailOffset(place.stream, request_.tail_lines()));
    request_.set_offset(start);
    request_.clear_tail_lines();
  }
  auto chunk = ingest_.logs().Read(place.stream, request_.offset(), kMostBytes);
  // A server that lost power may have fewer bytes than it has sent: the worker sends them again.
  if (absl::IsOutOfRange(chunk.status()) && request_.follow() && !place.ended) {
    return LogStore::Chunk{request_.offset(), ""};
  }
  return chunk;
}

Follower::Next LogStream::LookAtEnd(const Ingest::LogPlace& place, Exchange& exchange) {
  const bool all_attempts = request_.follow() && request_.next_attempts();
  v1::ReadLogResponse response;
  if (place.ended && all_attempts && place.newest_attempt > place.attempt) {
    request_.set_attempt(place.attempt + 1);
    request_.set_offset(0);
    response.set_attempt(request_.attempt());
    exchange.Write(response);
    return Next::kAgain;
  }
  if (place.ended && (!all_attempts || place.job_ended)) {
    response.set_attempt(place.attempt);
    response.set_offset(request_.offset());
    response.set_end_of_file(true);
    exchange.Write(response);
    return Next::kEnd;
  }
  return request_.follow() ? Next::kWait : Next::kEnd;
}

absl::StatusOr<Follower::Next> LogStream::Look(Exchange& exchange) {
  SFT_ASSIGN_OR_RETURN(const Ingest::LogPlace place, ingest_.FindLog(request_));
  if (request_.follow() && place.hub_keys != keys_) {
    keys_ = place.hub_keys;
    return Next::kAgain;
  }
  // "The last attempt" is the one that was so when the reading began.
  request_.set_attempt(place.attempt);
  LogStore::Chunk chunk{request_.offset(), ""};
  if (!place.stream.empty()) {
    SFT_ASSIGN_OR_RETURN(chunk, ReadChunk(place));
  }
  if (chunk.bytes.empty() && chunk.offset == request_.offset()) return LookAtEnd(place, exchange);
  v1::ReadLogResponse response;
  response.set_attempt(place.attempt);
  response.set_offset(chunk.offset);
  if (chunk.offset > request_.offset()) {
    response.mutable_gap()->set_begin(request_.offset());
    response.mutable_gap()->set_end(chunk.offset);
  }
  request_.set_offset(chunk.offset + static_cast<int64_t>(chunk.bytes.size()));
  response.set_data(std::move(chunk.bytes));
  exchange.Write(response);
  return Next::kAgain;
}

}  // namespace sft::server
