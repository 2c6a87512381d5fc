#include "worker/daemon/confinement_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "common/io/file.h"

namespace sft::worker {
namespace {

using ::testing::HasSubstr;

// What is heard from a program that does this instead of asking the kernel.
absl::Status Heard(const std::string& script) {
  const std::string dir = io::MakeTempDir("confinement-probe").value();
  const std::string program = dir + "/sft-worker";
  EXPECT_TRUE(io::WriteFileAtomic(program, "#!/bin/sh\n" + script + "\n").ok());
  EXPECT_EQ(chmod(program.c_str(), 0755), 0);
  absl::Status heard = ProbeConfinement(program, std::nullopt);
  (void)io::RemoveAll(dir);
  return heard;
}

TEST(ConfinementProbeTest, WhatIsMissingIsHeardFromTheProcessThatAsked) {
  EXPECT_TRUE(Heard("test \"$1\" = probe-confinement").ok());
  const absl::Status none = Heard("echo the kernel has no Landlock; echo more; exit 1");
  EXPECT_TRUE(absl::IsFailedPrecondition(none));
  EXPECT_EQ(Message(none), "the kernel has no Landlock");
  EXPECT_THAT(std::string(Message(Heard("exit 3"))), HasSubstr("probe-confinement failed"));
  EXPECT_FALSE(ProbeConfinement("/no/such/sft-worker", std::nullopt).ok());
}

}  // namespace
}  // namespace sft::worker
