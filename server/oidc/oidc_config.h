#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "server/state/access.h"

namespace sft::server {

// The file of `sft-server --oidc` (docs/security.md, "Company login"): who vouches for people and
// for jobs of a CI, and which roles they get.
struct OidcConfig {
  // Where people log in.
  struct Provider {
    std::string issuer, client_id;
    std::string client_secret;  // empty: a public client, with PKCE alone
    std::string ca_file;        // empty: the system's authorities
    std::vector<std::string> scopes;
    // More of the query with which a login begins, such as Google's access_type = "offline".
    std::map<std::string, std::string> parameters;
    // Where the ID token, or else the userinfo endpoint, has a person's name and groups.
    std::string user_claim = "preferred_username", groups_claim = "groups";
    // A token is good for so long, until the provider has to say yes again.
    std::chrono::seconds session{3600};
  };
  // What members of a group may do.
  struct GroupRole {
    std::string group;
    bool admin = false;
    std::string project;  // without `admin`
    Role role = Role::kNone;
  };
  enum class CiKind { kGithub, kGitlab };
  // Which jobs of a CI get a token, and for what.
  struct CiRule {
    std::string name;  // of the user that they are here: "ci-" + name
    CiKind kind = CiKind::kGithub;
    std::string issuer, audience, ca_file;
    // Each claim has to be one of these texts, byte for byte.
    std::map<std::string, std::vector<std::string>> claims;
    std::string project;
    Role role = Role::kNone;
  };

  std::optional<Provider> provider;
  std::vector<GroupRole> roles;
  std::vector<CiRule> ci;
};

// INVALID_ARGUMENT, with the file's name and the line or the place, for what is no such file or is
// not safe: an issuer without TLS, a rule that does not name its repository by its numbers.
absl::StatusOr<OidcConfig> ReadOidcConfig(const std::string& path);

}  // namespace sft::server
