#include "server/oidc/oidc_config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/io/file.h"

namespace sft::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kPeople[] = R"([provider]
issuer = "https://login.example.com"
client_id = "sft"
client_secret_file = "secret"
[[role]]
group = "ml"
project = "vision"
role = "submitter"
)";
constexpr char kGithub[] = R"([[ci]]
name = "nightly"
kind = "github"
audience = "https://sft.example.org"
claims = { repository_id = "1", repository_owner_id = "2", ref = ["refs/heads/main", "refs/x"] }
project = "vision"
role = "submitter"
)";
constexpr char kGitlab[] = R"([[ci]]
name = "nightly"
kind = "gitlab"
issuer = "https://gitlab.example.com"
audience = "sft"
claims = { project_id = "7", ref_protected = "true", ref_type = "branch", ref = "main" }
project = "vision"
role = "viewer"
)";

class OidcConfigTest : public testing::Test {
 protected:
  OidcConfigTest() : dir_(io::MakeTempDir("oidc-config").value()) {
    EXPECT_TRUE(io::WriteFileAtomic(dir_ + "/secret", "hidden\n").ok());
  }
  ~OidcConfigTest() override { (void)io::RemoveAll(dir_); }
  absl::StatusOr<OidcConfig> Read(const std::string& text) const {
    EXPECT_TRUE(io::WriteFileAtomic(dir_ + "/oidc.toml", text).ok());
    return ReadOidcConfig(dir_ + "/oidc.toml");
  }
  static std::string Changed(std::string text, const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    EXPECT_NE(at, text.npos) << from;
    return text.replace(at, from.size(), to);
  }

  const std::string dir_;
};

TEST_F(OidcConfigTest, SaysWhoVouchesForWhom) {
  const absl::StatusOr<OidcConfig> config = Read(std::string(kPeople) + kGithub);
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_TRUE(config->provider.has_value());
  EXPECT_EQ(config->provider->client_secret, "hidden");
  EXPECT_THAT(config->provider->scopes,
              ElementsAre("openid", "profile", "groups", "offline_access"));
  EXPECT_EQ(config->provider->parameters.at("prompt"), "consent");
  EXPECT_EQ(config->provider->session, std::chrono::hours(1));
  ASSERT_EQ(config->roles.size(), 1u);
  EXPECT_EQ(config->roles[0].role, Role::kSubmitter);
  ASSERT_EQ(config->ci.size(), 1u);
  EXPECT_EQ(config->ci[0].issuer, "https://token.actions.githubusercontent.com");
  EXPECT_THAT(config->ci[0].claims.at("ref"), ElementsAre("refs/heads/main", "refs/x"));
  EXPECT_TRUE(Read(kGitlab).ok()) << Read(kGitlab).status();
  const auto google = Read(Changed(kPeople, "[[role]]",
                                   "scopes = [\"openid\"]\nparameters = { access_type = "
                                   "\"offline\" }\nsession = \"15m\"\n[[role]]"));
  ASSERT_TRUE(google.ok()) << google.status();
  EXPECT_EQ(google->provider->parameters.size(), 1u);
  const auto admins = Read(std::string(kPeople) + "[[role]]\ngroup = \"root\"\nadmin = true\n");
  ASSERT_TRUE(admins.ok()) << admins.status();
  EXPECT_TRUE(admins->roles[1].admin);
}

TEST_F(OidcConfigTest, WhatIsWrongIsNamed) {
  const std::string people = kPeople, github = kGithub, gitlab = kGitlab;
  const std::pair<std::string, const char*> bad[] = {
      {"", "neither [provider] nor [[ci]]"},
      {"[provider", "oidc.toml:1: "},
      {"x = 1\n", "unknown key x"},
      {Changed(people, "https://login", "http://login"),
       "[provider]: issuer is an address with https"},
      {Changed(people, "client_id = \"sft\"\n", ""), "[provider]: client_id is missing"},
      {Changed(people, "client_id", "clientid"), "client_id is missing"},
      {Changed(people, "client_id = \"sft\"", "client_id = 7"), "client_id is a text"},
      {Changed(people, "\"secret\"", "\"nowhere\""), "nowhere"},
      {Changed(people, "[[role]]", "session = \"5s\"\n[[role]]"), "session is a duration"},
      {Changed(people, "[[role]]", "scopes = [\"groups\"]\n[[role]]"), "has to have \"openid\""},
      {Changed(people, "[[role]]", "parameters = { nonce = \"x\" }\n[[role]]"), "parameters has"},
      {Changed(people, "[[role]]", "colour = \"x\"\n[[role]]"), "[provider]: colour is unknown"},
      {people.substr(0, people.find("[[role]]")), "go together"},
      {people.substr(people.find("[[role]]")), "go together"},
      {Changed(people, "\"submitter\"", "\"admin\""), "[[role]] 1: role is viewer or submitter"},
      {Changed(people, "\"vision\"", "\"../x\""), "project is no name"},
      {Changed(people, "role = \"submitter\"", "role = \"submitter\"\nadmin = true"), "admin is"},
      {Changed(github, "repository_id = \"1\", ", ""), "repository_id and repository_owner_id"},
      {Changed(github, "repository_owner_id = \"2\", ", ""),
       "repository_id and repository_owner_id"},
      {Changed(github, ", ref = [\"refs/heads/main\", \"refs/x\"]", ""), "ref, environment or"},
      {Changed(github, "https://sft.example.org", "https://github.com/octo"), "GitHub's default"},
      {Changed(github, "repository_id = \"1\"", "repository_id = 1"), "repository_id is a text"},
      {Changed(github, "\"github\"", "\"jenkins\""), "kind is github or gitlab"},
      {github + github, "two [[ci]] have the name nightly"},
      {Changed(gitlab, "ref_protected = \"true\", ", ""), "ref_protected = \"true\""},
      {Changed(gitlab, "ref_protected = \"true\"", "ref_protected = [\"true\", \"false\"]"),
       "ref_protected = \"true\""},
      {Changed(gitlab, "project_id = \"7\", ", ""), "project_id, ref_type"},
      {Changed(gitlab, "audience = \"sft\"\n", ""), "[[ci]] 1: audience is missing"},
      {"provider = 3\n", "written [provider]"},
      {"ci = 3\n", "written [[ci]]"},
  };
  for (const auto& [text, why] : bad) {
    const absl::Status refused = Read(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << text << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(why)) << text;
  }
  EXPECT_THAT(std::string(ReadOidcConfig(dir_ + "/none").status().message()), HasSubstr("none"));
}

}  // namespace
}  // namespace sft::server
