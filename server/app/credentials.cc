#include "server/app/credentials.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "common/io/file.h"
#include "server/core/access.h"
#include "server/database/data_dir_lock.h"
#include "server/store/access.h"

namespace sft::server {
namespace {

constexpr std::chrono::hours kDay{24};
constexpr auto kAuthorityLife = 20 * 365 * kDay;
constexpr auto kServerLife = 2 * 365 * kDay;
constexpr auto kRenewBefore = 90 * kDay;
// Start of validity in the past, so that peers whose clocks are a little slow accept a new
// certificate; those that are far behind get an error (Access::CheckClock).
constexpr auto kBackdate = 1 * kDay;
constexpr int kJoinUses = 100;
constexpr char kAdmin[] = "admin";

std::string Folder(const std::string& data_dir) { return data_dir + "/tls"; }

absl::StatusOr<std::string> ReadPrivate(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return ErrnoStatus("cannot read " + path, errno);
  if ((info.st_mode & 077) != 0) {
    return FailedPrecondition(
        fmt::format("{} may be read by others: `chmod 600 {}`, and make all anew if somebody has "
                    "(`sft-server init` in another data folder)",
                    path, path));
  }
  return io::ReadFile(path, 1 << 16);
}

absl::Status SignAndKeep(const std::string& folder, const tls::Identity& authority,
                         const std::string& key_pem, const std::vector<std::string>& names,
                         WallTime now) {
  SFT_ASSIGN_OR_RETURN(
      const std::string certificate,
      tls::SignServer(authority, key_pem, names, {now - kBackdate, now + kServerLife}));
  return io::WriteFileAtomic(folder + "/server.crt", certificate);
}

std::vector<std::string> NamesOfThisHost() {
  std::vector<std::string> names = {"localhost", "127.0.0.1", "::1"};
  char host[256] = {};
  if (gethostname(host, sizeof(host) - 1) == 0 && host[0] != '\0') names.emplace_back(host);
  return names;
}

void AddNames(std::vector<std::string>& names, const std::vector<std::string>& more) {
  for (const std::string& name : more) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
}

absl::StatusOr<tls::Identity> LoadAuthority(const std::string& folder) {
  tls::Identity authority;
  SFT_ASSIGN_OR_RETURN(authority.key_pem, ReadPrivate(folder + "/ca.key"));
  SFT_ASSIGN_OR_RETURN(authority.certificate_pem, io::ReadFile(folder + "/ca.crt", 1 << 16));
  return authority;
}

// Makes the folder of keys, complete or not at all.
absl::StatusOr<tls::Identity> MakeFiles(const std::string& data_dir,
                                        const std::vector<std::string>& names, WallTime now) {
  const std::string partial = Folder(data_dir) + ".partial";
  SFT_RETURN_IF_ERROR(io::RemoveAll(partial));
  SFT_RETURN_IF_ERROR(io::MakeDirs(partial));
  if (::chmod(partial.c_str(), 0700) != 0) return ErrnoStatus("cannot close " + partial, errno);
  SFT_ASSIGN_OR_RETURN(tls::Identity authority,
                       tls::MakeAuthority("sft fleet", {now - kBackdate, now + kAuthorityLife}));
  SFT_ASSIGN_OR_RETURN(const std::string key, tls::MakeKey());
  const auto put = [&](const char* name, const std::string& text) {
    return io::WriteFileAtomic(partial + "/" + name, text, io::kPrivateMode);
  };
  SFT_RETURN_IF_ERROR(put("ca.key", authority.key_pem));
  SFT_RETURN_IF_ERROR(put("server.key", key));
  SFT_RETURN_IF_ERROR(io::WriteFileAtomic(partial + "/ca.crt", authority.certificate_pem));
  SFT_RETURN_IF_ERROR(SignAndKeep(partial, authority, key, names, now));
  return authority;
}

absl::StatusOr<std::string> AdminToken(Access& access, const std::string& by) {
  SFT_RETURN_IF_ERROR(access.PutUser({kAdmin, true, {}}));
  TokenRecord token;
  token.user = kAdmin;
  token.comment = "made on the server's machine";
  token.created_by = by;
  return access.CreateToken(token);
}

// Reads the files of an existing folder; the authority must not have expired.
absl::StatusOr<Credentials> ReadFiles(const std::string& folder, WallTime now) {
  Credentials credentials;
  SFT_ASSIGN_OR_RETURN(credentials.authority, LoadAuthority(folder));
  SFT_ASSIGN_OR_RETURN(credentials.server.key_pem, ReadPrivate(folder + "/server.key"));
  SFT_ASSIGN_OR_RETURN(credentials.server.certificate_pem,
                       io::ReadFile(folder + "/server.crt", 1 << 16));
  SFT_ASSIGN_OR_RETURN(const tls::Certificate authority,
                       tls::ReadCertificate(credentials.authority.certificate_pem));
  if (authority.validity.to <= now) {
    return FailedPrecondition(
        fmt::format("the fleet's authority ({}/ca.crt) expired at {}: move {} away, run "
                    "`sft-server init --new-authority`, and let users log in and nodes join anew",
                    folder, FormatUtc(authority.validity.to), folder));
  }
  return credentials;
}

absl::Status CheckServerCertificate(const std::string& folder, const Credentials& credentials,
                                    WallTime now) {
  const absl::Status good =
      tls::Verify(credentials.server.certificate_pem, credentials.authority.certificate_pem,
                  tls::Purpose::kServer, now);
  if (good.ok()) return good;
  return FailedPrecondition(fmt::format("{}/server.crt: {}", folder, Message(good)));
}

}  // namespace

absl::StatusOr<std::optional<Credentials>> LoadCredentials(const std::string& data_dir,
                                                           Clock& clock) {
  const std::string folder = Folder(data_dir);
  if (!io::Exists(folder)) return std::optional<Credentials>();
  const WallTime now = clock.Wall();
  SFT_ASSIGN_OR_RETURN(Credentials credentials, ReadFiles(folder, now));
  std::string& certificate = credentials.server.certificate_pem;
  SFT_ASSIGN_OR_RETURN(const tls::Certificate old, tls::ReadCertificate(certificate));
  if (old.validity.to - kRenewBefore <= now) {
    spdlog::info("the server's certificate is good until {}: it is made anew",
                 FormatUtc(old.validity.to));
    SFT_RETURN_IF_ERROR(
        SignAndKeep(folder, credentials.authority, credentials.server.key_pem, old.names, now));
    SFT_ASSIGN_OR_RETURN(certificate, io::ReadFile(folder + "/server.crt", 1 << 16));
  }
  SFT_RETURN_IF_ERROR(CheckServerCertificate(folder, credentials, now));
  certificate += credentials.authority.certificate_pem;
  return std::optional<Credentials>(std::move(credentials));
}

absl::StatusOr<std::map<std::string, WallTime>> ExpiryOf(const Credentials& credentials) {
  SFT_ASSIGN_OR_RETURN(const tls::Certificate authority,
                       tls::ReadCertificate(credentials.authority.certificate_pem));
  SFT_ASSIGN_OR_RETURN(const tls::Certificate server,
                       tls::ReadCertificate(credentials.server.certificate_pem));
  return std::map<std::string, WallTime>{{"authority", authority.validity.to},
                                         {"server", server.validity.to}};
}

absl::StatusOr<std::optional<tls::Certificate>> CheckCredentials(const std::string& data_dir,
                                                                 Clock& clock) {
  const std::string folder = Folder(data_dir);
  if (!io::Exists(folder)) return std::optional<tls::Certificate>();
  const WallTime now = clock.Wall();
  SFT_ASSIGN_OR_RETURN(const Credentials credentials, ReadFiles(folder, now));
  SFT_ASSIGN_OR_RETURN(tls::Certificate certificate,
                       tls::ReadCertificate(credentials.server.certificate_pem));
  // A certificate that expires soon is renewed at the next start.
  if (certificate.validity.to - kRenewBefore > now) {
    SFT_RETURN_IF_ERROR(CheckServerCertificate(folder, credentials, now));
  }
  return std::optional<tls::Certificate>(std::move(certificate));
}

absl::StatusOr<bool> HasUsersOrNodes(Store& store) {
  bool has = false;
  SFT_RETURN_IF_ERROR(store.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const auto users, store::ListUsers(db));
    SFT_ASSIGN_OR_RETURN(const auto tokens, store::ListTokens(db));
    SFT_ASSIGN_OR_RETURN(const auto keys, store::ListNodeKeys(db));
    has = !users.empty() || !tokens.empty() || !keys.empty();
    return absl::OkStatus();
  }));
  return has;
}

absl::Status KeysMissing(const std::string& data_dir) {
  return FailedPrecondition(fmt::format(
      "{0} has users or nodes, and their keys, {1}, are missing (a backup holds them only if it "
      "was "
      "made with --with-keys): put back the copy that you keep. Where there is none, `sft-server "
      "init --data-dir {0} --name "
      "HOST --new-authority` makes new ones, and every user has to log in and every node to join "
      "again",
      data_dir, Folder(data_dir)));
}

absl::StatusOr<std::string> Initialise(const std::string& data_dir,
                                       const std::vector<std::string>& names, Clock& clock,
                                       bool new_authority) {
  SFT_RETURN_IF_ERROR(io::MakeDirs(data_dir));
  SFT_ASSIGN_OR_RETURN(const DataDirLock lock, DataDirLock::Acquire(data_dir));
  const std::string folder = Folder(data_dir);
  // The database holds what users submit.
  if (::chmod(data_dir.c_str(), 0700) != 0) return ErrnoStatus("cannot close " + data_dir, errno);
  if (io::Exists(folder)) {
    return AlreadyExists(
        fmt::format("{} was initialised before ({} is there): nothing was changed; `sft-server "
                    "renew` adds names, `sft-server token` makes another admin token",
                    data_dir, folder));
  }
  SFT_ASSIGN_OR_RETURN(const std::unique_ptr<Store> store, Store::Open({data_dir + "/server.db"}));
  SFT_ASSIGN_OR_RETURN(const bool has_fleet, HasUsersOrNodes(*store));
  if (has_fleet && !new_authority) {
    return KeysMissing(data_dir);
  }
  std::vector<std::string> all = NamesOfThisHost();
  AddNames(all, names);
  SFT_ASSIGN_OR_RETURN(const tls::Identity authority, MakeFiles(data_dir, all, clock.Wall()));
  SFT_ASSIGN_OR_RETURN(const tls::Certificate read,
                       tls::ReadCertificate(authority.certificate_pem));
  SFT_ASSIGN_OR_RETURN(const std::unique_ptr<Access> access,
                       Access::Load(*store, clock, authority));
  SFT_ASSIGN_OR_RETURN(const std::string admin, AdminToken(*access, "sft-server init"));
  TokenRecord join;
  join.kind = TokenKind::kJoin;
  join.max_uses = kJoinUses;
  join.created_by = "sft-server init";
  join.expires_us = UnixMicros(clock.Wall() + kDay);
  SFT_ASSIGN_OR_RETURN(const std::string join_text, access->CreateToken(join));
  SFT_RETURN_IF_ERROR(io::RenameDurably(folder + ".partial", folder));
  return fmt::format(
      "authority      {0}/ca.crt\n"
      "fingerprint    {1}\n"
      "server's names {2}\n"
      "\n"
      "These tokens are shown once; the server keeps only their hashes.\n"
      "\n"
      "admin token    {3}\n"
      "join token     {4}\n"
      "               ({5} nodes, until {6})\n"
      "\n"
      "Next:\n"
      "  sft-server --data-dir {7} --listen 0.0.0.0:7070\n"
      "  sftctl login HOST:7070 --fingerprint {1} --token-file FILE\n"
      "  sft-worker --server HOST:7070 --data-dir DIR --join-token-file FILE\n",
      folder, read.fingerprint, fmt::join(all, ", "), admin, join_text, kJoinUses,
      FormatUtc(FromUnixMicros(join.expires_us)), data_dir);
}

absl::StatusOr<std::string> RenewServer(const std::string& data_dir,
                                        const std::vector<std::string>& names, Clock& clock) {
  const std::string folder = Folder(data_dir);
  if (!io::Exists(folder)) {
    return NotFound(fmt::format("{} is not there: run `sft-server init` first", folder));
  }
  SFT_ASSIGN_OR_RETURN(const tls::Identity authority, LoadAuthority(folder));
  SFT_ASSIGN_OR_RETURN(const std::string key, ReadPrivate(folder + "/server.key"));
  SFT_ASSIGN_OR_RETURN(const std::string before, io::ReadFile(folder + "/server.crt", 1 << 16));
  SFT_ASSIGN_OR_RETURN(const tls::Certificate old, tls::ReadCertificate(before));
  std::vector<std::string> all = old.names;
  AddNames(all, names);
  SFT_RETURN_IF_ERROR(SignAndKeep(folder, authority, key, all, clock.Wall()));
  return fmt::format(
      "{}/server.crt: for {}, until {}; a server that runs takes it when it is started "
      "again\n",
      folder, fmt::join(all, ", "), FormatUtc(clock.Wall() + kServerLife));
}

absl::StatusOr<std::string> NewAdminToken(const std::string& data_dir, Clock& clock) {
  SFT_ASSIGN_OR_RETURN(const DataDirLock lock, DataDirLock::Acquire(data_dir));
  SFT_ASSIGN_OR_RETURN(const auto credentials, LoadCredentials(data_dir, clock));
  if (!credentials.has_value()) {
    return NotFound(fmt::format("{} was not initialised: run `sft-server init` first", data_dir));
  }
  SFT_ASSIGN_OR_RETURN(const std::unique_ptr<Store> store, Store::Open({data_dir + "/server.db"}));
  SFT_ASSIGN_OR_RETURN(const std::unique_ptr<Access> access,
                       Access::Load(*store, clock, credentials->authority));
  SFT_ASSIGN_OR_RETURN(const std::string token, AdminToken(*access, "sft-server token"));
  return token + "\n";
}

}  // namespace sft::server
