#include "worker/rank/step_profile.h"

#include <cstdlib>
#include <map>

#include "common/base/json.h"
#include "common/data/gzip_parts.h"
#include "common/io/file.h"
#include "tests/gpu/small_training.h"
#include "worker/channel/step_table.h"
#include "worker/engine/base/phase_span.h"

// What CUPTI gives of a training, as a job's profile has it.

namespace sft::engine {
namespace {

class StepProfileGpuTest : public SmallTrainingTest {
 protected:
  std::string Attempt() const { return dir_.string() + "-attempt"; }
  std::string Folder() const { return channel::RecordingFolder(Attempt(), "id", 0); }
  void TearDown() override {
    std::filesystem::remove_all(Attempt());
    SmallTrainingTest::TearDown();
  }

  // A whole training as each step; the third is the one that the table has.
  Outcome Recorded(const spec::JobSpec& job) const {
    rank::StepProfile profile({.rank = 0,
                               .device = "GPU",
                               .gpu = true,
                               .synchronize = [] { Plugin().devices->Synchronize(0); },
                               .attempt_dir = Attempt(),
                               .file = {}},
                              Clock::Real());
    channel::Command command;
    command.id = "id";
    command.steps = 1;
    profile.Ask(command);
    Outcome outcome;
    for (const int step : {5, 6, 7, 8}) {
      profile.OnPhase(TrainPhase::kStep);
      {
        const PhaseSpan span(kStepSpan, step);
        outcome = Train(job);
      }
      profile.OnPhase(TrainPhase::kStepDone);
    }
    return outcome;
  }

  nlohmann::json TraceOf(const channel::StepTable& table) const {
    data::GzipFrame frame;
    const std::string begin = frame.Begin(data::kTraceBegin);
    frame.Add({table.crc32, table.text_bytes});
    const std::string packed = Folder() + "/t.gz";
    EXPECT_TRUE(io::WriteFileAtomic(packed, begin + io::ReadFile(Folder() + "/trace").value() +
                                                frame.End(data::kTraceEnd))
                    .ok());
    EXPECT_EQ(std::system(("gzip -d " + packed).c_str()), 0);
    return ParseJson(io::ReadFile(Folder() + "/t").value());
  }
};

TEST_F(StepProfileGpuTest, KernelsAreFoundWithTheirPhasesAndTheTrainingIsTheSame) {
  const spec::JobSpec job = Job(spec::Mode::kFullFinetune);
  const Outcome plain = Train(job);
  ASSERT_TRUE(io::MakeDirs(Folder()).ok());
  const Outcome recorded = Recorded(job);
  EXPECT_EQ(plain.losses, recorded.losses);
  EXPECT_EQ(plain.norms, recorded.norms);
  for (size_t i = 0; i < plain.masters.size(); ++i) {
    EXPECT_TRUE(SameBits(plain.masters[i], recorded.masters[i])) << i;
  }

  const channel::StepTable table =
      channel::ParseStepTable(io::ReadFile(Folder() + "/table.json").value()).value();
  ASSERT_EQ(table.error, "");
  EXPECT_EQ(table.first_step, 7);
  EXPECT_EQ(table.steps, 1);
  std::map<std::string, double> shares;
  double sum = 0;
  for (const channel::TimeShare& share : table.shares) {
    shares[share.kind] = share.seconds;
    sum += share.seconds;
    printf("%-24s %8.3f ms\n", share.kind.c_str(), 1000 * share.seconds);
  }
  printf("of %.3f ms; the profiler took %.3f s\n", 1000 * table.seconds, table.stall);
  EXPECT_NEAR(sum, table.seconds, 1e-6);
  for (const char* kind : {"attention", "products", "norms and element-wise", "optimizer"}) {
    EXPECT_GT(shares[kind], 0) << kind;
  }

  std::map<std::string, int> categories;
  int placed = 0, kernels = 0;
  const nlohmann::json trace = TraceOf(table);
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++categories[event["cat"]];
    if (event["cat"] != "kernel") continue;
    ++kernels;
    placed += event.contains("args");
  }
  for (const char* category : {"phase", "cuda_runtime", "kernel", "gpu_memcpy"}) {
    EXPECT_GT(categories[category], 0) << category;
  }
  EXPECT_EQ(categories["operation"], 0) << "they would slow what the host launches";
  EXPECT_GT(placed, kernels / 2) << "kernels know the phase that launched them";
}

}  // namespace
}  // namespace sft::engine
