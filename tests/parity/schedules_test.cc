#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/spec/visit.h"
#include "worker/engine/optim/lr_schedule.h"

// Learning rates against transformers' schedules: goldens/schedules, made by schedules.py.

namespace sft::engine {
namespace {

spec::LrSettings SettingsOf(const nlohmann::json& run) {
  spec::LrSettings settings;
  EXPECT_TRUE(spec::ParseEnum(run.at("kind").get<std::string>(), &settings.kind));
  settings.warmup_steps = run.at("job_warmup_steps");
  const nlohmann::json& arguments = run.at("arguments");
  settings.num_cycles = arguments.value("num_cycles", settings.num_cycles);
  settings.power = arguments.value("power", settings.power);
  settings.end = arguments.value("lr_end", settings.end);
  settings.min = arguments.value("min_lr", settings.min);
  settings.min_ratio =
      arguments.value("min_lr_rate", arguments.value("min_lr_ratio", settings.min_ratio));
  settings.decay_steps = arguments.value("num_decay_steps", settings.decay_steps);
  if (arguments.contains("decay_type")) {
    EXPECT_TRUE(spec::ParseEnum(arguments.at("decay_type").get<std::string>(), &settings.decay));
  }
  return settings;
}

TEST(SchedulesParityTest, EveryStepHasTheRateOfTransformers) {
  std::ifstream file(SFT_PARITY_GOLDENS "/schedules/schedules.json");
  const nlohmann::json runs = nlohmann::json::parse(file);
  ASSERT_GE(runs.size(), 100u);
  for (const nlohmann::json& run : runs) {
    const double peak = run.at("peak");
    const LrSchedule schedule(SettingsOf(run), peak, run.at("warmup_ratio"), run.at("total"));
    EXPECT_EQ(schedule.warmup_steps(), run.at("warmup_steps"));
    const auto rates = run.at("rates").get<std::vector<double>>();
    for (size_t i = 0; i < rates.size(); ++i) {
      // The last bits of a factor near 1.
      EXPECT_NEAR(schedule.At(static_cast<int64_t>(i) + 1), rates[i], 1e-15 * peak)
          << run.at("kind") << " " << run.at("arguments") << ", " << run.at("total")
          << " steps, step " << i + 1;
    }
  }
}

}  // namespace
}  // namespace sft::engine
