#include "server/state/access.h"

#include <algorithm>
#include <vector>

namespace sft::server {
namespace {

constexpr std::string_view kUserPrefix = "sft", kJoinPrefix = "sftjoin";
constexpr size_t kMaxToken = 512;

std::vector<std::string> Split(std::string_view text) {
  std::vector<std::string> parts;
  while (true) {
    const size_t end = text.find('_');
    parts.emplace_back(text.substr(0, end));
    if (end == text.npos) return parts;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

std::string_view ToString(Role role) {
  switch (role) {
    case Role::kViewer:
      return "viewer";
    case Role::kSubmitter:
      return "submitter";
    case Role::kAdmin:
      return "admin";
    default:
      return "none";
  }
}

std::string Principal::Title() const { return kind == Kind::kNode ? "nodes/" + name : name; }

Role Principal::RoleIn(const std::string& project) const {
  if (admin) return Role::kAdmin;
  const auto found = roles.find(project);
  return found == roles.end() ? Role::kNone : found->second;
}

Role Principal::Best() const {
  if (admin) return Role::kAdmin;
  Role best = Role::kNone;
  for (const auto& [project, role] : roles) best = std::max(best, role);
  return best;
}

std::string Write(const TokenText& token) {
  const bool join = token.kind == TokenKind::kJoin;
  std::string text(join ? kJoinPrefix : kUserPrefix);
  text += "_" + token.id + "_" + token.secret;
  if (join) text += "_" + token.fingerprint;
  return text;
}

std::optional<TokenText> ReadToken(std::string_view text) {
  if (text.size() > kMaxToken) return std::nullopt;
  const std::vector<std::string> parts = Split(text);
  if (std::any_of(parts.begin(), parts.end(), [](const auto& part) { return part.empty(); })) {
    return std::nullopt;
  }
  if (parts.size() == 3 && parts[0] == kUserPrefix) {
    return TokenText{TokenKind::kUser, parts[1], parts[2], ""};
  }
  if (parts.size() == 4 && parts[0] == kJoinPrefix) {
    return TokenText{TokenKind::kJoin, parts[1], parts[2], parts[3]};
  }
  return std::nullopt;
}

bool EqualSecrets(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char differs = 0;
  for (size_t i = 0; i < a.size(); ++i) differs |= static_cast<unsigned char>(a[i] ^ b[i]);
  return differs == 0;
}

}  // namespace sft::server
