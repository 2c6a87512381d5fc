#include "client/base/data_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "common/io/file.h"
#include "common/io/model_folder.h"

namespace sft::client {
namespace {

std::string DataProgram() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    const std::filesystem::path beside = self.parent_path() / "sft-data";
    if (std::filesystem::exists(beside, error)) return beside.string();
  }
  return "sft-data";
}

// What a program's streams become.
class Streams {
 public:
  Streams() { posix_spawn_file_actions_init(&actions_); }
  ~Streams() { posix_spawn_file_actions_destroy(&actions_); }
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  // Both go into the pipe.
  void Keep(int into) {
    posix_spawn_file_actions_adddup2(&actions_, into, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, into, STDERR_FILENO);
  }
  const posix_spawn_file_actions_t* actions() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

std::string ReadPipe(int fd) {
  std::string all;
  std::array<char, 65536> buffer;
  for (;;) {
    const ssize_t got = read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return all;
    all.append(buffer.data(), static_cast<size_t>(got));
  }
}

}  // namespace

absl::StatusOr<DataProgramEnd> RunDataProgram(std::vector<std::string> arguments, bool keeps) {
  const std::string program = DataProgram();
  arguments.insert(arguments.begin(), program);
  std::vector<char*> words;
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  int pipe[2] = {-1, -1};
  if (keeps && pipe2(pipe, O_CLOEXEC) != 0) return ErrnoStatus("a pipe", errno);
  const io::UniqueFd from(pipe[0]);
  io::UniqueFd into(pipe[1]);
  Streams streams;
  if (keeps) streams.Keep(into.get());
  pid_t child = 0;
  const int failed =
      posix_spawnp(&child, program.c_str(), streams.actions(), nullptr, words.data(), environ);
  if (failed != 0) {
    return Annotate(ErrnoStatus(program, failed),
                    "it comes with sftctl and must stand beside it, or in a folder of PATH");
  }
  into = io::UniqueFd();
  DataProgramEnd end;
  if (keeps) end.said = ReadPipe(from.get());
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return Internal("sft-data was lost");
  }
  if (!WIFEXITED(status)) return Internal("sft-data was killed");
  end.code = WEXITSTATUS(status);
  return end;
}

bool HasTokenizer(const std::string& folder) {
  return io::FindTokenizer([&](std::string_view name) {
           return io::Exists(fmt::format("{}/{}", folder, name));
         }) != nullptr;
}

}  // namespace sft::client
