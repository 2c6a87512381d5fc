#include "server/http/event_call.h"

#include <algorithm>
#include <utility>

#include "server/http/rest_json.h"

namespace sft::server {

void EventCall::Sink::Write(std::string_view name, std::string_view id, std::string_view data) {
  call_.events_ += EventText(name, id, data);
  ++call_.count_;
}

void EventCall::Sink::LookAt(MonoTime at) { call_.look_at_ = std::min(call_.look_at_, at); }

MonoTime EventCall::Sink::now() const { return call_.calls_.clock.Mono(); }

EventCall::EventCall(EventCalls& calls, std::shared_ptr<HttpStream> stream, WebCaller caller)
    : calls_(calls), stream_(std::move(stream)), caller_(std::move(caller)) {}

void EventCall::Start(EventCalls& calls, std::shared_ptr<HttpStream> stream, WebCaller caller,
                      std::shared_ptr<const Method> method, std::string body) {
  std::unique_ptr<EventCall> made(new EventCall(calls, std::move(stream), std::move(caller)));
  std::shared_ptr<EventCall> call = std::move(made);
  call->method_ = std::move(method);
  call->body_ = std::move(body);
  Begin(std::move(call));
}

void EventCall::Start(EventCalls& calls, std::shared_ptr<HttpStream> stream, WebCaller caller,
                      const std::function<Method(Sink sink)>& make, Nanos pause) {
  std::unique_ptr<EventCall> made(new EventCall(calls, std::move(stream), std::move(caller)));
  std::shared_ptr<EventCall> call = std::move(made);
  call->method_ = std::make_shared<const Method>(make(Sink(*call)));
  call->pause_ = pause;
  Begin(std::move(call));
}

void EventCall::Begin(std::shared_ptr<EventCall> call) {
  EventCall& begun = *call;
  ++begun.calls_.live;
  begun.following_ = std::make_unique<Following>(begun.calls_.door, begun.calls_.hub,
                                                 *begun.method_, static_cast<Exchange&>(begun),
                                                 [&begun] { begun.calls_.lookers.Wake(begun); });
  // It may still be called when the call has ended: so it holds it.
  begun.stream_->WhenMoved([call] { call->calls_.lookers.Wake(*call); });
  begun.self_ = std::move(call);
  begun.calls_.lookers.Wake(begun);
}

absl::StatusOr<bool> EventCall::Read(google::protobuf::Message& message) {
  SFT_RETURN_IF_ERROR(ReadJson(std::exchange(body_, std::string()), message));
  return true;
}

bool EventCall::Write(const google::protobuf::Message& message) {
  Sink(*this).Write("", "", JsonOf(message));
  return !Gone();
}

bool EventCall::Gone() const {
  return stream_->Gone() || (!caller_.session.empty() && !calls_.sessions.Has(caller_.session));
}

bool EventCall::Due() {
  if (stream_->Gone()) return true;
  if (stream_->unsent() > 0) return false;  // once it is sent
  if (calls_.clock.Mono() >= not_before_) return true;
  stream_->SetAlarm(not_before_);
  return false;
}

void EventCall::Look() {
  if (finished_ || !Due()) return;
  look_at_ = MonoTime::max();
  const Follower::Next next = following_->Look();
  // The first look admits the call; what the second one cannot find is an answer, too.
  const bool looked = std::exchange(admitted_, true);
  const bool begins = next == Follower::Next::kEnd ? following_->status().ok() : looked;
  if (begins && !stream_->begun()) {
    stream_->Begin({200,
                    "text/event-stream",
                    "",
                    {{"Cache-Control", "no-store"}, {"X-Accel-Buffering", "no"}}},
                   /*events=*/true);
  }
  not_before_ = calls_.clock.Mono() + pause_ * std::exchange(count_, 0);
  Send(next);
}

void EventCall::Send(Follower::Next next) {
  const std::string events = std::exchange(events_, std::string());
  if (next == Follower::Next::kEnd) {
    const absl::Status status = following_->status();
    following_.reset();  // its place is free before its caller knows that it has ended
    const bool stops = absl::IsUnavailable(status) && calls_.hub.stopped();
    if (!status.ok() && !stream_->begun()) {
      stream_->Respond(RestError(status));
    } else if (absl::IsCancelled(status) || stops) {
      stream_->Cut();  // who comes again goes on from what he has
    } else {
      stream_->Write(events + (status.ok() ? EventText("end", "", "{}")
                                           : EventText("error", "", ErrorJson(status))));
      stream_->End();
    }
    return Finish();
  }
  // When it is sent, it is looked again.
  if (!events.empty()) return stream_->Write(events);
  if (look_at_ != MonoTime::max()) stream_->SetAlarm(look_at_);
  if (next == Follower::Next::kAgain) calls_.lookers.Wake(*this);
}

void EventCall::Finish() {
  finished_ = true;
  stream_->WhenMoved(nullptr);
  calls_.lookers.Remove(*this);
}

void EventCall::Release() {
  if (!finished_) return;
  const std::shared_ptr<EventCall> self = std::move(self_);
  --calls_.live;
}

}  // namespace sft::server
