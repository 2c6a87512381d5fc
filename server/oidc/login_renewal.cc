#include "server/oidc/login_renewal.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "common/io/file.h"
#include "common/obs/log.h"

namespace sft::server {
namespace {

constexpr int64_t kMostTokenBytes = int64_t{64} << 10;

int64_t ToMicros(Nanos duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}

}  // namespace

LoginRenewal::LoginRenewal(const CompanyLogin& people, Access& access, Clock& clock,
                           std::string folder)
    : people_(people), access_(access), clock_(clock), folder_(std::move(folder)) {
  const MutexLock lock(mutex_);
  for (const std::string& id : io::ListDir(folder_).value_or(std::vector<std::string>())) {
    const absl::StatusOr<std::string> token = io::ReadFile(PathOf(id), kMostTokenBytes);
    // A file that a lost machine has cut off is the end of one login.
    if (token.ok() && !token->empty()) logins_[id] = {*token, now_us(), 0};
  }
}

int64_t LoginRenewal::life_us() const { return ToMicros(people_.provider().session); }

int64_t LoginRenewal::pause_us() const {
  return std::clamp(life_us() / 20, ToMicros(kPeriod), ToMicros(kPause));
}

void LoginRenewal::Keep(const std::string& token_id, const std::string& refresh_token) {
  if (refresh_token.empty()) return;
  {
    const MutexLock lock(mutex_);
    Login& login = logins_[token_id];
    if (login.since_us == 0) login.since_us = now_us();
    login.refresh_token = refresh_token;
  }
  absl::Status kept = io::MakeDirs(folder_);
  if (kept.ok()) kept = io::WriteFileAtomic(PathOf(token_id), refresh_token, io::kPrivateMode);
  // It is renewed all the same, until this server ends.
  if (!kept.ok()) spdlog::warn("login {}: {}", token_id, Message(kept));
}

void LoginRenewal::LogOut(const std::string& token_id) {
  const MutexLock lock(mutex_);
  logins_[token_id].logged_out = true;
  changed_.NotifyAll();
}

void LoginRenewal::Drop(const std::string& token_id) {
  {
    const MutexLock lock(mutex_);
    logins_.erase(token_id);
  }
  const absl::Status removed = io::RemoveAll(PathOf(token_id));
  if (!removed.ok()) spdlog::warn("login {}: {}", token_id, Message(removed));
}

void LoginRenewal::End(const std::string& token_id, const std::string& why) {
  spdlog::info("login {} ends: {}", token_id, why);
  const absl::Status revoked = access_.Revoke(token_id);
  if (!revoked.ok() && !absl::IsNotFound(revoked)) {
    spdlog::error("login {} could not be ended: {}", token_id, Message(revoked));
    return;  // the next step tries again
  }
  Drop(token_id);
}

std::map<std::string, LoginRenewal::Login> LoginRenewal::TakeDue() {
  std::map<std::string, Login> due;
  std::vector<std::string> over, logged_out;
  {
    const MutexLock lock(mutex_);
    const int64_t now = now_us();
    for (const auto& [id, login] : logins_) {
      const std::optional<TokenRecord> token = access_.FindToken(id);
      const int64_t used_us = std::max(login.since_us, access_.LastUse(id));
      if (!token.has_value() || token->revoked_us > 0 || now - used_us >= ToMicros(kIdle)) {
        over.push_back(id);
      } else if (login.logged_out) {
        logged_out.push_back(id);
      } else if (token->expires_us - now <= life_us() / 2 && now >= login.not_before_us) {
        due.emplace(id, login);
      }
    }
  }
  for (const std::string& id : over) Drop(id);
  for (const std::string& id : logged_out) End(id, "logged out");
  return due;
}

int LoginRenewal::Step() {
  int asked = 0;
  for (const auto& [id, login] : TakeDue()) {
    {
      const MutexLock lock(mutex_);
      if (stopping_) break;
      if (const auto found = logins_.find(id); found != logins_.end()) {
        found->second.not_before_us = now_us() + pause_us();
      }
    }
    ++asked;
    if (!Renew(id, login)) break;
  }
  return asked;
}

bool LoginRenewal::Renew(const std::string& token_id, const Login& login) {
  const std::optional<TokenRecord> token = access_.FindToken(token_id);
  const std::optional<UserRecord> user = access_.FindUser(token.value_or(TokenRecord()).user);
  if (!user.has_value()) {
    Drop(token_id);
    return true;
  }
  const absl::StatusOr<Person> person = people_.Refresh(login.refresh_token, user->subject);
  if (absl::IsUnauthenticated(person.status()) || absl::IsPermissionDenied(person.status())) {
    End(token_id, std::string(Message(person.status())));
    return true;
  }
  if (!person.ok()) {
    spdlog::warn("login {} could not be renewed: {}", token_id, Message(person.status()));
    return !absl::IsUnavailable(person.status());
  }
  Keep(token_id, person->refresh_token);
  AuditRow row{{.time_us = now_us(),
                .principal = user->name,
                .token = token_id,
                .method = "login renewed",
                .object = "users/" + user->name}};
  const bool anybody = person->user.admin || !person->user.roles.empty();
  const absl::Status renewed =
      access_.Renew(token_id, person->user, anybody ? now_us() + life_us() : now_us(), &row);
  if (absl::IsNotFound(renewed)) {
    Drop(token_id);
  } else if (!renewed.ok()) {
    spdlog::error("login {} could not be renewed: {}", token_id, Message(renewed));
  } else if (!anybody) {
    End(token_id, user->name + " is in no group that has a role here any more");
  }
  return true;
}

size_t LoginRenewal::kept() const {
  const MutexLock lock(mutex_);
  return logins_.size();
}

void LoginRenewal::Start() {
  thread_ = std::thread([this] { Loop(); });
}

void LoginRenewal::Stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void LoginRenewal::Loop() {
  obs::NameThread("logins");
  while (true) {
    (void)Step();
    const MutexLock lock(mutex_);
    if (!stopping_) (void)changed_.WaitFor(mutex_, kPeriod);
    if (stopping_) return;
  }
}

}  // namespace sft::server
