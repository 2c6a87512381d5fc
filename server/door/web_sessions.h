#pragma once

#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace sft::server {

// Sessions of browsers, each opened by a user's token and good for no longer than that; and the
// codes that open one in place of the token. Of both only hashes are kept, in memory: after a
// restart of the server people log in again. Thread-safe.
class WebSessions {
 public:
  static constexpr std::chrono::hours kIdle{12};
  static constexpr std::chrono::seconds kCodeLife{60};
  // Sessions, and codes, of one token and of all: beyond these the one of that token, or of all,
  // that was used longest ago ends.
  static constexpr size_t kMostOfOne = 20, kMost = 10'000;

  explicit WebSessions(Clock& clock) : clock_(clock) {}

  // Where the page is; empty: it is off, or not yet served.
  void SetUrl(std::string url) SFT_EXCLUDES(mutex_);
  std::string url() const SFT_EXCLUDES(mutex_);

  // A code that opens a session of this token, once.
  std::string MakeCode(const std::string& token_id) SFT_EXCLUDES(mutex_);
  // The token of a code, which is used up. Nullopt: it is unknown, used or too old.
  std::optional<std::string> TakeCode(const std::string& code) SFT_EXCLUDES(mutex_);

  // Opens a session, and returns its secret. `owns`: its token is of no use without it.
  std::string Open(const std::string& token_id, bool owns = false) SFT_EXCLUDES(mutex_);
  // The token of a session, which has been used now. Empty: it is unknown, has ended or was idle
  // for too long.
  std::string TokenOf(const std::string& secret) SFT_EXCLUDES(mutex_);
  // Whether it has not ended; that it was looked for is no use of it.
  bool Has(const std::string& secret) SFT_EXCLUDES(mutex_);
  // Called when somebody logs out of a session that owns its token. Set before the first call.
  void WhenLoggedOut(std::function<void(const std::string& token_id)> tell) {
    logged_out_ = std::move(tell);
  }
  // Somebody logs out. False: there was none.
  bool Close(const std::string& secret) SFT_EXCLUDES(mutex_);

 private:
  struct Entry {
    std::string hash, token_id;
    MonoTime used;  // or made, of a code
    bool owns = false;
  };
  // The oldest first.
  struct Entries {
    std::list<Entry> list;
    std::map<std::string, std::list<Entry>::iterator> by_hash;
  };
  std::string Add(Entries& entries, const std::string& token_id, Nanos life, bool owns = false)
      SFT_REQUIRES(mutex_);
  void DropOld(Entries& entries, Nanos life) SFT_REQUIRES(mutex_);
  static void Drop(Entries& entries, std::list<Entry>::iterator entry);

  Clock& clock_;
  std::function<void(const std::string&)> logged_out_ = [](const std::string&) {};
  mutable Mutex mutex_;
  std::string url_ SFT_GUARDED_BY(mutex_);
  Entries sessions_ SFT_GUARDED_BY(mutex_), codes_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
