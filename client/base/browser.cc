#include "client/base/browser.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/env.h"

namespace sft::client {
namespace {

constexpr char kOpener[] = "xdg-open";

}  // namespace

bool HasDesktop(const Console& console) {
  const auto set = [](const char* name) { return !GetEnv(name).value_or("").empty(); };
  return isatty(STDOUT_FILENO) == 1 && console.terminal && !set("SSH_CONNECTION") &&
         (set("DISPLAY") || set("WAYLAND_DISPLAY"));
}

bool OpenBrowser(const std::string& url) {
  std::string opener = kOpener, address = url;
  char* const words[] = {opener.data(), address.data(), nullptr};
  pid_t child = 0;
  if (::posix_spawnp(&child, kOpener, nullptr, nullptr, words, environ) != 0) return false;
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace sft::client
