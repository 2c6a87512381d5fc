// `sftctl admin user`, `token` and `audit`.

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/table.h"
#include "client/output/text.h"
#include "common/base/json.h"
#include "sft/v1/auth_service.grpc.pb.h"

namespace sft::client {
namespace {

using Auth = v1::AuthService::Stub;

std::string RoleName(v1::Role role) { return role == v1::SUBMITTER ? "submitter" : "viewer"; }

// "-" for a time that is not set.
std::string Time(bool set, const google::protobuf::Timestamp& time) {
  return set ? Utc(time) : "-";
}
Json TimeJson(bool set, const google::protobuf::Timestamp& time) {
  return set ? Json(Utc(time)) : Json(nullptr);
}

Json UserJson(const v1::User& user) {
  Json roles = Json::object();
  for (const v1::ProjectRole& role : user.roles()) roles[role.project()] = RoleName(role.role());
  return {{"user", user.name()}, {"admin", user.admin()}, {"roles", roles}};
}

std::string RolesText(const v1::User& user) {
  std::string text = user.admin() ? "admin" : "";
  for (const v1::ProjectRole& role : user.roles()) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", role.project(), RoleName(role.role()));
  }
  return text;
}

std::string KindName(const v1::Token& token) {
  return token.kind() == v1::Token::JOIN   ? "join"
         : token.kind() == v1::Token::NODE ? "node"
                                           : "user";
}

Json TokenJson(const v1::Token& token) {
  return {{"id", token.id()},
          {"kind", KindName(token)},
          {"user", token.user()},
          {"node", token.node()},
          {"comment", token.comment()},
          {"created_by", token.created_by()},
          {"create_time", Utc(token.create_time())},
          {"expire_time", TimeJson(token.has_expire_time(), token.expire_time())},
          {"revoke_time", TimeJson(token.has_revoke_time(), token.revoke_time())},
          {"uses", token.uses()},
          {"max_uses", token.max_uses()}};
}

struct UserOptions {
  std::string name;
  bool admin = false;
  std::vector<std::string> projects;  // "PROJECT=ROLE"
};

ExitCode SetUser(Connection& connection, const UserOptions& options, bool json) {
  v1::PutUserRequest request;
  request.mutable_user()->set_name(options.name);
  request.mutable_user()->set_admin(options.admin);
  for (const std::string& text : options.projects) {
    const size_t at = text.find('=');
    const std::string role = at == text.npos ? "" : text.substr(at + 1);
    if (role != "viewer" && role != "submitter") {
      return Fail(connection,
                  InvalidArgument(fmt::format(
                      "--project {}: write PROJECT=viewer or PROJECT=submitter", text)));
    }
    v1::ProjectRole& added = *request.mutable_user()->add_roles();
    added.set_project(text.substr(0, at));
    added.set_role(role == "viewer" ? v1::VIEWER : v1::SUBMITTER);
  }
  const auto user = connection.Call(&Auth::PutUser, request);
  if (!user.ok()) return Fail(connection, user.status());
  if (json) connection.console().out << DumpJson(UserJson(*user), 2) << "\n";
  if (!json) {
    const std::string roles = RolesText(*user);
    connection.console().err << fmt::format(
        "{}: {}; a token for it: `sftctl admin token create {}`\n", user->name(),
        roles.empty() ? "no role in any project" : roles, user->name());
  }
  return kSucceeded;
}

ExitCode ListUsers(Connection& connection, bool json) {
  v1::ListUsersRequest request;
  Table table({"USER", "ROLES"});
  Json list = Json::array();
  do {
    const auto page = connection.Call(&Auth::ListUsers, request);
    if (!page.ok()) return Fail(connection, page.status());
    for (const v1::User& user : page->users()) {
      list.push_back(UserJson(user));
      table.Add({user.name(), RolesText(user)});
    }
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  connection.console().out << (json ? DumpJson(list, 2) + "\n" : table.Render());
  return kSucceeded;
}

ExitCode RemoveUser(Connection& connection, const std::string& name) {
  v1::RemoveUserRequest request;
  request.set_user(name);
  const auto user = connection.Call(&Auth::RemoveUser, request);
  if (!user.ok()) return Fail(connection, user.status());
  connection.console().err << fmt::format("{} is gone, with its roles and tokens\n", name);
  return kSucceeded;
}

struct TokenOptions {
  std::string user;
  bool join = false;
  std::string node;
  std::string expires;
  int uses = 1;
  std::string comment;
};

ExitCode CreateToken(Connection& connection, const TokenOptions& options, bool json) {
  if (options.join == !options.user.empty()) {
    return Fail(connection, InvalidArgument("name a user, or give --join for a worker's token"));
  }
  v1::CreateTokenRequest request;
  request.set_kind(options.join ? v1::Token::JOIN : v1::Token::USER);
  request.set_user(options.user);
  request.set_node(options.node);
  request.set_comment(options.comment);
  if (options.join) request.set_max_uses(options.uses);
  const std::string life =
      options.expires.empty() ? (options.join ? "24h" : "90d") : options.expires;
  if (life != "never") {
    const auto seconds = ParseDuration(life);
    if (!seconds.ok()) return Fail(connection, Annotate(seconds.status(), "--expires"));
    // For the server 0 means no expiry.
    if (seconds->count() == 0) {
      return Fail(connection, InvalidArgument("--expires: a token lives for longer than that; "
                                              "`never` makes one without an end"));
    }
    request.set_lifetime_seconds(seconds->count());
  }
  if (life == "never" && options.join) {
    return Fail(connection, InvalidArgument("--expires: a join token has an end"));
  }
  const auto made = connection.Call(&Auth::CreateToken, request);
  if (!made.ok()) return Fail(connection, made.status());
  if (json) {
    Json token = TokenJson(made->token());
    token["secret"] = made->secret();
    connection.console().out << DumpJson(token, 2) << "\n";
    return kSucceeded;
  }
  connection.console().out << OneLine(made->secret()) << "\n";
  connection.console().err << fmt::format(
      "token {}, until {}; it is shown once\n", OneLine(made->token().id()),
      made->token().has_expire_time() ? Utc(made->token().expire_time()) : "it is revoked");
  return kSucceeded;
}

ExitCode ListTokens(Connection& connection, bool json) {
  v1::ListTokensRequest request;
  Table table({"ID", "KIND", "FOR", "EXPIRES", "REVOKED", "USES", "MADE BY", "COMMENT"});
  Json list = Json::array();
  do {
    const auto page = connection.Call(&Auth::ListTokens, request);
    if (!page.ok()) return Fail(connection, page.status());
    for (const v1::Token& token : page->tokens()) {
      list.push_back(TokenJson(token));
      table.Add({token.id(), KindName(token), token.user().empty() ? token.node() : token.user(),
                 Time(token.has_expire_time(), token.expire_time()),
                 Time(token.has_revoke_time(), token.revoke_time()),
                 token.max_uses() > 0 ? fmt::format("{}/{}", token.uses(), token.max_uses()) : "",
                 token.created_by(), token.comment()});
    }
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  connection.console().out << (json ? DumpJson(list, 2) + "\n" : table.Render());
  return kSucceeded;
}

ExitCode RevokeToken(Connection& connection, const std::string& id) {
  v1::RevokeTokenRequest request;
  request.set_id(id);
  const auto token = connection.Call(&Auth::RevokeToken, request);
  if (!token.ok()) return Fail(connection, token.status());
  connection.console().err << fmt::format("{} is good for nothing from now on\n", id);
  return kSucceeded;
}

struct AuditOptions {
  std::string since;
  std::string user;
  int limit = 100;
};

Json AuditJson(const v1::AuditRecord& record) {
  return {{"sequence", record.sequence()},
          {"time", Utc(record.time())},
          {"principal", record.principal()},
          {"token", record.token_id()},
          {"peer", record.peer()},
          {"method", record.method()},
          {"object", record.object()},
          {"outcome", record.outcome()},
          {"calls", std::max<int64_t>(record.calls(), 1)}};
}

ExitCode Audit(Connection& connection, const AuditOptions& options, bool json) {
  v1::ListAuditRecordsRequest request;
  request.set_principal(options.user);
  if (!options.since.empty()) {
    const auto ago = ParseDuration(options.since);
    if (!ago.ok()) return Fail(connection, Annotate(ago.status(), "--since"));
    const int64_t from = UnixMicros(connection.clock().Wall() - *ago);
    request.mutable_since()->set_seconds(from / 1'000'000);
  }
  Table table({"TIME", "WHO", "FROM", "CALL", "WHAT", "OUTCOME", "CALLS"});
  int left = options.limit;
  while (left > 0) {
    request.set_page_size(std::min(left, 500));
    const auto page = connection.Call(&Auth::ListAuditRecords, request);
    if (!page.ok()) return Fail(connection, page.status());
    for (const v1::AuditRecord& record : page->records()) {
      if (json) connection.console().out << DumpJson(AuditJson(record)) << "\n";
      table.Add({Utc(record.time()), record.principal(), record.peer(), record.method(),
                 record.object(), record.outcome(),
                 fmt::format("{}", std::max<int64_t>(record.calls(), 1))});
    }
    left -= page->records_size();
    if (page->next_page_token().empty()) break;
    request.set_page_token(page->next_page_token());
  }
  if (!json) connection.console().out << table.Render();
  return kSucceeded;
}

void AddUsers(Command& admin, Session& session) {
  Command* user = admin.AddCommand("user", "Users and their roles",
                                   "sftctl admin user set ann --project vision=submitter");
  user->RequireCommand();
  Command* set = user->AddCommand("set", "Create a user, or set a user's roles to exactly these",
                                  "sftctl admin user set ann --project vision=submitter --project "
                                  "speech=viewer");
  auto options = std::make_shared<UserOptions>();
  set->AddOption("NAME", options->name, "Letters, digits, '-', '_' and '.'")->Required();
  set->AddFlag("--admin", options->admin, "Give all rights in every project");
  set->AddOption("--project", options->projects,
                 "PROJECT=viewer or PROJECT=submitter; may be repeated");
  AddJsonFlag(set, session);
  set->Run([&session, options](Connection& connection) {
    return SetUser(connection, *options, session.json);
  });
  Command* list = user->AddCommand("list", "List users and their roles", "sftctl admin user list");
  AddJsonFlag(list, session);
  list->Run([&session](Connection& connection) { return ListUsers(connection, session.json); });
  Command* remove = user->AddCommand("remove", "Remove all roles and tokens of a user",
                                     "sftctl admin user remove ann");
  auto name = std::make_shared<std::string>();
  remove->AddOption("NAME", *name, "The user")->Required();
  remove->Run([name](Connection& connection) { return RemoveUser(connection, *name); });
}

void AddTokens(Command& admin, Session& session) {
  Command* token = admin.AddCommand("token", "Tokens of users, and tokens with which workers join",
                                    "sftctl admin token create ann --expires 30d > ann.token");
  token->RequireCommand();
  Command* create =
      token->AddCommand("create", "Create a token and print it; it is shown only once",
                        "sftctl admin token create --join --uses 8 > join.token");
  auto options = std::make_shared<TokenOptions>();
  create->AddOption("USER", options->user, "User of the token");
  create->AddFlag("--join", options->join, "Create a token with which workers join");
  create->AddOption("--node", options->node,
                    "With --join: for this node only, even if it joined with another key before");
  create->AddOption("--uses", options->uses, "With --join: number of nodes that may join with it")
      ->WholeNumber(1)
      ->ShowDefault();
  create->AddOption("--expires", options->expires,
                    "Lifetime, for example 12h or 30d, or never (default: 90d, with --join 24h)");
  create->AddOption("--comment", options->comment, "Shown in lists");
  AddJsonFlag(create, session);
  create->Run([&session, options](Connection& connection) {
    return CreateToken(connection, *options, session.json);
  });
  Command* list = token->AddCommand("list", "List tokens and nodes' certificates, without secrets",
                                    "sftctl admin token list");
  AddJsonFlag(list, session);
  list->Run([&session](Connection& connection) { return ListTokens(connection, session.json); });
  Command* revoke = token->AddCommand("revoke", "Revoke a token or a node's certificate at once",
                                      "sftctl admin token revoke nodes/gpu-7");
  auto id = std::make_shared<std::string>();
  revoke->AddOption("ID", *id, "A token's id, or nodes/NODE")->Required();
  revoke->Run([id](Connection& connection) { return RevokeToken(connection, *id); });
}

}  // namespace

void AddAccess(Command& admin, Session& session) {
  AddUsers(admin, session);
  AddTokens(admin, session);
  Command* audit =
      admin.AddCommand("audit", "List who changed what and whose calls failed, newest first",
                       "sftctl admin audit --since 24h --user ann");
  auto options = std::make_shared<AuditOptions>();
  audit->AddOption("--since", options->since, "Only this period up to now (24h, 7d)");
  audit->AddOption("--user", options->user, "Only what this user or nodes/NODE did");
  audit->AddOption("--limit", options->limit, "Maximum number of records")
      ->WholeNumber(1)
      ->ShowDefault();
  AddJsonFlag(audit, session);
  audit->Run([&session, options](Connection& connection) {
    return Audit(connection, *options, session.json);
  });
}

}  // namespace sft::client
