#include "server/oidc/oidc_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "common/base/duration.h"
#include "common/base/toml_limits.h"
#include "common/base/toml_plus_plus.h"
#include "common/io/file.h"
#include "server/oidc/issuer.h"
#include "server/state/names.h"

namespace sft::server {
namespace {

constexpr int64_t kMostFileBytes = 1 << 20, kMostSecretBytes = 4096;
constexpr size_t kMostRules = 1000;
constexpr std::chrono::seconds kShortestSession{10}, kLongestSession{86'400};
constexpr char kGithubIssuer[] = "https://token.actions.githubusercontent.com";
constexpr char kGitlabIssuer[] = "https://gitlab.com";

// A table whose keys are read one after the other; the first thing that is wrong is kept.
class Table {
 public:
  Table(const toml::table& table, std::string name) : table_(table), name_(std::move(name)) {}

  std::string Text(const char* key, bool needed, std::string fallback = "") {
    const toml::node* const node = Find(key, needed);
    if (node == nullptr) return fallback;
    if (const auto text = node->value<std::string>(); node->is_string() && !text->empty()) {
      return *text;
    }
    Fail(key, "is a text");
    return fallback;
  }
  bool Flag(const char* key) {
    const toml::node* const node = Find(key, false);
    if (node != nullptr && !node->is_boolean()) Fail(key, "is true or false");
    return node != nullptr && node->value<bool>().value_or(false);
  }
  // A text, or an array of them.
  std::vector<std::string> Texts(const char* key, std::vector<std::string> fallback = {}) {
    const toml::node* const node = Find(key, false);
    return node == nullptr ? std::move(fallback) : TextsOf(*node, key);
  }
  std::map<std::string, std::vector<std::string>> TextsByName(const char* key, bool needed) {
    std::map<std::string, std::vector<std::string>> all;
    const toml::node* const node = Find(key, needed);
    if (node == nullptr) return all;
    if (!node->is_table()) Fail(key, "is a table of texts: { name = \"text\" }");
    if (!node->is_table()) return all;
    for (const auto& [name, value] : *node->as_table()) {
      all[std::string(name.str())] = TextsOf(value, std::string(name.str()).c_str());
    }
    return all;
  }
  void Fail(const std::string& key, const std::string& what) {
    if (error_.empty()) error_ = fmt::format("{}: {} {}", name_, key, what);
  }
  // After all keys were read: those that nobody asked for are wrong, too.
  absl::Status Finish() {
    for (const auto& [key, value] : table_) {
      if (!read_.contains(std::string(key.str()))) {
        Fail(std::string(key.str()),
             fmt::format("is unknown; there are {}", fmt::join(read_.begin(), read_.end(), ", ")));
      }
    }
    return error_.empty() ? absl::OkStatus() : InvalidArgument(error_);
  }

 private:
  const toml::node* Find(const char* key, bool needed) {
    read_.insert(key);
    const toml::node* const node = table_.get(key);
    if (node == nullptr && needed) Fail(key, "is missing");
    return node;
  }
  std::vector<std::string> TextsOf(const toml::node& node, const char* key) {
    std::vector<std::string> texts;
    if (const auto text = node.value<std::string>(); node.is_string()) texts.push_back(*text);
    if (const toml::array* const list = node.as_array()) {
      for (const toml::node& one : *list) {
        if (!one.is_string()) Fail(key, "is a text, or an array of texts");
        texts.push_back(one.value<std::string>().value_or(""));
      }
    }
    if (texts.empty() || std::count(texts.begin(), texts.end(), "") > 0) {
      Fail(key, "is a text, or an array of texts");
    }
    return texts;
  }

  const toml::table& table_;
  const std::string name_;
  std::set<std::string> read_;
  std::string error_;
};

// A path counts from the folder of the file that names it.
std::string Below(const std::string& folder, const std::string& path) {
  return path.empty() || path.starts_with('/') ? path : folder + path;
}

std::string IssuerIn(Table& table, const std::string& fallback) {
  std::string issuer = table.Text("issuer", fallback.empty(), fallback);
  if (!issuer.empty() && !IsIssuerUrl(issuer)) {
    table.Fail("issuer",
               "is an address with https:// (http:// on loopback alone), without ? and #");
  }
  return issuer;
}

Role RoleIn(Table& table, bool needed) {
  const std::string text = table.Text("role", needed);
  if (text == "viewer") return Role::kViewer;
  if (text == "submitter") return Role::kSubmitter;
  if (!text.empty()) table.Fail("role", "is viewer or submitter");
  return Role::kNone;
}

std::string ProjectIn(Table& table, bool needed) {
  std::string project = table.Text("project", needed);
  if (!project.empty() && !IsValidLabel(project)) table.Fail("project", "is no name of a project");
  return project;
}

void ReadParameters(Table& table, OidcConfig::Provider& provider) {
  constexpr std::string_view kOwn[] = {
      "response_type", "client_id",      "redirect_uri",          "scope",        "state",
      "nonce",         "code_challenge", "code_challenge_method", "response_mode"};
  // Without it some give no refresh token (OpenID Connect Core, 11).
  const auto& scopes = provider.scopes;
  if (std::count(scopes.begin(), scopes.end(), "offline_access") > 0) {
    provider.parameters["prompt"] = "consent";
  }
  for (const auto& [name, texts] : table.TextsByName("parameters", false)) {
    if (std::count(std::begin(kOwn), std::end(kOwn), name) > 0 || texts.size() != 1) {
      table.Fail("parameters", "has texts, and none that this server sets itself");
    }
    provider.parameters[name] = texts.empty() ? "" : texts.front();
  }
}

absl::StatusOr<OidcConfig::Provider> ReadProvider(const toml::table& toml,
                                                  const std::string& folder) {
  Table table(toml, "[provider]");
  OidcConfig::Provider provider;
  provider.issuer = IssuerIn(table, "");
  provider.client_id = table.Text("client_id", true);
  provider.ca_file = Below(folder, table.Text("ca_file", false));
  provider.scopes = table.Texts("scopes", {"openid", "profile", "groups", "offline_access"});
  if (std::count(provider.scopes.begin(), provider.scopes.end(), "openid") == 0) {
    table.Fail("scopes", "has to have \"openid\"");
  }
  ReadParameters(table, provider);
  provider.user_claim = table.Text("user_claim", false, provider.user_claim);
  provider.groups_claim = table.Text("groups_claim", false, provider.groups_claim);
  const auto session = ParseDuration(table.Text("session", false, "1h"));
  if (session.has_value()) provider.session = *session;
  if (provider.session < kShortestSession || provider.session > kLongestSession || !session) {
    table.Fail("session", "is a duration from 10s to 24h");
  }
  const std::string secret_file = Below(folder, table.Text("client_secret_file", false));
  SFT_RETURN_IF_ERROR(table.Finish());
  if (secret_file.empty()) return provider;
  absl::StatusOr<std::string> secret = io::ReadFile(secret_file, kMostSecretBytes);
  if (!secret.ok()) return Annotate(InvalidArgument(Message(secret.status())), "[provider]");
  provider.client_secret = secret->substr(0, secret->find_last_not_of(" \r\n\t") + 1);
  if (!provider.client_secret.empty()) return provider;
  return InvalidArgument(fmt::format("[provider]: {} is empty", secret_file));
}

absl::StatusOr<OidcConfig::GroupRole> ReadRole(const toml::table& toml, size_t index) {
  Table table(toml, fmt::format("[[role]] {}", index + 1));
  OidcConfig::GroupRole role;
  role.group = table.Text("group", true);
  role.admin = table.Flag("admin");
  role.project = ProjectIn(table, !role.admin);
  role.role = RoleIn(table, !role.admin);
  if (role.admin && !role.project.empty()) table.Fail("admin", "is a role in every project");
  SFT_RETURN_IF_ERROR(table.Finish());
  return role;
}

// What a rule has to name, so that nobody else's repository fits it.
void CheckBound(Table& table, const OidcConfig::CiRule& rule) {
  const auto has = [&](const char* claim) { return rule.claims.contains(claim); };
  if (rule.kind == OidcConfig::CiKind::kGithub) {
    if (!has("repository_id") || !has("repository_owner_id")) {
      table.Fail("claims",
                 "names repository_id and repository_owner_id: a repository's name may "
                 "be somebody else's tomorrow");
    }
    if (!has("ref") && !has("environment") && !has("job_workflow_ref")) {
      table.Fail("claims",
                 "names ref, environment or job_workflow_ref, too: else each branch that "
                 "anybody may push has the role");
    }
    if (rule.audience.starts_with("https://github.com/")) {
      table.Fail("audience",
                 "is GitHub's default, which other services have as well: choose one "
                 "of this server, such as its address");
    }
    return;
  }
  if (!has("project_id") || !has("ref_type") || (!has("ref") && !has("environment"))) {
    table.Fail("claims", "names project_id, ref_type, and ref or environment");
  }
  const auto is_protected = rule.claims.find("ref_protected");
  if (is_protected == rule.claims.end() ||
      is_protected->second != std::vector<std::string>{"true"}) {
    table.Fail("claims", "has ref_protected = \"true\": anybody may push to other branches");
  }
}

absl::StatusOr<OidcConfig::CiRule> ReadCi(const toml::table& toml, size_t index,
                                          const std::string& folder) {
  Table table(toml, fmt::format("[[ci]] {}", index + 1));
  OidcConfig::CiRule rule;
  rule.name = table.Text("name", true);
  if (!rule.name.empty() && !IsValidLabel("ci-" + rule.name)) {
    table.Fail("name", "is made of letters, digits, '-', '_' and '.', at most 60");
  }
  const std::string kind = table.Text("kind", true);
  if (kind != "github" && kind != "gitlab") table.Fail("kind", "is github or gitlab");
  rule.kind = kind == "gitlab" ? OidcConfig::CiKind::kGitlab : OidcConfig::CiKind::kGithub;
  rule.issuer = IssuerIn(table, kind == "gitlab" ? kGitlabIssuer : kGithubIssuer);
  rule.audience = table.Text("audience", true);
  rule.ca_file = Below(folder, table.Text("ca_file", false));
  rule.claims = table.TextsByName("claims", true);
  rule.project = ProjectIn(table, true);
  rule.role = RoleIn(table, true);
  CheckBound(table, rule);
  SFT_RETURN_IF_ERROR(table.Finish());
  return rule;
}

// The tables of an array; INVALID_ARGUMENT for something else.
template <typename Item, typename Read>
absl::Status ReadAll(const toml::table& file, const char* key, std::vector<Item>& items,
                     const Read& read) {
  const toml::node* const node = file.get(key);
  if (node == nullptr) return absl::OkStatus();
  const toml::array* const list = node->as_array();
  if (list == nullptr || !list->is_homogeneous(toml::node_type::table) ||
      list->size() > kMostRules) {
    return InvalidArgument(
        fmt::format("{} is written [[{}]], at most {} times", key, key, kMostRules));
  }
  for (size_t i = 0; i < list->size(); ++i) {
    SFT_ASSIGN_OR_RETURN(Item item, read(*list->get(i)->as_table(), i));
    items.push_back(std::move(item));
  }
  return absl::OkStatus();
}

absl::StatusOr<OidcConfig> ReadTables(const toml::table& file, const std::string& folder) {
  for (const auto& [key, value] : file) {
    if (key.str() != "provider" && key.str() != "role" && key.str() != "ci") {
      return InvalidArgument(fmt::format(
          "unknown key {}: there are [provider], [[role]] and [[ci]]", std::string(key.str())));
    }
  }
  OidcConfig config;
  if (const toml::node* const node = file.get("provider")) {
    if (!node->is_table()) return InvalidArgument("provider is written [provider]: there is one");
    SFT_ASSIGN_OR_RETURN(config.provider, ReadProvider(*node->as_table(), folder));
  }
  SFT_RETURN_IF_ERROR(ReadAll(file, "role", config.roles, ReadRole));
  const auto read_ci = [&](const toml::table& toml, size_t index) {
    return ReadCi(toml, index, folder);
  };
  SFT_RETURN_IF_ERROR(ReadAll(file, "ci", config.ci, read_ci));
  std::set<std::string> names;
  for (const OidcConfig::CiRule& rule : config.ci) {
    if (names.insert(rule.name).second) continue;
    return InvalidArgument(fmt::format("two [[ci]] have the name {}", rule.name));
  }
  if (config.provider.has_value() == config.roles.empty()) {
    return InvalidArgument("[provider] and [[role]] go together: a group without a role is nobody");
  }
  if (!config.provider.has_value() && config.ci.empty()) {
    return InvalidArgument("it has neither [provider] nor [[ci]]");
  }
  return config;
}

}  // namespace

absl::StatusOr<OidcConfig> ReadOidcConfig(const std::string& path) {
  absl::StatusOr<std::string> text = io::ReadFile(path, kMostFileBytes);
  if (!text.ok()) return InvalidArgument(Message(text.status()));
  if (const auto excess = FindTomlExcess(*text)) {
    return InvalidArgument(fmt::format("{}:{}: {}", path, excess->line, excess->message));
  }
  const toml::parse_result parsed = toml::parse(*text, path);
  if (!parsed) {
    return InvalidArgument(fmt::format("{}:{}: {}", path, parsed.error().source().begin.line,
                                       parsed.error().description()));
  }
  const size_t slash = path.rfind('/');
  const std::string folder = slash == path.npos ? "" : path.substr(0, slash + 1);
  absl::StatusOr<OidcConfig> config = ReadTables(parsed.table(), folder);
  if (!config.ok()) return Annotate(config.status(), path);
  return config;
}

}  // namespace sft::server
