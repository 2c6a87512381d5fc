#pragma once

#include <map>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/core/access.h"
#include "server/oidc/company_login.h"

namespace sft::server {

// Asks the provider again, before the token of a login ends, whether its person is still one of the
// company, and with which groups: a token lives on for as long as that is so and somebody uses it.
// Where the provider says no, the token ends at once; where it cannot be reached, at its time,
// unless it comes back first. What it is asked with (refresh tokens) lies in files of this user
// alone, beside the database, and so is in no backup. Thread-safe.
class LoginRenewal {
 public:
  static constexpr std::chrono::seconds kPeriod{1};
  // Unused for so long, a login is left to end.
  static constexpr std::chrono::hours kIdle{12};
  // Before the provider is asked again where it could not be reached; less where logins are short.
  static constexpr std::chrono::seconds kPause{30};

  // Both borrowed, and the clock. Reads what `folder` has.
  LoginRenewal(const CompanyLogin& people, Access& access, Clock& clock, std::string folder);
  ~LoginRenewal() { Stop(); }

  // Renews this token from now on.
  void Keep(const std::string& token_id, const std::string& refresh_token) SFT_EXCLUDES(mutex_);

  // Its person has logged out: the token ends with the next step.
  void LogOut(const std::string& token_id) SFT_EXCLUDES(mutex_);

  void Start();
  // Waits for a question that is under way.
  void Stop() SFT_EXCLUDES(mutex_);
  // Asks for all that is due; of one thread. The number of questions.
  int Step() SFT_EXCLUDES(mutex_);
  size_t kept() const SFT_EXCLUDES(mutex_);

 private:
  struct Login {
    std::string refresh_token;
    int64_t since_us = 0;       // of this life of the server
    int64_t not_before_us = 0;  // of the next question
    bool logged_out = false;
  };

  void Loop();
  // What is to be asked now; logins that have ended or are not used are dropped.
  std::map<std::string, Login> TakeDue() SFT_EXCLUDES(mutex_);
  // False: the provider cannot be reached, so nobody else needs to be asked for now.
  bool Renew(const std::string& token_id, const Login& login) SFT_EXCLUDES(mutex_);
  void End(const std::string& token_id, const std::string& why) SFT_EXCLUDES(mutex_);
  void Drop(const std::string& token_id) SFT_EXCLUDES(mutex_);
  std::string PathOf(const std::string& token_id) const { return folder_ + "/" + token_id; }
  int64_t now_us() const { return UnixMicros(clock_.Wall()); }
  int64_t life_us() const;
  int64_t pause_us() const;

  const CompanyLogin& people_;
  Access& access_;
  Clock& clock_;
  const std::string folder_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::map<std::string, Login> logins_ SFT_GUARDED_BY(mutex_);  // by the token's id
  bool stopping_ SFT_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace sft::server
