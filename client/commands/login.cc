#include "client/base/login.h"

#include <fmt/format.h>
#include <termios.h>
#include <unistd.h>

#include <iostream>

#include "client/base/company_login.h"
#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/text.h"
#include "common/base/json.h"
#include "common/io/file.h"
#include "common/rpc/endpoint.h"
#include "common/tls/certificate.h"
#include "common/tls/peer.h"
#include "sft/v1/auth_service.grpc.pb.h"

namespace sft::client {
namespace {

constexpr double kMaxClockSkewSeconds = 300;

struct LoginOptions {
  std::string server;
  std::string authority;    // file
  std::string fingerprint;  // of the authority
  std::string token_file = "-";
  // In place of a token: through the company's provider, or for the ID token of a CI job.
  bool oidc = false, device = false;
  std::string ci_token_file;
};

// Reads a line from standard input without echo.
std::string TypedLine(Connection& connection) {
  termios before{};
  const bool terminal = isatty(STDIN_FILENO) == 1 && tcgetattr(STDIN_FILENO, &before) == 0;
  if (terminal) {
    connection.console().err << "token: " << std::flush;
    termios silent = before;
    silent.c_lflag &= ~static_cast<tcflag_t>(ECHO);
    tcsetattr(STDIN_FILENO, TCSAFLUSH, &silent);
  }
  std::string line;
  std::getline(std::cin, line);
  if (terminal) {
    tcsetattr(STDIN_FILENO, TCSAFLUSH, &before);
    connection.console().err << "\n";
  }
  return line;
}

absl::StatusOr<std::string> ReadToken(Connection& connection, const std::string& file) {
  std::string text;
  if (file == "-") {
    text = TypedLine(connection);
  } else {
    absl::StatusOr<std::string> read = io::ReadFile(file, 4096);
    if (!read.ok()) return InvalidArgument(Message(read.status()));
    text = *std::move(read);
  }
  const size_t end = text.find_last_not_of(" \r\n\t");
  text.resize(end == text.npos ? 0 : end + 1);
  if (text.starts_with("sftjoin_")) {
    return InvalidArgument(
        "this is a join token, with which a worker joins: a user's begins with "
        "sft_");
  }
  if (text.starts_with("sft_") && text.find_first_of(" \n") == text.npos) return text;
  return InvalidArgument(
      "this is no token: it is one line that begins with sft_, as `sftctl admin "
      "token create` prints it");
}

// A prefix would be compared with the whole fingerprint and be reported as another server's.
absl::Status CheckFingerprint(const std::string& fingerprint) {
  constexpr size_t kDigits = 64;
  const bool hex = fingerprint.find_first_not_of("0123456789abcdef") == fingerprint.npos;
  if (fingerprint.empty() || (hex && fingerprint.size() == kDigits)) return absl::OkStatus();
  return InvalidArgument(fmt::format(
      "--fingerprint needs all {} digits (0-9, a-f) that `sft-server init` printed, but has {}{}",
      kDigits, fingerprint.size(), hex ? "" : " characters, some of them others"));
}

// The certificate to trust: a file, or the one the server shows if its fingerprint was given, or
// that of an earlier login.
absl::StatusOr<std::string> Authority(const LoginOptions& options, const rpc::Endpoint& endpoint) {
  if (!options.authority.empty()) {
    absl::StatusOr<std::string> pem = io::ReadFile(options.authority, 1 << 20);
    if (!pem.ok()) return InvalidArgument(Message(pem.status()));
    const absl::Status good = tls::ReadCertificate(*pem).status();
    if (!good.ok()) return Annotate(good, options.authority);
    return pem;
  }
  if (options.fingerprint.empty()) {
    const absl::StatusOr<rpc::Security> known = SecurityOf(endpoint.ToString());
    if (known.ok() && !known->authority_pem.empty()) return known->authority_pem;
  }
  SFT_RETURN_IF_ERROR(CheckFingerprint(options.fingerprint));
  SFT_ASSIGN_OR_RETURN(std::string pem,
                       tls::FetchAuthority(endpoint.host, endpoint.port, options.fingerprint));
  if (!options.fingerprint.empty()) return pem;
  SFT_ASSIGN_OR_RETURN(const tls::Certificate shown, tls::ReadCertificate(pem));
  return FailedPrecondition(fmt::format(
      "the authority of {} shows the fingerprint\n  {}\nIf it is the one that `sft-server init` "
      "printed, log in with it: sftctl login {} --fingerprint {}",
      endpoint.ToString(), shown.fingerprint, endpoint.ToString(), shown.fingerprint));
}

std::string RolesText(const v1::User& user) {
  if (user.admin()) return "admin";
  std::string text;
  for (const v1::ProjectRole& role : user.roles()) {
    text += fmt::format("{}{} in {}", text.empty() ? "" : ", ",
                        role.role() == v1::SUBMITTER ? "submitter" : "viewer", role.project());
  }
  return text.empty() ? "no role in any project" : text;
}

void PrintIdentity(Connection& connection, const v1::Identity& identity, bool json) {
  const v1::User& user = identity.user();
  const bool expires = identity.has_expire_time();
  if (json) {
    Json roles = Json::object();
    for (const v1::ProjectRole& role : user.roles()) {
      roles[role.project()] = role.role() == v1::SUBMITTER ? "submitter" : "viewer";
    }
    connection.console().out << DumpJson(
                                    Json{{"user", user.name()},
                                         {"admin", user.admin()},
                                         {"roles", roles},
                                         {"token", identity.token_id()},
                                         {"expire_time", expires ? Json(Utc(identity.expire_time()))
                                                                 : Json(nullptr)},
                                         {"server", connection.server()},
                                         {"server_time", Utc(identity.server_time())}},
                                    2)
                             << "\n";
    return;
  }
  const std::string who = fmt::format(
      "{} ({}) at {}{}", user.name(), RolesText(user), connection.server(),
      identity.token_id().empty() ? ", without a token"
      : expires
          ? fmt::format(", token {} until {}", identity.token_id(), Utc(identity.expire_time()))
          : fmt::format(", token {}", identity.token_id()));
  connection.console().out << OneLine(who) << "\n";
}

void CompareClocks(Connection& connection, const v1::Identity& identity) {
  const double here = static_cast<double>(UnixMicros(connection.clock().Wall())) / 1e6;
  const double apart = here - Seconds(identity.server_time());
  if (std::abs(apart) <= kMaxClockSkewSeconds) return;
  connection.console().err << fmt::format(
      "warning: this machine's clock is {} {} the server's, which says {}: set the wrong one\n",
      Duration(std::abs(apart)), apart > 0 ? "ahead of" : "behind", Utc(identity.server_time()));
}

ExitCode WhoAmI(Connection& connection, bool json) {
  const auto identity = connection.Call(&v1::AuthService::Stub::WhoAmI, v1::WhoAmIRequest());
  if (!identity.ok()) return Fail(connection, identity.status());
  CompareClocks(connection, *identity);
  PrintIdentity(connection, *identity, json);
  return kSucceeded;
}

absl::StatusOr<std::string> Token(Connection& connection, const LoginOptions& options,
                                  const Login& login) {
  if (!options.oidc && !options.device && options.ci_token_file.empty()) {
    return ReadToken(connection, options.token_file);
  }
  Connection server(login.server, login.security, connection.console(), connection.clock());
  if (options.oidc) return TokenByBrowser(server);
  if (options.device) return TokenByDevice(server);
  return TokenByExchange(server, options.ci_token_file);
}

absl::StatusOr<Login> MakeLogin(Connection& connection, const LoginOptions& options) {
  Login login;
  login.server = options.server.empty() ? connection.server() : options.server;
  SFT_ASSIGN_OR_RETURN(const rpc::Endpoint endpoint, rpc::ParseEndpoint(login.server));
  SFT_ASSIGN_OR_RETURN(login.security.authority_pem, Authority(options, endpoint));
  // Checked before the token is typed, so that it is not typed for an untrusted server.
  SFT_RETURN_IF_ERROR(tls::Explain(endpoint.host, endpoint.port, login.security.authority_pem,
                                   connection.clock().Wall()));
  SFT_ASSIGN_OR_RETURN(login.security.token, Token(connection, options, login));
  return login;
}

ExitCode RunLogin(Connection& connection, const LoginOptions& options, bool json) {
  const absl::StatusOr<Login> login = MakeLogin(connection, options);
  if (!login.ok()) return Fail(connection, login.status());
  Connection secured(login->server, login->security, connection.console(), connection.clock());
  if (const absl::Status fits = secured.Check(); !fits.ok()) return Fail(connection, fits);
  const auto identity = secured.Call(&v1::AuthService::Stub::WhoAmI, v1::WhoAmIRequest());
  if (!identity.ok()) return Fail(connection, identity.status());
  if (const absl::Status kept = KeepLogin(*login); !kept.ok()) return Fail(connection, kept);
  CompareClocks(secured, *identity);
  connection.console().err << fmt::format("logged in; kept in {}\n", LoginPath().value_or(""));
  PrintIdentity(secured, *identity, json);
  return kSucceeded;
}

}  // namespace

void AddLogin(Command& app, Session& session) {
  Command* login = app.AddCommand(
      "login", "Log in to a server: keep a token for it, and trust its certificate authority",
      "sftctl login sft.example.org:7070 --fingerprint 3f8a... --token-file my.token");
  auto options = std::make_shared<LoginOptions>();
  login->AddOption("SERVER", options->server, "HOST:PORT (default: that of --server)");
  auto* authority = login->AddOption(
      "--ca", options->authority, "File with the certificate of the server's authority (ca.crt)");
  login
      ->AddOption("--fingerprint", options->fingerprint,
                  "Trust the server's authority if it has this fingerprint; without it the one of "
                  "an earlier login is trusted, or its fingerprint is printed and nothing sent")
      ->Excludes(authority);
  Option* ways[] = {
      login->AddOption("--token-file", options->token_file,
                       "File with the token (default: standard input)"),
      login->AddFlag("--oidc", options->oidc,
                     "Log in through the company's provider, with a browser of this machine"),
      login->AddFlag(
          "--device", options->device,
          "The same with a browser of any machine, as over ssh: it shows a code to type"),
      login->AddOption("--ci-token-file", options->ci_token_file,
                       "File with the ID token that a CI (GitHub, GitLab) gives the job, which is "
                       "exchanged for a token of an hour; -: standard input")};
  for (Option* way : ways) {
    for (Option* other : ways) {
      if (way != other) way->Excludes(other);
    }
  }
  AddJsonFlag(login, session);
  login->RunHere([&session, options](Connection& connection) {
    return RunLogin(connection, *options, session.json);
  });
  Command* whoami = app.AddCommand("whoami", "Show who you are to the server, and your roles",
                                   "sftctl whoami --json");
  AddJsonFlag(whoami, session);
  whoami->Run([&session](Connection& connection) { return WhoAmI(connection, session.json); });
}

}  // namespace sft::client
