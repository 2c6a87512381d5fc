#include "worker/daemon/session.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "common/obs/log.h"
#include "common/rpc/status.h"
#include "common/rpc/version.h"

namespace sft::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kFirstBackoff{200};
constexpr seconds kMaxBackoff{5};
constexpr size_t kMaxUnanswered = 1024;
// The longest wait for the Welcome, which a server that accepts streams sends at once.
constexpr seconds kMaxHeartbeat{60};

}  // namespace

Session::Session(Channels channels, Agent& agent, MakeRegister make_register,
                 OnFetchFile on_fetch_file, OnModelRequest on_model_request, OnAsk on_ask,
                 OnWelcome on_welcome, OnLost on_lost, OnDismissed on_dismissed,
                 OnRecordSteps on_record_steps)
    : channels_(std::move(channels)),
      agent_(agent),
      make_register_(std::move(make_register)),
      on_fetch_file_(std::move(on_fetch_file)),
      on_model_request_(std::move(on_model_request)),
      on_ask_(std::move(on_ask)),
      on_welcome_(std::move(on_welcome)),
      on_lost_(std::move(on_lost)),
      on_dismissed_(std::move(on_dismissed)),
      on_record_steps_(std::move(on_record_steps)) {}

Session::~Session() { Stop(); }

void Session::Start() {
  thread_ = std::thread([this] {
    obs::NameThread("session");
    Loop();
  });
}

void Session::Stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    if (context_ != nullptr) context_->TryCancel();
    stopped_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Session::Redial() {
  const MutexLock lock(mutex_);
  if (context_ != nullptr) context_->TryCancel();
}

void Session::Loop() {
  Backoff backoff(kFirstBackoff, kMaxBackoff);
  while (true) {
    if (RunOnce()) backoff.Reset();
    if (replaced_) return;
    if (on_lost_) on_lost_();
    const MutexLock lock(mutex_);
    if (!stopping_) stopped_.WaitFor(mutex_, backoff.Next());
    if (stopping_) return;
  }
}

bool Session::RunOnce() {
  grpc::ClientContext context;
  {
    const MutexLock lock(mutex_);
    if (stopping_) return false;
    context_ = &context;
  }
  const auto stub = v1::WorkerService::NewStub(channels_());
  const std::unique_ptr<Stream> stream = stub->Session(&context);
  v1::WorkerMessage hello;
  *hello.mutable_register_() = make_register_();
  bool accepted = false;
  const MonoTime begun = agent_.Now();
  if (stream->Write(hello)) {
    const seconds heartbeat = ReadWelcome(*stream);
    accepted = heartbeat > seconds(0);
    if (accepted) {
      agent_.ServerHeard(begun);
      std::atomic<bool> ended = false;
      std::thread writer([&] {
        obs::NameThread("session-write");
        WriteLoop(*stream, heartbeat, ended);
      });
      ReadLoop(*stream);
      ended = true;
      agent_.NotifyChange();
      writer.join();
    }
  }
  {
    const MutexLock lock(mutex_);
    context_ = nullptr;
  }
  if (!accepted) context.TryCancel();
  const grpc::Status status = stream->Finish();
  const std::string why = status.ok() ? "closed by the server" : status.error_message();
  // An unreachable server is logged once, not at every try.
  if (accepted || why != last_end_) spdlog::warn("the stream to the server has ended: {}", why);
  last_end_ = why;
  return accepted;
}

void Session::ReadLoop(Stream& stream) {
  v1::ServerMessage message;
  while (stream.Read(&message)) {
    if (message.has_desired()) agent_.OnDesired(message.desired());
    if (message.has_notice()) spdlog::error("the server says: {}", message.notice().text());
    if (message.has_fetch_file()) on_fetch_file_(message.fetch_file());
    if (message.has_model_request() && on_model_request_) {
      on_model_request_(message.model_request());
    }
    if (message.has_ask() && on_ask_) on_ask_(message.ask());
    if (message.has_dismissed() && on_dismissed_) on_dismissed_();
    if (message.has_record_steps() && on_record_steps_) on_record_steps_(message.record_steps());
    if (message.has_observed_answer()) TakeAnswer(message.observed_answer().sequence());
  }
}

void Session::TakeAnswer(int64_t sequence) {
  MonoTime sent;
  {
    const MutexLock lock(mutex_);
    const auto found = unanswered_.find(sequence);
    if (found == unanswered_.end()) return;
    sent = found->second;
    unanswered_.erase(unanswered_.begin(), std::next(found));
  }
  agent_.ServerHeard(sent);
}

seconds Session::ReadWelcome(Stream& stream) {
  v1::ServerMessage message;
  if (!stream.Read(&message) || !message.has_welcome()) return seconds(0);
  const v1::Welcome& welcome = message.welcome();
  if (!welcome.refused().empty()) {
    Refused(welcome);
    return seconds(0);
  }
  const absl::Status speaks = rpc::CheckServerProtocol(welcome.protocol(), welcome.protocol() - 1,
                                                       welcome.server_version());
  if (!speaks.ok()) {
    spdlog::error("{}", Message(speaks));
    return seconds(0);
  }
  if (const absl::Status obeyed = on_welcome_ ? on_welcome_(welcome) : absl::OkStatus();
      !obeyed.ok()) {
    if (Message(obeyed) != disobeyed_) spdlog::error("{}", Message(obeyed));
    disobeyed_ = Message(obeyed);
    return seconds(0);
  }
  refused_.clear();
  disobeyed_.clear();
  answers_ = welcome.answers_observed();
  spdlog::info("registered with sft-server {}", welcome.server_version());
  return std::clamp(seconds(welcome.heartbeat_seconds()), seconds(1), kMaxHeartbeat);
}

void Session::Refused(const v1::Welcome& welcome) {
  if (welcome.refused() != refused_) {
    spdlog::error("the server refused this worker: {}", welcome.refused());
  }
  refused_ = welcome.refused();
  if (!welcome.replaced()) return;
  spdlog::error("this worker takes no jobs and ends what runs here, until it is started again");
  replaced_ = true;
  agent_.StopAll("another worker has taken this node over");
}

void Session::WriteLoop(Stream& stream, seconds heartbeat, const std::atomic<bool>& ended) {
  uint64_t seen = 0;
  uint64_t models_since = 0;
  int64_t sequence = 0;
  {
    const MutexLock lock(mutex_);
    unanswered_.clear();
  }
  while (!ended) {
    v1::WorkerMessage message;
    // Take the version before observing: changes during it are sent in the next turn.
    agent_.WaitForChange(seen, heartbeat);
    if (ended) return;
    *message.mutable_observed() = agent_.Observe(models_since);
    message.mutable_observed()->set_sequence(++sequence);
    const MonoTime sent = agent_.Now();
    {
      const MutexLock lock(mutex_);
      unanswered_[sequence] = sent;
      if (unanswered_.size() > kMaxUnanswered) unanswered_.erase(unanswered_.begin());
    }
    if (!stream.Write(message)) return;
    // A server of the previous version does not answer: a successful write counts instead.
    if (!answers_) agent_.ServerHeard(sent);
  }
}

}  // namespace sft::worker
