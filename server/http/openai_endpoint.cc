#include "server/http/openai_endpoint.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <system_error>

#include "common/obs/log.h"
#include "server/http/openai_call.h"
#include "server/openai/errors.h"

namespace sft::server {

OpenAiEndpoint::~OpenAiEndpoint() {
  std::list<Running> running;
  {
    const MutexLock lock(mutex_);
    running.swap(running_);
  }
  for (Running& each : running) each.shared.ended = true;
  for (Running& each : running) each.thread.join();
}

void OpenAiEndpoint::Reap() {
  for (auto each = running_.begin(); each != running_.end();) {
    if (!each->done) {
      ++each;
      continue;
    }
    each->thread.join();
    each = running_.erase(each);
  }
}

bool OpenAiEndpoint::MakeRoom() {
  const auto holds = [](const Running& each) { return !each.done && !each.shared.ended; };
  if (std::ranges::count_if(running_, holds) < kMostCalls) return true;
  const auto idle = std::ranges::find_if(
      running_, [&](const Running& each) { return holds(each) && each.shared.awaits_body; });
  if (idle == running_.end()) return false;
  idle->shared.ended = true;
  return true;
}

bool OpenAiEndpoint::Takes(const HttpRequest& request) { return OpenAiCall::Takes(request.path); }

void OpenAiEndpoint::Take(std::shared_ptr<HttpStream> stream) {
  const MutexLock lock(mutex_);
  Reap();
  // Some more may be told that there are too many; beyond those, connections are closed.
  if (running_.size() >= kMostCalls + kMostRefused) return stream->Cut();
  const bool refused = !MakeRoom();
  Running& running = running_.emplace_back();
  auto serve = [this, refused, &running, stream]() mutable {
    obs::NameThread("openai");
    {
      HttpCall http(std::move(stream), running.shared);
      OpenAiDoor of_call(door_, methods_, parsers_, http);
      OpenAiCall call(of_call, creates_);
      if (refused) {
        call.Refuse(ResourceExhausted(
            fmt::format("{} requests are being answered: try again later", kMostCalls)));
      } else {
        call.Run();
      }
    }
    const MutexLock done(mutex_);
    running.done = true;
  };
  try {
    running.thread = std::thread(std::move(serve));
  } catch (const std::system_error& error) {
    // The machine has no thread left: the connection is closed.
    spdlog::error("a request for an answer is not served: {}", error.what());
    running_.pop_back();
    stream->Cut();
  }
}

}  // namespace sft::server
