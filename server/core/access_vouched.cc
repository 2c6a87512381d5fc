// Users for whom an issuer vouches: the company's provider or a CI.

#include <fmt/format.h>

#include <algorithm>

#include "server/core/access.h"
#include "server/store/access.h"

namespace sft::server {
namespace {

// A CI makes a token for each job: those that have ended are shown for so long.
constexpr int64_t kKeepVouchedUs = int64_t{7} * 24 * 3'600'000'000;

bool HasEnded(const TokenRecord& token, int64_t before_us) {
  return (token.expires_us > 0 && token.expires_us < before_us) ||
         (token.revoked_us > 0 && token.revoked_us < before_us);
}

}  // namespace

absl::StatusOr<std::string> Access::NameOf(const UserRecord& user) const {
  const MutexLock lock(mutex_);
  const auto same = std::find_if(users_.begin(), users_.end(), [&](const auto& known) {
    return known.second.issuer == user.issuer && known.second.subject == user.subject;
  });
  if (same != users_.end()) return same->first;
  if (!users_.contains(user.name)) return user.name;
  return AlreadyExists(
      fmt::format("the name {} is that of another user here: an admin makes room with `sftctl "
                  "admin user remove "
                  "{}`, or it gets another name where it comes from",
                  user.name, user.name));
}

absl::StatusOr<std::string> Access::LogIn(const Vouched& vouched, TokenRecord& token,
                                          const Actor& actor) {
  const MutexLock changing(changing_);
  UserRecord user = vouched.user;
  SFT_ASSIGN_OR_RETURN(user.name, NameOf(user));
  token = TokenRecord();
  token.user = user.name;
  token.comment = vouched.comment;
  token.created_by = user.name;
  const TokenText text = Fill(token);
  token.expires_us = token.created_us + vouched.life_us;
  const int64_t old_us = token.created_us - kKeepVouchedUs;
  SFT_RETURN_IF_ERROR(Put(user, actor, [&](Database& db) -> absl::Status {
    if (!vouched.used_id.empty()) {
      SFT_RETURN_IF_ERROR(
          store::UseIdToken(db, vouched.used_id, vouched.used_until_us, token.created_us));
    }
    SFT_RETURN_IF_ERROR(store::DropOldTokensOf(db, user.name, old_us));
    return store::InsertToken(db, token);
  }));
  const MutexLock lock(mutex_);
  for (auto each = tokens_.begin(); each != tokens_.end();) {
    const bool drop = each->second.user == user.name && HasEnded(each->second, old_us);
    if (drop) last_use_us_.erase(each->first);
    each = drop ? tokens_.erase(each) : std::next(each);
  }
  tokens_[token.id] = token;
  return Write(text);
}

absl::Status Access::Renew(const std::string& token_id, UserRecord user, int64_t expires_us,
                           AuditRow* audit) {
  const MutexLock changing(changing_);
  const std::optional<TokenRecord> token = FindToken(token_id);
  const UserRecord known = token.has_value() ? Known(token->user) : UserRecord();
  if (!token.has_value() || token->revoked_us > 0 || known.issuer != user.issuer ||
      known.subject != user.subject) {
    return NotFound(fmt::format("token {} was revoked, or its user removed", token_id));
  }
  user.name = known.name;
  const auto extend = [&](Database& db) { return store::ExtendToken(db, token_id, expires_us); };
  if (known.admin == user.admin && known.roles == user.roles) {
    SFT_RETURN_IF_ERROR(store_.Write(extend));
  } else {
    SFT_RETURN_IF_ERROR(Put(user, Actor(user.name, audit), extend));
  }
  const MutexLock lock(mutex_);
  tokens_[token_id].expires_us = expires_us;
  return absl::OkStatus();
}

}  // namespace sft::server
