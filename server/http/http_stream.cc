#include "server/http/http_stream.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <utility>

namespace sft::server {

void HttpWake::Tell(uint64_t connection) {
  {
    const MutexLock lock(mutex_);
    told_.push_back(connection);
    if (told_.size() > 1) return;
  }
  const uint64_t one = 1;
  // A full counter wakes as well.
  if (::write(event_.get(), &one, sizeof(one)) < 0 && errno != EAGAIN) {
    spdlog::error("{}", Message(ErrnoStatus("cannot wake the HTTP thread", errno)));
  }
}

std::vector<uint64_t> HttpWake::Take() {
  uint64_t count = 0;
  (void)!::read(event_.get(), &count, sizeof(count));  // empty: told meanwhile
  std::vector<uint64_t> told;
  const MutexLock lock(mutex_);
  told.swap(told_);
  return told;
}

void HttpStream::Say() {
  if (said_) return;
  said_ = true;
  wake_->Tell(connection_);
}

void HttpStream::Append(std::string_view bytes) {
  news_.bytes += bytes;
  unsent_ += bytes.size();
}

void HttpStream::SayStatus(int status) {
  news_.status = status;
  news_.begun_at = Clock::Real().Mono();
}

void HttpStream::ReadBody(size_t most, TakeBody take) {
  const MutexLock lock(mutex_);
  news_.body = WantedBody{most, std::move(take)};
  Say();
}

void HttpStream::ReadSome(TakeBody take) {
  const MutexLock lock(mutex_);
  news_.body = WantedBody{std::numeric_limits<size_t>::max(), std::move(take), /*piece=*/true};
  Say();
}

void HttpStream::Respond(const HttpResponse& response) {
  const MutexLock lock(mutex_);
  if (begun_) return;
  begun_ = ended_ = news_.ended = true;
  SayStatus(response.status);
  news_.closes = Closes();
  Append(
      HeadOf(response,
             {.length = response.body.size(), .closes = news_.closes, .fields = wake_->fields()}));
  if (request_.method != "HEAD") Append(response.body);
  Say();
}

void HttpStream::Begin(const HttpResponse& head, bool events) {
  const MutexLock lock(mutex_);
  if (begun_) return;
  begun_ = true;
  SayStatus(head.status);
  news_.events = events;
  chunked_ = !request_.is_1_0;
  news_.closes = Closes() || !chunked_;
  Append(HeadOf(head, {.chunked = chunked_, .closes = news_.closes, .fields = wake_->fields()}));
  Say();
}

void HttpStream::Write(std::string_view piece) {
  const MutexLock lock(mutex_);
  if (ended_ || piece.empty()) return;
  Append(chunked_ ? fmt::format("{:x}\r\n{}\r\n", piece.size(), piece) : std::string(piece));
  Say();
}

void HttpStream::End() {
  const MutexLock lock(mutex_);
  if (ended_) return;
  ended_ = news_.ended = true;
  if (chunked_) Append("0\r\n\r\n");
  Say();
}

void HttpStream::Cut() {
  const MutexLock lock(mutex_);
  if (ended_) return;
  ended_ = news_.ended = news_.cut = true;
  Say();
}

bool HttpStream::begun() const {
  const MutexLock lock(mutex_);
  return begun_;
}

bool HttpStream::Gone() const {
  const MutexLock lock(mutex_);
  return gone_;
}

size_t HttpStream::unsent() const {
  const MutexLock lock(mutex_);
  return unsent_;
}

void HttpStream::WhenMoved(std::function<void()> moved) {
  // What it holds may end with it: not under the lock.
  std::function<void()> before;
  {
    const MutexLock lock(mutex_);
    before = std::exchange(moved_, std::move(moved));
  }
}

void HttpStream::SetAlarm(MonoTime at) {
  const MutexLock lock(mutex_);
  news_.alarm = at;
  Say();
}

HttpStream::News HttpStream::TakeNews() {
  const MutexLock lock(mutex_);
  said_ = false;
  return std::exchange(news_, News());
}

void HttpStream::Sent(size_t bytes) {
  const MutexLock lock(mutex_);
  unsent_ -= bytes;
}

void HttpStream::SetGone() {
  const MutexLock lock(mutex_);
  gone_ = true;
}

void HttpStream::SetBodyDone() {
  const MutexLock lock(mutex_);
  body_done_ = true;
}

void HttpStream::TellMoved() {
  std::function<void()> moved;
  {
    const MutexLock lock(mutex_);
    moved = moved_;
  }
  if (moved) moved();
}

}  // namespace sft::server
