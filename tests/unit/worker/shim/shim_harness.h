#pragma once

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "common/io/file.h"
#include "worker/channel/launch.h"

namespace sft::shim {

// An attempt's folder with shell scripts as ranks. Ranks and test meet in named pipes, whose
// opening waits for the other side, so that nothing here depends on time.
class ShimHarness : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = *io::MakeTempDir("sft-shim-test");
    // A daemonised shim becomes this process's child, so the test can wait for its end.
    ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    ASSERT_EQ(mkfifo(Fifo().c_str(), 0600), 0);
    launch_.attempt_uid = "a-1";
    launch_.epoch = 3;
    launch_.attempt_dir = dir_;
    launch_.socket_path = dir_ + "/control";
    launch_.grace_seconds = 20;
  }
  void TearDown() override { ASSERT_TRUE(io::RemoveAll(dir_).ok()); }

  std::string Fifo() const { return dir_ + "/meet"; }

  void AddRank(const std::string& script) {
    const int rank = static_cast<int>(launch_.ranks.size());
    launch_.ranks.push_back(
        {"rank-" + std::to_string(rank), rank, {"/bin/sh", "-c", script}, {{"MEET", Fifo()}}});
  }
  void SetPrepare(const std::string& script) {
    launch_.prepare = {"prepare", -1, {"/bin/sh", "-c", script}, {{"MEET", Fifo()}}};
  }

  // Waits for the text that a rank writes into the named pipe.
  std::string Meet() const {
    std::ifstream pipe(Fifo());
    std::string text;
    std::getline(pipe, text);
    return text;
  }

  // Runs `sft-shim --launch` until it has detached; returns its exit code.
  int StartShim() {
    EXPECT_TRUE(io::WriteFileAtomic(dir_ + "/shim.json", ToJson(launch_)).ok());
    const pid_t pid = fork();
    if (pid == 0) {
      const std::string program = SFT_BINARY_DIR "/bin/sft-shim";
      execl(program.c_str(), program.c_str(), "--launch", (dir_ + "/shim.json").c_str(), nullptr);
      _exit(127);
    }
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return WEXITSTATUS(status);
  }

  channel::ShimStatus Status() const {
    const absl::StatusOr<std::string> text = io::ReadFile(dir_ + "/status.json");
    EXPECT_TRUE(text.ok()) << text.status();
    const absl::StatusOr<channel::ShimStatus> status = channel::ParseShimStatus(*text);
    EXPECT_TRUE(status.ok()) << status.status();
    return *status;
  }

  // Waits for the daemon's end.
  channel::ShimStatus WaitForEnd() const {
    int status = 0;
    const pid_t pid = static_cast<pid_t>(Status().shim_pid);
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    return Status();
  }

  std::string Read(const std::string& name) const {
    return io::ReadFile(dir_ + "/" + name).value_or("(missing)");
  }

  // Sends raw text to the control socket and returns the first answer line.
  std::string Send(const std::string& text) const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    strcpy(address.sun_path, launch_.socket_path.c_str());
    const io::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM, 0));
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_TRUE(io::WriteAll(fd.get(), text, "control").ok());
    std::string line;
    char byte = 0;
    while (read(fd.get(), &byte, 1) == 1 && byte != '\n') line += byte;
    return line;
  }
  channel::Answer Send(const channel::Command& command) const {
    return channel::ParseAnswer(Send(ToLine(command))).value_or(channel::Answer{});
  }

  std::string dir_;
  channel::ShimLaunch launch_;
};

}  // namespace sft::shim
