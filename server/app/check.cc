#include "server/app/check.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>

#include "common/base/bytes.h"
#include "common/base/clock.h"
#include "common/base/version.h"
#include "common/io/disk_space.h"
#include "common/io/file.h"
#include "common/obs/check_report.h"
#include "common/rpc/endpoint.h"
#include "server/app/credentials.h"
#include "server/database/database_check.h"
#include "server/database/migrations.h"

namespace sft::server {
namespace {

using obs::CheckReport;

// No program of this service was built before this time.
constexpr int64_t kEarliestUs = 1'735'689'600'000'000;  // 2025-01-01

// True while a server holds the folder.
bool IsHeld(const std::string& data_dir) {
  const io::UniqueFd lock(open((data_dir + "/server.lock").c_str(), O_RDWR | O_CLOEXEC));
  return lock.valid() && flock(lock.get(), LOCK_EX | LOCK_NB) != 0;
}

// The folder, or its nearest existing parent.
std::string Existing(std::string path) {
  while (!path.empty() && !io::IsDirectory(path)) {
    const size_t slash = path.rfind('/');
    path = slash == path.npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  }
  return path.empty() ? "." : path;
}

void CheckFolder(const Options& options, bool held, CheckReport& report) {
  const std::string& dir = options.data_dir;
  const std::string there = Existing(dir);
  if (access(there.c_str(), R_OK | W_OK | X_OK) != 0) {
    report.Fail("data folder", fmt::format("{} cannot be written to by user {}", there, geteuid()),
                "give it to the user that sft-server runs as (chown), or name another --data-dir");
  } else if (there != dir) {
    report.Ok("data folder", fmt::format("{} is made at the first start", dir));
  } else {
    report.Ok("data folder", dir);
  }
  if (held) {
    const absl::StatusOr<std::string> pid = io::ReadFile(dir + "/server.lock", 64);
    report.Ok("server", fmt::format("one runs with this data folder, pid {}",
                                    pid.ok() ? pid->substr(0, pid->find('\n')) : "unknown"));
  }
}

void CheckDisk(const Options& options, CheckReport& report) {
  const absl::StatusOr<io::DiskMarks> marks =
      io::ParseDiskMarks(options.disk_low, options.disk_full);
  const absl::StatusOr<io::DiskSpace> space = io::SpaceOf(Existing(options.data_dir));
  if (!marks.ok() || !space.ok()) {
    report.Fail("disk", std::string(Message(marks.ok() ? space.status() : marks.status())),
                "see --disk-low, --disk-full and --data-dir");
    return;
  }
  const std::string text = fmt::format(
      "{} of {} free; told below {}, intake refused below {}", BytesText(space->free),
      BytesText(space->total), BytesText(marks->low.Of(*space)), BytesText(marks->full.Of(*space)));
  const char* advice = "`sftctl storage` shows what takes the room, `sftctl rm` removes it";
  switch (io::LevelOf(*space, *marks)) {
    case io::DiskLevel::kOk:
      return report.Ok("disk", text);
    case io::DiskLevel::kLow:
      return report.Warn("disk", text, advice);
    case io::DiskLevel::kFull:
      return report.Fail("disk", text, advice);
  }
}

void CheckDatabase(const Options& options, CheckReport& report) {
  const std::string path = options.data_dir + "/server.db";
  const absl::StatusOr<DatabaseState> state = CheckDatabaseFile(path, CheckDepth::kAll);
  const int newest = Migrations().back().version;
  if (absl::IsNotFound(state.status())) {
    return report.Ok("database",
                     fmt::format("none yet; the first start makes it with schema {}", newest));
  }
  if (!state.ok()) {
    return report.Fail("database", std::string(Message(state.status())),
                       "stop the server, move server.db* away, restore the last backup (sft-server "
                       "--restore)");
  }
  const std::string looked_at =
      fmt::format("{}, every page, row and index looked at: whole", BytesText(state->bytes));
  if (IsCopy(state->mark) && !options.accept_copy) {
    report.Fail("database", fmt::format("a copy of one that was in use; {}", looked_at),
                std::string(Message(RefuseCopy(path, state->mark))));
  } else if (state->schema > newest) {
    report.Fail("database",
                fmt::format("schema {}, this program knows up to {}", state->schema, newest),
                "start the newer sft-server that wrote it");
  } else if (state->schema < newest) {
    report.Warn("database", fmt::format("schema {} of {}; {}", state->schema, newest, looked_at),
                "the next start migrates it and keeps the one from before");
  } else {
    report.Ok("database", fmt::format("schema {}; {}", state->schema, looked_at));
  }
}

// OK when a server could listen there now.
absl::Status TryPort(const rpc::Endpoint& endpoint) {
  std::string host = endpoint.host;
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(endpoint.port);
  if (const int code = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); code != 0) {
    return InvalidArgument(fmt::format("{}: {}", endpoint.ToString(), gai_strerror(code)));
  }
  const io::UniqueFd socket_fd(
      socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, found->ai_protocol));
  const int on = 1;
  setsockopt(socket_fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const bool bound = bind(socket_fd.get(), found->ai_addr, found->ai_addrlen) == 0 &&
                     listen(socket_fd.get(), 1) == 0;
  const int error = errno;
  freeaddrinfo(found);
  return bound ? absl::OkStatus()
               : ErrnoStatus(fmt::format("cannot listen on {}", endpoint.ToString()), error);
}

void CheckPort(std::string_view name, const absl::StatusOr<rpc::Endpoint>& endpoint, bool held,
               CheckReport& report) {
  if (!endpoint.ok()) {
    report.Fail(name, std::string(Message(endpoint.status())), "give HOST:PORT");
    return;
  }
  const absl::Status free = TryPort(*endpoint);
  if (!free.ok() && held) {
    report.Ok(name, endpoint->ToString() + ", taken, as the server runs");
  } else {
    report.Take(name, free, endpoint->ToString() + " is free",
                "stop what listens there (ss -ltnp), or give another address");
  }
}

void CheckPorts(const Options& options, bool held, CheckReport& report) {
  const auto listen = rpc::ParseEndpoint(options.listen, /*allow_port_zero=*/true);
  CheckPort("listen", listen, held, report);
  if (options.http == "off")
    return report.Ok("http", "off: no /metrics, no /healthz, no OpenAI-compatible endpoint");
  if (listen.ok()) CheckPort("http", HttpEndpoint(*listen, options.http), held, report);
}

// All checks of what makes the server safe to reach from other machines.
void CheckSecurity(const Options& options, CheckReport& report) {
  const auto listen = rpc::ParseEndpoint(options.listen, /*allow_port_zero=*/true);
  if (!listen.ok()) return;
  if (rpc::IsLoopback(listen->host) && !options.require_token) {
    return report.Ok("security", "loopback: who is on this machine is trusted");
  }
  const auto certificate = CheckCredentials(options.data_dir, Clock::Real());
  if (!certificate.ok()) {
    report.Fail("security", std::string(Message(certificate.status())),
                "with this --listen the server starts with its keys alone");
  } else if (!certificate->has_value()) {
    report.Fail(
        "security",
        fmt::format("{} is served with TLS and tokens, and {}/tls is not there", listen->ToString(),
                    options.data_dir),
        fmt::format("`sft-server init --data-dir {} --name HOST` makes the keys; where they "
                    "were lost, put back the copy that you keep",
                    options.data_dir));
  } else {
    report.Ok("security", fmt::format("TLS and tokens; the server is {}, by a certificate until {}",
                                      fmt::join((*certificate)->names, ", "),
                                      FormatUtc((*certificate)->validity.to)));
  }
}

}  // namespace

int RunCheck(const Options& options) {
  CheckReport report;
  report.Ok("sft-server", kVersion);
  const bool held = IsHeld(options.data_dir);
  CheckFolder(options, held, report);
  CheckDisk(options, report);
  CheckDatabase(options, report);
  CheckPorts(options, held, report);
  CheckSecurity(options, report);
  if (UnixMicros(Clock::Real().Wall()) < kEarliestUs) {
    report.Fail("clock", FormatUtc(Clock::Real().Wall()), "set the clock: times are stored by it");
  }
  const std::string text = options.json ? report.Json() : report.Text();
  fputs(text.c_str(), stdout);
  return report.ExitCode();
}

}  // namespace sft::server
