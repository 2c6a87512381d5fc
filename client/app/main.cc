#include <sys/ioctl.h>
#include <unistd.h>

#include <iostream>

#include "client/app/app.h"
#include "client/base/interrupt.h"

int main(int argc, char** argv) {
  using namespace sft::client;
  Interrupt::Install();
  Console console{std::cout, std::cerr, isatty(STDERR_FILENO) == 1, 80, isatty(STDOUT_FILENO) == 1};
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) console.width = size.ws_col;
  const Connect connect = [&](const std::string& flag) -> std::unique_ptr<Connection> {
    const absl::StatusOr<ServerAddress> server = ResolveServer(flag);
    if (!server.ok()) {
      console.err << "sftctl: " << server.status().message() << "\n";
      return nullptr;
    }
    std::vector<ServerCandidate> candidates = CandidatesOf(server->address);
    auto connection = std::make_unique<Connection>(
        candidates.front().address, candidates.front().security, console, sft::Clock::Real());
    connection->SetCandidates(std::move(candidates));
    connection->NameOrigin(server->origin);
    return connection;
  };
  return RunApp(argc, argv, console, connect);
}
