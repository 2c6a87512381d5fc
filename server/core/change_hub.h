#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"

namespace sft::server {

// The key of the feed of events (server/store/feed.h).
inline constexpr char kFeedKey[] = "feed";

// Wakes those who follow a key (a job, a log) when something about it has changed. It carries no
// data: who is woken reads the truth again. Thread-safe; must outlive its subscriptions.
class ChangeHub {
 public:
  // Followers at once: each costs memory and a look at the store for each change.
  static constexpr int kMaxSubscriptions = 1200;

  // Wakes its holder while it lives; once it is gone its wake is not running and runs no more.
  class Subscription {
   public:
    ~Subscription();
    Subscription(const Subscription&) = delete;
    // From now on wakes for these.
    void SetKeys(std::vector<std::string> keys);

   private:
    friend class ChangeHub;
    Subscription(ChangeHub& hub, std::vector<std::string> keys, std::function<void()> wake)
        : hub_(hub), keys_(std::move(keys)), wake_(std::move(wake)) {}
    ChangeHub& hub_;
    std::vector<std::string> keys_;  // with the hub's lock
    const std::function<void()> wake_;
  };

  // Calls `wake` at each change of one of the keys from now on, in the thread that made the change:
  // it must be short, and may not call the hub. RESOURCE_EXHAUSTED at the limit.
  absl::StatusOr<std::unique_ptr<Subscription>> Subscribe(std::vector<std::string> keys,
                                                          std::function<void()> wake);
  // A key is a job's id, "nodes/NODE", "log/STREAM" or "users/NAME" (UserKey). A change of the
  // first two is also one of kJobs or kNodes, by which lists of them are followed.
  void Bump(const std::string& key);
  static constexpr char kJobs[] = "jobs", kNodes[] = "nodes";
  static constexpr char kSomeNode[] = "nodes/";  // one that is not named
  // The key of a user's rights.
  static std::string UserKey(const std::string& name) { return "users/" + name; }
  // The server stops: wakes everybody, who then end.
  void Shutdown();
  bool stopped() const;

  // The entries of a list that have changed since a place in the order of all changes.
  struct Changes {
    std::vector<std::string> keys;
    uint64_t place = 0;     // of the last one
    bool complete = false;  // false: there were more, which nobody knows any more
  };
  Changes ChangesSince(std::string_view list, uint64_t place) const;

 private:
  // Changes that are kept, one for each key.
  static constexpr size_t kMaxChanges = 4096;

  void Add(Subscription& follower) SFT_REQUIRES(mutex_);
  void Remove(Subscription& follower) SFT_REQUIRES(mutex_);
  void Wake(const std::string& key) SFT_REQUIRES(mutex_);
  void Keep(const std::string& key) SFT_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::map<std::string, std::set<Subscription*>> followers_ SFT_GUARDED_BY(mutex_);  // none empty
  std::set<Subscription*> all_ SFT_GUARDED_BY(mutex_);
  std::map<std::string, uint64_t> place_of_ SFT_GUARDED_BY(mutex_);
  std::map<uint64_t, std::string> changes_ SFT_GUARDED_BY(mutex_);  // by place
  uint64_t last_place_ SFT_GUARDED_BY(mutex_) = 0, forgotten_ SFT_GUARDED_BY(mutex_) = 0;
  bool stopped_ SFT_GUARDED_BY(mutex_) = false;
};

}  // namespace sft::server
