#include "server/http/http_connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sft::server {
namespace {

// Read at once, so that one connection does not delay the others.
constexpr size_t kRead = 16 << 10, kMostReads = 4;
// What may wait of the requests after this one.
constexpr size_t kMostAhead = 64 << 10;
constexpr std::chrono::seconds kLinger{1};
constexpr size_t kBytesOfASecond = 1024;
constexpr std::string_view kPing = ": ping\n\n";

HttpResponse PlainResponse(int status, std::string_view why) {
  return {status, HttpResponse().content_type, fmt::format("{}\n", why), {}};
}

}  // namespace

HttpConnection::HttpConnection(Shared& shared, uint64_t id, HttpSocket socket, MonoTime now)
    : shared_(shared), id_(id), socket_(std::move(socket)), since_(now), sent_at_(now) {}

HttpConnection::~HttpConnection() {
  shared_.body_bytes -= body_.size();
  if (stream_ == nullptr) return;
  stream_->SetGone();
  stream_->TellMoved();
}

bool HttpConnection::wants_read() const {
  if (stage_ == Stage::kOver || ended_) return false;
  return stage_ == Stage::kLinger || in_.size() < kMostAhead;
}

MonoTime HttpConnection::wakes_at() const {
  const HttpLimits& limits = shared_.limits;
  switch (stage_) {
    case Stage::kHead:
      return since_ + (served_ && in_.empty() ? limits.idle : limits.head);
    case Stage::kLinger:
      return since_ + kLinger;
    case Stage::kOver:
      return MonoTime::max();
    case Stage::kAnswer:
      break;
  }
  MonoTime at = alarm_;
  if (body_wanted_.has_value()) at = std::min(at, body_due());
  if (sent_ < out_.size()) return std::min(at, sent_at_ + limits.send);
  return events_ && !answered_ ? std::min(at, sent_at_ + limits.silence) : at;
}

MonoTime HttpConnection::body_due() const {
  const Nanos patience = shared_.limits.body;
  const MonoTime all = since_ + patience + std::chrono::seconds(body_received_ / kBytesOfASecond);
  return body_wanted_->piece ? std::min(all, body_asked_ + patience) : all;
}

void HttpConnection::PassTime(MonoTime now) {
  if (now < wakes_at()) return;
  const HttpLimits& limits = shared_.limits;
  if (stage_ == Stage::kHead && !in_.empty()) {
    return Refuse(PlainResponse(408, "the request's head has not come in time"), now);
  }
  if (stage_ != Stage::kAnswer) return End();
  if (sent_ < out_.size() && now >= sent_at_ + limits.send) return End();
  if (body_wanted_.has_value() && now >= body_due()) {
    EndBody(DeadlineExceeded(
        fmt::format("{} bytes of the body have come in {} s, and not all of it", body_received_,
                    std::chrono::ceil<std::chrono::seconds>(now - since_).count())));
  } else if (now >= alarm_) {
    alarm_ = MonoTime::max();
    stream_->TellMoved();
  } else if (events_ && sent_ == out_.size() && now >= sent_at_ + limits.silence) {
    sent_at_ = now;
    stream_->Write(kPing);
  }
  Advance(now);
}

void HttpConnection::Move(bool readable, bool writable, MonoTime now) {
  if (writable && read_waits_for_write_) readable = true;
  if (readable) Read(now);
  Advance(now);
}

void HttpConnection::Read(MonoTime now) {
  char bytes[kRead];
  read_waits_for_write_ = false;
  for (size_t i = 0; i < kMostReads && wants_read(); ++i) {
    size_t got = 0;
    const HttpSocket::Next next = socket_.Read(bytes, sizeof(bytes), got);
    if (next == HttpSocket::Next::kBroken) return End();
    if (next == HttpSocket::Next::kEnded) {
      ended_ = true;
      // A client may close its sending half and still read: what is being made is sent.
      if (stream_ != nullptr) {
        stream_->SetGone();
        stream_->TellMoved();
      }
      return;
    }
    read_waits_for_write_ = next == HttpSocket::Next::kWaitWrite;
    if (next != HttpSocket::Next::kMoved) return;
    if (stage_ == Stage::kLinger) continue;
    if (stage_ == Stage::kHead && in_.empty()) since_ = served_ ? now : since_;
    in_.append(bytes, got);
    if (stage_ == Stage::kAnswer && body_wanted_.has_value()) TakeBody(now);
  }
}

void HttpConnection::Advance(MonoTime now) {
  while (stage_ != Stage::kOver) {
    if (stage_ == Stage::kAnswer && stream_ != nullptr) {
      TakeNews(now);
      if (body_wanted_.has_value()) TakeBody(now);
      TakeNews(now);  // of who got the body
    }
    Write(now);
    if (stage_ == Stage::kAnswer && answered_ && sent_ == out_.size()) Answered(now);
    if (stage_ == Stage::kLinger) FinishLinger();
    if (stage_ != Stage::kHead || !TakeHead(now)) break;
  }
  wants_write_ = stage_ != Stage::kOver && (sent_ < out_.size() || read_waits_for_write_);
}

bool HttpConnection::TakeHead(MonoTime now) {
  auto found = HttpParser::FindHead(in_, scanned_);
  if (const auto* refusal = std::get_if<HttpResponse>(&found)) {
    Refuse(*refusal, now);
    return false;
  }
  const size_t end = std::get<size_t>(found);
  if (end == 0) {
    if (ended_) End();
    return false;
  }
  parser_ = std::make_unique<HttpParser>();
  auto head = parser_->Head(std::string_view(in_).substr(0, end));
  if (const auto* refusal = std::get_if<HttpResponse>(&head)) {
    Refuse(*refusal, now);
    return false;
  }
  in_.erase(0, end);
  scanned_ = 0;
  HttpRequest& request = std::get<HttpRequest>(head);
  const std::string_view expects = request.Field("expect");
  if (!expects.empty() && expects != "100-continue") {
    Refuse(PlainResponse(417, "nothing but 100-continue can be expected"), now);
    return false;
  }
  stage_ = Stage::kAnswer;
  since_ = heard_at_ = now;
  body_begun_ = answered_ = cut_ = closes_ = events_ = false;
  body_received_ = 0;
  stream_ = std::make_shared<HttpStream>(shared_.wake, id_, std::move(request), socket_.peer(),
                                         socket_.has_tls());
  if (parser_->done()) stream_->SetBodyDone();
  if (ended_) stream_->SetGone();
  shared_.handler.Handle(stream_);
  return true;
}

void HttpConnection::TakeNews(MonoTime now) {
  HttpStream::News news = stream_->TakeNews();
  if (news.alarm.has_value()) alarm_ = *news.alarm;
  if (news.body.has_value()) {
    if (!body_begun_) since_ = now;
    body_wanted_ = std::move(news.body);
    body_asked_ = now;
  }
  if (!news.bytes.empty()) {
    if (sent_ == out_.size()) WaitForCaller(now);
    out_ += news.bytes;
  }
  if (news.status != 0 && shared_.times != nullptr) {
    // (An upload may be refused while more of it comes.)
    shared_.times->Count(stream_->request().path, news.status,
                         std::max(Nanos(0), news.begun_at - heard_at_));
  }
  events_ |= news.events;
  answered_ |= news.ended;
  cut_ |= news.cut;
  closes_ |= news.closes;
}

void HttpConnection::TakeBody(MonoTime now) {
  const size_t most = body_wanted_->most;
  const HttpRequest& request = stream_->request();
  if (request.length.value_or(0) > most) {
    return EndBody(absl::OutOfRangeError(
        fmt::format("the body has {} bytes, at most {} are taken", *request.length, most)));
  }
  if (!std::exchange(body_begun_, true) && in_.empty() && !parser_->done() &&
      !request.Field("expect").empty()) {
    out_ += "HTTP/1.1 100 Continue\r\n\r\n";
    refusal_ = out_.size() - sent_;
  }
  const size_t before = body_.size();
  const absl::StatusOr<size_t> used = parser_->Body(in_, body_);
  shared_.body_bytes += body_.size() - before;
  body_received_ += body_.size() - before;
  if (body_.size() > before) heard_at_ = now;
  if (!used.ok()) return EndBody(used.status());
  in_.erase(0, *used);
  if (body_.size() > most) {
    return EndBody(absl::OutOfRangeError(
        fmt::format("the body has more than the {} bytes that are taken", most)));
  }
  if (parser_->done()) stream_->SetBodyDone();
  if (parser_->done() || (body_wanted_->piece && !body_.empty())) {
    return EndBody(std::move(body_));
  }
  if (shared_.body_bytes > shared_.limits.bodies) {
    return EndBody(ResourceExhausted("too many bodies are being read: try again later"));
  }
  if (in_.size() >= kMostAhead) return EndBody(InvalidArgument("a chunk's head is too large"));
  if (ended_) EndBody(InvalidArgument("the body is shorter than its head says"));
}

void HttpConnection::EndBody(absl::StatusOr<std::string> body) {
  shared_.body_bytes -= body.ok() ? body->size() : body_.size();
  body_ = std::string();
  const HttpStream::TakeBody take = std::move(body_wanted_->take);
  body_wanted_.reset();
  take(std::move(body));
}

// From now on, for as much as has to be read in the time that there is for it.
void HttpConnection::WaitForCaller(MonoTime now) {
  sent_at_ = now;
  sent_since_ = 0;
}

void HttpConnection::Write(MonoTime now) {
  while (sent_ < out_.size()) {
    size_t put = 0;
    const HttpSocket::Next next = socket_.Write(std::string_view(out_).substr(sent_), put);
    if (next == HttpSocket::Next::kBroken) return End();
    if (next != HttpSocket::Next::kMoved) break;
    sent_ += put;
    sent_since_ += put;
    if (sent_ == out_.size() || sent_since_ >= shared_.limits.least_sent) WaitForCaller(now);
    const size_t own = std::min(put, refusal_);
    refusal_ -= own;
    if (stream_ != nullptr) stream_->Sent(put - own);
  }
  if (sent_ == 0 || sent_ < out_.size()) {
    // What was sent of a long answer is not kept; each byte is moved once at most.
    if (sent_ > kMostAhead && sent_ > out_.size() / 2) out_.erase(0, std::exchange(sent_, 0));
    return;
  }
  out_.clear();
  sent_ = 0;
  if (stream_ == nullptr || answered_) return;
  stream_->TellMoved();
  TakeNews(now);
  if (!out_.empty()) Write(now);
}

void HttpConnection::Answered(MonoTime now) {
  stream_->SetGone();
  stream_->TellMoved();
  stream_.reset();
  alarm_ = MonoTime::max();
  shared_.body_bytes -= body_.size();
  body_ = std::string();
  body_wanted_.reset();
  if (cut_) return End();
  if (closes_ || !parser_->done()) return Linger(now);
  served_ = true;
  stage_ = Stage::kHead;
  since_ = now;
}

void HttpConnection::Refuse(const HttpResponse& response, MonoTime now) {
  if (shared_.times != nullptr) shared_.times->Count("", response.status, now - since_);
  out_ +=
      HeadOf(response,
             {.length = response.body.size(), .closes = true, .fields = shared_.wake->fields()}) +
      response.body;
  refusal_ = out_.size() - sent_;
  WaitForCaller(now);
  Write(now);
  if (stage_ == Stage::kOver) return;
  Linger(now);
}

void HttpConnection::Linger(MonoTime now) {
  stage_ = Stage::kLinger;
  since_ = now;
  FinishLinger();
}

void HttpConnection::FinishLinger() {
  if (sent_ < out_.size()) return;
  if (!std::exchange(closed_sending_, true)) socket_.CloseSending();
  if (ended_) End();
}

}  // namespace sft::server
