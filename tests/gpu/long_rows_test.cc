#include "tests/gpu/small_training.h"

// What lets long rows fit: what blocks keep in host memory, and feed-forward layers in tiles.

namespace sft::engine {
namespace {

using plan::Recompute;

class LongRowsTest : public SmallTrainingTest {
 protected:
  static spec::JobSpec Qlora() {
    spec::JobSpec job = Job(spec::Mode::kLora);
    job.training.use_qlora = true;
    job.quantization.bits = 4;
    return job;
  }

  static plan::ExecutionPlan RunOf(const spec::JobSpec& job, Recompute level, int64_t on_host,
                                   int64_t mlp_rows) {
    plan::ExecutionPlan run = plan::Unplanned(job, plan::Device::kGpu);
    run.deep = run.shallow = level;
    run.deep_layers = 4;
    run.kept_on_host = on_host;
    run.mlp_rows = mlp_rows;
    return run;
  }

  static void ExpectTheSame(const Outcome& a, const Outcome& b) {
    EXPECT_EQ(a.losses, b.losses);
    EXPECT_EQ(a.norms, b.norms);
    ASSERT_EQ(a.masters.size(), b.masters.size());
    for (size_t i = 0; i < a.masters.size(); ++i) {
      EXPECT_TRUE(SameBits(a.masters[i], b.masters[i])) << i;
    }
  }
};

TEST_F(LongRowsTest, HostMemoryGivesBackTheSameBits) {
  for (const spec::JobSpec& job : {Qlora(), Job(spec::Mode::kFullFinetune)}) {
    const Outcome plain = Train(job, 1e-3, RunOf(job, Recompute::kNothing, 0, 0));
    for (const Recompute level :
         {Recompute::kNorms, Recompute::kMlp, Recompute::kLinears, Recompute::kAll}) {
      for (const int64_t on_host : {0, 1, 3, 4}) {
        SCOPED_TRACE(testing::Message()
                     << plan::NameOf(level) << ", " << on_host << " on the host");
        ExpectTheSame(Train(job, 1e-3, RunOf(job, level, on_host, 0)), plain);
      }
    }
  }
}

TEST_F(LongRowsTest, InputsThatAreMadeAgainGiveTheSameBits) {
  for (const spec::JobSpec& job : {Qlora(), Job(spec::Mode::kFullFinetune)}) {
    const Outcome plain = Train(job, 1e-3, RunOf(job, Recompute::kNothing, 0, 0));
    for (const int64_t every : {2, 3, 8}) {
      for (const int64_t on_host : {0, 2, 4}) {
        SCOPED_TRACE(testing::Message() << every << ", " << on_host << " on the host");
        plan::ExecutionPlan run = RunOf(job, Recompute::kAll, on_host, 0);
        run.input_every = every;
        run.carried = job.full_finetune() ? 0 : 2;
        ExpectTheSame(Train(job, 1e-3, run), plain);
      }
    }
  }
}

// Sums over tokens are made tile by tile: in another order, and the same one in each run.
TEST_F(LongRowsTest, TilesOfTheFeedForwardLayerTrainAlikeAndRepeatably) {
  for (const spec::JobSpec& job : {Qlora(), Job(spec::Mode::kFullFinetune)}) {
    const Outcome plain = Train(job, 1e-3, RunOf(job, Recompute::kMlp, 0, 0));
    for (const Recompute level : {Recompute::kMlp, Recompute::kLinears, Recompute::kAll}) {
      SCOPED_TRACE(plan::NameOf(level));
      const plan::ExecutionPlan run = RunOf(job, level, 3, 24);
      const Outcome tiled = Train(job, 1e-3, run);
      ExpectTheSame(Train(job, 1e-3, run), tiled);
      // Rounding grows from update to update.
      EXPECT_NEAR(tiled.norms[0], plain.norms[0], 5e-3 * plain.norms[0]);
      for (size_t i = 0; i < plain.losses.size(); ++i) {
        EXPECT_NEAR(tiled.losses[i], plain.losses[i], (i == 0 ? 1e-4 : 1e-2) * plain.losses[i])
            << i;
      }
    }
  }
}

}  // namespace
}  // namespace sft::engine
