#include "server/http/http_call.h"

#include <utility>

namespace sft::server {
namespace {

// How soon a wait sees that it is ended.
constexpr Nanos kSeesEnd = std::chrono::milliseconds(200);
// What may wait to be sent before the writer waits.
constexpr size_t kMostUnsent = 64 << 10;

}  // namespace

HttpCall::HttpCall(std::shared_ptr<HttpStream> stream, Shared& shared)
    : stream_(std::move(stream)), shared_(shared), moved_(std::make_shared<Moved>()) {
  stream_->WhenMoved([moved = moved_] {
    const MutexLock lock(moved->mutex);
    moved->changed.NotifyAll();
  });
}

HttpCall::~HttpCall() {
  stream_->WhenMoved(nullptr);
  stream_->Cut();
}

HttpStream::TakeBody HttpCall::Taker() {
  return [moved = moved_](absl::StatusOr<std::string> body) {
    const MutexLock lock(moved->mutex);
    moved->body = std::move(body);
    moved->changed.NotifyAll();
  };
}

std::optional<absl::StatusOr<std::string>> HttpCall::AwaitBody() {
  const MutexLock lock(moved_->mutex);
  while (!moved_->body.has_value() && !Gone()) moved_->changed.WaitFor(moved_->mutex, kSeesEnd);
  return std::exchange(moved_->body, std::nullopt);
}

absl::StatusOr<std::string> HttpCall::ReadBody(size_t most) {
  stream_->ReadBody(most, Taker());
  shared_.awaits_body = true;
  auto body = AwaitBody();
  shared_.awaits_body = false;
  if (body.has_value()) return *std::move(body);
  if (!shared_.ended) return absl::CancelledError("the caller has gone");
  return ResourceExhausted("the place was needed before the body had come: try again later");
}

absl::StatusOr<std::string> HttpCall::ReadSome() {
  stream_->ReadSome(Taker());
  shared_.awaits_body = true;
  auto piece = AwaitBody();
  shared_.awaits_body = false;
  if (piece.has_value()) return *std::move(piece);
  if (!shared_.ended) return absl::CancelledError("the caller has gone");
  return ResourceExhausted("the place was needed before the body had come: try again later");
}

bool HttpCall::Respond(const HttpResponse& response) {
  stream_->Respond(response);
  return !stream_->Gone();
}

bool HttpCall::Begin(const HttpResponse& head) {
  stream_->Begin(head);
  return !stream_->Gone();
}

bool HttpCall::Write(std::string_view piece) {
  stream_->Write(piece);
  const MutexLock lock(moved_->mutex);
  while (stream_->unsent() > kMostUnsent && !Gone()) {
    moved_->changed.WaitFor(moved_->mutex, kSeesEnd);
  }
  return !Gone();
}

bool HttpCall::End() {
  stream_->End();
  return !stream_->Gone();
}

}  // namespace sft::server
