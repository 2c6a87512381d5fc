#include "worker/daemon/torch_locator.h"

#include <fmt/format.h>

#include "common/io/file.h"
#include "worker/daemon/child_process.h"

namespace sft::worker {
namespace {

constexpr std::chrono::seconds kRankDeadline{30};
constexpr std::chrono::seconds kPythonDeadline{60};

// OK when the program starts, that is, when its libraries are found.
absl::Status TryRank(const std::string& rank_binary, const std::string& library_dir) {
  std::vector<std::string> env;
  if (!library_dir.empty()) env.push_back("LD_LIBRARY_PATH=" + library_dir);
  SFT_ASSIGN_OR_RETURN(const ChildResult result,
                       RunChild({rank_binary, "--version"}, env, kRankDeadline));
  if (result.ok()) return absl::OkStatus();
  return FailedPrecondition(fmt::format("{} --version: exit code {}, signal {}: {}", rank_binary,
                                        result.exit_code, result.signal,
                                        result.output.substr(0, 400)));
}

absl::StatusOr<std::string> AskPython() {
  SFT_ASSIGN_OR_RETURN(
      const ChildResult result,
      RunChild({"python3", "-c", "import torch,os;print(os.path.dirname(torch.__file__))"}, {},
               kPythonDeadline));
  if (!result.ok()) return NotFound("python3 has no torch: " + result.output.substr(0, 400));
  // Warnings come before the line that was asked for.
  const std::string text = result.output.substr(0, result.output.find_last_not_of("\r\n") + 1);
  return text.substr(text.rfind('\n') + 1);
}

// What a rank's LD_LIBRARY_PATH is: LibTorch's folder, and those of the CUDA libraries that its
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

absl::StatusOr<std::string> LocateTorch(const std::string& rank_binary,
                                        const std::string& torch_dir) {
  if (!torch_dir.empty()) {
    for (const std::string& dir : {torch_dir + "/lib", torch_dir + "/torch/lib", torch_dir}) {
      if (!io::Exists(dir + "/libtorch_cpu.so")) continue;
      SFT_RETURN_IF_ERROR(TryRank(rank_binary, dir));
      return LibraryPath(dir);
    }
    return NotFound(fmt::format("--torch {}: no lib/libtorch_cpu.so below it", torch_dir));
  }
  const absl::Status alone = TryRank(rank_binary, "");
  if (alone.ok()) return std::string();
  if (!absl::IsFailedPrecondition(alone)) return alone;  // the program itself is missing
  const absl::StatusOr<std::string> package = AskPython();
  if (!package.ok()) {
    return NotFound(
        fmt::format("ranks cannot start: {}; {}; give the folder of torch 2.11 with --torch DIR",
                    Message(alone), Message(package.status())));
  }
  SFT_RETURN_IF_ERROR(TryRank(rank_binary, *package + "/lib"));
  return LibraryPath(*package + "/lib");
}

}  // namespace sft::worker
