#include "worker/node/torch_locator.h"

#include <fmt/format.h>

#include <csignal>
#include <cstring>

#include "common/base/utf8.h"
#include "common/io/file.h"
#include "worker/base/child_process.h"

namespace sft::worker {
namespace {

constexpr std::chrono::seconds kRankDeadline{30};
constexpr std::chrono::seconds kPythonDeadline{60};

// Exit code of a program for which the dynamic loader does not find a library.
constexpr int kNoLibrary = 127;
constexpr int kOutputLines = 3;
constexpr size_t kOutputBytes = 400;

// The last lines of a program's output, joined to one line.
std::string Tail(std::string_view output) {
  std::string tail;
  for (int lines = 0; lines < kOutputLines;) {
    const size_t end = output.find_last_not_of("\r\n");
    if (end == std::string_view::npos) break;
    output = output.substr(0, end + 1);
    const size_t newline = output.rfind('\n');
    const std::string_view line =
        newline == std::string_view::npos ? output : output.substr(newline + 1);
    tail = tail.empty() ? std::string(line) : fmt::format("{} / {}", line, tail);
    ++lines;
    if (newline == std::string_view::npos) break;
    output = output.substr(0, newline);
  }
  if (tail.size() > kOutputBytes) tail.erase(0, tail.size() - kOutputBytes);
  return tail.empty() ? "it wrote nothing" : ToUtf8(tail);
}

std::string HowItEnded(const ChildResult& result) {
  if (result.signal == 0) return fmt::format("ended with exit code {}", result.exit_code);
  return fmt::format("was killed by signal {} ({})", result.signal, strsignal(result.signal));
}

std::string WhatToDo(const ChildResult& result) {
  if (result.signal == SIGKILL) return "look in dmesg of the node whether memory ran out";
  if (result.signal != 0) return "run that on the node and look in its dmesg";
  if (result.exit_code == kNoLibrary) {
    return "it lacks that library: give the folder of torch 2.11 with --torch DIR";
  }
  return "run that on the node: is it the sft-rank of this version?";
}

// What follows "sft-rank " in a line of `--version`'s output.
std::string BuildOf(std::string_view output) {
  constexpr std::string_view kName = "sft-rank ";
  const size_t at = output.starts_with(kName) ? 0 : output.find("\nsft-rank ");
  if (at == std::string_view::npos) return "";
  const std::string_view line = output.substr(at + (at == 0 ? 0 : 1));
  return std::string(line.substr(kName.size(), line.find_first_of("\r\n") - kName.size()));
}

// The program's build when it starts, that is, when its libraries are found; NOT_FOUND when it
// lacks one; any other error says nothing about libraries.
absl::StatusOr<std::string> TryRank(const std::string& rank_binary, const std::string& library_dir,
                                    const std::optional<RankUser>& user) {
  std::vector<std::string> env;
  if (!library_dir.empty()) env.push_back("LD_LIBRARY_PATH=" + library_dir);
  const std::string what = fmt::format(
      "`{}{} --version`{}", library_dir.empty() ? "" : "LD_LIBRARY_PATH=" + library_dir + " ",
      rank_binary, user ? fmt::format(" as user {}", user->name) : "");
  const absl::StatusOr<ChildResult> result =
      RunChild({rank_binary, "--version"}, env, kRankDeadline, user);
  if (!result.ok()) {
    return FailedPrecondition(
        fmt::format("ranks cannot start: {}: {}; look at that program and at the load of the node, "
                    "or name another with --rank-binary",
                    what, Message(result.status())));
  }
  if (result->ok()) return BuildOf(result->output);
  const std::string text =
      fmt::format("ranks cannot start: {} {}: {}; {}", what, HowItEnded(*result),
                  Tail(result->output), WhatToDo(*result));
  const bool lacks = result->signal == 0 && result->exit_code == kNoLibrary;
  return lacks ? NotFound(text) : FailedPrecondition(text);
}

absl::StatusOr<std::string> AskPython(const std::optional<RankUser>& user) {
  SFT_ASSIGN_OR_RETURN(
      const ChildResult result,
      RunChild({"python3", "-c", "import torch,os;print(os.path.dirname(torch.__file__))"}, {},
               kPythonDeadline, user));
  if (!result.ok()) return NotFound("python3 has no torch: " + Tail(result.output));
  // Warnings may precede the expected line.
  const std::string text = result.output.substr(0, result.output.find_last_not_of("\r\n") + 1);
  return text.substr(text.rfind('\n') + 1);
}

// LD_LIBRARY_PATH of a rank: LibTorch's folder, and the folders of the CUDA libraries that its
// wheels put beside it, which the CUDA plugin needs itself and would not find through LibTorch.
std::string LibraryPath(const std::string& lib_dir) {
  std::string path = lib_dir;
  const std::string nvidia = lib_dir + "/../../nvidia";
  const absl::StatusOr<std::vector<std::string>> packages = io::ListDir(nvidia);
  if (!packages.ok()) return path;
  for (const std::string& package : *packages) {
    const std::string dir = fmt::format("{}/{}/lib", nvidia, package);
    if (io::IsDirectory(dir)) path += ":" + dir;
  }
  return path;
}

}  // namespace

absl::StatusOr<RankProgram> LocateTorch(const std::string& rank_binary,
                                        const std::string& torch_dir,
                                        const std::optional<RankUser>& user) {
  const RankRights rights(user);  // a file that they cannot see does not exist for them
  if (!torch_dir.empty()) {
    for (const std::string& dir : {torch_dir + "/lib", torch_dir + "/torch/lib", torch_dir}) {
      if (!io::Exists(dir + "/libtorch_cpu.so")) continue;
      SFT_ASSIGN_OR_RETURN(std::string build, TryRank(rank_binary, dir, user));
      return RankProgram{LibraryPath(dir), std::move(build)};
    }
    return NotFound(
        fmt::format("ranks cannot start: --torch {}: no lib/libtorch_cpu.so below it{}; give the "
                    "folder of torch "
                    "2.11 there",
                    torch_dir, user ? fmt::format(" that user {} can read", user->name) : ""));
  }
  absl::StatusOr<std::string> build = TryRank(rank_binary, "", user);
  if (build.ok()) return RankProgram{"", *std::move(build)};
  const absl::Status alone = build.status();
  // One that was killed, or failed otherwise, would not be helped by another torch.
  if (!absl::IsNotFound(alone)) return alone;
  const absl::StatusOr<std::string> package = AskPython(user);
  if (!package.ok()) {
    return NotFound(fmt::format("{}; {}", Message(alone), Message(package.status())));
  }
  build = TryRank(rank_binary, *package + "/lib", user);
  if (!build.ok()) return build.status();
  return RankProgram{LibraryPath(*package + "/lib"), *std::move(build)};
}

}  // namespace sft::worker
