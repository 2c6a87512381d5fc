#include "client/top/watch.h"

#include <fmt/format.h>

#include <utility>

namespace sft::client::top {

Watch::Watch(Connection& connection, std::chrono::nanoseconds interval, const Query& query)
    : interval_(interval), calls_(connection), query_(query) {
  news_.snapshot = std::make_shared<const Snapshot>();
  thread_ = std::thread([this] { Run(); });
}

Watch::~Watch() {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    changed_.NotifyAll();
  }
  calls_.Stop();
  thread_.join();
}

void Watch::Ask(const Query& query) {
  MutexLock lock(mutex_);
  query_ = query;
  asked_ = true;
  changed_.NotifyAll();
}

void Watch::Act(const Action& action) {
  MutexLock lock(mutex_);
  action_ = action;
  asked_ = true;
  changed_.NotifyAll();
}

Watch::News Watch::Latest() {
  MutexLock lock(mutex_);
  News news = news_;
  news_.done.clear();
  return news;
}

std::string Watch::TextOf(const Action& action, const absl::Status& status) const {
  return fmt::format("{}: {}", action.Command(), status.ok() ? "done" : Message(status));
}

void Watch::Run() {
  Snapshot snapshot;
  while (true) {
    Query query;
    std::optional<Action> action;
    {
      MutexLock lock(mutex_);
      // Once more when it was notified for nothing.
      if (!asked_ && !stopped_) changed_.WaitFor(mutex_, interval_);
      if (stopped_) return;
      asked_ = false;
      query = query_;
      action = std::exchange(action_, std::nullopt);
    }
    std::string done;
    if (action) done = TextOf(*action, Do(calls_, *action));
    Fetch(calls_, query, snapshot);
    MutexLock lock(mutex_);
    news_.snapshot = std::make_shared<const Snapshot>(snapshot);
    if (!done.empty()) news_.done = std::move(done);
    ++news_.number;
  }
}

}  // namespace sft::client::top
